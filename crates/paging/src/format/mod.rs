//! The differences between page-table formats.

/// What AMD64's and Intel's tables have in common, with the bit that makes an entry present, and
/// those that allow stores. A page and its pieces may both be cached.
macro_rules! x86 {
    ($present:expr, $write:expr) => {
        const INPUT_BITS: u32 = 48;
        const OUTPUT_BITS: u32 = 52;
        const ROOT: Level = Level::Page512G;
        const LARGEST: Level = Level::Page1G;
        const REPLACES_IN_PLACE: bool = true;
        const SETTLED: (u64, u64) = ($present | WRITE | DIRTY, $present | WRITE | DIRTY);

        fn is_leaf(entry: u64, level: Level) -> bool {
            level == Level::Page4K || entry & LARGE != 0
        }

        /// Masks the PAT bit of a large leaf (bit 12) along with the offset.
        fn address(entry: u64, alignment: Level) -> PhysAddr {
            PhysAddr(entry & ADDRESS).align_down(alignment)
        }

        fn protected(leaf: u64, _: Level) -> u64 {
            leaf & !($write)
        }

        fn is_dirty(leaf: u64) -> bool {
            leaf & DIRTY != 0
        }

        fn dirtied(leaf: u64) -> u64 {
            leaf | DIRTY
        }

        fn cleaned(leaf: u64) -> u64 {
            leaf & !DIRTY
        }
    };
}

pub(crate) mod amd64;
pub(crate) mod arm64;
pub(crate) mod ept;

use crate::{Level, PhysAddr};

bitflags::bitflags! {
    /// The permissions of a leaf, and how the memory behind it is cached.
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
        /// Track the first store through the leaf: it starts clean, so that the processor sets its
        /// dirty bit. Without this a leaf that allows stores starts dirty. Only used in requests,
        /// never returned: [`Mapping::is_dirty`](crate::Mapping::is_dirty) reports the state.
        const TRACKED = 1 << 4;
        /// Accessible to user mode, in formats that distinguish user and supervisor.
        const USER = 1 << 5;
        /// The same in all address spaces, so that it survives a switch, in formats that support
        /// it.
        const GLOBAL = 1 << 6;
    }
}

impl Permissions {
    /// Loads only.
    pub const R: Self = Self::READ;
    /// Loads and stores.
    pub const RW: Self = Self::READ.union(Self::WRITE);
    /// Loads and fetches.
    pub const RX: Self = Self::READ.union(Self::EXECUTE);
    /// Everything; used for a guest's RAM.
    pub const RWX: Self = Self::RW.union(Self::EXECUTE);

    /// Rights that can be added to a leaf in use without a flush: a processor that holds the old
    /// rights faults once more.
    pub(crate) const GROWING: Self = Self::RWX;
}

/// A format of page tables: geometry, and the encoding of one entry. The
/// [`PageTable`](crate::PageTable) does all the walking.
///
/// Every implementation must uphold the following; the walker relies on it:
///
/// * A table has 512 entries of 8 bytes, and entries of a table of level *n* span `n.size()` bytes.
/// * An entry whose bits 2:0 are clear is not present to the processor, whatever the other bits
///   are. The walker keeps the links between held tables in such entries, and [marks](Self::MARK).
/// * Table entries allow everything; only the leaf restricts access.
/// * An entry holds the address of its target in the address's own bits.
/// * The processor may make a leaf [dirty](Self::dirtied), and changes nothing else on its own. It
///   does so with one atomic operation that fails if the leaf has changed meanwhile.
///
/// An absent entry may become present without an invalidation: no supported processor caches
/// absence.
pub trait Format {
    /// Width of the addresses that the tables translate.
    const INPUT_BITS: u32;
    /// Whether input addresses are sign-extended from [`INPUT_BITS`](Self::INPUT_BITS), as
    /// canonical virtual addresses are. If not, the bits above must be 0.
    const SIGN_EXTENDED: bool;
    /// Width of the addresses that entries hold.
    const OUTPUT_BITS: u32;
    /// Level of the root table.
    const ROOT: Level;
    /// Level of the largest leaf. The caller must know whether a given processor supports it.
    const LARGEST: Level;
    /// Whether a leaf in use may become a table, and a table a leaf or another table, in one store.
    /// If not, the entry is invalid in between, and
    /// [`TableMemory::break_before_make`](crate::TableMemory::break_before_make) invalidates the
    /// addresses that it covers. If only the size of the page changes, and the processors [can do
    /// that in place](crate::TableMemory::resizes_in_place), the invalidation is left to the
    /// gather. So are leaves that were zapped: until that flush has completed, faults on them must
    /// lead to the same memory by pages of the same size, or to no memory; the user must ensure
    /// that.
    const REPLACES_IN_PLACE: bool;
    /// Some bits and their values: an entry of the last level that has them is a leaf that allows
    /// stores and is dirty, so no processor changes it. Callers that process whole tables test all
    /// entries for this.
    const SETTLED: (u64, u64);
    /// Bits 4:0 of a [mark](Self::mark), which no present entry has: no processor follows it.
    const MARK: u64 = 1 << 4;
    /// The largest payload of a [mark](Self::mark).
    const MARK_MAX: u64 = u64::MAX >> MARK_SHIFT;

