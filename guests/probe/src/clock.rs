//! Time by the TSC.

use core::arch::x86_64::_rdtsc;

use tlfs::msr;

use crate::guarded;

/// What is taken for the TSC's rate when nobody tells it.
const TSC_HZ_DEFAULT: u64 = 1_000_000_000;

/// Ticks since some time.
pub(crate) fn now() -> u64 {
    // SAFETY: every AMD64 processor has the instruction, and CR4.TSD is clear.
    unsafe { _rdtsc() }
}

/// Ticks in so many microseconds.
pub(crate) fn ticks(us: u64) -> u64 {
    guarded::rdmsr(msr::TSC_FREQUENCY).unwrap_or(TSC_HZ_DEFAULT) / 1_000_000 * us
}

/// Waits until the condition holds, for so many milliseconds at most; says whether it does.
pub(crate) fn wait_until(ms: u64, mut condition: impl FnMut() -> bool) -> bool {
    let end = now() + ticks(ms * 1000);
    while !condition() {
        if now() > end {
            return condition();
        }
        core::hint::spin_loop();
    }
    true
}
