//! Time by the TSC.

use core::arch::x86_64::_rdtsc;

use baremetal::x86_64::clock;
pub(crate) use baremetal::x86_64::clock::{ticks, wait_until};
use tlfs::msr;

use crate::guarded;

/// The TSC, without waiting for earlier instructions.
pub(crate) fn now() -> u64 {
    // SAFETY: every AMD64 processor has the instruction, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// Reads the TSC's frequency, if the hypervisor reports it. Emulators read MSRs that they do not
/// have as 0.
pub(crate) fn prepare() {
    if let Ok(hz @ 1..) = guarded::rdmsr(msr::TSC_FREQUENCY) {
        clock::set_hz(hz);
    }
}
