//! Waiting by the clock.

use crate::arch::clock::{hz, now, relax};

/// Ticks in `us` microseconds.
pub fn ticks(us: u64) -> u64 {
    (u128::from(hz()) * u128::from(us) / 1_000_000) as u64
}

/// Nanoseconds in `ticks` ticks.
pub fn nanoseconds(ticks: u64) -> u64 {
    (u128::from(ticks) * 1_000_000_000 / u128::from(hz())) as u64
}

/// Waits until the condition holds, for at most `ms` milliseconds; returns whether it does.
pub fn wait_until(ms: u64, mut condition: impl FnMut() -> bool) -> bool {
    let end = now().wrapping_add(ticks(ms.saturating_mul(1000)));
    while !condition() {
        if now() > end {
            return condition();
        }
        relax();
    }
    true
}

/// Waits for `us` microseconds.
pub fn delay(us: u64) {
    let end = now().wrapping_add(ticks(us));
    while now() < end {
        relax();
    }
}
