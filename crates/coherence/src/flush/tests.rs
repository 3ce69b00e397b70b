//! The engine on the host: which targets are kicked and waited for, and the reported outcome.

use super::*;
use crate::bench::{Bench, TURNS_MAX, targets};
use crate::{GvaRange, Notify, RANGE_CAPACITY};
use core::cell::RefCell;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::vec::Vec;

#[test]
fn g5_target_that_is_not_running_is_neither_kicked_nor_waited_for() {
    let (targets, bench) = (targets(3), Bench::new(|_| ()));
    let all = TargetSet::<1>::first(3);
    let receipt = flush(targets.as_slice(), &all, Scope::All, &mut Ledger::<1>::new(), &bench).unwrap();
    assert_eq!(receipt.outcome(), FlushOutcome { targets: 3, deferred: 3, ..FlushOutcome::default() });
    assert!(bench.kicked.borrow().is_empty() && bench.turns.get() == 0);
    for target in &targets {
        let mut owner = target.owner().unwrap();
        assert!(owner.try_enter(CpuId(0)).is_err(), "entered without the flush");
        owner.take_flush().unwrap().complete();
        assert!(owner.try_enter(CpuId(0)).is_ok());
    }
}

#[test]
fn targets_in_guest_mode_beyond_the_first_bank_are_kicked_once_each() {
    const RUNNING: [usize; 4] = [0, 63, 64, 4095];
    let targets = targets(4096);
    let mut owners: Vec<_> = RUNNING.iter().map(|&index| targets[index].owner().unwrap()).collect();
    let guests = (0..).zip(&mut owners).map(|(cpu, owner)| owner.try_enter(CpuId(cpu)).unwrap());
    let guests = RefCell::new(guests.collect::<Vec<_>>());
    let bench = Bench::new(|_| guests.borrow_mut().clear());
    let mut ledger = std::boxed::Box::new(Ledger::<64>::new());
    let all = TargetSet::<64>::first(4096);
    let receipt = flush(targets.as_slice(), &all, Scope::All, &mut ledger, &bench).unwrap();
    let outcome =
        FlushOutcome { targets: 4096, deferred: 4092, kicks: 4, turns: 1, ..FlushOutcome::default() };
    assert_eq!(receipt.outcome(), outcome);
    assert!(bench.kicked.borrow().iter().copied().eq((0..4).map(CpuId)));

    // The ledger forgets: no target is in guest mode now.
    let receipt = flush(targets.as_slice(), &all, Scope::All, &mut ledger, &bench).unwrap();
    assert_eq!(receipt.outcome(), FlushOutcome { targets: 4096, deferred: 4096, ..FlushOutcome::default() });
    assert_eq!(bench.kicked.borrow().len(), 4);
}

#[test]
fn kick_that_is_in_flight_serves_another_request() {
    let target = Target::new();
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    assert_eq!(target.post_event(), Notify::Kick(CpuId(0)));
    let (targets, set) = ([&target], TargetSet::<1>::first(1));
    let (mut one, mut two) = (Ledger::<1>::new(), Ledger::<1>::new());
    let bench = Bench::new(|_| ());
    let scope = Scope::Ranges(&[GvaRange { first: 0x1000, pages: 1 }]);
    let first = issue(targets.as_slice(), &set, scope, &mut one).dispatch(&bench);
    let second = issue(targets.as_slice(), &set, scope, &mut two).dispatch(&bench);
    guest.leave();
    let merged = FlushOutcome { targets: 1, merged: 1, ..FlushOutcome::default() };
    assert_eq!(first.wait(&bench).unwrap().outcome(), merged);
    assert_eq!(second.wait(&bench).unwrap().outcome(), FlushOutcome { joined: 1, ..merged });
    assert!(bench.kicked.borrow().is_empty());
}

#[test]
fn target_that_left_before_the_dispatch_is_not_kicked() {
    let target = Target::new();
    let (targets, set, bench) = ([&target], TargetSet::<1>::first(1), Bench::new(|_| ()));
    let mut ledger = Ledger::<1>::new();
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    let issued = issue(targets.as_slice(), &set, Scope::All, &mut ledger);
    guest.leave();
    owner.take_flush().unwrap().complete();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    let receipt = issued.dispatch(&bench).wait(&bench).unwrap();
    assert_eq!(receipt.outcome(), FlushOutcome { targets: 1, ..FlushOutcome::default() });
    assert_eq!(target.post_event(), Notify::Kick(CpuId(0)), "the dispatch claimed what it did not send");
    guest.leave();
}

#[test]
fn stalled_target_is_reported_and_its_request_stays() {
    let target = Target::new();
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(7)).unwrap();
    let bench = Bench::new(|_| ());
    let set = TargetSet::<1>::from_banks([1 << 1]);
    let targets = [&Target::new(), &target];
    let stalled = flush(targets.as_slice(), &set, Scope::All, &mut Ledger::<1>::new(), &bench).unwrap_err();
    assert_eq!((stalled.index, stalled.cpu, stalled.outcome.kicks), (1, CpuId(7), 1));
    assert_eq!((bench.turns.get(), stalled.outcome.turns), (TURNS_MAX + 1, TURNS_MAX));
    assert_eq!(std::format!("{stalled}"), "flush: target 1 did not leave guest mode on CPU 7");
    guest.leave();
    assert!(owner.try_enter(CpuId(7)).is_err());
}

