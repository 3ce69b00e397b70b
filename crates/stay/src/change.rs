//! Changes of guest memory, step by step.

use coherence::SpaceReceipt;
use memslots::Retired;
use memslots::space::{FetchJob, Job, Progress};
use paging::{FlushReceipt, Format, Invalidation, Stamp, TableMemory};

/// A change of guest memory, or a fetch of a dirty log.
pub trait Change {
    /// See [`Job::step`].
    fn step(&mut self, entries_max: u32, retire: impl FnMut(Retired)) -> Progress;
    /// See [`Job::invalidation`].
    fn invalidation(&self) -> Invalidation<'_>;
    /// See [`Job::flushed`].
    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool;
}

impl<F: Format, M: TableMemory> Change for Job<'_, F, M> {
    fn step(&mut self, entries_max: u32, retire: impl FnMut(Retired)) -> Progress {
        Self::step(self, entries_max, retire)
    }

    fn invalidation(&self) -> Invalidation<'_> {
        Self::invalidation(self)
    }

    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool {
        Self::flushed(self, receipt)
    }
}

impl<F: Format, M: TableMemory> Change for FetchJob<'_, '_, F, M> {
    fn step(&mut self, entries_max: u32, _: impl FnMut(Retired)) -> Progress {
        Self::step(self, entries_max)
    }

    fn invalidation(&self) -> Invalidation<'_> {
        Self::invalidation(self)
    }

    fn flushed(&mut self, receipt: &(impl FlushReceipt + ?Sized)) -> bool {
        Self::flushed(self, receipt)
    }
}

/// What a flush of a whole space leaves behind: a receipt.
pub trait Proof {
    /// The receipt.
    fn receipt(&self) -> &dyn FlushReceipt;
}

impl Proof for SpaceReceipt<Stamp> {
    fn receipt(&self) -> &dyn FlushReceipt {
        self
    }
}

/// Makes one step of a change, with the flush if it comes to one. No guest memory may be pinned by the caller, and no section of
/// its vCPU be open.
///
/// `flush` drops what it is told from all processors; what is out of use goes to `retire`.
///
/// # Panics
/// If the receipt of the flush that was just made is refused.
pub fn step<C: Change, P: Proof>(
    change: &mut C,
    entries_max: u32,
    flush: impl FnOnce(Invalidation<'_>) -> P,
    mut retire: impl FnMut(Retired),
) -> Progress {
    let progress = change.step(entries_max, &mut retire);
    if progress != Progress::Flush {
        return progress;
    }
    let proof = flush(change.invalidation());
    assert!(change.flushed(proof.receipt()), "the flush was issued after the change's last step");
    // What is left of the change is short; tables are freed in steps of their own.
    change.step(entries_max, retire)
}
