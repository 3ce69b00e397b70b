//! The operations of an entry and of a taken flush, in their order.

use core::num::NonZeroU32;
use core::slice;
use std::vec::Vec;

use coherence::asid::{AsidAllocator, AsidSlot, TlbControl};
use coherence::{CpuId, GvaRange, Ledger, Scope, Target, TargetSet, issue};

use super::*;
use crate::{Mistake, Mistakes};

/// A processor that makes a mistake, and notes what it does.
struct Noting<'t>(&'t Target, Option<Mistake>, Vec<(&'static str, u64)>);

impl Mistakes for Noting<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.1 == Some(mistake)
    }
}

impl Processor for Noting<'_> {
    fn id(&self) -> CpuId {
        CpuId(0)
    }

    fn set_tag(&mut self, asid: u32, _: TlbControl, _: bool) {
        self.2.push(("tag", asid.into()));
    }

    fn hold_interrupts(&mut self) {
        self.2.push(("hold", 0));
    }

    fn run(&mut self) -> bool {
        self.2.push(("run", 0));
        true
    }

    fn take_interrupts(&mut self) {
        self.2.push(("take", self.0.is_in_guest().into()));
    }

    fn invalidate_page(&mut self, address: u64, _: u32) {
        self.2.push(("page", address));
    }

    fn mode(&self) -> Mode {
        Mode { pcid: false, pae: true, pieces: false }
    }
}

/// What `act` makes a processor with this mistake do.
fn done(mistake: Option<Mistake>, act: impl Fn(&mut Mistaken<'_, Noting<'_>>)) -> Vec<(&'static str, u64)> {
    let target = Target::new();
    let mut processor = Noting(&target, mistake, Vec::new());
    act(&mut Mistaken::new(&mut processor));
    processor.2
}

#[test]
fn g5_interrupts_are_held_until_the_word_no_longer_says_in_guest_mode() {
    for (event, expected) in
        [(false, &[("hold", 0), ("run", 0), ("take", 0)][..]), (true, &[("hold", 0), ("take", 0)])]
    {
        let target = Target::new();
        let mut asids = AsidAllocator::new(CpuId(0), NonZeroU32::new(9).expect("some"), true);
        let mut processor = Noting(&target, None, Vec::new());
        let _nobody_is_told = event.then(|| target.post_event());
        let (mut owner, mut slot) = (target.owner().expect("nobody has it"), AsidSlot::new());
        assert_eq!(enter(&mut Mistaken::new(&mut processor), &mut owner, &mut asids, &mut slot), !event);
        assert_eq!(processor.2[1..], *expected);
    }
}

#[test]
fn planted_mistakes_leave_out_what_they_say_and_nothing_else() {
    let list = [0x1000, 0x2000, 0x8000, 0x9000];
    for (mistake, left) in [
        (None, &list[..]),
        (Some(Mistake::ListCutShort), &[0x1000, 0x2000]),
        (Some(Mistake::PageLeftOut), &[0x1000, 0x8000]),
        (Some(Mistake::RangeLeftOut), &[0x1000, 0x2000, 0x9000]),
    ] {
        let pages =
            done(mistake, |processor| list.iter().for_each(|&page| processor.invalidate_page(page, 1)));
        assert!(pages.iter().map(|(_, page)| page).eq(left), "{mistake:?}");
    }
    for (control, left) in [(TlbControl::DoNothing, 0), (TlbControl::FlushAsid, 1)] {
        assert_eq!(done(Some(Mistake::TagKept), |processor| processor.set_tag(3, control, true)).len(), left);
    }
}

#[test]
fn a_taken_list_says_how_many_pages_were_dropped() {
    let (target, ranges) = (Target::new(), [(0x1000, 2), (0x9000, 1)]);
    let ranges = ranges.map(|(first, pages)| GvaRange { first, pages });
    let mut asids = AsidAllocator::new(CpuId(0), NonZeroU32::new(9).expect("some"), true);
    let (mut owner, mut slot) = (target.owner().expect("nobody has it"), AsidSlot::new());
    let mut processor = Noting(&target, None, Vec::new());
    assert!(enter(&mut processor, &mut owner, &mut asids, &mut slot));
    processor.2.clear();
    let _nobody_waits = issue(
        slice::from_ref(&target),
        &TargetSet::<1>::first(1),
        Scope::Ranges(&ranges),
        &mut Ledger::<1>::new(),
    );
    let taken = take_flush(&mut processor, &mut owner, &asids, &mut slot, 16);
    assert_eq!(taken, Some(Taken::Pages { ranges: 2, pages: 3 }));
    assert_eq!(processor.2, [0x1000, 0x2000, 0x9000].map(|page| ("page", page)));
}
