//! The formats of Arm's VMSAv8-64 with the 4 KiB granule: stage 2, and stage 1 of EL1&0.
//!
//! Layout according to the Arm Architecture Reference Manual for A-profile (DDI 0487 M.b): D8.3.1
//! "VMSAv8-64 descriptor formats" (tables D8-50 to D8-55), D8.4 "Memory access control", D8.5.2.1
//! "Hardware management of the dirty state", D8.6 "Memory region attributes", D8.17.1 "Using
//! break-before-make when updating translation table entries".
//!
//! Output addresses have 48 bits (the DS fields of VTCR_EL2 and TCR_EL1 are 0), and permissions are
//! direct. The contiguous hint, concatenated root tables, and hierarchical attributes are not used.
//!
//! The dirty state is a right, not a bit: a leaf that allows stores is *writable-clean* if DBM is
//! set and the processor has yet to give itself the right, which it does at the first store. That
//! needs FEAT_HAFDBS, enabled in VTCR_EL2.HD or TCR_EL1.HD. Without it, do not track stores by
//! leaves ([`Permissions::TRACKED`], [`Editor::clean`](crate::Editor::clean)), but write-protect
//! them. A dirty leaf that loses the right to store keeps its dirty state in a software bit.

use crate::{Format, Level, Permissions, PhysAddr};

const VALID: u64 = 1 << 0;
/// A table above the last level, and a page in it; a block has it clear. D8.3.1.2.
const TABLE_OR_PAGE: u64 = 1 << 1;
/// Inner shareable.
const SHAREABLE: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;
/// The dirty bit modifier: the processor may make the leaf writable-dirty.
const DIRTY_MODIFIER: u64 = 1 << 51;
/// One of bits 58:55, which are left to software: the leaf was dirty before it lost the right to
/// store.
const WAS_DIRTY: u64 = 1 << 55;
/// Bits 47:12.
const ADDRESS: u64 = 0x0000_ffff_ffff_f000;

/// Stage 2 only.
mod stage2 {
    /// MemAttr, with HCR_EL2.FWB 0: Normal, inner and outer write-back.
    pub(super) const NORMAL: u64 = 0b1111 << 2;
    /// MemAttr, with HCR_EL2.FWB 1: Normal, write-back, whatever stage 1 says.
    pub(super) const NORMAL_FORCED: u64 = 0b0110 << 2;
    /// MemAttr, whatever HCR_EL2.FWB is: Device-nGnRE.
    pub(super) const DEVICE: u64 = 0b0001 << 2;
    pub(super) const MEMORY: u64 = 0b1111 << 2;
    /// `S2AP[0]`.
    pub(super) const READ: u64 = 1 << 6;
    /// `S2AP[1]`.
    pub(super) const WRITE: u64 = 1 << 7;
    /// XN, or `XN[1:0]` = 0b10 with FEAT_XNX: neither EL1 nor EL0 executes.
    pub(super) const NO_EXECUTE: u64 = 0b10 << 53;
}

/// Stage 1 only.
mod stage1 {
    /// AttrIndx.
    pub(super) const DEVICE: u64 = 1 << 2;
    pub(super) const MEMORY: u64 = 0b111 << 2;
    /// `AP[1]`: open to EL0.
    pub(super) const USER: u64 = 1 << 6;
    /// `AP[2]`: no stores.
    pub(super) const READ_ONLY: u64 = 1 << 7;
    pub(super) const NOT_GLOBAL: u64 = 1 << 11;
    pub(super) const NO_PRIVILEGED_EXECUTE: u64 = 1 << 53;
    pub(super) const NO_USER_EXECUTE: u64 = 1 << 54;
}

fn leaf(pa: PhysAddr, level: Level) -> u64 {
    let page = if level == Level::Page4K { TABLE_OR_PAGE } else { 0 };
    pa.0 & ADDRESS | VALID | page | ACCESSED
}

/// The parts that both stages share; `$stores` gives a leaf the right to store.
macro_rules! vmsav8_64 {
    (|$leaf:ident| $stores:expr) => {
        const SIGN_EXTENDED: bool = false;
        const OUTPUT_BITS: u32 = 48;
        const LARGEST: Level = Level::Page1G;
        // D8.17.1: to replace a block by a table, a table by a block, pages by pages of another
        // size, or a table by another table, the entry must be invalid and invalidated in between.
        const REPLACES_IN_PLACE: bool = false;

        fn is_present(entry: u64) -> bool {
            entry & VALID != 0
        }

        fn is_leaf(entry: u64, level: Level) -> bool {
            level == Level::Page4K || entry & TABLE_OR_PAGE == 0
        }

        fn table(pa: PhysAddr, _: Level) -> u64 {
            pa.0 & ADDRESS | VALID | TABLE_OR_PAGE
        }

        fn address(entry: u64, alignment: Level) -> PhysAddr {
            PhysAddr(entry & ADDRESS).align_down(alignment)
        }

        fn dirtied($leaf: u64) -> u64 {
            if Self::is_dirty($leaf) {
                $leaf
            } else if $leaf & DIRTY_MODIFIER != 0 {
                $stores
            } else {
                $leaf | WAS_DIRTY
            }
        }
    };
}

