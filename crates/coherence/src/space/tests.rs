use core::cell::RefCell;
use std::vec::Vec;

use super::*;
use crate::bench::{Bench, targets};
use crate::{CpuId, Target};

#[test]
fn g3_everybody_is_asked_and_those_in_guest_mode_are_waited_for() {
    let targets = targets(70);
    let mut owner = targets[69].owner().unwrap();
    let guest = RefCell::new(owner.try_enter(CpuId(5)).ok());
    let bench = Bench::new(|turns| {
        if turns == 3 {
            guest.borrow_mut().take().unwrap().leave();
        }
    });
    let mut ledger = Ledger::<2>::new();
    let receipt = flush_space(targets.as_slice(), &NoDevices, &mut ledger, &bench).unwrap();
    assert_eq!(*receipt.stamp(), 77);
    assert_eq!((receipt.outcome().targets, receipt.outcome().deferred), (70, 69));
    assert!(guest.borrow().is_none(), "the receipt came before the guest had left");
    assert_eq!(*bench.kicked.borrow(), [CpuId(5)]);
    drop(guest);
    assert!(owner.try_enter(CpuId(5)).is_err(), "the last one owes a flush");
    for target in &targets[..69] {
        assert!(target.owner().unwrap().try_enter(CpuId(0)).is_err(), "each of the others owes one");
    }
}

#[test]
fn g3_there_is_no_receipt_for_a_walker_that_does_not_leave() {
    let targets = targets(3);
    let mut owner = targets[2].owner().unwrap();
    let _guest = owner.try_enter(CpuId(1)).unwrap();
    let stalled = flush_space(targets.as_slice(), &NoDevices, &mut Ledger::<1>::new(), &Bench::new(|_| ()))
        .unwrap_err();
    let Unfinished::Target(stalled) = stalled;
    assert_eq!((stalled.index, stalled.cpu), (2, CpuId(1)));
}

/// Walkers whose stamp says whether any of them has received a request already.
struct Asked(Vec<Target>);

impl Targets for Asked {
    fn target(&self, index: usize) -> Option<&Target> {
        self.0.get(index)
    }
}

#[expect(unsafe_code, reason = "targets of a test are used by that test alone")]
// SAFETY: nothing translates.
unsafe impl Walkers for Asked {
    type Stamp = bool;
    type Devices<'a> = NoDevices;

    fn stamp(&self) -> bool {
        self.0.iter().any(|target| target.owner().unwrap().try_enter(CpuId(0)).is_err())
    }

    fn count(&self) -> usize {
        self.0.len()
    }
}

#[test]
fn g3_the_stamp_is_taken_before_anybody_is_asked() {
    let walkers = Asked(targets(2));
    let receipt = flush_space(&walkers, &NoDevices, &mut Ledger::<1>::new(), &Bench::new(|_| ())).unwrap();
    assert!(!receipt.stamp(), "a change between the request and the stamp would count as flushed");
    assert!(walkers.stamp());
}
