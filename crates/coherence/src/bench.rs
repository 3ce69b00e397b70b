//! A machine for tests of flushes: it records kicks, and does what a test says when it waits.

use core::cell::{Cell, RefCell};
use core::ops::ControlFlow;
use std::vec::Vec;

use crate::{CpuId, Hardware, Target};

/// After so many turns it gives up.
pub(crate) const TURNS_MAX: u64 = 1000;

pub(crate) struct Bench<F> {
    act: F,
    pub(crate) kicked: RefCell<Vec<CpuId>>,
    /// All turns that were waited, and the number of the next one for the same target.
    pub(crate) turns: Cell<u64>,
    next: Cell<u64>,
}

impl<F: Fn(u64)> Bench<F> {
    /// `act` is called in each turn of a wait, with its number.
    pub(crate) fn new(act: F) -> Self {
        Self { act, kicked: RefCell::default(), turns: Cell::new(0), next: Cell::new(0) }
    }
}

impl<F: Fn(u64)> Hardware for Bench<F> {
    fn kick(&self, cpu: CpuId) {
        self.kicked.borrow_mut().push(cpu);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        assert!(turns == 0 || turns == self.next.get(), "each target's turns are counted from 0 on");
        self.next.set(turns + 1);
        self.turns.set(self.turns.get() + 1);
        (self.act)(turns);
        if turns == TURNS_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

pub(crate) fn targets(count: usize) -> Vec<Target> {
    (0..count).map(|_| Target::new()).collect()
}
