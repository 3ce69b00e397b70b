//! What differs between the formats of page tables.

use crate::{Level, PhysAddr};

bitflags::bitflags! {
    /// What a leaf allows, and how the memory behind it is cached.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Permissions: u8 {
        /// Loads.
        const READ = 1 << 0;
        /// Stores.
        const WRITE = 1 << 1;
        /// Instruction fetches.
        const EXECUTE = 1 << 2;
        /// Device registers: accesses are neither cached nor merged.
        const DEVICE = 1 << 3;
    }
}

impl Permissions {
    /// Loads only.
    pub const R: Self = Self::READ;
    /// Loads and stores.
    pub const RW: Self = Self::READ.union(Self::WRITE);
    /// Loads and fetches.
    pub const RX: Self = Self::READ.union(Self::EXECUTE);
    /// Everything; what a guest's RAM gets.
    pub const RWX: Self = Self::RW.union(Self::EXECUTE);
}

/// A format of page tables: geometry, and the encoding of one entry. All the walking is the
/// [`PageTable`](crate::PageTable)'s.
///
/// Every implementation must keep these; the walker relies on them:
///
/// * A table has 512 entries of 8 bytes, and entries of a table of level *n* span `n.size()` bytes.
/// * An entry whose bits 11:0 are clear is absent, so that 0 is, and so that held-back tables can be
///   linked through their entries while a processor may still walk them.
/// * Tables allow everything; the leaf alone decides.
///
/// An absent entry may become present without an invalidation: no supported processor caches absence.
pub trait Format {
    /// Width of the addresses that the tables translate.
    const INPUT_BITS: u32;
    /// Whether input addresses are sign-extended from [`INPUT_BITS`](Self::INPUT_BITS), as canonical
    /// virtual addresses are. If not, the bits above must be 0.
    const SIGN_EXTENDED: bool;
    /// Width of the addresses that entries hold.
    const OUTPUT_BITS: u32;
    /// Level of the root table.
    const ROOT: Level;
    /// Level of the largest leaf. That a given processor supports it is for the caller to know.
    const LARGEST: Level;
    /// Bits of a leaf that the processor sets by itself.
    const HARDWARE_SET: u64;

    /// Whether a leaf may have these permissions, by what the format can express and what its policy
    /// allows.
    fn admits(permissions: Permissions) -> bool;

    /// Whether the processor follows the entry at all.
    fn is_present(entry: u64) -> bool;

    /// Whether a present entry of a table of `level` is a leaf; if not, it points to a table.
    fn is_leaf(entry: u64, level: Level) -> bool;

    /// A leaf that maps the `level`-aligned page at `pa`. `permissions` are admitted ones.
    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64;

    /// An entry that points to the table at `pa`.
    fn table(pa: PhysAddr) -> u64;

    /// Address in a present entry whose target is aligned to `alignment`: a leaf's level, or
    /// [`Level::Page4K`] for a table.
    fn address(entry: u64, alignment: Level) -> PhysAddr;

    /// What a leaf allows.
    fn permissions(entry: u64) -> Permissions;
}

/// A decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Absent,
    Table(PhysAddr),
    Leaf(PhysAddr, Permissions),
}

impl Entry {
    pub(crate) fn decode<F: Format>(entry: u64, level: Level) -> Self {
        if !F::is_present(entry) {
            Self::Absent
        } else if level == Level::Page4K || F::is_leaf(entry, level) {
            Self::Leaf(F::address(entry, level), F::permissions(entry))
        } else {
            Self::Table(F::address(entry, Level::Page4K))
        }
    }
}
