//! A flush that a guest requests by hypercall: the initiator's end.

use coherence::{FlushOutcome, Hardware, Issued, Ledger, Members, Scope, Stalled, Targets};
use tlfs::{FlushCall, FlushScope, GvaList};

use super::plan::{Plan, Why, plan};
use super::registers::TranslationControls;
use crate::{Mistake, Mistakes};

/// The request to the targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Everything, as requested by the guest.
    Everything,
    /// Everything, in place of a list.
    Whole(Why),
    /// All of a list.
    List,
    /// A part of a list: the guest calls again for the rest.
    Part,
}

/// The initiator: the processor of the calling vCPU. The notifications are for counters.
pub trait Initiator: Hardware + Mistakes + Copy {
    /// A request was published.
    fn has_asked(&self, asked: Asked, outcome: &FlushOutcome) {
        let _ = (asked, outcome);
    }

    /// No target had to be interrupted: the flush is over.
    fn is_over(&self, outcome: &FlushOutcome) {
        let _ = outcome;
    }

    /// The time, for [`has_waited`](Self::has_waited).
    fn now(&self) -> u64 {
        0
    }

    /// Targets were interrupted and have been waited for since `since`.
    fn has_waited(&self, outcome: &FlushOutcome, since: u64) {
        let _ = (outcome, since);
    }
}

/// The vCPUs that a call names: those with the same VP index.
#[derive(Clone, Copy, Debug)]
pub struct Named<'a> {
    targets: &'a tlfs::Targets<'a>,
    vcpus: usize,
}

impl<'a> Named<'a> {
    /// For `vcpus` vCPUs.
    pub const fn new(targets: &'a tlfs::Targets<'a>, vcpus: usize) -> Self {
        Self { targets, vcpus }
    }
}

impl Members for Named<'_> {
    #[inline(always)]
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        match self.targets {
            // Loops, not `for_each`: the compiler decides whether that is inlined.
            tlfs::Targets::All => {
                for bank in 0..self.vcpus.div_ceil(64) {
                    visit(bank, u64::MAX);
                }
            }
            tlfs::Targets::Set(set) => {
                for (bank, bits) in set.banks() {
                    visit(bank as usize, bits);
                }
            }
        }
    }
}

/// The request of one call.
struct Request<'a, T: ?Sized, I, const BANKS: usize> {
    vcpus: &'a T,
    named: Named<'a>,
    initiator: I,
    ledger: &'a mut Ledger<BANKS>,
}

/// Flushes the translations that a call names, or more if that is cheaper than `page_limit` pages
/// one by one. Returns how many elements of its list are done: if not all are, the guest calls
/// again.
///
/// When it returns, no target uses a translation that was replaced before the call (G1): each has
/// left guest mode since, or flushes before it next enters.
///
/// # Errors
/// [`Stalled`] when [`Hardware::relax`] gave up on a target.
///
/// # Panics
/// If there are more vCPUs than the ledger has places.
#[inline(always)] // It has one caller.
pub fn serve<T: Targets + ?Sized, I: Initiator, const BANKS: usize>(
    vcpus: &T,
    count: usize,
    call: &FlushCall<'_>,
    page_limit: u64,
    initiator: I,
    ledger: &mut Ledger<BANKS>,
) -> Result<u16, Stalled> {
    let count = if initiator.makes(Mistake::FirstBankOnly) { count.min(64) } else { count };
    let request = Request { vcpus, named: Named::new(&call.targets, count), initiator, ledger };
    match &call.scope {
        FlushScope::Everything => {
            match space_of(call, &initiator) {
                None => request.flush(Scope::All, Asked::Everything),
                Some(space) => request.flush_space(space),
            }?;
            Ok(call.rep_count)
        }
        FlushScope::List(list) => request.flush_list(call, list, page_limit),
    }
}

/// The only address space affected by a flush of everything without global translations; see
/// [`Space`](coherence::Space). Not used for lists: there the TLFS calls the flag that excludes
/// global pages an invalid option.
#[inline(always)]
fn space_of(call: &FlushCall<'_>, mistakes: &impl Mistakes) -> Option<u64> {
    let spares_globals = call.flags.non_global_only() || mistakes.makes(Mistake::GlobalsSpared);
    let is_one = spares_globals && !call.flags.all_address_spaces();
    if mistakes.makes(Mistake::SpaceNotMasked) {
        return is_one.then_some(call.address_space);
    }
    is_one.then_some(TranslationControls::named_space(call.address_space))
}