/// Stage 2: intermediate physical to physical. `LEVELS` is 3 (39 bits of input, the root at Arm's
/// level 1) or 4 (48 bits, level 0).
///
/// `FWB` is the value of HCR_EL2.FWB; memory is Normal write-back, inner shareable, or
/// Device-nGnRE.
///
/// * With FWB 1 (FEAT_S2FWB, D8.6.6 "Stage 2 memory type and Cacheability attributes when
///   FEAT_S2FWB is enabled") memory that is Normal here stays Normal whatever the guest's own
///   tables say, and no cache needs cleaning for a guest that has its caches off or maps memory as
///   non-cacheable.
/// * With FWB 0 such a guest bypasses the cache. Before memory is mapped for a guest the data cache
///   must be cleaned by address to the point of coherency, or the guest sees old contents of DRAM.
///   Before memory of the guest is reused, it must be cleaned and invalidated, *after* the
///   invalidation of the TLB has completed: through a translation that is still in use the guest
///   makes lines dirty again.
///
/// In both cases instruction caches that do not snoop (CTR_EL0.DIC 0) are invalidated before a
/// guest executes from memory whose contents have changed or, where they are tagged by VMID and
/// virtual address, when memory is remapped.
#[derive(Clone, Copy, Debug)]
pub struct Arm64Stage2<const LEVELS: u32, const FWB: bool = false>;

impl<const LEVELS: u32, const FWB: bool> Arm64Stage2<LEVELS, FWB> {
    const NORMAL: u64 = if FWB { stage2::NORMAL_FORCED } else { stage2::NORMAL };
}

impl<const LEVELS: u32, const FWB: bool> Format for Arm64Stage2<LEVELS, FWB> {
    const INPUT_BITS: u32 = match LEVELS {
        3 => 39,
        4 => 48,
        _ => panic!("stage 2 has 3 or 4 levels here"),
    };
    const ROOT: Level = if LEVELS == 3 { Level::Page1G } else { Level::Page512G };
    const SETTLED: (u64, u64) = (VALID | stage2::WRITE, VALID | stage2::WRITE);

    vmsav8_64!(|leaf| leaf | stage2::WRITE);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
            && !permissions.intersects(Permissions::USER.union(Permissions::GLOBAL))
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        let mut entry = leaf(pa, level) | stage2::READ;
        entry |= match permissions.contains(Permissions::DEVICE) {
            true => stage2::DEVICE,
            false => Self::NORMAL | SHAREABLE,
        };
        if permissions.contains(Permissions::WRITE) {
            let is_tracked = permissions.contains(Permissions::TRACKED);
            entry |= if is_tracked { DIRTY_MODIFIER } else { stage2::WRITE };
        }
        if !permissions.contains(Permissions::EXECUTE) {
            entry |= stage2::NO_EXECUTE;
        }
        entry
    }

    fn permissions(leaf: u64) -> Permissions {
        let mut permissions = Permissions::empty();
        permissions.set(Permissions::READ, leaf & stage2::READ != 0);
        permissions.set(Permissions::WRITE, leaf & (stage2::WRITE | DIRTY_MODIFIER) != 0);
        permissions.set(Permissions::EXECUTE, leaf & stage2::NO_EXECUTE == 0);
        permissions.set(Permissions::DEVICE, leaf & stage2::MEMORY == stage2::DEVICE);
        permissions
    }

    fn is_dirty(leaf: u64) -> bool {
        leaf & (stage2::WRITE | WAS_DIRTY) != 0
    }

    // Without a branch, like `cleaned`: the right is moved to the bit that takes its place.
    fn protected(leaf: u64, _: Level) -> u64 {
        let was_dirty =
            (leaf & stage2::WRITE) << (WAS_DIRTY.trailing_zeros() - stage2::WRITE.trailing_zeros());
        (leaf | was_dirty) & !(stage2::WRITE | DIRTY_MODIFIER)
    }

    fn cleaned(leaf: u64) -> u64 {
        let shift = DIRTY_MODIFIER.trailing_zeros() - stage2::WRITE.trailing_zeros();
        leaf & !(stage2::WRITE | WAS_DIRTY) | (leaf & stage2::WRITE) << shift
    }
}

