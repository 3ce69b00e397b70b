//! The software inside the machine: the Linux kernel and busybox from the distribution's packages,
//! and the initial RAM disk made of them.

pub(crate) mod cache;
pub(crate) mod cpio;
pub(crate) mod initramfs;
pub(crate) mod kernel;
pub(crate) mod peer;
pub(crate) mod vmm;
