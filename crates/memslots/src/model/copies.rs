//! Two copies of a value, readers and a writer.
//!
//! Every access to a copy is checked against every other: a writer that is too early, or a reader
//! that lacks the writer's stores, is a race.

use core::mem;

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use quell_coherence::interleave::on_a_thread;
use quell_coherence::{explored, mutants};

use super::relax;
use crate::snapshots::{Draft, Drain, Pin, SECOND, Snapshots, index_of};

/// The operations that scenarios use. Provided methods are the real ones.
trait Protocol: 'static {
    fn pin(snapshots: &Snapshots<u32>) -> Pin<'_, u32> {
        snapshots.pin()
    }

    fn leave(pin: Pin<'_, u32>) {
        drop(pin);
    }

    fn publish(draft: Draft<'_, u32>) -> Drain<'_, u32> {
        draft.publish()
    }

    fn is_drained(drain: &Drain<'_, u32>) -> bool {
        drain.is_drained()
    }
}

struct Real;

impl Protocol for Real {}

/// Replaces the value, and releases the old one when its readers have left.
fn replace<P: Protocol>(snapshots: &Snapshots<u32>, value: u32) {
    // SAFETY: each scenario has one writer, which waits for the end of each update.
    let mut draft = unsafe { snapshots.begin() };
    draft.edit(|copy| *copy = value);
    let drain = P::publish(draft);
    while !P::is_drained(&drain) {
        relax();
    }
}

fn read<P: Protocol>(snapshots: &Snapshots<u32>) -> u32 {
    let pin = P::pin(snapshots);
    let value = pin.read(|value| *value);
    P::leave(pin);
    value
}

/// A reader that reads twice, and two updates.
fn reading<P: Protocol>() {
    let snapshots = Arc::new(Snapshots::new(0));
    let reader = on_a_thread(&snapshots, |snapshots| {
        let (first, second) = (read::<P>(snapshots), read::<P>(snapshots));
        assert!(first <= second && second <= 2);
    });
    replace::<P>(&snapshots, 1);
    replace::<P>(&snapshots, 2);
    reader.join().unwrap();
    assert_eq!(read::<P>(&snapshots), 2);
}

/// Two readers, and two updates.
fn crowded<P: Protocol>() {
    let snapshots = Arc::new(Snapshots::new(0));
    let readers = [(); 2].map(|()| on_a_thread(&snapshots, |snapshots| assert!(read::<P>(snapshots) <= 2)));
    replace::<P>(&snapshots, 1);
    replace::<P>(&snapshots, 2);
    for reader in readers {
        reader.join().unwrap();
    }
}

/// Actions of a reader on the value it has read happen before the writer continues (P5). Both
/// copies have been current, and one was read, before.
fn acting<P: Protocol>() {
    let shared = Arc::new((Snapshots::new(0), AtomicBool::new(false)));
    let (snapshots, installed) = &*shared;
    read::<P>(snapshots);
    replace::<P>(snapshots, 1);
    replace::<P>(snapshots, 2);
    let fault = on_a_thread(&shared, |(snapshots, installed)| {
        let pin = P::pin(snapshots);
        if pin.read(|value| *value) == 2 {
            installed.store(true, Relaxed);
        }
        P::leave(pin);
    });
    replace::<P>(snapshots, 3);
    // The zap: it skips absent entries.
    if installed.load(Relaxed) {
        installed.store(false, Relaxed);
    }
    fault.join().unwrap();
    assert!(!installed.load(Relaxed), "installed after the zap");
}

explored! {
    a_copy_is_written_only_while_nobody_reads_it: Some(3) => reading::<Real>;
    two_readers_are_both_waited_for: Some(3) => crowded::<Real>;
    p5_effects_of_a_reader_of_old_slots_are_there_when_the_wait_ends: Some(3) => acting::<Real>;
}

mutants! {
    /// The current copy is read before the pin is counted.
    PinInTwoSteps fails pin_in_two_steps: reading::<PinInTwoSteps>, "maximum number of branches", {
        fn pin(snapshots: &Snapshots<u32>) -> Pin<'_, u32> {
            let index = index_of(snapshots.state.load(Acquire));
            snapshots.state.fetch_add(1, Acquire);
            Pin { snapshots, index }
        }
    }

    /// The reader does not acquire the copy.
    PinRelaxed fails pin_without_acquire: reading::<PinRelaxed>, "Causality violation", {
        fn pin(snapshots: &Snapshots<u32>) -> Pin<'_, u32> {
            let state = snapshots.state.fetch_add(1, Relaxed);
            Pin { snapshots, index: index_of(state) }
        }
    }

    /// The copy is not released to its readers.
    PublishRelaxed fails publish_without_release: reading::<PublishRelaxed>, "Causality violation", {
        fn publish(draft: Draft<'_, u32>) -> Drain<'_, u32> {
            let Draft { snapshots, index } = draft;
            let resumed = snapshots.left[index].load(Relaxed);
            let old = snapshots.state.swap(if index == 1 { SECOND | resumed } else { resumed }, Relaxed);
            Drain { snapshots, index: index_of(old), pinned: old & !SECOND }
        }
    }

    /// The readers are counted before the copy is replaced: a reader in between is not waited for.
    PublishInTwoSteps fails p5_readers_counted_before_the_switch:
    acting::<PublishInTwoSteps>, "installed after the zap", {
        fn publish(draft: Draft<'_, u32>) -> Drain<'_, u32> {
            let Draft { snapshots, index } = draft;
            let resumed = snapshots.left[index].load(Relaxed);
            let old = snapshots.state.load(Relaxed);
            snapshots.state.store(if index == 1 { SECOND | resumed } else { resumed }, Release);
            Drain { snapshots, index: index_of(old), pinned: old & !SECOND }
        }
    }

    /// The copy counts from 0 again: former readers are taken for current ones.
    CountAnew fails p5_readers_counted_anew: acting::<CountAnew>, "maximum number of branches", {
        fn publish(draft: Draft<'_, u32>) -> Drain<'_, u32> {
            let Draft { snapshots, index } = draft;
            let old = snapshots.state.swap(if index == 1 { SECOND } else { 0 }, Release);
            Drain { snapshots, index: index_of(old), pinned: old & !SECOND }
        }
    }

    /// P5: the reader does not release its accesses.
    LeaveRelaxed fails p5_leave_without_release: acting::<LeaveRelaxed>, "installed after the zap", {
        fn leave(pin: Pin<'_, u32>) {
            pin.snapshots.left[pin.index].fetch_add(1, Relaxed);
            mem::forget(pin);
        }
    }

    /// P5: the writer does not acquire the readers' accesses.
    DrainRelaxed fails p5_drain_without_acquire: acting::<DrainRelaxed>, "installed after the zap", {
        fn is_drained(drain: &Drain<'_, u32>) -> bool {
            drain.snapshots.left[drain.index].load(Relaxed) == drain.pinned
        }
    }

    /// P5: no reader is waited for.
    WaitNever fails p5_nobody_waited_for: acting::<WaitNever>, "installed after the zap", {
        fn is_drained(_drain: &Drain<'_, u32>) -> bool {
            true
        }
    }
}