    /// Whether a leaf may have these permissions: the format can express them and its policy allows
    /// them.
    fn admits(permissions: Permissions) -> bool;

    /// Whether the processor follows the entry at all.
    fn is_present(entry: u64) -> bool;

    /// Whether a present entry of a table of `level` is a leaf; if not, it points to a table.
    fn is_leaf(entry: u64, level: Level) -> bool;

    /// A leaf that maps the `level`-aligned page at `pa`. `permissions` are admitted ones.
    fn leaf(pa: PhysAddr, level: Level, permissions: Permissions) -> u64;

    /// An entry of a table of `level` that points to the table at `pa`, which is of the level
    /// below.
    fn table(pa: PhysAddr, level: Level) -> u64;

    /// Address in a present entry whose target is aligned to `alignment`: a leaf's level, or
    /// [`Level::Page4K`] for a table.
    fn address(entry: u64, alignment: Level) -> PhysAddr;

    /// The permissions of a leaf; never [`Permissions::TRACKED`].
    fn permissions(leaf: u64) -> Permissions;

    /// Whether there may have been a store through the leaf.
    fn is_dirty(leaf: u64) -> bool;

    /// The leaf of a table of `level` without the right to store. Its dirty state is kept.
    fn protected(leaf: u64, level: Level) -> u64
    where
        Self: Sized,
    {
        repermitted::<Self>(leaf, level, Self::permissions(leaf) - Permissions::WRITE)
    }

    /// The leaf as it is after a store. It stays dirty, and still refuses stores if it did.
    fn dirtied(leaf: u64) -> u64;

    /// The leaf changed so that the processor makes it dirty at the next store, if it allows
    /// stores.
    fn cleaned(leaf: u64) -> u64;

    /// An entry that is absent to the processor and holds a number up to
    /// [`MARK_MAX`](Self::MARK_MAX).
    fn mark(payload: u64) -> u64 {
        hidden(payload << MARK_SHIFT | Self::MARK)
    }

    /// The number in an entry that is a mark.
    fn marked(entry: u64) -> Option<u64> {
        (entry & NOT_PRESENT == Self::MARK).then_some(hidden(entry) >> MARK_SHIFT)
    }
}

