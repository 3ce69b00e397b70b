//! The operations of the protocol one by one, so that a mutant can break one of them.

use super::machine::ModelState;
use crate::sync::Ordering;
use crate::{
    CpuId, FlushOutcome, FlushWork, InGuest, Ledger, Notify, Owner, Pending, Scope, Space, Target, TargetSet,
    Translation,
};

/// The operations that scenarios use. Provided methods are the real ones.
pub(super) trait Protocol: 'static {
    fn try_enter<'o>(owner: &'o mut Owner<'_>, cpu: CpuId) -> Result<InGuest<'o>, Pending> {
        owner.try_enter(cpu)
    }

    fn leave(guest: InGuest<'_>) {
        guest.leave();
    }

    fn take_flush<'o>(owner: &'o mut Owner<'_>) -> Option<FlushWork<'o>> {
        owner.take_flush()
    }

    fn complete(work: FlushWork<'_>) {
        work.complete();
    }

    fn begin_translation<'o>(owner: &'o mut Owner<'_>) -> Result<Translation<'o>, Pending> {
        owner.begin_translation()
    }

    fn try_halt(owner: &mut Owner<'_>, space: Space) -> bool {
        owner.try_halt(space)
    }

    fn post_event(target: &Target) -> Notify {
        target.post_event()
    }

    fn remove(owner: Owner<'_>) {
        owner.remove();
    }

    fn add(target: &Target) -> Option<Owner<'_>> {
        target.add()
    }

    /// A flush of everything of one address space on the first `count` targets.
    fn flush_in_space(machine: &ModelState, count: usize, space: u64) {
        let (set, mut ledger) = (TargetSet::<1>::first(count), Ledger::<1>::new());
        let issued = crate::issue_in_space(machine.targets.as_slice(), &set, Scope::All, space, &mut ledger);
        let receipt = issued.dispatch(machine).wait(machine);
        assert!(receipt.is_ok(), "the model never gives up");
    }

    /// A flush by broadcast, modelled only as far as software is concerned.
    fn broadcast(machine: &ModelState) {
        let mut ledger = Ledger::<1>::new();
        let targets = &machine.targets[..1];
        let receipt = crate::broadcast(
            targets,
            &crate::NoDevices,
            &mut ledger,
            machine,
            crate::tlbi::Invalidated::assumed,
        );
        assert!(receipt.is_ok(), "the model never gives up");
    }

    /// The nested table has been changed, and no flush of it been requested.
    fn set_stamp(machine: &ModelState) {
        machine.stamp.store(1, Ordering::Release);
    }

    /// What an arrival goes by.
    fn stamp(machine: &ModelState) -> u64 {
        machine.stamp.load(Ordering::Acquire)
    }

    /// A flush of target 0 after a change of the nested table.
    fn flush_nested(machine: &ModelState) {
        let mut ledger = Ledger::<1>::new();
        let targets = &machine.targets[..1];
        let receipt = crate::flush_space(targets, &crate::NoDevices, &mut ledger, machine);
        assert!(receipt.is_ok(), "the model never gives up");
    }

    /// A flush of the first `count` targets.
    fn flush(machine: &ModelState, count: usize, scope: Scope<'_>) -> FlushOutcome {
        let (set, mut ledger) = (TargetSet::<1>::first(count), Ledger::<1>::new());
        let receipt = crate::flush(machine.targets.as_slice(), &set, scope, &mut ledger, machine);
        receipt.expect("the model never gives up").outcome()
    }
}

/// The protocol as it is.
pub(super) struct Real;

impl Protocol for Real {}
