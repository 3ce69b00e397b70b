//! Code shared by images for bare x86-64 and Arm64 machines: Quell itself, its checks, the guests
//! of its tests, and what starts guests from their disks.
//!
//! A program names its main function with `entry!` and is linked by the linker script that
//! `link.rs`, the build script of all of them, chooses: `image.ld` for x86-64, `image-aarch64.ld`
//! for Arm64. Main runs on the first processor with memory mapped one to one, with its own
//! descriptor and page tables, and with interrupts off.
//!
//! The hypervisor initialises things in its own order, and uses the parts. For that, the entry code
//! (`x86_64_entry_code!`, `image_header!`, `enable_mmu!`) and the interrupt stubs
//! (`interrupt_stubs!`) are macros, since each exists once in an image and calls the image's own
//! functions; unused parts are not linked.
//!
//! On x86-64 any loader that supports PVH (QEMU's `-kernel`, Quell, Xen) or Multiboot 2 (GRUB)
//! starts the image; the host tool makes a bzImage of it for loaders that support only Linux. On
//! Arm64 it is started like Linux: the flat binary has the header of an arm64 `Image`.
//!
//! On all other targets the crate has only `devicetree`, [`encodings`], [`HardwareId`], [`keys`],
//! `moment`, [`nvme`], [`pages`], [`pm_timer`], [`random`], [`screen`], [`sleep`], [`startup`],
//! [`stops`], [`text`], [`uart16550`], [`verdict`] and [`watch`]: the rest is assembly for the
//! machine.
#![no_std]

#[cfg(not(target_os = "none"))]
extern crate std;

#[cfg(not(all(target_os = "none", target_arch = "x86_64")))]
pub mod devicetree;
pub mod encodings;
mod hardware_id;
pub mod keys;
#[cfg(not(target_os = "none"))]
pub mod moment;
pub mod nvme;
pub mod pages;
pub mod pm_timer;
pub mod random;
pub mod screen;
pub mod sleep;
pub mod startup;
pub mod stops;
pub mod text;
pub mod uart16550;
pub mod verdict;
pub mod watch;

#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub mod aarch64;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
mod clock;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod fixups;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod handlers;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod pci;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod processors;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod report;
#[cfg(all(target_os = "none", any(target_arch = "x86_64", target_arch = "aarch64")))]
pub mod walk;
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub mod x86_64;

pub use hardware_id::HardwareId;

/// The machine's own architecture, for programs that are built for both: modules with the same name
/// have the same function.
#[cfg(all(target_os = "none", target_arch = "aarch64"))]
pub use aarch64 as arch;
/// The machine's own architecture, for programs that are built for both: modules with the same name
/// have the same function.
#[cfg(all(target_os = "none", target_arch = "x86_64"))]
pub use x86_64 as arch;
