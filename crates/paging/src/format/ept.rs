//! Intel's extended page tables.
//!
//! Layout according to the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 3C:
//! 29.3.2 "EPT Translation Mechanism", 29.3.3.1 "EPT Misconfigurations", 29.3.5 "Accessed and Dirty
//! Flags for EPT", 29.3.7 "EPT and Memory Typing"; appendix A.10 "VPID and EPT Capabilities".

use crate::{Format, Level, Permissions, PhysAddr};

const READ: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const EXECUTE: u64 = 1 << 2;
/// The memory type of a leaf; 0 is uncacheable. The guest's PAT has a say as well: bit 6 is clear.
const MEMORY: u64 = 0b111 << 3;
const WRITE_BACK: u64 = 6 << 3;
/// In an entry above the last level: a leaf.
const LARGE: u64 = 1 << 7;
const ACCESSED: u64 = 1 << 8;
const DIRTY: u64 = 1 << 9;
/// Bits 51:12.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;

/// Nested tables (EPT) of four levels: guest physical to physical.
///
/// A [mark](crate::PageTable::mark) is an entry that allows stores alone: an access there ends in
/// an EPT misconfiguration, which says at once that there was no memory. No processor caches it, so
/// what takes its place owes no flush.
///
/// With accessed and dirty bits a processor's walk of the guest's own tables counts as a store to
/// them: where they lie in read-only memory, it ends in an EPT violation.
#[derive(Clone, Copy, Debug)]
pub struct Ept;

impl Ept {
    /// Bits of IA32_VMX_EPT_VPID_CAP without which the tables cannot be walked: walks of four
    /// levels, in write-back memory; accessed and dirty bits.
    const NEEDED: u64 = 1 << 6 | 1 << 14 | 1 << 21;

    /// The EPTP for the tables with this root, or `None` if the processor cannot walk them.
    /// `capabilities` is IA32_VMX_EPT_VPID_CAP. Translations are tagged with the root's address.
    pub const fn pointer(root: PhysAddr, capabilities: u64) -> Option<u64> {
        const LEVELS: u64 = 4;
        const USES_DIRTY: u64 = 1 << 6;
        let is_able = capabilities & Self::NEEDED == Self::NEEDED;
        if is_able { Some(root.0 & ADDRESS | USES_DIRTY | (LEVELS - 1) << 3 | 6) } else { None }
    }

    /// The largest page that a guest may get. Processors without IF_PSCHANGE_MC_NO (bit 6 of
    /// IA32_ARCH_CAPABILITIES) may stop with a machine check when a guest changes the size of a
    /// page that it executes (CVE-2018-12207), unless all that it may execute is in small pages.
    pub const fn largest(capabilities: u64, has_pschange_mc_no: bool) -> Level {
        match (capabilities >> 16 & 0b11, has_pschange_mc_no) {
            (0b11, true) => Level::Page1G,
            (0b01, true) => Level::Page2M,
            _ => Level::Page4K,
        }
    }
}

impl Format for Ept {
    const SIGN_EXTENDED: bool = false;
    const MARK: u64 = WRITE;

    // An INVEPT drops a page and its pieces.
    x86!(READ, WRITE);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
            && !permissions.intersects(Permissions::USER.union(Permissions::GLOBAL))
    }

    /// Any right makes an entry present, except for that to store alone.
    fn is_present(entry: u64) -> bool {
        entry & (READ | EXECUTE) != 0
    }

    /// Accessed and dirty in advance, as in AMD64's leaves.
    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        let mut entry = pa.0 & ADDRESS | READ | ACCESSED;
        if level != Level::Page4K {
            entry |= LARGE;
        }
        if permissions.contains(Permissions::WRITE) {
            let is_tracked = permissions.contains(Permissions::TRACKED);
            entry |= if is_tracked { WRITE } else { WRITE | DIRTY };
        }
        if permissions.contains(Permissions::EXECUTE) {
            entry |= EXECUTE;
        }
        if !permissions.contains(Permissions::DEVICE) {
            entry |= WRITE_BACK;
        }
        entry
    }

    fn table(pa: PhysAddr, _: Level) -> u64 {
        pa.0 & ADDRESS | READ | WRITE | EXECUTE | ACCESSED
    }

    fn permissions(leaf: u64) -> Permissions {
        let mut permissions = Permissions::empty();
        permissions.set(Permissions::READ, leaf & READ != 0);
        permissions.set(Permissions::WRITE, leaf & WRITE != 0);
        permissions.set(Permissions::EXECUTE, leaf & EXECUTE != 0);
        permissions.set(Permissions::DEVICE, leaf & MEMORY == 0);
        permissions
    }
}

const _: () = {
    const FLAGS: u64 = READ | WRITE | EXECUTE | MEMORY | LARGE | ACCESSED | DIRTY;
    assert!(FLAGS & ADDRESS == 0 && WRITE_BACK & !MEMORY == 0, "flags and address are apart");
    assert!(Ept::MARK & (READ | EXECUTE) == 0, "no processor follows a mark");
    assert!(ADDRESS >> Level::Page4K.shift() == (1 << (Ept::OUTPUT_BITS - 12)) - 1);
};

#[cfg(not(loom))]
const _: () =
    assert!(Ept::ROOT.shift() + crate::addr::INDEX_BITS == Ept::INPUT_BITS, "the root covers the input");
