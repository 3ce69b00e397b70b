//! The long-mode formats of AMD64: the hypervisor's own tables, and nested tables.
//!
//! Layout after the AMD64 Architecture Programmer's Manual, volume 2 (rev. 3.42): 5.3 "Long-Mode Page
//! Translation", 5.4 "Page-Translation-Table Entry Fields", 15.25 "Nested Paging".

use crate::{Format, Level, Permissions, PhysAddr};

pub(crate) mod bits {
    //! Bits of an entry, APM volume 2, 5.4.1.

    pub(crate) const PRESENT: u64 = 1 << 0;
    pub(crate) const WRITE: u64 = 1 << 1;
    pub(crate) const USER: u64 = 1 << 2;
    /// PWT and PCD together select PAT entry 3, which is uncacheable unless it was reprogrammed.
    pub(crate) const UNCACHED: u64 = 1 << 3 | 1 << 4;
    pub(crate) const ACCESSED: u64 = 1 << 5;
    pub(crate) const DIRTY: u64 = 1 << 6;
    /// In an entry above the last level: a leaf.
    pub(crate) const LARGE: u64 = 1 << 7;
    pub(crate) const GLOBAL: u64 = 1 << 8;
    pub(crate) const NO_EXECUTE: u64 = 1 << 63;
    /// Bits 51:12.
    pub(crate) const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
}

use bits::{ACCESSED, ADDRESS, DIRTY, GLOBAL, LARGE, NO_EXECUTE, PRESENT, UNCACHED, USER, WRITE};

fn is_present(entry: u64) -> bool {
    entry & PRESENT != 0
}

fn is_leaf(entry: u64, level: Level) -> bool {
    level == Level::Page4K || entry & LARGE != 0
}

/// Masks the PAT bit of a large leaf (bit 12) along with the offset.
fn address(entry: u64, alignment: Level) -> PhysAddr {
    PhysAddr(entry & ADDRESS).align_down(alignment)
}

/// Accessed is set beforehand, and dirty where stores are allowed: the processor would only spend a
/// locked update on each. A dirty leaf that refuses stores would be a shadow stack under CR4.CET.
fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
    let mut entry = pa.0 & ADDRESS | PRESENT | ACCESSED;
    if level != Level::Page4K {
        entry |= LARGE;
    }
    if permissions.contains(Permissions::WRITE) {
        entry |= WRITE | DIRTY;
    }
    if !permissions.contains(Permissions::EXECUTE) {
        entry |= NO_EXECUTE;
    }
    if permissions.contains(Permissions::DEVICE) {
        entry |= UNCACHED;
    }
    entry
}

fn permissions(entry: u64) -> Permissions {
    let mut permissions = Permissions::READ;
    permissions.set(Permissions::WRITE, entry & WRITE != 0);
    permissions.set(Permissions::EXECUTE, entry & NO_EXECUTE == 0);
    permissions.set(Permissions::DEVICE, entry & UNCACHED == UNCACHED);
    permissions
}

/// The hypervisor's own four-level tables. EFER.NXE and CR0.WP must be set.
///
/// Leaves are for the supervisor and global, there being one address space only; and writable ones are
/// never executable (W^X).
#[derive(Clone, Copy, Debug)]
pub struct Amd64Host;

impl Format for Amd64Host {
    const INPUT_BITS: u32 = 48;
    const SIGN_EXTENDED: bool = true;
    const OUTPUT_BITS: u32 = 52;
    const ROOT: Level = Level::Page512G;
    const LARGEST: Level = Level::Page1G;
    const HARDWARE_SET: u64 = ACCESSED | DIRTY;

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
            && !permissions.contains(Permissions::WRITE.union(Permissions::EXECUTE))
    }

    fn is_present(entry: u64) -> bool {
        is_present(entry)
    }

    fn is_leaf(entry: u64, level: Level) -> bool {
        is_leaf(entry, level)
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        leaf(pa, level, permissions) | GLOBAL
    }

    fn table(pa: PhysAddr) -> u64 {
        pa.0 & ADDRESS | PRESENT | WRITE | ACCESSED
    }

    fn address(entry: u64, alignment: Level) -> PhysAddr {
        address(entry, alignment)
    }

    fn permissions(entry: u64) -> Permissions {
        permissions(entry)
    }
}

/// Nested tables (NPT): guest physical to physical. The host's EFER.NXE must be set at VMRUN.
///
/// The nested walk counts as a user access whatever the guest's privilege (APM volume 2, 15.25.5), so
/// every entry is a user's. The global bit has no meaning here.
#[derive(Clone, Copy, Debug)]
pub struct Amd64Nested;

impl Format for Amd64Nested {
    const INPUT_BITS: u32 = 48;
    const SIGN_EXTENDED: bool = false;
    const OUTPUT_BITS: u32 = 52;
    const ROOT: Level = Level::Page512G;
    const LARGEST: Level = Level::Page1G;
    const HARDWARE_SET: u64 = ACCESSED | DIRTY;

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
    }

    fn is_present(entry: u64) -> bool {
        is_present(entry)
    }

    fn is_leaf(entry: u64, level: Level) -> bool {
        is_leaf(entry, level)
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        leaf(pa, level, permissions) | USER
    }

    fn table(pa: PhysAddr) -> u64 {
        pa.0 & ADDRESS | PRESENT | WRITE | USER | ACCESSED
    }

    fn address(entry: u64, alignment: Level) -> PhysAddr {
        address(entry, alignment)
    }

    fn permissions(entry: u64) -> Permissions {
        permissions(entry)
    }
}

const _: () = {
    const FLAGS: u64 = PRESENT | WRITE | USER | UNCACHED | ACCESSED | DIRTY | LARGE | GLOBAL | NO_EXECUTE;
    assert!(FLAGS & ADDRESS == 0, "flags and address are apart");
    assert!(PRESENT & Level::Page4K.offset_mask() != 0, "a page-aligned link is absent");
    assert!(ADDRESS >> Level::Page4K.shift() == (1 << (Amd64Host::OUTPUT_BITS - 12)) - 1);
    assert!(Amd64Host::ROOT.shift() + 9 == Amd64Host::INPUT_BITS, "the root covers the input");
    assert!(Amd64Nested::ROOT.shift() + 9 == Amd64Nested::INPUT_BITS);
    assert!(Amd64Nested::OUTPUT_BITS == Amd64Host::OUTPUT_BITS);
};
