//! The date, which the machine's own clock said at the start. It is asked once: a machine of which each run is to be the same has to have a
//! clock that is (QEMU: `-rtc base=…,clock=vm`).

use spin::Once;

use crate::arch::clock;
use crate::devices::wall_clock::WallClock;

static CLOCK: Once<WallClock> = Once::new();

/// It is `unix` seconds after the beginning of 1970 now; `None` if the machine has no clock. The counter's frequency is known.
pub(crate) fn set(unix: Option<u64>) {
    if unix.is_none() {
        log::warn!("the machine does not say what time it is: guests begin in 1970");
    }
    CLOCK.call_once(|| WallClock::new(unix.unwrap_or(0), clock::now(), clock::hz()));
}

/// Nanoseconds since the beginning of 1970.
pub(crate) fn ns() -> u64 {
    CLOCK.get().map_or(0, |wall| wall.ns(clock::now()))
}
