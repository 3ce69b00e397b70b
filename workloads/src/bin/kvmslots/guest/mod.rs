//! The guest: a few instructions that make one pass of stores, then wait for the next order.
//!
//! ```text
//! loop:
//!     wait                    an access that causes an exit; registers are set meanwhile
//!     do:
//!         [at] = at + salt
//!         at += a page
//!         count -= 1
//!     while count != 0
//! ```

#[cfg_attr(target_arch = "x86_64", path = "amd64.rs")]
#[cfg_attr(target_arch = "aarch64", path = "arm64.rs")]
mod arch;

pub(crate) use arch::{prepare, stop_of, tell};

use std::slice;

unsafe extern "C" {
    static kvmslots_guest: u8;
    static kvmslots_guest_end: u8;
}

/// Its instructions, which are position-independent.
pub(crate) fn code() -> &'static [u8] {
    let (begin, end) = (&raw const kvmslots_guest, &raw const kvmslots_guest_end);
    // SAFETY: both symbols delimit one sequence of constants, `begin` first.
    unsafe { slice::from_raw_parts(begin, end.addr() - begin.addr()) }
}

/// The address of the guest's code, and the size of the memory there.
pub(crate) const LOW_AT: u64 = 0;
pub(crate) const LOW_PAGES: usize = 4;
/// Bytes of the guest's pages, which have to be the kernel's: slots and dirty logs have those.
pub(crate) const PAGE_BYTES: usize = 4096;
/// All other memory: its end fits 32 bits, and no processor has a device there.
pub(crate) const MEMORY_AT: u64 = 1 << 30;
pub(crate) const MIB_MAX: u64 = 2560;

/// The stores that the guest has to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pass {
    /// The address of the first; the others follow page by page.
    pub(crate) at: u64,
    /// How many; not 0.
    pub(crate) count: u64,
    /// The value of each store is the sum of this and the address.
    pub(crate) salt: u32,
}

impl Pass {
    /// Both processors store 32 bits of the sum, and the rest is 0.
    pub(crate) const fn value(self, at: u64) -> u64 {
        (at as u32).wrapping_add(self.salt) as u64
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It has finished its pass, and waits.
    Waits,
    /// It has stored this to an address without memory.
    Device { at: u64, value: u64 },
}

pub(crate) fn value_of(data: &[u8]) -> u64 {
    data.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}
