//! All vCPUs of a guest stop, and go on: `stopping` for a machine.

use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;

use super::arch::Arch;
use super::guests::Shown;
use super::machine::{Vm, VpIndex};
use super::{host, percpu};
use crate::sched::QueueClass;
use crate::sched::notify::Published;
use crate::stopping::{PAUSE, Role};
use crate::vm::dma::Devices;

impl<A: Arch> Vm<A> {
    /// Makes every vCPU stop, for this reason: a bit of [`STOP`](crate::stopping::STOP).
    pub fn begin_stop(&self, why: u32) {
        self.tell_all(self.stopping.begin(why));
    }

    /// The same because the guest ends, with this exit code.
    pub(super) fn begin_end(&self, code: ExitCode) {
        self.tell_all(self.stopping.end(code as u32));
    }

    fn tell_all(&self, begun: Option<Published>) {
        if let Some(begun) = begun {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu, begun));
        }
    }

    /// Makes it pause ahead of all others: a request waits for that.
    pub(super) fn stop_soon(&self) {
        // In this order: the vCPU that leaves last ends it.
        self.hurry(true);
        self.begin_stop(PAUSE);
    }

    /// A request waits for something that the guest's vCPUs do: they run before all others for a
    /// while. `begins` is true when the wait begins.
    pub(super) fn hurry(&self, begins: bool) {
        self.host.sched.put_first(self.number, A::now());
        if begins {
            // Its cap holds it no more, which a CPU that idles would find when that time is over.
            percpu::online::<A>().for_each(|cpu| host::kick::<A>(cpu.index));
        }
    }

    pub(super) fn arrive_at_stop(&self) -> Role {
        self.stopping.arrive(self.vcpu_count())
    }

    /// A vCPU that has stopped has left its CPU. It is in no queue, and its owner has been dropped.
    /// The guest must not be used afterwards. Returns whether it was the last vCPU of a guest that
    /// has ended; the end is recorded.
    pub(super) fn leave_for_stop(&self) -> bool {
        let mut has_ended = false;
        self.stopping.leave(self.vcpu_count(), |ended| {
            self.host.sched.end_first(self.number);
            if let Some(code) = ended.and_then(|code| ExitCode::from_code(code.cast_signed())) {
                A::Devices::silence(self);
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

    pub(super) fn has_stopped(&self) -> bool {
        self.stopping.left() == self.vcpu_count()
    }

    /// Lets the vCPUs of a guest that has stopped run, or those of one that has never run. In the
    /// middle of a reset that is the vCPU that carries it out.
    pub(super) fn go_on(&self, _runs: Shown) {
        let resets = self.reset.lock().as_ref().map(|reset| reset.by);
        if let Some(by) = resets {
            self.stopping.go_on_with_reset(self.vcpu_count());
            return self.wake(|index| index == by);
        }
        self.stopping.go_on();
        // All of them, not just the boot vCPU: the others find that they wait for start-up, and
        // block.
        self.wake(|_| true);
    }

    /// A guest whose vCPUs have never run, or have all left, runs, or pauses until it is resumed.
    pub(super) fn begin(&self, pauses: bool) {
        if !pauses {
            return self.host.start(self);
        }
        self.stopping.pause_from_the_beginning(self.vcpu_count());
        self.host.set_state(self, GuestState::Paused, 0);
    }

    /// Puts vCPUs that have left their CPUs into queues.
    pub(super) fn wake(&self, which: impl Fn(VpIndex) -> bool) {
        for vcpu in self.vcpus.iter().filter(|vcpu| which(vcpu.index)) {
            let nudge = self.host.sched.wake(vcpu.row, QueueClass::Work, A::now());
            // Before that no CPU idles yet.
            if self.host.has_begun() {
                self.host.nudge(nudge);
            }
        }
    }
}