impl<'a, T: Targets + ?Sized, I: Initiator, const BANKS: usize> Request<'a, T, I, BANKS> {
    #[inline(never)] // With room for the ranges, which a flush of everything need not make.
    fn flush_list(self, call: &FlushCall<'_>, list: &GvaList<'_>, page_limit: u64) -> Result<u16, Stalled> {
        let plan = plan(list, page_limit);
        let (scope, done, asked) = match &plan {
            Plan::Whole(why) => (Scope::All, call.rep_count, Asked::Whole(*why)),
            Plan::Ranges { ranges, done } if *done < call.rep_count => {
                let is_forgotten = self.initiator.makes(Mistake::RestOfListForgotten);
                (Scope::Ranges(ranges), if is_forgotten { call.rep_count } else { *done }, Asked::Part)
            }
            // No address of the list can be translated.
            Plan::Ranges { ranges, done } if ranges.is_empty() => return Ok(*done),
            Plan::Ranges { ranges, done } => (Scope::Ranges(ranges), *done, Asked::List),
        };
        self.flush(scope, asked)?;
        Ok(done)
    }

    /// Flushes everything on all targets except those that have halted in an address space other
    /// than `space`.
    #[inline(never)]
    fn flush_space(self, space: u64) -> Result<(), Stalled> {
        let issued = coherence::issue_in_space(self.vcpus, &self.named, Scope::All, space, self.ledger);
        finish(self.initiator, issued, Asked::Everything)
    }

    /// Flushes `scope` on the targets.
    #[inline(always)] // Two callers, of which one is to be fast.
    fn flush(self, scope: Scope<'_>, asked: Asked) -> Result<(), Stalled> {
        let issued = coherence::issue(self.vcpus, &self.named, scope, self.ledger);
        finish(self.initiator, issued, asked)
    }
}

#[inline(always)]
fn finish<T: Targets + ?Sized, I: Initiator, const BANKS: usize>(
    initiator: I,
    issued: Issued<'_, T, BANKS>,
    asked: Asked,
) -> Result<(), Stalled> {
    if initiator.makes(Mistake::NotKicked) {
        // Targets in guest mode continue with old translations until they next enter.
        return Ok(());
    }
    initiator.has_asked(asked, issued.outcome());
    match issued.receipt() {
        Some(receipt) => {
            initiator.is_over(&receipt.outcome());
            Ok(())
        }
        None => dispatch_and_wait(initiator, issued),
    }
}

