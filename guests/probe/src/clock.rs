//! Time by the TSC.

use core::arch::x86_64::_rdtsc;

use baremetal::x86_64::clock;
pub(crate) use baremetal::x86_64::clock::{ticks, wait_until};
use tlfs::msr;

use crate::guarded;

/// Ticks since some time, without waiting for anything before.
pub(crate) fn now() -> u64 {
    // SAFETY: every AMD64 processor has the instruction, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// Finds out how many ticks a second has, if anybody tells it.
pub(crate) fn prepare() {
    if let Ok(hz) = guarded::rdmsr(msr::TSC_FREQUENCY) {
        clock::set_hz(hz);
    }
}
