//! The long-mode formats of AMD64: the hypervisor's own tables, nested tables, and a guest's.
//!
//! Layout according to the AMD64 Architecture Programmer's Manual, volume 2 (rev. 3.42): 5.3
//! "Long-Mode Page Translation", 5.4 "Page-Translation-Table Entry Fields", 15.25 "Nested Paging".

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

/// Sets accessed in advance, and dirty where stores are allowed and not tracked: otherwise the
/// processor would only spend a locked update on each. A dirty leaf that refuses stores would be a
/// shadow stack under CR4.CET.
fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
    let mut entry = pa.0 & ADDRESS | PRESENT | ACCESSED;
    if level != Level::Page4K {
        entry |= LARGE;
    }
    if permissions.contains(Permissions::WRITE) {
        entry |= WRITE;
        if !permissions.contains(Permissions::TRACKED) {
            entry |= DIRTY;
        }
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

/// The parts that all AMD64 formats share.
macro_rules! long_mode {
    ($write:expr) => {
        // A processor that holds the large page uses the same translations as its pieces provide,
        // until a flush of any address in it removes it (APM volume 2, 5.5.3 "TLB Management").
        x86!(PRESENT, $write);

        fn is_present(entry: u64) -> bool {
            entry & PRESENT != 0
        }
    };
}

/// The hypervisor's own four-level tables. EFER.NXE and CR0.WP must be set.
///
/// Leaves are supervisor-only and global, since there is only one address space; writable ones are
/// never executable (W^X).
#[derive(Clone, Copy, Debug)]
pub struct Amd64Host;

impl Format for Amd64Host {
    const SIGN_EXTENDED: bool = true;

    long_mode!(WRITE);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
            && !permissions.contains(Permissions::WRITE.union(Permissions::EXECUTE))
            && !permissions.intersects(Permissions::USER.union(Permissions::GLOBAL))
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        leaf(pa, level, permissions) | GLOBAL
    }

    fn table(pa: PhysAddr, _: Level) -> u64 {
        pa.0 & ADDRESS | PRESENT | WRITE | ACCESSED
    }

    fn permissions(leaf: u64) -> Permissions {
        permissions(leaf)
    }
}

/// Nested tables (NPT): guest physical to physical. The host's EFER.NXE must be set at VMRUN.
///
/// The nested walk counts as a user access whatever the guest's privilege (APM volume 2, 15.25.5),
/// so every entry allows user access. The global bit has no meaning here.
///
/// The tables are an IOMMU's as well (AMD I/O Virtualization Technology Specification, 48882,
/// 2.2.3): what it reads are bits that the processor ignores in nested tables. So the devices that
/// a guest owns translate by the tables of its vCPUs.
#[derive(Clone, Copy, Debug)]
pub struct Amd64Nested;

impl Amd64Nested {
    /// The level of the table that an entry points to, from 1; 0 in leaves.
    const NEXT_LEVEL_SHIFT: u32 = 9;
    /// Devices may read.
    const DEVICES_READ: u64 = 1 << 61;
    /// Devices may write.
    const DEVICES_WRITE: u64 = 1 << 62;
}

impl Format for Amd64Nested {
    const SIGN_EXTENDED: bool = false;

    long_mode!(WRITE | Self::DEVICES_WRITE);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
            && !permissions.intersects(Permissions::USER.union(Permissions::GLOBAL))
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        let writes = permissions.contains(Permissions::WRITE);
        let devices = Self::DEVICES_READ | if writes { Self::DEVICES_WRITE } else { 0 };
        leaf(pa, level, permissions) | USER | devices
    }

    fn table(pa: PhysAddr, level: Level) -> u64 {
        let next = (level as u64) << Self::NEXT_LEVEL_SHIFT;
        let devices = Self::DEVICES_READ | Self::DEVICES_WRITE | next;
        pa.0 & ADDRESS | PRESENT | WRITE | USER | ACCESSED | devices
    }

    fn permissions(leaf: u64) -> Permissions {
        permissions(leaf)
    }
}

/// Tables of an operating system: user and supervisor pages, global or not. EFER.NXE must be set.
///
/// For kernels, and for simulated guests in tests.
#[derive(Clone, Copy, Debug)]
pub struct Amd64Guest;

impl Format for Amd64Guest {
    const SIGN_EXTENDED: bool = true;

    long_mode!(WRITE);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        let user = if permissions.contains(Permissions::USER) { USER } else { 0 };
        let global = if permissions.contains(Permissions::GLOBAL) { GLOBAL } else { 0 };
        leaf(pa, level, permissions) | user | global
    }

    fn table(pa: PhysAddr, _: Level) -> u64 {
        pa.0 & ADDRESS | PRESENT | WRITE | USER | ACCESSED
    }

    fn permissions(leaf: u64) -> Permissions {
        let mut permissions = permissions(leaf);
        permissions.set(Permissions::USER, leaf & USER != 0);
        permissions.set(Permissions::GLOBAL, leaf & GLOBAL != 0);
        permissions
    }
}

const _: () = {
    const FLAGS: u64 = PRESENT | WRITE | USER | UNCACHED | ACCESSED | DIRTY | LARGE | GLOBAL | NO_EXECUTE;
    assert!(FLAGS & ADDRESS == 0, "flags and address are apart");
    assert!(PRESENT & 7 != 0, "what the walker keeps in absent entries is absent");
    assert!(ADDRESS >> Level::Page4K.shift() == (1 << (Amd64Host::OUTPUT_BITS - 12)) - 1);
};

#[cfg(not(loom))]
const _: () = {
    use crate::addr::INDEX_BITS;
    assert!(Amd64Host::ROOT.shift() + INDEX_BITS == Amd64Host::INPUT_BITS, "the root covers the input");
    assert!(Amd64Nested::ROOT.shift() + INDEX_BITS == Amd64Nested::INPUT_BITS);
    assert!(Amd64Guest::ROOT.shift() + INDEX_BITS == Amd64Guest::INPUT_BITS);
};
