//! Changes of guest memory, step by step.

use coherence::SpaceReceipt;
use memslots::Retired;
use memslots::space::Steps;
use paging::{FlushReceipt, Invalidation, Progress, Stamp};

/// The result of a flush of a whole space: a receipt.
pub trait Proof {
    /// The receipt.
    fn receipt(&self) -> &dyn FlushReceipt;
}

impl Proof for SpaceReceipt<Stamp> {
    fn receipt(&self) -> &dyn FlushReceipt {
        self
    }
}

/// Makes one step of a change, including the flush if the step requires one. The caller must not
/// pin guest memory, and its vCPU must have no open section.
///
/// `flush` drops the named translations from all processors; `retire` receives memory that is out
/// of use.
///
/// # Panics
/// If the receipt of the flush just made is refused.
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
    // The rest of the change is short; tables are freed in separate steps.
    change.step(entries_max, retire)
}
