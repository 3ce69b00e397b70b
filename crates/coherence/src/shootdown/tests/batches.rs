//! The items that batches hold, and batches that are open at the same time.

use super::*;
use core::cell::Cell;
use std::rc::Rc;

/// Keeps items, and reports when they are dropped.
#[derive(Clone, Default)]
struct Kept(Rc<Cell<usize>>);

#[derive(Debug)]
struct Frame(Rc<Cell<usize>>);

impl Drop for Frame {
    fn drop(&mut self) {
        self.0.set(self.0.get() + 1);
    }
}

impl Cargo<Frame> for Vec<Frame> {
    fn put(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.len() == 2 {
            return Err(frame);
        }
        self.push(frame);
        Ok(())
    }
}

#[test]
fn g3_nothing_that_is_held_goes_without_a_receipt() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let freed = Kept::default().0;
    let frame = || Frame(freed.clone());
    let mut room = pages::<1>();
    let mut dropped = kernel.spaces[0].batch(&mut room, Vec::new());
    assert!(dropped.hold(frame()).is_ok() && dropped.hold(frame()).is_ok() && dropped.hold(frame()).is_err());
    assert_eq!(freed.get(), 1, "the one that had no room is the caller's");
    drop(dropped);
    let mut batch = kernel.spaces[0].batch(&mut room, Vec::new()).freeing_tables();
    assert!(batch.hold_table(frame()).is_ok());
    let silent = &mut ByInterrupt(|_: &TargetSet<4>| ());
    let stalled = from.0.flush(batch, Concurrent, silent, &mut from.1).expect_err("nobody served");
    assert_eq!((stalled.cpu, freed.get()), (1, 1));
    assert!(to.0.serve(&mut to.1));
    let mut batch = kernel.spaces[0].batch(&mut room, Vec::new());
    assert!(batch.hold(frame()).is_ok());
    let mut remote = ByInterrupt(|_: &TargetSet<4>| assert!(to.0.serve(&mut to.1)));
    let done = from.0.flush(batch, Concurrent, &mut remote, &mut from.1).expect("served");
    assert_eq!((done.cargo.len(), freed.get()), (1, 1));
    drop(done);
    assert_eq!(freed.get(), 2);
}

#[test]
fn frame_that_is_held_without_a_range_flushes_everything() {
    let kernel = Kernel::new(1);
    let (mut cpu, mut log) = kernel.user(0);
    let nobody = &mut ByInterrupt(|_: &TargetSet<4>| panic!("nobody"));
    let empty = kernel.spaces[0].batch(&mut [], ());
    cpu.flush(empty, Serial, nobody, &mut log).expect("alone").receipt.outcome();
    assert!(log.take().is_empty(), "nothing was changed");
    let mut batch = kernel.spaces[0].batch(&mut [], Vec::new());
    assert!(batch.hold(Frame(Rc::default())).is_ok());
    assert_eq!(cpu.flush(batch, Serial, nobody, &mut log).expect("alone").cargo.len(), 1);
    assert_eq!(log.take(), [Op::Everything]);
}

#[test]
fn list_is_not_lent_again_after_a_flush_was_given_up() {
    let kernel = Kernel::new(3);
    let (mut from, mut to, mut slow) = (kernel.user(0), kernel.cpu(1), kernel.cpu(2));
    slow.0.switch_to(&kernel.spaces[0], &mut slow.1);
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0x5000, 1));
    let silent = &mut ByInterrupt(|_: &TargetSet<4>| ());
    assert_eq!(from.0.flush(batch, Concurrent, silent, &mut from.1).expect_err("nobody served").cpu, 2);
    // The slow CPU still has to read the lent list: page 5, not the ranges of another flush.
    to.0.switch_to(&kernel.spaces[1], &mut to.1);
    from.0.switch_to(&kernel.spaces[1], &mut from.1);
    [&mut from.1, &mut to.1, &mut slow.1].into_iter().for_each(|log| log.0.clear());
    let mut batch = kernel.spaces[1].batch(&mut room, ());
    batch.add(PageRange::small(0x9000, 1));
    let mut remote = ByInterrupt(|_: &TargetSet<4>| assert!(to.0.serve(&mut to.1)));
    from.0.flush(batch, Concurrent, &mut remote, &mut from.1).expect("served").receipt.outcome();
    assert_eq!(to.1.take(), [Op::Everything]);
    assert!(slow.0.serve(&mut slow.1));
    assert_eq!(slow.1.take(), [Op::Range(PageRange::small(0x5000, 1), false)]);
}

#[test]
fn empty_batch_flushes_what_another_open_one_may_have_changed() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let mut room = pages::<1>();
    let other = kernel.spaces[0].batch(&mut room, ());
    let outcome = kernel.flush(&mut from, Inline, &[], &mut to);
    assert!(outcome.everything && outcome.targets == 1);
    assert_eq!((from.1.take(), to.1.take()), ([Op::Everything].into(), [Op::Everything].into()));
    let nobody = &mut ByInterrupt(|_: &TargetSet<4>| panic!("nothing was changed"));
    from.0.flush(other, Inline, nobody, &mut from.1).expect("nobody to wait for").receipt.outcome();
    assert!(from.1.take().is_empty());
}
