//! Virtual CPUs that are added and removed while others flush them.
//!
//! A [`Target`] outlives its vCPU: initiators still find it, its generations continue, and requests
//! are posted to it as before. Removal changes only one bit of the word. So an initiator cannot
//! miss anything:
//!
//! * It waits for a target that is then removed. The owner was out of guest mode, otherwise it
//!   could not have been removed: nothing is left to wait for.
//! * Meanwhile the target is added again, and enters. Entry requires that the flush was taken, and
//!   the generation that this publishes is newer than all requests before it: generations never
//!   restart.
//! * It issues to an absent target. The request is in the mailbox when the vCPU is added again. The
//!   request must not be skipped for targets that a load shows as absent: to the vCPU that is
//!   added, the load may appear older than the change of the page tables (O3).
//!
//! Removal does lose the flush that the former vCPU had recorded for its next VMRUN. Its successor
//! may run on the same CPU, and under the same tag if the caller keeps that; hence [`Target::add`]
//! requests a flush of everything, nested translations included.

use crate::mailbox::Scope;
use crate::owner::Owner;
use crate::sync::{Ordering, const_fn, update};
use crate::target::Target;
use crate::word;

impl Target {
    const_fn! {
        /// The target of a vCPU that is not present yet: see [`add`](Self::add).
        pub fn absent() -> Self {
            Self::with_word(word::ABSENT | word::OWNED)
        }
    }

    /// Brings an absent vCPU back, or adds a new one in its place; `None` if one is present
    /// already.
    ///
    /// A flush of everything is pending from the start. So is an event that was posted meanwhile: a
    /// needless look by the new vCPU is better than a missed one. The vCPU is not halted.
    pub fn add(&self) -> Option<Owner<'_>> {
        if !self.is_absent() {
            return None; // so that a mistaken call makes no vCPU flush
        }
        // Before FLUSH is set, like every request; redundant if another caller is faster.
        self.mailbox.post(Scope::All);
        let add = |word: u64| {
            let present = word & !(word::ABSENT | word::HALTED) | word::FLUSH_NESTED;
            (word & word::ABSENT != 0).then_some(present)
        };
        update(&self.word, add).ok().map(|_| Owner { target: self })
    }

    /// Whether the vCPU is absent at this moment. For statistics and scheduling hints.
    pub fn is_absent(&self) -> bool {
        self.word.load(Ordering::Relaxed) & word::ABSENT != 0
    }
}

impl Owner<'_> {
    /// Removes the vCPU: no CPU runs it, waits for it or wakes it before [`Target::add`].
    ///
    /// To remove a running vCPU, post an event and let its CPU remove it. A queued or halted vCPU
    /// is removed by the CPU that claims it ([`Target::owner`]). A wake-up that was claimed earlier
    /// may still be in progress; its waker then cannot get an owner.
    pub fn remove(self) {
        // Pairs with `Target::add`: the next owner is claimed after this one is released.
        self.target.word.fetch_or(word::ABSENT, Ordering::AcqRel);
        core::mem::forget(self); // OWNED stays set, for `add` to hand on
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{CpuId, Generation, GvaRange, Notify, Pending, Space};

    const CPU: CpuId = CpuId(3);
    const BOTH: Pending = Pending { flush: true, event: true };

    #[test]
    fn absent_vcpu_has_no_owner_until_it_is_added() {
        let target = Target::new();
        assert!(!target.is_absent() && target.add().is_none(), "there already");
        let mut owner = target.owner().unwrap();
        assert!(owner.take_flush().is_none(), "a refused addition asks for nothing");
        owner.remove();
        assert!(target.is_absent() && target.owner().is_none() && target.owner().is_none());
        let owner = target.add().unwrap();
        assert!(!target.is_absent() && target.add().is_none() && target.owner().is_none());
        drop(owner);
        assert!(target.owner().is_some());
    }

    #[test]
    fn generations_and_requests_outlive_the_vcpu() {
        let target = Target::new();
        let range = [GvaRange { first: 0, pages: 1 }];
        let mut owner = target.owner().unwrap();
        assert_eq!(target.request(Scope::Ranges(&range)).generation, Generation(1));
        owner.take_flush().unwrap().complete();
        owner.remove();
        let meanwhile = target.request(Scope::Ranges(&range));
        assert!(meanwhile.absent && !meanwhile.busy && meanwhile.generation == Generation(2));
        let mut owner = target.add().unwrap();
        let work = owner.take_flush().unwrap();
        assert_eq!((work.generation(), work.requests()), (Generation(3), 2));
        work.complete();
        assert!(!target.request(Scope::All).absent);
    }

    #[test]
    fn removed_vcpu_is_woken_by_nobody_and_its_successor_looks() {
        let target = Target::new();
        let mut owner = target.owner().unwrap();
        assert!(owner.try_halt(Space::UNKNOWN));
        owner.remove();
        assert_eq!(target.post_event(), Notify::None, "gone");
        let mut owner = target.add().unwrap();
        assert_eq!(target.post_event(), Notify::None, "not halted");
        assert_eq!(owner.try_enter(CPU).unwrap_err(), BOTH);
        assert!(owner.take_events() && owner.try_halt(Space::UNKNOWN));
        assert_eq!(target.post_event(), Notify::Wake);
    }
}
