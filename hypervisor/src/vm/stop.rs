//! All vCPUs of a guest stop, and go on: `stopping` for a machine.

use core::sync::atomic::Ordering;

use hostlink::exit::ExitCode;

use super::arch::Arch;
use super::machine::Vm;
use crate::sched::Line;
use crate::stopping::{END, Role};

impl<A: Arch> Vm<A> {
    /// Makes every vCPU stop, for these reasons: bits of [`STOP`](crate::stopping::STOP), one
    /// at least, and [`DESTROY`](crate::stopping::DESTROY).
    pub fn begin_stop(&self, why: u32) {
        if self.stopping.begin(why) {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu));
        }
    }

    /// A vCPU has seen that it must stop.
    pub(super) fn arrive_at_stop(&self) -> Role {
        self.stopping.arrive(self.vcpu_count())
    }

    /// A vCPU that has stopped has left its CPU. It is in no queue, and its owner has been dropped.
    /// The guest must not be used afterwards. Returns whether it was the last vCPU of a guest that
    /// has ended; the end is recorded.
    pub(super) fn leave_for_stop(&self) -> bool {
        let mut has_ended = false;
        self.stopping.leave(self.vcpu_count(), |reasons| {
            let code = ExitCode::from_code(self.ended.load(Ordering::Relaxed).cast_signed());
            if let Some(code) = code.filter(|_| reasons & END != 0) {
                A::silence_devices(self);
                self.host.record_end(self.number, code);
                has_ended = true;
            }
        });
        has_ended
    }

    /// Whether all vCPUs but the one that carries out the reset have left their CPUs.
    pub(super) fn others_have_stopped(&self) -> bool {
        self.stopping.left() + 1 == self.vcpu_count()
    }

    /// Whether all vCPUs have stopped and left their CPUs.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopping.left() == self.vcpu_count()
    }

    /// Lets the vCPUs of a guest that has stopped run, or those of one that has never run.
    pub(super) fn go_on(&self) {
        self.stopping.go_on();
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
