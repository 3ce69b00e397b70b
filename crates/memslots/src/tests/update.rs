use super::{Backing, PAGE, Stale, edit, finish, receipt, slot, stamp, untouched, with};
use crate::{AccessError, Gpa, Memslots, MmioCache, Pattern, Retired, SlotError, SlotId, SpaceId, Treatment};

#[test]
fn a_dropped_update_changes_nothing() {
    let memslots = untouched(&[slot(1, 0, 1, 0)]);
    let before = memslots.generation();
    let mut update = memslots.begin_update().unwrap();
    assert_eq!(update.move_to(SlotId(1), Gpa(5)), Err(SlotError::Unaligned));
    update.remove(SlotId(1)).unwrap();
    drop(update);
    assert_eq!(memslots.generation(), before);
    assert!(memslots.memory().find(Gpa(0)).is_some());
    let next = memslots.begin_update().unwrap();
    let after = finish(next);
    assert_eq!(after.number(), before.number() + 1);
    assert!(memslots.memory().find(Gpa(0)).is_some(), "the draft of before is forgotten");
}

#[test]
fn p10_an_update_that_is_published_and_never_finished_forbids_caching_for_good() {
    let memslots = untouched(&[slot(1, 0, 1, 0)]);
    drop(memslots.begin_update().unwrap().publish());
    assert!(memslots.generation().is_in_progress());
    assert_eq!(memslots.begin_update().unwrap_err(), SlotError::Busy);
    assert!(memslots.memory().find(Gpa(0)).is_some(), "reading goes on");
}

#[test]
fn p12_a_reader_holds_the_old_slots_until_it_is_done() {
    let backing = Backing::new(1);
    // SAFETY: the backing outlives the slots.
    let memslots = unsafe { with(48, &[backing.slot(1, 0)]) };
    let reader = memslots.memory();
    let mut update = memslots.begin_update().unwrap();
    update.remove(SlotId(1)).unwrap();
    let mut looks = 0;
    let published = update.publish().wait(|| {
        looks += 1;
        looks < 10
    });
    let published = published.expect_err("the reader is still there");
    assert_eq!(looks, 10);
    assert_eq!(reader.write_u64(Gpa(0), 7), Ok(()), "and its memory too");
    let later = memslots.memory();
    assert!(later.read_u64(Gpa(0)).is_err());
    drop(reader);
    // Readers of the new slots are not waited for.
    let mut quiesced = published.wait(|| false).unwrap();
    assert!(quiesced.settle(SpaceId::FIRST, &receipt(), stamp()));
    assert!(quiesced.finish(|_| ()).is_ok());
}

#[test]
fn p2_removed_memory_is_given_back_only_for_a_receipt() {
    let memslots = untouched(&[slot(1, 0, 1, 0), slot(2, 4, 4, 0), slot(3, 9, 1, 0)]);
    let mut update = memslots.begin_update().unwrap();
    update.remove(SlotId(1)).unwrap();
    update.remove(SlotId(2)).unwrap();
    assert_eq!(update.remove(SlotId(1)), Err(SlotError::UnknownId));
    // SAFETY: the test only looks slots up.
    unsafe { update.add(slot(2, 5, 1, 0)) }.unwrap();
    let mut quiesced = update.publish().wait(|| false).unwrap();
    let mut ranges = Vec::new();
    quiesced.for_each_change(|change| ranges.push((change.treatment, change.range())));
    assert_eq!(ranges, [(Treatment::Zap, 0..PAGE), (Treatment::Zap, 4 * PAGE..8 * PAGE)], "the former place");

    assert!(!quiesced.settle(SpaceId::FIRST, &Stale, stamp()));
    assert!(!quiesced.settle(SpaceId(1), &receipt(), stamp()), "there is no such space");
    let mut quiesced = quiesced.finish(|_| panic!("given back")).expect_err("no receipt");
    assert!(memslots.generation().is_in_progress());
    assert!(quiesced.settle(SpaceId::FIRST, &receipt(), stamp()));
    assert!(quiesced.settle(SpaceId::FIRST, &Stale, stamp()), "settled for good");
    let mut freed = Vec::new();
    quiesced.finish(|retired| freed.push(retired)).unwrap();
    let memory = |slot| Retired::Memory { space: SpaceId::FIRST, slot };
    assert_eq!(freed, [memory(slot(1, 0, 1, 0)), memory(slot(2, 4, 4, 0))]);
}

/// P13: a CPU that has kept the old address of a slot, or the knowledge that there was nothing at
/// the new one.
#[test]
fn p13_what_was_kept_of_a_slot_is_void_once_it_has_moved() {
    let backing = Backing::new(1);
    // SAFETY: the backing outlives the slots.
    let memslots = unsafe { with(48, &[backing.slot(1, 4)]) };
    let (old, new) = (Gpa(4 * PAGE), Gpa(7 * PAGE));
    let memory = memslots.memory();
    memory.write_u64(old, 42).unwrap();
    let located = memory.locate(old, 16).unwrap();
    let mut record = memory.record::<1>();
    assert_eq!(memory.read_recorded(old, &mut record), Ok(42));
    let mut cache = MmioCache::<2>::new();
    assert!(memory.find(new).is_none() && cache.insert(new, memory.generation()));
    drop(memory);

    let mut update = memslots.begin_update().unwrap();
    update.move_to(SlotId(1), new).unwrap();
    let published = update.publish();
    assert!(!cache.has(new, memslots.generation()), "not even before the end");
    let mut quiesced = published.wait(|| false).unwrap();
    let change = quiesced.change(0).unwrap();
    assert_eq!((change.treatment, change.range()), (Treatment::Zap, old.0..old.0 + PAGE));
    assert_eq!([1, 2].map(|index| quiesced.change(index)), [None, None]);
    assert!(quiesced.settle(SpaceId::FIRST, &receipt(), stamp()));
    quiesced.finish(|_| panic!("the memory has moved along")).unwrap();

    let memory = memslots.memory();
    assert!(!cache.has(new, memslots.generation()) && !cache.has(old, memslots.generation()));
    assert!(!memory.is_unchanged(&record) && !memory.has_at(&located, 0, &Pattern::new(&[42])));
    assert_eq!(memory.write_u64(old, 1), Err(AccessError::Unmapped { gpa: old }));
    assert_eq!(memory.read_u64(new), Ok(42));
}

/// The second update reuses the copy that contained the slot, and changes nothing there.
#[test]
fn p13_what_was_located_in_a_copy_of_long_ago_stays_void() {
    let backing = Backing::new(1);
    // SAFETY: the backing outlives the slots.
    let memslots = unsafe { with(48, &[backing.slot(1, 0)]) };
    let located = memslots.memory().locate(Gpa(0), 16).unwrap();
    let is_there = |memslots: &Memslots| memslots.memory().has_at(&located, 0, &Pattern::new(&[0]));
    assert!(is_there(&memslots));
    edit(&memslots, |update| update.remove(SlotId(1)).unwrap());
    assert!(!is_there(&memslots));
    let mut update = memslots.begin_update().unwrap();
    assert_eq!(update.remove(SlotId(1)), Err(SlotError::UnknownId));
    finish(update);
    assert!(!is_there(&memslots));
}