#[test]
fn g3_no_receipt_before_a_section_has_ended() {
    let target = Target::new();
    let mut owner = target.owner().unwrap();
    let section = owner.begin_translation().unwrap();
    let (targets, set, bench) = ([&target], TargetSet::<1>::first(1), Bench::new(|_| ()));
    assert!(flush(targets.as_slice(), &set, Scope::All, &mut Ledger::<1>::new(), &bench).is_err());
    assert!(bench.kicked.borrow().is_empty(), "a kick cannot end it");
    section.end();
}

#[test]
fn kick_goes_to_where_the_target_has_moved() {
    let target = Target::new();
    let (targets, set) = ([&target], TargetSet::<1>::first(1));
    let (mut one, mut two) = (Ledger::<1>::new(), Ledger::<1>::new());
    let bench = Bench::new(|_| ());
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    let first = issue(targets.as_slice(), &set, Scope::All, &mut one);
    guest.leave();
    owner.take_flush().unwrap().complete();
    drop(owner);
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(1)).unwrap();
    let second = issue(targets.as_slice(), &set, Scope::All, &mut two);
    // The first to dispatch kicks on behalf of both.
    let first = first.dispatch(&bench);
    let second = second.dispatch(&bench);
    assert_eq!(*bench.kicked.borrow(), [CpuId(1)]);
    assert_eq!(first.wait(&bench).unwrap().outcome().turns, 0, "its request was done before");
    guest.leave();
    assert_eq!(second.wait(&bench).unwrap().outcome().merged, 1);
}

#[test]
fn removed_target_is_neither_waited_for_nor_counted() {
    let target = Target::new();
    let (targets, set, bench) = ([&target], TargetSet::<1>::first(1), Bench::new(|_| ()));
    let (mut one, mut two) = (Ledger::<1>::new(), Ledger::<1>::new());
    let mut owner = target.owner().unwrap();
    let guest = owner.try_enter(CpuId(0)).unwrap();
    let issued = issue(targets.as_slice(), &set, Scope::All, &mut one);
    guest.leave();
    owner.remove();
    let receipt = issued.dispatch(&bench).wait(&bench).unwrap();
    assert_eq!(receipt.outcome(), FlushOutcome { targets: 1, ..FlushOutcome::default() });
    let receipt = flush(targets.as_slice(), &set, Scope::All, &mut two, &bench).unwrap();
    assert_eq!(receipt.outcome(), FlushOutcome { absent: 1, ..FlushOutcome::default() });
    assert!(bench.kicked.borrow().is_empty());
}

#[test]
fn reasons_for_widening_are_told_apart() {
    let (targets, bench) = (targets(1), Bench::new(|_| ()));
    let set = TargetSet::<1>::first(1);
    let widened = |count: usize| {
        let ranges = std::vec![crate::GvaRange { first: 0, pages: 1 }; count];
        let receipt =
            flush(targets.as_slice(), &set, Scope::Ranges(&ranges), &mut Ledger::<1>::new(), &bench);
        let outcome = receipt.unwrap().outcome();
        (outcome.too_many_ranges, outcome.mailbox_overflows)
    };
    assert_eq!(widened(RANGE_CAPACITY + 1), (1, 0));
    assert_eq!(widened(RANGE_CAPACITY), (0, 0), "it fits");
    assert_eq!(widened(0), (0, 0));
    assert_eq!(widened(1), (0, 1), "it would, without the others");
    let mut owner = targets[0].owner().unwrap();
    let work = owner.take_flush().unwrap();
    assert_eq!(work.requests(), 4);
    work.complete();
    assert_eq!(widened(1), (0, 0));
}

/// Kicks of real threads.
struct Threads<'t> {
    lines: &'t [AtomicU64],
}

impl Hardware for Threads<'_> {
    fn kick(&self, cpu: CpuId) {
        self.lines[cpu.0 as usize].store(1, Relaxed);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        std::thread::yield_now();
        if turns == 10_000_000 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// O13, O14: every thread runs its vCPU until it is kicked or a bound is reached, then flushes all.
#[test]
fn o13_all_to_all_flush_of_real_threads() {
    const VCPUS: usize = 4;
    const ROUNDS: u64 = 2000;
    let targets = targets(VCPUS);
    let lines = [const { AtomicU64::new(0) }; VCPUS];
    let run = |id: usize| {
        let hardware = Threads { lines: &lines };
        let mut owner = targets[id].owner().unwrap();
        let mut ledger = Ledger::<1>::new();
        for round in 0..ROUNDS {
            while let Some(work) = owner.take_flush() {
                work.complete();
            }
            if let Ok(guest) = owner.try_enter(CpuId(id as u32)) {
                for _ in 0..round % 64 {
                    if lines[id].swap(0, Relaxed) != 0 {
                        break;
                    }
                }
                guest.leave();
            }
            let all = TargetSet::<1>::first(VCPUS);
            let outcome =
                flush(targets.as_slice(), &all, Scope::All, &mut ledger, &hardware).unwrap().outcome();
            assert!(outcome.targets == VCPUS as u32 && outcome.deferred >= 1);
            assert!(outcome.deferred + outcome.kicks + outcome.merged <= outcome.targets);
        }
    };
    std::thread::scope(|scope| {
        for id in 0..VCPUS {
            let run = &run;
            scope.spawn(move || run(id));
        }
    });
    for target in &targets {
        let mut owner = target.owner().unwrap();
        if let Some(work) = owner.take_flush() {
            work.complete();
        }
        let (newest, _nothing_left) = target.mailbox.take();
        assert_eq!(target.completed.load(Relaxed), newest.0, "a request was lost");
        assert!(
            !target.request_all_if_idle(word::FLUSH_GUEST) || owner.take_flush().is_some(),
            "a request was not seen"
        );
    }
}
