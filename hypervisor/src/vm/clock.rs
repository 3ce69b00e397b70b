//! A guest's clock: the machine's, and how far the guest's is ahead of it.
//!
//! A guest that has been moved, or restored, goes on with the clock that it had. So what it sees of
//! time is the machine's counter plus a base, and the machine's date plus another. Both change only
//! while none of its vCPUs runs.

use core::sync::atomic::{AtomicU64, Ordering};

use crate::devices::wall_clock::WallClock;

/// How far a guest's clock is ahead of the machine's.
#[derive(Debug, Default)]
pub struct GuestClock {
    /// In ticks, modulo 2^64.
    base: AtomicU64,
    /// In nanoseconds, modulo 2^64.
    wall: AtomicU64,
}

impl GuestClock {
    /// The guest's counter minus the machine's, modulo 2^64.
    #[inline(always)]
    pub fn base(&self) -> u64 {
        // Relaxed, here and below: no vCPU runs while it changes.
        self.base.load(Ordering::Relaxed)
    }

    /// The guest's counter when the machine's is at `now`.
    #[inline(always)]
    pub fn at(&self, now: u64) -> u64 {
        now.wrapping_add(self.base())
    }

    /// Nanoseconds since the beginning of 1970, as the guest sees it, at `now`.
    pub fn wall_ns(&self, machine: &WallClock, now: u64) -> u64 {
        machine.ns(now).wrapping_add(self.wall.load(Ordering::Relaxed))
    }

    /// What the machine's counter reads first at this time of the guest's, or later.
    pub fn wall_ticks(&self, machine: &WallClock, ns: u64) -> u64 {
        let behind = self.wall.load(Ordering::Relaxed).cast_signed().saturating_neg();
        machine.ticks(ns.saturating_add_signed(behind))
    }

    /// Lets the guest's counter be at `ticks`, and its date at `wall_ns`, when the machine's
    /// counter is at `now`. No vCPU runs.
    pub fn set(&self, machine: &WallClock, now: u64, ticks: u64, wall_ns: u64) {
        self.base.store(ticks.wrapping_sub(now), Ordering::Relaxed);
        self.wall.store(wall_ns.wrapping_sub(machine.ns(now)), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m4_a_guest_goes_on_with_its_own_clock() {
        let machine = WallClock::new(1_700_000_000, 5000, 1000);
        let clock = GuestClock::default();
        assert_eq!((clock.at(6000), clock.wall_ns(&machine, 6000)), (6000, 1_700_000_001_000_000_000));
        // Ahead of the machine, and behind it.
        for (ticks, wall_ns) in [(1 << 40, 1_800_000_000_000_000_000), (17, 1_600_000_000_000_000_000)] {
            clock.set(&machine, 6000, ticks, wall_ns);
            assert_eq!((clock.at(6000), clock.at(6500)), (ticks, ticks + 500));
            assert_eq!(clock.wall_ns(&machine, 6500), wall_ns + 500_000_000);
            assert_eq!(clock.wall_ticks(&machine, wall_ns + 500_000_000), 6500);
            assert!(clock.wall_ticks(&machine, u64::MAX) > 1 << 40, "never is not in the past");
        }
    }
}
