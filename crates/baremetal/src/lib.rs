//! What images for bare x86-64 and Arm64 machines share: Quell itself, its checks, and the guests
//! of its tests.
//!
//! A program names its main function with `entry!` and is linked by the linker script that
//! `link.rs` chooses, the build script of all of them: `image.ld` for x86-64, `image-aarch64.ld`
//! for Arm64. Main runs on the first processor with memory mapped one to one, with its own tables
//! of everything, and with interrupts off.
//!
//! The hypervisor has an order of its own in which things are brought up, and uses the parts: the
//! entry code (`x86_64_entry_code!`, `image_header!`, `enable_mmu!`) and the interrupt stubs
//! (`interrupt_stubs!`) are macros for that, since an image has them once, with its own functions
//! behind them; what is not used is not linked.
//!
//! On x86-64 any loader starts the image that knows PVH (QEMU's `-kernel`, Quell, Xen) or Multiboot
//! 2 (GRUB); the host tool makes a bzImage of it for loaders that know Linux only. On Arm64 it is
//! started as Linux is: the flat binary has the header of an arm64 `Image`.
//!
//! On any target but these two the crate has no more than `devicetree`, [`pages`], [`random`],
//! [`sleep`], [`startup`], [`text`], [`uart16550`], [`verdict`] and [`watch`]: the rest is assembly
//! for the machine.
#![no_std]

#[cfg(test)]
extern crate std;

#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
pub mod devicetree;
pub mod pages;
pub mod random;
pub mod sleep;
pub mod startup;
pub mod text;
pub mod uart16550;
pub mod verdict;
pub mod watch;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub mod aarch64;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod fixups;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod handlers;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod processors;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub mod x86_64;

/// The machine's own architecture, for programs that are built for both: modules of the same name
/// do the same.
#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub use aarch64 as arch;
/// The machine's own architecture, for programs that are built for both: modules of the same name
/// do the same.
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub use x86_64 as arch;
