//! Indices of different kinds. Whoever takes one for another does not compile.

use core::fmt;
use core::ops::Range;

macro_rules! indices {
    ($($(#[$doc:meta])+ $name:ident)+) => {$(
        $(#[$doc])+
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub u32);

        impl $name {
            /// Its place in a table.
            #[inline(always)]
            pub const fn place(self) -> usize {
                self.0 as usize
            }

            /// Those of a range.
            pub fn each(range: Range<Self>) -> impl ExactSizeIterator<Item = Self> + Clone {
                (range.start.0..range.end.0).map(Self)
            }
        }

        impl From<$name> for u64 {
            fn from($name(index): $name) -> Self {
                index.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

indices! {
    /// Index of a physical CPU: 0 for the boot CPU, dense.
    CpuIndex
    /// Index of a vCPU in its guest; also its VP index.
    VpIndex
    /// A vCPU's row: its number among all vCPUs of all guests.
    VcpuIndex
}
