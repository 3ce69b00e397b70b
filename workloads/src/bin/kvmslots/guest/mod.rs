//! The guest: a few instructions that do one pass of stores, and wait to be told of the next.
//!
//! ```text
//! loop:
//!     wait                    an access that comes out of the machine; registers are set meanwhile
//!     do:
//!         [at] = at + salt
//!         at += a page
//!         count -= 1
//!     while count != 0
//! ```

#[cfg_attr(target_arch = "x86_64", path = "amd64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arm64.rs")]
mod arch;

pub(crate) use arch::{code, prepare, stop_of, tell};

/// Where the guest's code is, and how much memory it has there.
pub(crate) const LOW_AT: u64 = 0;
pub(crate) const LOW_PAGES: usize = 4;
/// Where the slot is that comes and goes, and how large it is at most: its end has 32 bits.
pub(crate) const SLOT_AT: u64 = 1 << 30;
pub(crate) const MIB_MAX: u64 = 2048;

/// Stores that the guest is to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// The address of the first; the others follow page by page.
    pub(crate) at: u64,
    /// How many; not 0.
    pub(crate) count: u64,
    /// What is stored is this and the address.
    pub(crate) salt: u32,
}

impl Pass {
    /// What is stored to the page at an address: both processors store 32 bits of it, and the rest
    /// is 0.
    pub(crate) const fn value(self, at: u64) -> u64 {
        (at as u32).wrapping_add(self.salt) as u64
    }
}

/// Why the guest does not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has done what it was told, and waits.
    Waits,
    /// It has stored this to an address where there is no memory.
    Device { at: u64, value: u64 },
}

/// The value of a store.
pub(crate) fn value_of(data: &[u8]) -> u64 {
    data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
