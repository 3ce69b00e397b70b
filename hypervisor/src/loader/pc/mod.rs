//! Kernels of a PC: a Linux bzImage, an ELF with a PVH note, and the memory layout for both.

pub(super) mod bzimage;
pub(super) mod elf_pvh;
pub mod layout;
