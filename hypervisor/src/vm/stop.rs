//! All vCPUs of a guest stop: for a reset, for a pause, or for good.
//!
//! Each vCPU stops at its next check for events. Two numbers in one word count how far they are:
//! the vCPUs that have arrived, and those of them that have left their CPUs.
//!
//! ```text
//! each vCPU                                     the last vCPU to arrive, if there is a reset
//! A  arrived += 1 (AcqRel): it is not the last  C  arrived += 1 (AcqRel): it is the last, and stays
//! B  state saved, owner dropped;                D  left = all but one (Acquire): all have done B
//!    left += 1 (AcqRel)                         E  states and memory reset, RESET cleared, all woken
//! ```
//!
//! B before D, so the reset finds every vCPU without an owner. The vCPU of C carries out the reset
//! in its own turns (`reset.rs`): the time is its guest's, and others wait no longer for it than
//! for a vCPU that runs. Without a reset the last vCPU does B like the others. The requester finds
//! that all have left (D) in its next step; nobody waits.

use core::sync::atomic::{AtomicU32, Ordering};

use hostlink::exit::ExitCode;

use super::arch::Arch;
use super::machine::{Vm, attention};
use crate::sched::Line;

/// One vCPU has arrived, or left, in [`Stopped`].
const ARRIVED: u32 = 1 << 16;
const LEFT: u32 = 1;

/// How many vCPUs have stopped.
#[derive(Debug, Default)]
pub(super) struct Stopped(AtomicU32);

impl Stopped {
    /// None.
    pub(super) const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// A, C: a vCPU arrives; whether it is the last of `count`.
    fn arrive(&self, count: u32) -> bool {
        // Pairs with itself: the last one follows all others.
        self.0.fetch_add(ARRIVED, Ordering::AcqRel) / ARRIVED + 1 == count
    }

    /// B: a vCPU has left its CPU; whether all of `count` have.
    fn leave(&self, count: u32) -> bool {
        // Pairs with `left`, and with itself.
        self.0.fetch_add(LEFT, Ordering::AcqRel) % ARRIVED + 1 == count
    }

    /// D: how many have left their CPUs.
    fn left(&self) -> u32 {
        self.0.load(Ordering::Acquire) % ARRIVED // Pairs with `leave`.
    }

    /// All go on. All have arrived, and nobody else looks.
    fn begin_again(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl<A: Arch> Vm<A> {
    /// Makes every vCPU stop, for these reasons: bits of [`attention::STOP`].
    pub fn begin_stop(&self, why: u32) {
        // Pairs with `attention`; of two concurrent callers one is first.
        if self.attention.fetch_or(why, Ordering::AcqRel) & attention::STOP == 0 {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu));
        }
    }

    /// A vCPU has seen that it must stop. Returns whether it stays on its CPU, to carry out a
    /// reset.
    pub(super) fn arrive_at_stop(&self) -> bool {
        let is_last = self.stopped.arrive(self.vcpu_count());
        is_last && self.attention() & (attention::RESET | attention::END) == attention::RESET
    }

    /// A vCPU that has stopped has left its CPU. It is in no queue, and its owner has been dropped.
    /// The guest must not be used afterwards. If it was the last vCPU of a guest that has ended,
    /// returns the guest's number, and how it has ended.
    pub(super) fn leave_for_stop(&self) -> Option<(u32, ExitCode)> {
        let ends = self.attention() & attention::END != 0;
        let code = ExitCode::from_code(self.ended.load(Ordering::Relaxed).cast_signed()).filter(|_| ends);
        let (number, count) = (self.number, self.vcpu_count());
        let is_last = self.stopped.leave(count);
        code.filter(|_| is_last).map(|code| (number, code))
    }

    /// Whether all vCPUs but the one that carries out the reset have left their CPUs.
    pub(super) fn others_have_stopped(&self) -> bool {
        self.stopped.left() + 1 == self.vcpu_count()
    }

    /// Whether all vCPUs have stopped and left their CPUs.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.left() == self.vcpu_count()
    }

    /// The reset is over. Returns whether the guest goes on: it does unless there is another reason
    /// to stop.
    pub(super) fn end_reset(&self) -> bool {
        loop {
            let now = self.attention();
            let goes_on = now & attention::STOP == attention::RESET;
            if goes_on {
                self.stopped.begin_again();
            }
            let without = now & !attention::RESET;
            // Pairs with `attention`: a CPU that sees no reset sees memory in its initial state.
            let changed = self.attention.compare_exchange(now, without, Ordering::AcqRel, Ordering::Relaxed);
            match changed {
                Ok(_) => return goes_on,
                // Something else came up, for example another reason to stop: none has gone on yet.
                Err(_) if goes_on => {
                    let all_but_one = self.vcpu_count() - 1;
                    self.stopped.0.store(all_but_one * LEFT + (all_but_one + 1) * ARRIVED, Ordering::Relaxed);
                }
                Err(_) => {}
            }
        }
    }

    /// Lets the vCPUs of a guest that has stopped run, or those of one that has never run.
    pub(super) fn go_on(&self) {
        self.stopped.begin_again();
        // Pairs with `attention`.
        self.attention.fetch_and(!attention::STOP, Ordering::Release);
        self.wake_all(None);
    }

    /// Puts all vCPUs into queues, except for one that runs.
    pub(super) fn wake_all(&self, except: Option<u32>) {
        // All of them, not just the boot vCPU: the others find that they wait for start-up, and
        // block.
        for vcpu in self.vcpus.iter().filter(|vcpu| Some(vcpu.index) != except) {
            let nudge = self.host.sched.wake(vcpu.row, Line::Work, A::now());
            // Before that no CPU idles yet.
            if self.host.has_begun() {
                self.host.nudge(nudge);
            }
        }
    }
}
