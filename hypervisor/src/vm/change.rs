//! Changes of guest memory caused by a vCPU's access.
//!
//! Such a change is made in steps of the run loop (`run.rs`). The access is over when the change
//! begins, and the vCPU that made it enters the guest again when the change is over. The vCPU
//! leaves its CPU only while another actor blocks the change, or because the guest stops; then the
//! reset takes the change over, or the next request about the guest. So one CPU at a time steps
//! it. Between two steps the CPU takes interrupts and serves requests.

use core::sync::atomic::{AtomicU32, Ordering};
use hostlink::counters::Counter;
use memslots::space::Report;
use paging::Progress;
use spin::Mutex;

use super::arch::Arch;
use super::counting::increase;
use super::machine::{Vm, VpIndex};
use super::percpu::PerCpu;
use super::space::{FlushScratch, MemoryJob};
use crate::stopping::{CHANGE, STOP};

/// The change in progress, if there is one. Only one change of the slots is in progress at a time.
pub(super) struct OwnChange<A: Arch> {
    /// The vCPU whose access caused the change, or [`NOBODY`]. It is outside the lock: a vCPU that
    /// caused no change takes no lock, so the one that did finds the lock free.
    by: AtomicU32,
    work: Mutex<Work<A>>,
}

const NOBODY: VpIndex = VpIndex(u32::MAX);

struct Work<A: Arch> {
    job: Option<MemoryJob<'static, A>>,
    scratch: FlushScratch,
}

impl<A: Arch> OwnChange<A> {
    pub(super) const fn none() -> Self {
        let work = Work { job: None, scratch: FlushScratch::new() };
        Self { by: AtomicU32::new(NOBODY.0), work: Mutex::new(work) }
    }
}

impl<A: Arch> Vm<A> {
    /// Begins a change that an access of this vCPU has caused, on the calling CPU. The vCPU enters
    /// the guest again when the change is over.
    pub fn begin_change(&self, cpu: &PerCpu<A>, by: VpIndex, job: MemoryJob<'static, A>) {
        cpu.check_queue.set(true);
        let mut work = self.change.work.lock();
        work.job = Some(job);
        self.change.by.store(by.0, Ordering::Release); // Pairs with `step_change`.
        drop(work);
        // A CPU that sees it finds the change.
        self.stopping.set(CHANGE);
    }

    /// Whether a change caused by a vCPU is in progress.
    pub fn is_changing(&self) -> bool {
        self.attention() & CHANGE != 0
    }

    /// Makes a step of the change, if this vCPU caused it. A reset has no vCPU and steps the change
    /// of any vCPU. `Done` if there is none; never before the change is over.
    ///
    /// The caller must have no guest memory pinned, and no translation section of its vCPU open.
    pub fn step_change(&self, vcpu: Option<VpIndex>) -> Progress {
        let by = VpIndex(self.change.by.load(Ordering::Acquire)); // Pairs with `begin_change`.
        if by == NOBODY || vcpu.is_some_and(|vcpu| vcpu != by) {
            return Progress::Done;
        }
        let Some(mut work) = self.change.work.try_lock() else {
            return Progress::Waiting;
        };
        let Work { job, scratch } = &mut *work;
        let Some(current) = job else {
            return Progress::Done;
        };
        let progress = self.step_job(current, scratch);
        if progress == Progress::Done {
            self.count_change(by, &current.report());
            *job = None;
            self.change.by.store(NOBODY.0, Ordering::Release); // Pairs with `step_change`.
            self.stopping.clear(CHANGE);
            drop(work);
            self.audit_if_paranoid();
        }
        progress
    }

    /// Whether a change that the guest has begun must be over before a request can begin its own.
    /// The guest makes it in its own turns, which come soon then; and it begins no other one:
    /// otherwise a guest that changes its memory all the time would never let another job begin.
    pub(super) fn want_turn(&self, is_later: bool) {
        // Relaxed: a vCPU that sees it late begins one more change.
        let was_later = self.turn_wanted.swap(is_later, Ordering::Relaxed);
        if is_later {
            self.hurry(!was_later);
        } else if was_later && self.attention() & STOP == 0 {
            self.host.sched.end_first(self.number);
        }
    }

    /// Another CPU is at the change.
    #[cfg(test)]
    pub(crate) fn hold_change(&self) -> impl Sized + '_ {
        self.change.work.lock()
    }

    fn count_change(&self, by: VpIndex, report: &Report) {
        let counters = self.host.counters_of(self.vcpus[by.place()].row);
        for (counter, amount) in [
            (Counter::SlotChanges, 1),
            (Counter::ZapVisited, report.visited),
            (Counter::ZapTables, report.tables),
            (Counter::ZapFlushes, report.flushes),
        ] {
            increase(&counters[counter as usize], amount);
        }
    }
}
