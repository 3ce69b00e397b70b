//! Changes of guest memory, step by step.

use coherence::SpaceReceipt;
use memslots::Retired;
use memslots::space::Steps;
use paging::{FlushReceipt, Invalidation, Progress, Stamp};

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

/// Makes one step of a change, with the flush if it comes to one. No guest memory may be pinned by
/// the caller, and no section of its vCPU be open.
///
/// `flush` drops what it is told from all processors; what is out of use goes to `retire`.
///
/// # Panics
/// If the receipt of the flush that was just made is refused.
pub fn step<C: Steps, P: Proof>(
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
