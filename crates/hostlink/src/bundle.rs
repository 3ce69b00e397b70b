//! The bundle: one tar archive, handed to the hypervisor as its only boot module.
//!
//! | member | what it holds | required |
//! |---|---|---|
//! | [`CONFIG`] | the configuration, as [`crate::config`] describes | yes |
//! | [`KERNEL`] | the guest's kernel: a Linux bzImage or a 64-bit ELF with a PVH note; on Arm an uncompressed arm64 `Image` | yes |
//! | [`INITRD`] | the guest's initial RAM disk, unchanged | no |
//! | [`SYMBOLS`] | the hypervisor's own symbols for backtraces: lines of `ADDRESS NAME`, the address in hexadecimal without prefix, sorted by it | no |

/// Name of the member with the configuration.
pub const CONFIG: &str = "config";
/// Name of the member with the guest's kernel.
pub const KERNEL: &str = "kernel";
/// Name of the member with the guest's initial RAM disk.
pub const INITRD: &str = "initrd";
/// Name of the member with the hypervisor's symbols.
pub const SYMBOLS: &str = "symbols";