/// Forwards items of a [`Format`] to another format, in an implementation: what is like another
/// format in most respects states the rest.
///
/// ```
/// # use quell_paging::{Arm64Stage2, Format, Level, Permissions, PhysAddr, format_like};
/// /// Stage 2 of 48 bits without large pages.
/// struct SmallPages;
///
/// impl Format for SmallPages {
///     const LARGEST: Level = Level::Page4K;
///     format_like! { Arm64Stage2<4>:
///         INPUT_BITS SIGN_EXTENDED OUTPUT_BITS ROOT REPLACES_IN_PLACE SETTLED
///         admits is_present is_leaf leaf table address permissions is_dirty protected dirtied cleaned
///     }
/// }
/// assert_eq!(SmallPages::leaf(PhysAddr(0x1000), Level::Page4K, Permissions::R) & 1, 1);
/// ```
#[macro_export]
macro_rules! format_like {
    ($base:ty: $($item:ident)+) => { $($crate::format_like!(@$item $base);)+ };
    (@INPUT_BITS $base:ty) => { $crate::format_like!(@const $base, INPUT_BITS: u32); };
    (@SIGN_EXTENDED $base:ty) => { $crate::format_like!(@const $base, SIGN_EXTENDED: bool); };
    (@OUTPUT_BITS $base:ty) => { $crate::format_like!(@const $base, OUTPUT_BITS: u32); };
    (@ROOT $base:ty) => { $crate::format_like!(@const $base, ROOT: $crate::Level); };
    (@LARGEST $base:ty) => { $crate::format_like!(@const $base, LARGEST: $crate::Level); };
    (@REPLACES_IN_PLACE $base:ty) => { $crate::format_like!(@const $base, REPLACES_IN_PLACE: bool); };
    (@SETTLED $base:ty) => { $crate::format_like!(@const $base, SETTLED: (u64, u64)); };
    (@admits $base:ty) => { $crate::format_like!(@fn $base, admits(with: $crate::Permissions) -> bool); };
    (@is_present $base:ty) => { $crate::format_like!(@fn $base, is_present(entry: u64) -> bool); };
    (@is_leaf $base:ty) => {
        $crate::format_like!(@fn $base, is_leaf(entry: u64, level: $crate::Level) -> bool);
    };
    (@leaf $base:ty) => {
        $crate::format_like!(@fn $base,
            leaf(pa: $crate::PhysAddr, level: $crate::Level, with: $crate::Permissions) -> u64);
    };
    (@table $base:ty) => {
        $crate::format_like!(@fn $base, table(pa: $crate::PhysAddr, level: $crate::Level) -> u64);
    };
    (@address $base:ty) => {
        $crate::format_like!(@fn $base, address(entry: u64, alignment: $crate::Level) -> $crate::PhysAddr);
    };
    (@permissions $base:ty) => {
        $crate::format_like!(@fn $base, permissions(leaf: u64) -> $crate::Permissions);
    };
    (@is_dirty $base:ty) => { $crate::format_like!(@fn $base, is_dirty(leaf: u64) -> bool); };
    (@protected $base:ty) => {
        $crate::format_like!(@fn $base, protected(leaf: u64, level: $crate::Level) -> u64);
    };
    (@dirtied $base:ty) => { $crate::format_like!(@fn $base, dirtied(leaf: u64) -> u64); };
    (@cleaned $base:ty) => { $crate::format_like!(@fn $base, cleaned(leaf: u64) -> u64); };
    (@const $base:ty, $name:ident: $value:ty) => { const $name: $value = <$base as $crate::Format>::$name; };
    (@fn $base:ty, $name:ident($($argument:ident: $of:ty),+) -> $result:ty) => {
        #[inline(always)]
        fn $name($($argument: $of),+) -> $result {
            <$base as $crate::Format>::$name($($argument),+)
        }
    };
}

/// Bits that distinguish entries that no processor follows.
const NOT_PRESENT: u64 = 0x1f;
const MARK_SHIFT: u32 = 5;

/// What an entry that no processor follows holds, with the bits of an address inverted: a processor
/// that loads ahead from there (CVE-2018-3620, CVE-2018-3646) finds no memory, as numbers and the
/// addresses of tables are small. Its own inverse.
const fn hidden(entry: u64) -> u64 {
    entry ^ 0x000f_ffff_ffff_f000
}

/// An entry of a table that was cut off, or of one that is being replaced: absent to the processor,
/// and never filled by a fault. The bits above these hold a [`link`] or a number.
pub(crate) const FROZEN: u64 = hidden(1 << 3);

/// Bits of a link, below the address, for the level of the table's entries.
const LINK_LEVEL_SHIFT: u32 = 5;

