//! Addresses, and the levels of a table tree.

use core::fmt;

macro_rules! address {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(transparent)]
        pub struct $name(pub u64);

        impl $name {
            /// The address as an integer.
            pub const fn as_u64(self) -> u64 {
                self.0
            }

            /// Start of the `level`-sized page that holds the address.
            #[must_use]
            pub const fn align_down(self, level: Level) -> Self {
                Self(self.0 & !level.offset_mask())
            }

            /// Whether the address is the start of a `level`-sized page.
            pub const fn is_aligned(self, level: Level) -> bool {
                self.0 & level.offset_mask() == 0
            }

            /// The address plus `bytes`, or `None` on overflow.
            pub const fn checked_add(self, bytes: u64) -> Option<Self> {
                match self.0.checked_add(bytes) {
                    Some(sum) => Some(Self(sum)),
                    None => None,
                }
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }

        impl From<$name> for u64 {
            fn from(address: $name) -> u64 {
                address.0
            }
        }
    };
}

address! {
    /// A physical address of the machine, as table entries hold it.
    PhysAddr
}

address! {
    /// A guest physical address, which nested tables translate and a guest's own tables hold.
    Gpa
}

/// Number of entries in a table; each has 8 bytes, so a table fills a page of 4 KiB.
///
/// Under the model checker tables have two entries; otherwise it would spend its time creating
/// them.
pub const ENTRY_COUNT: usize = if cfg!(loom) { 2 } else { 512 };

const PAGE_SHIFT: u32 = 12;
pub(crate) const INDEX_BITS: u32 = ENTRY_COUNT.trailing_zeros();

/// A level of the tree, named for the size that one entry of its tables spans. Levels are ordered
/// by size.
///
/// Arm numbers the same levels 3 to 0, AMD64's manuals call them PT, PD, PDPT and PML4.
///
/// Exhaustive: the four levels that tables have; users count with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Level {
    /// 4 KiB: the last level, whose entries are always leaves.
    Page4K = 0,
    /// 2 MiB.
    Page2M = 1,
    /// 1 GiB.
    Page1G = 2,
    /// 512 GiB: no AMD64 leaf has this size, but it is the span of the root's entries.
    Page512G = 3,
}

impl Level {
    /// All levels, the smallest first.
    pub const ALL: [Self; 4] = [Self::Page4K, Self::Page2M, Self::Page1G, Self::Page512G];

    /// Binary logarithm of [`size`](Self::size).
    pub const fn shift(self) -> u32 {
        PAGE_SHIFT + INDEX_BITS * self as u32
    }

    /// Bytes that one entry spans.
    pub const fn size(self) -> u64 {
        1 << self.shift()
    }

    /// Mask of an address's offset within a page of this level.
    pub const fn offset_mask(self) -> u64 {
        self.size() - 1
    }

    /// The index of the entry that covers `address` in a table of this level; below
    /// [`ENTRY_COUNT`].
    pub const fn index(self, address: u64) -> usize {
        (address >> self.shift()) as usize & (ENTRY_COUNT - 1)
    }

    /// The next smaller level.
    pub const fn below(self) -> Option<Self> {
        match self {
            Self::Page4K => None,
            Self::Page2M => Some(Self::Page4K),
            Self::Page1G => Some(Self::Page2M),
            Self::Page512G => Some(Self::Page1G),
        }
    }

    /// The next larger level.
    pub const fn above(self) -> Option<Self> {
        match self {
            Self::Page4K => Some(Self::Page2M),
            Self::Page2M => Some(Self::Page1G),
            Self::Page1G => Some(Self::Page512G),
            Self::Page512G => None,
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    assert!(Level::Page4K.size() == 4 << 10);
    assert!(Level::Page2M.size() == 2 << 20);
    assert!(Level::Page1G.size() == 1 << 30);
    assert!(Level::Page512G.size() == 512 << 30);
    assert!(Level::Page512G.shift() + INDEX_BITS == 48);
};
