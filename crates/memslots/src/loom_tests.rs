//! The protocols under the model checker: `RUSTFLAGS="--cfg loom" cargo test -p quell-memslots --lib`.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::thread;
use paging::{Gpa, PhysAddr};

use crate::snapshots::Snapshots;
use crate::{Memslots, Slot, SlotFlags, SlotId};

/// Explores all interleavings with up to three preemptions, which finds every known mutant in seconds.
fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Replaces the value, and lets go of the old one when its readers have left.
fn replace(snapshots: &Snapshots<u32>, value: u32) {
    // SAFETY: each model has one writer, which waits for the end of each update.
    let mut draft = unsafe { snapshots.begin() };
    draft.edit(|copy| *copy = value);
    let drain = draft.publish();
    while !drain.is_drained() {
        thread::yield_now();
    }
}

/// Every access to a copy is checked against every other: a writer that came too early, or a reader
/// without the writer's stores, is a race.
#[test]
fn a_copy_is_written_only_while_nobody_reads_it() {
    check(|| {
        let snapshots = Arc::new(Snapshots::new(0));
        let reader = {
            let snapshots = snapshots.clone();
            thread::spawn(move || {
                let first = snapshots.pin().read(|value| *value);
                let second = snapshots.pin().read(|value| *value);
                assert!(first <= second && second <= 2);
            })
        };
        replace(&snapshots, 1);
        replace(&snapshots, 2);
        reader.join().unwrap();
        assert_eq!(snapshots.pin().read(|value| *value), 2);
    });
}

#[test]
fn two_readers_are_both_waited_for() {
    check(|| {
        let snapshots = Arc::new(Snapshots::new(0));
        let read = |snapshots: Arc<Snapshots<u32>>| {
            thread::spawn(move || snapshots.pin().read(|value| assert!(*value <= 2)))
        };
        let readers = [read(snapshots.clone()), read(snapshots.clone())];
        replace(&snapshots, 1);
        replace(&snapshots, 2);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// What a reader does with what it looked up happens before the removal goes on.
#[test]
fn p5_effects_of_a_reader_of_old_slots_are_there_when_the_wait_ends() {
    check(|| {
        let snapshots = Arc::new(Snapshots::new(0));
        let installed = Arc::new(AtomicBool::new(false));
        let fault = {
            let (snapshots, installed) = (snapshots.clone(), installed.clone());
            thread::spawn(move || {
                let pin = snapshots.pin();
                if pin.read(|value| *value) == 0 {
                    installed.store(true, Relaxed);
                }
            })
        };
        replace(&snapshots, 1);
        let zapped = installed.swap(false, Relaxed);
        fault.join().unwrap();
        assert!(!installed.load(Relaxed), "installed after the zap (which found one: {zapped})");
    });
}

/// G8: a lookup that was kept with its generation is not used once an update of the slots is over.
#[test]
fn p10_a_kept_lookup_is_not_used_after_an_update() {
    check(|| {
        let memslots = Arc::new(Memslots::new(48));
        let is_over = Arc::new(AtomicBool::new(false));
        let vcpu = {
            let (memslots, is_over) = (memslots.clone(), is_over.clone());
            thread::spawn(move || {
                let memory = memslots.memory();
                let generation = memory.generation();
                let is_mmio = memory.find(Gpa(0)).is_none();
                drop(memory);
                let is_kept = !generation.is_in_progress();
                // The access that comes observably after the update.
                let is_after = is_over.load(Acquire);
                if is_kept && is_after && memslots.generation() == generation {
                    assert!(!is_mmio, "an MMIO translation of an older generation was used");
                }
            })
        };
        let mut update = memslots.begin_update().unwrap();
        let slot =
            Slot { id: SlotId(1), gpa: Gpa(0), size: 4096, host: PhysAddr(0), flags: SlotFlags::empty() };
        // SAFETY: the model only looks the slot up.
        unsafe { update.add(slot) }.unwrap();
        let relax = || {
            thread::yield_now();
            true
        };
        update.publish().wait(relax).unwrap().finish(|_| ()).unwrap();
        is_over.store(true, Release);
        vcpu.join().unwrap();
    });
}

/// The in-progress mark is a lock: the next updater has all that the one before did.
#[test]
fn updaters_exclude_each_other() {
    check(|| {
        let memslots = Arc::new(Memslots::new(48));
        let update = |memslots: &Memslots| {
            let Ok(update) = memslots.begin_update() else { return };
            update.publish().wait(|| true).unwrap().finish(|_| ()).unwrap();
        };
        let other = {
            let memslots = memslots.clone();
            thread::spawn(move || {
                drop(memslots.begin_update());
                update(&memslots);
            })
        };
        update(&memslots);
        other.join().unwrap();
        assert!(!memslots.generation().is_in_progress());
    });
}
