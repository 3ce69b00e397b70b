//! Which targets a broadcast waits for.

use core::cell::RefCell;
use core::convert::Infallible;
use std::vec::Vec;

use super::*;
use crate::bench::{Bench, targets};
use crate::{CpuId, NoDevices, Notify, Owner, Translation};

fn run<F: Fn(u64)>(
    targets: &[Target],
    bench: &Bench<F>,
) -> Result<SpaceReceipt<usize>, Unfinished<Infallible>> {
    let receipt = broadcast(targets, &NoDevices, &mut Ledger::<2>::new(), bench, Invalidated::assumed);
    assert_eq!(*bench.kicked.borrow(), [], "the hardware reaches them");
    receipt
}

#[test]
fn g5_guest_mode_is_neither_kicked_nor_waited_for() {
    let targets = targets(70);
    let mut owners: Vec<_> = targets.iter().map(|target| target.owner().unwrap()).collect();
    let guests: Vec<_> = owners.iter_mut().map(|owner| owner.try_enter(CpuId(1)).unwrap()).collect();
    let receipt = run(&targets, &Bench::new(|_| ())).unwrap();
    assert_eq!(*receipt.stamp(), 77);
    assert_eq!(receipt.outcome(), FlushOutcome { targets: 70, deferred: 70, ..FlushOutcome::default() });
    drop(guests);
    // They received no request.
    for owner in &mut owners {
        assert!(owner.take_flush().is_none() && !owner.take_events());
        assert!(owner.try_enter(CpuId(1)).is_ok());
    }
}

#[test]
fn g3_no_receipt_before_the_sections_that_were_found_have_ended() {
    let targets = targets(70);
    let (mut first, mut last) = (targets[3].owner().unwrap(), targets[69].owner().unwrap());
    let sections =
        RefCell::new(Vec::from([first.begin_translation().unwrap(), last.begin_translation().unwrap()]));
    let bench = Bench::new(|turns| {
        if turns == 4 {
            sections.borrow_mut().pop();
        }
    });
    // The end of the last one's section does not help the first.
    let Unfinished::Target(stalled) = run(&targets, &bench).unwrap_err();
    assert_eq!((stalled.index, stalled.outcome.deferred), (3, 68));
    let bench = Bench::new(|_| {
        sections.borrow_mut().pop();
    });
    let receipt = run(&targets, &bench).unwrap();
    assert_eq!(
        receipt.outcome(),
        FlushOutcome { targets: 70, deferred: 69, turns: 1, ..FlushOutcome::default() }
    );
}

#[test]
fn sections_that_begin_later_are_not_waited_for() {
    let targets = targets(1);
    let mut owner = targets[0].owner().unwrap();
    core::mem::forget(owner.begin_translation().unwrap());
    let owner = RefCell::new(owner);
    // Between any two looks it ends one section and begins the next.
    let bench = Bench::new(|_| {
        drop(Translation { target: &targets[0] });
        core::mem::forget(owner.borrow_mut().begin_translation().unwrap());
    });
    let receipt = run(&targets, &bench).unwrap();
    assert_eq!(receipt.outcome().turns, 1);
    assert!(targets[0].section().is_some(), "it is in one");
    drop(Translation { target: &targets[0] });
}

#[test]
fn the_count_of_sections_wraps_and_disturbs_nothing() {
    let target = Target::new();
    let mut owner = target.owner().unwrap();
    drop(owner.try_enter(CpuId(5)).unwrap());
    let mut seen = Vec::new();
    for _ in 0..65_536 + 3 {
        let section = owner.begin_translation().unwrap();
        let count = target.section().unwrap();
        assert!(!target.has_ended(count));
        seen.push(count.0);
        section.end();
        assert!(target.has_ended(count));
    }
    assert_eq!((seen[0], seen[65_535], seen[65_536], seen[65_538]), (1, 0, 1, 3));
    assert_eq!(target.cpu(), CpuId(5));
    assert_eq!(target.post_event(), Notify::None);
    assert!(owner.take_events() && owner.take_flush().is_none() && target.owner().is_none());
}

#[test]
fn the_sequence_comes_before_the_look_and_absent_targets_are_no_trouble() {
    let targets = Vec::from([Target::absent(), Target::new()]);
    let mut owner: Owner<'_> = targets[1].owner().unwrap();
    let section = RefCell::new(None);
    let bench = Bench::new(|_| drop(section.take()));
    let mut ledger = Ledger::<1>::new();
    let receipt = broadcast(targets.as_slice(), &NoDevices, &mut ledger, &bench, || {
        section.replace(Some(owner.begin_translation().unwrap()));
        Invalidated::assumed()
    });
    let outcome = FlushOutcome { targets: 2, deferred: 1, turns: 1, ..FlushOutcome::default() };
    assert_eq!(receipt.unwrap().outcome(), outcome);
}
