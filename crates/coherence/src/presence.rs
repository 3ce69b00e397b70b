//! Virtual CPUs that come and go while others flush them.
//!
//! A [`Target`] outlives its vCPU: it stays where initiators find it, its generations go on, and
//! requests are posted to it as ever. All that removal changes is one bit of the word. So there
//! is nothing that an initiator could miss:
//!
//! * It waits for a target that is then removed. The owner was out of guest mode, or it could not
//!   have been removed: nothing is left to wait for.
//! * The target is added again meanwhile, and enters. Entry needs a flush that was taken, and what
//!   it publishes is newer than all requests before it: generations never start again.
//! * It issues to a target that is absent. The request is in the mailbox when the vCPU comes back.
//!   That must not be left out for targets that a load shows to be absent: the load may be older
//!   than the change of the page tables is to the vCPU that is added (O3).
//!
//! What does get lost is what the former vCPU had on record for its next VMRUN. Its successor may
//! run on the same CPU, and under the same tag if the caller keeps that; hence [`Target::add`]
//! asks for everything to be flushed.

use crate::mailbox::Scope;
use crate::owner::Owner;
use crate::sync::{Ordering, const_fn, update};
use crate::target::Target;
use crate::word;

impl Target {
    const_fn! {
        /// The target of a vCPU that is not there yet: see [`add`](Self::add).
        pub fn absent() -> Self {
            Self::with_word(word::ABSENT | word::OWNED)
        }
    }

    /// Brings an absent vCPU back, or a new one in its place; `None` if it is there already.
    ///
    /// A flush of everything pends from the beginning. So does an event that was posted meanwhile:
    /// the new vCPU looks once too often rather than once too seldom. It is not halted.
    pub fn add(&self) -> Option<Owner<'_>> {
        if !self.is_absent() {
            return None; // lest every mistaken call make a vCPU flush
        }
        // Before FLUSH is set, like every request; one too many if another caller is faster.
        self.mailbox.post(Scope::All);
        let add = |word: u64| {
            let present = word & !(word::ABSENT | word::HALTED) | word::FLUSH;
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
    /// Takes the vCPU away: nobody runs it, waits for it or wakes it before [`Target::add`].
    ///
    /// To remove a vCPU that runs, post an event and let its CPU do it. One that is queued or
    /// halted is removed by the CPU that claims it ([`Target::owner`]); a wake-up that was handed
    /// out before may still be on its way, and its bearer then finds no owner to be had.
    pub fn remove(self) {
        // Pairs with `Target::add`: the next owner comes after this one.
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
    fn added_vcpu_flushes_everything_first_whatever_its_predecessor_had_done() {
        for target in [Target::absent(), Target::new()] {
            if let Some(mut owner) = target.owner() {
                target.request(Scope::All);
                owner.take_flush().unwrap().complete();
                owner.remove();
            }
            let mut owner = target.add().unwrap();
            assert_eq!(owner.try_enter(CPU).unwrap_err(), Pending { flush: true, event: false });
            assert_eq!(owner.begin_translation().unwrap_err(), Pending { flush: true, event: false });
            let work = owner.take_flush().unwrap();
            assert!(matches!(work.scope(), Scope::All));
            work.complete();
            assert!(owner.try_enter(CPU).is_ok());
        }
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
