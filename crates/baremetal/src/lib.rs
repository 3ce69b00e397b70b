//! What programs for bare x86-64 machines share.
//!
//! An image names its main function with `entry!`, is linked by `image.ld` of this crate, and is then
//! started by any loader that knows PVH (QEMU's `-kernel`, Quell, Xen) or Multiboot 2 (GRUB). The host tool makes a
//! bzImage of it for loaders that know Linux only. Main runs on the first processor in long mode with memory below
//! 4 GiB mapped one to one, with its own descriptor tables, and with interrupts off.
//!
//! On any target but bare x86-64 the crate has no more than [`pages`] and [`sleep`]: the rest is assembly for a fixed
//! address.
#![no_std]

pub mod pages;
pub mod sleep;

#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub mod x86_64;
