//! Slows a guest down that writes faster than its pages can be sent.

use hostlink::guests::GuestState;

use super::go_on;
use crate::stopping;
use crate::vm::Vm;
use crate::vm::arch::Arch;

/// A guest that is slowed down stands still for a part of each period, in microseconds.
const PERIOD_US: u64 = 10_000;

/// How much a guest is slowed down, and what it does now.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    percent: u64,
    /// It stands still, or stops.
    holds: bool,
    until: u64,
    /// What it had had when it last went on.
    used: u64,
}

impl Throttle {
    /// It is to stand still for so many of a hundred ticks; never for all of them.
    pub(super) fn set(&mut self, percent: u64) {
        self.percent = percent.min(99);
    }

    /// Stops the guest, or lets it go on, if it is time for that.
    pub(super) fn step<A: Arch>(&mut self, vm: &Vm<A>) {
        let (now, period) = (A::now(), A::ticks_of_us(PERIOD_US));
        // One that pauses for another reason, or was given away, stays as it is.
        let runs = vm.host.state_of(vm.number) == GuestState::Running;
        if !runs || now < self.until || self.percent == 0 && !self.holds {
            return;
        }
        let used = vm.host.sched.used(vm.number, now);
        if !self.holds {
            // It stops in its own turns, for one that waits for a CPU is slow already. It stands
            // still only after it has run: otherwise one whose turns come seldom never would.
            if used != self.used {
                vm.begin_stop(stopping::PAUSE);
                (self.holds, self.until) = (true, now + period * self.percent / 100);
            }
        } else if vm.has_stopped() {
            go_on(vm);
            (self.holds, self.until) = (false, now + period * (100 - self.percent) / 100);
            self.used = used;
        }
    }

    /// Leaves the guest to others; returns whether it stands still or stops.
    pub(super) fn leave(&mut self) -> bool {
        core::mem::take(self).holds
    }
}

#[test]
fn a_guest_is_never_slowed_down_to_a_stop() {
    let mut throttle = Throttle::default();
    for (percent, expected) in [(0, 0), (98, 98), (99, 99), (100, 99), (u64::MAX, 99)] {
        throttle.set(percent);
        assert_eq!(throttle.percent, expected, "{percent}");
    }
}
