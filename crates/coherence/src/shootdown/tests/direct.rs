//! Targets that are flushed without their help.

use super::*;
use core::cell::Cell;

/// Takes on some of its targets, names others that were no targets, and interrupts the rest.
struct Mixed<'a, F> {
    takes: TargetSet<4>,
    adds: TargetSet<4>,
    interrupt: F,
    completed: &'a Cell<u32>,
}

impl<F: FnMut(&TargetSet<4>)> Remote<4> for Mixed<'_, F> {
    fn interrupt(&mut self, targets: &TargetSet<4>) {
        (self.interrupt)(targets);
    }

    fn begin(&mut self, targets: &mut TargetSet<4>, flush: &Flush<'_>, _: &Pinned) {
        assert_eq!((flush.root(), flush.ranges().map(<[_]>::len)), (0x1000, Some(1)));
        *targets = targets.without(&self.takes);
        self.adds.iter().for_each(|cpu| assert!(targets.insert(cpu)));
    }

    fn complete(&mut self, _: &Pinned) {
        self.completed.set(self.completed.get() + 1);
    }
}

#[test]
fn o18_direct_and_interrupted_targets_are_both_completed() {
    let kernel = Kernel::new(4);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let _direct = kernel.user(2);
    let completed = Cell::new(0);
    let mut remote = Mixed {
        takes: TargetSet::from_banks([0b100, 0, 0, 0]),
        adds: TargetSet::from_banks([0b1000, 0, 0, 0]),
        interrupt: |set: &TargetSet<4>| {
            assert!(set.iter().eq([1]));
            assert!(to.0.serve(&mut to.1));
        },
        completed: &completed,
    };
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0, 1));
    let receipt = from.0.flush(batch, Inline, &mut remote, &mut from.1).expect("served").receipt;
    let expected = ShootdownOutcome { targets: 2, direct: 1, interrupted: 1, ..ShootdownOutcome::default() };
    assert_eq!((receipt.outcome(), completed.get()), (expected, 1));
    assert!(!receipt.excludes_walkers(), "P24: CPU 2 took no interrupt");
    // What was begun is completed, though a target that was interrupted never serves.
    let interrupt = |_: &TargetSet<4>| ();
    let mut remote = Mixed { takes: remote.takes, adds: remote.adds, interrupt, completed: &completed };
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0, 1));
    assert!(from.0.flush(batch, Inline, &mut remote, &mut from.1).is_err());
    assert_eq!(completed.get(), 2);
}

#[test]
fn p24_only_a_flush_by_interrupts_excludes_walkers() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let completed = Cell::new(0);
    for (takes, excludes) in [(0, true), (0b10, false)] {
        let mut remote = Mixed {
            takes: TargetSet::from_banks([takes, 0, 0, 0]),
            adds: TargetSet::new(),
            interrupt: |_: &TargetSet<4>| assert!(to.0.serve(&mut to.1)),
            completed: &completed,
        };
        let mut room = pages::<1>();
        let mut batch = kernel.spaces[0].batch(&mut room, ()).freeing_tables();
        batch.add(PageRange::small(0, 1));
        let receipt = from.0.flush(batch, Inline, &mut &mut remote, &mut from.1).expect("served").receipt;
        assert_eq!((receipt.outcome().targets, receipt.excludes_walkers()), (1, excludes));
    }
    assert_eq!(completed.get(), 2);
}

#[test]
fn a12_cpu_that_was_flushed_directly_flushes_once_more_for_want_of_a_record() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let completed = Cell::new(0);
    let mut remote = Mixed {
        takes: TargetSet::from_banks([0b10, 0, 0, 0]),
        adds: TargetSet::new(),
        interrupt: |_: &TargetSet<4>| panic!("taken on"),
        completed: &completed,
    };
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0, 1));
    assert_eq!(
        from.0.flush(batch, Inline, &mut remote, &mut from.1).expect("direct").receipt.outcome().direct,
        1
    );
    kernel.flush(&mut from, Inline, &pages::<1>(), &mut to);
    assert_eq!(to.1.take(), [Op::Everything], "two changes behind");
    to.0.switch_to(&kernel.spaces[1], &mut to.1);
    to.0.switch_to(&kernel.spaces[0], &mut to.1);
    let [_, Op::Load { keep: true, .. }] = to.1.take()[..] else { panic!("nothing has changed since") };
}

#[test]
fn o17_broadcast_goes_to_those_who_listen_and_is_synchronised_once() {
    #[derive(Default)]
    struct Instructions(Cell<u32>, Cell<u32>);
    impl Broadcast for &Instructions {
        fn invalidate(&mut self, _: &Flush<'_>, _: &Pinned) {
            self.0.set(self.0.get() + 1);
        }
        fn synchronise(&mut self, _: &Pinned) {
            self.1.set(self.1.get() + 1);
        }
    }
    let kernel = Kernel::new(3);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let instructions = Instructions::default();
    for (listener, direct) in [(2, 0), (1, 1)] {
        let mut reached = TargetSet::new();
        assert!(reached.insert(listener));
        let interrupts = ByInterrupt(|_: &TargetSet<4>| assert!(to.0.serve(&mut to.1)));
        let mut remote = ByBroadcast::new(&instructions, interrupts, reached);
        let mut room = pages::<1>();
        let mut batch = kernel.spaces[0].batch(&mut room, ());
        batch.add(PageRange::small(0, 1));
        let outcome =
            from.0.flush(batch, Concurrent, &mut remote, &mut from.1).expect("served").receipt.outcome();
        assert_eq!((outcome.direct, outcome.interrupted), (direct, 1 - direct));
        assert_eq!((instructions.0.get(), instructions.1.get()), (direct, direct));
    }
}
