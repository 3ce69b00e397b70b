//! The guest's memory: how changes of its slots, and of what is known about its pages, are carried through.

use core::ops::ControlFlow;

use coherence::{Members, Scope};
use hostlink::counters::Counter;
use memslots::Retired;
use memslots::space::{FetchJob, GuestSpace, Job, Progress, Report};
use paging::{Amd64Nested, FlushReceipt, Stamp};

use super::flush::{FlushScratch, Ipi};
use super::machine::{CounterRow, Machine, increase};
use super::memory::HeapTables;

/// The memory of the one guest.
pub(super) type Space = GuestSpace<Amd64Nested, HeapTables>;
/// A change of it.
pub(super) type SpaceJob<'a> = Job<'a, Amd64Nested, HeapTables>;
/// A fetch of a dirty log.
pub(super) type SpaceFetch<'a> = FetchJob<'a, 'static, Amd64Nested, HeapTables>;

/// Entries of the nested page table that one step visits: well below 50 µs, at a few instructions each.
pub(super) const STEP_ENTRIES: u32 = 4096;

/// A flush of all vCPUs that is over.
pub(super) struct Flushed(Stamp);

// SAFETY: made by `flush_space` alone, from the stamp before the flush was issued and for the flush engine's receipt. That
// receipt says that no vCPU uses translations of before, nor ends a section that began before; and every software
// walk of the nested table on a vCPU's behalf is in such a section (`Context::with_section`). An audit walks it as well, but never
// while there is a job.
unsafe impl FlushReceipt for Flushed {
    fn covers(&self, stamp: Stamp) -> bool {
        self.0.covers(stamp)
    }
}

/// All vCPUs.
struct EveryVcpu(usize);

impl Members for EveryVcpu {
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        (0..self.0.div_ceil(64)).for_each(|bank| visit(bank, u64::MAX));
    }
}

/// A change or a fetch, in steps.
pub(super) trait Steps {
    /// See [`Job::step`]; what is out of use goes back to the machine.
    fn step(&mut self, vm: &Machine, entries_max: u32) -> Progress;
    /// See [`Job::flushed`].
    fn flushed(&mut self, receipt: &Flushed) -> bool;
}

impl Steps for SpaceJob<'_> {
    fn step(&mut self, vm: &Machine, entries_max: u32) -> Progress {
        Job::step(self, entries_max, |retired| vm.take_back(&retired))
    }

    fn flushed(&mut self, receipt: &Flushed) -> bool {
        Job::flushed(self, receipt)
    }
}

impl Steps for SpaceFetch<'_> {
    fn step(&mut self, _: &Machine, entries_max: u32) -> Progress {
        FetchJob::step(self, entries_max)
    }

    fn flushed(&mut self, receipt: &Flushed) -> bool {
        FetchJob::flushed(self, receipt)
    }
}

impl Machine {
    /// Makes one step of a job, with the flush if it comes to one. `Break` when the job is over.
    ///
    /// No guest memory may be pinned by the caller, and no translation section of its vCPU be open.
    pub(super) fn step_job(&self, job: &mut impl Steps, scratch: &mut FlushScratch) -> ControlFlow<()> {
        match job.step(self, STEP_ENTRIES) {
            Progress::Done => return ControlFlow::Break(()),
            Progress::More => {}
            Progress::Waiting => core::hint::spin_loop(),
            Progress::Flush => {
                let receipt = self.flush_space(scratch);
                assert!(job.flushed(&receipt), "the flush was issued after the job's last step");
            }
        }
        ControlFlow::Continue(())
    }

    /// Carries a short job through.
    pub(super) fn finish_job(&self, mut job: SpaceJob<'_>, scratch: &mut FlushScratch) -> Report {
        while self.step_job(&mut job, scratch).is_continue() {}
        let report = job.report();
        drop(job);
        self.audit_if_paranoid();
        report
    }

    /// Drops all translations of all vCPUs.
    fn flush_space(&self, scratch: &mut FlushScratch) -> Flushed {
        let stamp = self.space.stamp();
        let issued = coherence::issue(self, &EveryVcpu(self.vcpus.len()), Scope::All, scratch);
        if self.has_kicks() {
            // A target that does not leave guest mode is a broken machine: going on would hand out memory that it
            // still uses.
            let waited = issued.dispatch(&Ipi).wait(&Ipi);
            let _ = waited.unwrap_or_else(|stalled| panic!("{stalled}"));
        }
        Flushed(stamp)
    }

    /// With `paranoid`: no translation may be there that a fault would not install now.
    pub(super) fn audit_if_paranoid(&self) {
        if !self.is_paranoid() {
            return;
        }
        // Another job may have begun; its end is audited too.
        if let Ok(audit) = self.space.audit()
            && let Some(first) = audit.first
        {
            panic!("{} of {} translations are wrong: {first}", audit.wrong_count, audit.leaf_count);
        }
    }

    fn take_back(&self, retired: &Retired) {
        match retired {
            Retired::Memory { slot, .. } => self.memory_of_slots.lock().retire_memory(slot),
            Retired::Log { slot, .. } => self.memory_of_slots.lock().retire_log(slot.id),
        }
    }
}

/// Counts a job that a vCPU's access has caused.
pub(super) fn count_job(counters: &CounterRow, report: &Report) {
    for (counter, amount) in [
        (Counter::SlotChanges, 1),
        (Counter::ZapVisited, report.visited),
        (Counter::ZapTables, report.tables),
        (Counter::ZapFlushes, report.flushes),
    ] {
        increase(&counters[counter as usize], amount);
    }
}