/// A frozen entry that names a table with entries of `level`, or none.
pub(crate) fn link(table: Option<(PhysAddr, Level)>) -> u64 {
    table.map_or(FROZEN, |(table, level)| FROZEN ^ table.0 ^ (level as u64) << LINK_LEVEL_SHIFT)
}

/// The table that a [`link`] names.
pub(crate) fn linked(entry: u64) -> Option<(PhysAddr, Level)> {
    let table = hidden(entry) & !Level::Page4K.offset_mask();
    let level = Level::ALL[(entry >> LINK_LEVEL_SHIFT) as usize % Level::ALL.len()];
    (table != 0).then_some((PhysAddr(table), level))
}

/// A frozen entry that must stay frozen until a change later than `sequence` is flushed. 59 bits:
/// at one per nanosecond they last 18 years.
pub(crate) const fn frozen_until_after(sequence: u64) -> u64 {
    FROZEN ^ sequence << MARK_SHIFT
}

/// The number in an entry that is frozen until a flush.
pub(crate) const fn frozen_after(entry: u64) -> u64 {
    hidden(entry) >> MARK_SHIFT
}

/// Absent, and free to be filled.
pub(crate) const ABSENT: u64 = 0;

pub(crate) const fn is_frozen(entry: u64) -> bool {
    entry & NOT_PRESENT == FROZEN & NOT_PRESENT
}

const _: () = assert!(FROZEN & 7 == 0, "present to no processor");

/// Whether an entry of the last level is [settled](Format::SETTLED).
#[inline]
pub(crate) fn is_settled<F: Format>(entry: u64) -> bool {
    entry & F::SETTLED.0 == F::SETTLED.1
}

/// A settled entry unchanged, expressed so that the compiler sees its known bits.
#[inline]
pub(crate) const fn settled<F: Format>(entry: u64) -> u64 {
    entry & !F::SETTLED.0 | F::SETTLED.1
}

/// A decoded entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    /// Nothing, or a mark.
    Absent,
    Frozen,
    Table(PhysAddr),
    /// Start of the page.
    Leaf(PhysAddr),
}

impl Entry {
    pub(crate) fn decode<F: Format>(entry: u64, level: Level) -> Self {
        if !F::is_present(entry) {
            if is_frozen(entry) { Self::Frozen } else { Self::Absent }
        } else if level == Level::Page4K || F::is_leaf(entry, level) {
            Self::Leaf(F::address(entry, level))
        } else {
            Self::Table(F::address(entry, Level::Page4K))
        }
    }
}

/// The leaf with other permissions. The state that the processor has recorded in it stays.
pub(crate) fn repermitted<F: Format>(leaf: u64, level: Level, permissions: Permissions) -> u64 {
    carry::<F>(F::leaf(F::address(leaf, level), level, permissions), leaf)
}

/// A leaf of `level` for one piece, at `pa`, of a larger leaf, with the same permissions and state.
pub(crate) fn piece<F: Format>(leaf: u64, pa: PhysAddr, level: Level) -> u64 {
    carry::<F>(F::leaf(pa, level, F::permissions(leaf) | Permissions::TRACKED), leaf)
}

fn carry<F: Format>(new: u64, old: u64) -> u64 {
    if F::is_dirty(old) { F::dirtied(new) } else { new }
}

/// Whether processors must be flushed after a leaf has been replaced by another value, before that
/// value can be relied on. No flush is needed for values that no processor can hold or on which it
/// would only fault once more, nor for the accessed bit, whose loss costs only precision. The dirty
/// bit needs one: a processor that holds the leaf as dirty stores without setting the bit again.
pub(crate) fn needs_flush<F: Format>(old: u64, new: u64, level: Level) -> bool {
    let Entry::Leaf(from) = Entry::decode::<F>(old, level) else { return false };
    let Entry::Leaf(to) = Entry::decode::<F>(new, level) else { return true };
    let (had, has) = (F::permissions(old), F::permissions(new));
    from != to
        || had - has != Permissions::empty()
        || has - had - Permissions::GROWING != Permissions::empty()
        || F::is_dirty(old) && !F::is_dirty(new)
}