/// Stage 1 of the EL1&0 regime: one of the two halves of the address space, with input addresses
/// that start at 0. EL1 never executes pages that EL0 may execute; [`MAIR`](Self::MAIR) must be in
/// MAIR_EL1.
#[derive(Clone, Copy, Debug)]
pub struct Arm64Stage1;

impl Arm64Stage1 {
    /// Memory attributes by index: 0 is Normal, write-back; 1 is Device-nGnRE.
    pub const MAIR: u64 = 0x04ff;
}

impl Format for Arm64Stage1 {
    const INPUT_BITS: u32 = 48;
    const ROOT: Level = Level::Page512G;
    const SETTLED: (u64, u64) = (VALID | stage1::READ_ONLY, VALID);

    vmsav8_64!(|leaf| leaf & !stage1::READ_ONLY);

    fn admits(permissions: Permissions) -> bool {
        permissions.contains(Permissions::READ)
    }

    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64 {
        let mut entry = leaf(pa, level) | stage1::NO_PRIVILEGED_EXECUTE | stage1::NO_USER_EXECUTE;
        let is_user = permissions.contains(Permissions::USER);
        entry |= if permissions.contains(Permissions::DEVICE) { stage1::DEVICE } else { SHAREABLE };
        if !permissions.contains(Permissions::WRITE) {
            entry |= stage1::READ_ONLY;
        } else if permissions.contains(Permissions::TRACKED) {
            entry |= stage1::READ_ONLY | DIRTY_MODIFIER;
        }
        if permissions.contains(Permissions::EXECUTE) {
            entry &= if is_user { !stage1::NO_USER_EXECUTE } else { !stage1::NO_PRIVILEGED_EXECUTE };
        }
        if is_user {
            entry |= stage1::USER;
        }
        if !permissions.contains(Permissions::GLOBAL) {
            entry |= stage1::NOT_GLOBAL;
        }
        entry
    }

    fn permissions(leaf: u64) -> Permissions {
        const NEVER: u64 = stage1::NO_PRIVILEGED_EXECUTE | stage1::NO_USER_EXECUTE;
        let mut permissions = Permissions::READ;
        let is_writable = leaf & stage1::READ_ONLY == 0 || leaf & DIRTY_MODIFIER != 0;
        permissions.set(Permissions::WRITE, is_writable);
        permissions.set(Permissions::EXECUTE, leaf & NEVER != NEVER);
        permissions.set(Permissions::DEVICE, leaf & stage1::MEMORY == stage1::DEVICE);
        permissions.set(Permissions::USER, leaf & stage1::USER != 0);
        permissions.set(Permissions::GLOBAL, leaf & stage1::NOT_GLOBAL == 0);
        permissions
    }

    fn is_dirty(leaf: u64) -> bool {
        leaf & stage1::READ_ONLY == 0 || leaf & WAS_DIRTY != 0
    }

    fn cleaned(leaf: u64) -> u64 {
        let is_writable = leaf & stage1::READ_ONLY == 0;
        let clean = leaf & !WAS_DIRTY | stage1::READ_ONLY;
        if is_writable { clean | DIRTY_MODIFIER } else { clean }
    }
}

const _: () = {
    const FLAGS: u64 = VALID
        | TABLE_OR_PAGE
        | stage2::MEMORY
        | stage2::READ
        | stage2::WRITE
        | SHAREABLE
        | ACCESSED
        | stage1::NOT_GLOBAL
        | DIRTY_MODIFIER
        | stage1::NO_PRIVILEGED_EXECUTE
        | stage1::NO_USER_EXECUTE
        | WAS_DIRTY;
    assert!(FLAGS & ADDRESS == 0, "flags and address are apart");
    assert!(VALID & 7 != 0, "what the walker keeps in absent entries is absent");
    assert!(WAS_DIRTY >= 1 << 55 && WAS_DIRTY <= 1 << 58, "a bit for software");
    assert!(ADDRESS >> Level::Page4K.shift() == (1 << (Arm64Stage1::OUTPUT_BITS - 12)) - 1);
};

#[cfg(not(loom))]
const _: () = {
    use crate::addr::INDEX_BITS;
    type Three = Arm64Stage2<3>;
    type Four = Arm64Stage2<4>;
    assert!(Three::ROOT.shift() + INDEX_BITS == Three::INPUT_BITS, "the root covers the input");
    assert!(Four::ROOT.shift() + INDEX_BITS == Four::INPUT_BITS);
    assert!(Arm64Stage1::ROOT.shift() + INDEX_BITS == Arm64Stage1::INPUT_BITS);
};