/// Interrupts the targets in guest mode and waits for them.
#[inline(never)]
fn dispatch_and_wait<T: Targets + ?Sized, I: Initiator, const BANKS: usize>(
    initiator: I,
    issued: Issued<'_, T, BANKS>,
) -> Result<(), Stalled> {
    if initiator.makes(Mistake::NotWaited) {
        let _nobody_waits = issued.dispatch(&initiator);
        return Ok(());
    }
    let since = initiator.now();
    let receipt = issued.dispatch(&initiator).wait(&initiator)?;
    initiator.has_waited(&receipt.outcome(), since);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::ops::ControlFlow;

    use coherence::{CpuId, Space, Target};
    use tlfs::{FlushFlags, VaWidth, VpSet};

    /// An initiator that counts its notifications, and may make a mistake.
    #[derive(Clone, Copy)]
    struct MockInitiator<'a> {
        asked: &'a Cell<Option<(Asked, u32, u32)>>,
        kicks: &'a Cell<u32>,
        over: &'a Cell<Option<u32>>,
        relax: &'a dyn Fn() -> ControlFlow<()>,
        mistake: Option<Mistake>,
    }

    impl Mistakes for MockInitiator<'_> {
        fn makes(&self, mistake: Mistake) -> bool {
            self.mistake == Some(mistake)
        }
    }

    impl Hardware for MockInitiator<'_> {
        fn kick(&self, _: CpuId) {
            self.kicks.set(self.kicks.get() + 1);
        }

        fn relax(&self, _: u64) -> ControlFlow<()> {
            (self.relax)()
        }
    }

    impl Initiator for MockInitiator<'_> {
        fn has_asked(&self, asked: Asked, outcome: &FlushOutcome) {
            self.asked.set(Some((asked, outcome.targets, outcome.elsewhere)));
        }

        fn is_over(&self, outcome: &FlushOutcome) {
            self.over.set(Some(outcome.targets));
        }

        fn now(&self) -> u64 {
            7
        }

        fn has_waited(&self, outcome: &FlushOutcome, since: u64) {
            self.asked.set(Some((Asked::Everything, outcome.targets, since as u32)));
        }
    }

    /// The result of a call, and the initiator's notification: targets, and those of them that are
    /// elsewhere.
    type Served = (Result<u16, Stalled>, Option<(Asked, u32, u32)>);

    /// The outcome of a call on targets of which number 1 has halted in the space at 0x5000.
    fn outcome(call: &FlushCall<'_>, mistake: Option<Mistake>) -> Served {
        let targets = [Target::new(), Target::new(), Target::new()];
        assert!(targets[1].owner().expect("nobody has it").try_halt(Space::only(0x5000)));
        let (asked, kicks, over) = (Cell::new(None), Cell::new(0), Cell::new(None));
        let relax = &|| ControlFlow::Break(());
        let told = MockInitiator { asked: &asked, kicks: &kicks, over: &over, relax, mistake };
        let served = serve(&targets[..], 3, call, 16, told, &mut Ledger::<1>::new());
        assert_eq!(kicks.get(), 0, "nobody is in guest mode");
        assert_eq!(over.get(), asked.get().map(|(_, targets, _)| targets), "nobody is waited for");
        (served, asked.get())
    }

    fn everything(flags: FlushFlags, address_space: u64) -> FlushCall<'static> {
        let scope = FlushScope::Everything;
        FlushCall { address_space, flags, targets: tlfs::Targets::All, scope, rep_count: 0 }
    }

    fn all(asked: Asked, targets: u32, elsewhere: u32) -> Served {
        (Ok(0), Some((asked, targets, elsewhere)))
    }

    #[test]
    fn a22_only_a_flush_of_one_space_without_globals_leaves_out_who_has_halted_in_another() {
        let one = FlushFlags::new().with_non_global_only(true);
        let both = one.with_all_address_spaces(true);
        assert_eq!(outcome(&everything(one, 0x7000), None), all(Asked::Everything, 2, 1));
        assert_eq!(outcome(&everything(one, 1 << 63 | 0x5018), None), all(Asked::Everything, 3, 0), "A11");
        assert_eq!(outcome(&everything(both, 0x7000), None), all(Asked::Everything, 3, 0));
        assert_eq!(outcome(&everything(FlushFlags::new(), 0x7000), None), all(Asked::Everything, 3, 0));
        // The outcome with these mistakes.
        let spared = outcome(&everything(FlushFlags::new(), 0x7000), Some(Mistake::GlobalsSpared));
        assert_eq!(spared, all(Asked::Everything, 2, 1));
        let spared = outcome(&everything(one, 1 << 63 | 0x5018), Some(Mistake::SpaceNotMasked));
        assert_eq!(spared, all(Asked::Everything, 2, 1));
    }

    #[test]
    fn h25_a_list_is_done_as_far_as_the_answer_says() {
        let set = VpSet::sparse(1, &[0b101]).expect("one bank");
        let list = |entries: &[u64]| {
            let scope = FlushScope::List(GvaList::new(entries, VaWidth::Bits48));
            let targets = tlfs::Targets::Set(set);
            let call = FlushCall {
                address_space: 0,
                flags: FlushFlags::new(),
                targets,
                scope,
                rep_count: entries.len() as u16,
            };
            outcome(&call, None)
        };
        let apart = |count: u64| (0..count).map(|page| page << 13).collect::<std::vec::Vec<_>>();
        assert_eq!(list(&apart(3)), (Ok(3), Some((Asked::List, 2, 0))));
        assert_eq!(list(&apart(17)), (Ok(17), Some((Asked::Whole(Why::ManyPages), 2, 0))), "above the limit");
        assert_eq!(list(&[0x8000_0000_0000_0000]), (Ok(1), None), "nothing to flush");
    }

    #[test]
    fn o1_an_initiator_hears_since_when_it_has_waited() {
        let (targets, asked, kicks, over) = ([Target::new()], Cell::new(None), Cell::new(0), Cell::new(None));
        let mut owner = targets[0].owner().expect("nobody has it");
        let in_guest = Cell::new(owner.try_enter(CpuId(1)).ok());
        let relax = || {
            drop(in_guest.take());
            ControlFlow::Continue(())
        };
        let (relax, mistake) = (&relax, None);
        let told = MockInitiator { asked: &asked, kicks: &kicks, over: &over, relax, mistake };
        let call = everything(FlushFlags::new(), 0);
        assert_eq!(serve(&targets[..], 1, &call, 16, told, &mut Ledger::<1>::new()), Ok(0));
        assert_eq!((kicks.get(), asked.get()), (1, Some((Asked::Everything, 1, 7))));
        assert_eq!(over.get(), None, "it was waited for");
    }
}
