//! Changes of guest memory caused by a vCPU's access.
//!
//! Such a change is made in steps of the run loop (`run.rs`). The access is over when the change
//! begins, and the vCPU that made it enters the guest again when the change is over. The vCPU
//! leaves its CPU only while another actor blocks the change, or for a reset, which takes the
//! change over. So one CPU at a time steps it. Between two steps the CPU takes interrupts and
//! serves requests.

use hostlink::counters::Counter;
use memslots::space::Report;
use paging::Progress;

use super::arch::Arch;
use super::counting::increase;
use super::machine::{Vm, VpIndex};
use super::percpu::PerCpu;
use super::space::{FlushScratch, MemoryJob};
use crate::stopping::CHANGE;

/// The change in progress, if there is one. Only one change of the slots is in progress at a time.
pub(super) struct OwnChange<A: Arch> {
    /// The vCPU whose access caused the change, and the job that carries it out.
    under_way: Option<(VpIndex, MemoryJob<'static, A>)>,
    scratch: FlushScratch,
}

impl<A: Arch> OwnChange<A> {
    /// No change in progress.
    pub(super) const fn none() -> Self {
        Self { under_way: None, scratch: FlushScratch::new() }
    }
}

impl<A: Arch> Vm<A> {
    /// Begins a change that an access of this vCPU has caused, on the calling CPU. The vCPU enters
    /// the guest again when the change is over.
    pub fn begin_change(&self, cpu: &PerCpu<A>, by: VpIndex, job: MemoryJob<'static, A>) {
        cpu.check_queue.set(true);
        self.change.lock().under_way = Some((by, job));
        // A CPU that sees it finds the change.
        self.stopping.set(CHANGE);
    }

    /// Whether a change caused by a vCPU is in progress.
    pub fn is_changing(&self) -> bool {
        self.attention() & CHANGE != 0
    }

    /// Makes a step of the change, if this vCPU caused it. A reset has no vCPU and steps the change
    /// of any vCPU. `Done` if there is none.
    ///
    /// The caller must have no guest memory pinned, and no translation section of its vCPU open.
    pub fn step_change(&self, vcpu: Option<VpIndex>) -> Progress {
        // A change whose lock another CPU holds is not this vCPU's.
        let Some(mut change) = self.is_changing().then(|| self.change.try_lock()).flatten() else {
            return Progress::Done;
        };
        let OwnChange { under_way, scratch } = &mut *change;
        let Some((by, job)) = under_way.as_mut().filter(|(by, _)| vcpu.is_none_or(|vcpu| vcpu == *by)) else {
            return Progress::Done;
        };
        let progress = self.step_job(job, scratch);
        if progress == Progress::Done {
            self.count_change(*by, &job.report());
            *under_way = None;
            self.stopping.clear(CHANGE);
            drop(change);
            self.audit_if_paranoid();
        }
        progress
    }

    fn count_change(&self, by: VpIndex, report: &Report) {
        let counters = self.host.counters_of(self.vcpus[by as usize].row);
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
