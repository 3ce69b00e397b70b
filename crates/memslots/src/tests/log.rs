//! Dirty logs.

use std::sync::atomic::Ordering::Relaxed;

use super::{Backing, PAGE, Stale, edit, finish, receipt, slot, stamp, untouched, with};
use crate::sync::AtomicU64;
use crate::{DirtyLog, Gpa, Memslots, Pattern, Slot, SlotError, SlotFlags, SlotId};

/// Words for a log that lives as long as the process.
fn log(word_count: usize) -> DirtyLog {
    DirtyLog::new(Box::leak((0..word_count).map(|_| AtomicU64::new(0)).collect()))
}

/// Gives the slots logs.
fn start(memslots: &Memslots, logs: &[(u16, DirtyLog)]) {
    edit(memslots, |update| {
        for &(id, log) in logs {
            // SAFETY: the words live as long as the process.
            unsafe { update.set_log(SlotId(id), Some(log)) }.unwrap();
        }
    });
}

/// Fetches a slot's log of one word.
fn fetch(memslots: &Memslots, id: u16) -> u64 {
    let mut words = [u64::MAX];
    let fetch = memslots.memory().fetch_dirty(SlotId(id), 0, &mut words).unwrap();
    let count = fetch.finish(&receipt(), stamp()).unwrap();
    assert_eq!(count, u64::from(words[0].count_ones()));
    words[0]
}

/// Memory at pages 2 to 7, logged, and 8 to 9, not.
fn logged(backings: &[Backing; 2]) -> Memslots {
    // SAFETY: the callers' backings live as long as the slots and are accessed through them only.
    let memslots = unsafe { with(48, &[backings[0].slot(1, 2), backings[1].slot(2, 8)]) };
    start(&memslots, &[(1, log(1))]);
    memslots
}

#[test]
fn p14_faults_mark_what_they_make_writable() {
    let backings = [Backing::new(6), Backing::new(2)];
    let memslots = logged(&backings);
    start(&memslots, &[(2, log(1))]);
    let memory = memslots.memory();
    memory.mark_dirty(4 * PAGE + 5..4 * PAGE + 6);
    assert_eq!((fetch(&memslots, 1), fetch(&memslots, 2)), (0b100, 0));
    memory.mark_dirty(0..u64::MAX);
    assert_eq!((fetch(&memslots, 1), fetch(&memslots, 2)), (0b11_1111, 0b11));
    memory.mark_dirty(7 * PAGE + 1..8 * PAGE + 1);
    assert_eq!((fetch(&memslots, 1), fetch(&memslots, 2)), (0b10_0000, 0b1));
    for empty in [0..2 * PAGE, 3 * PAGE..3 * PAGE, 10 * PAGE..u64::MAX] {
        memory.mark_dirty(empty);
    }
    assert_eq!((fetch(&memslots, 1), fetch(&memslots, 2)), (0, 0));
}

#[test]
fn a_fetch_of_a_part_leaves_the_rest() {
    let memslots = untouched(&[slot(1, 0, 200, 0)]);
    start(&memslots, &[(1, log(4))]);
    memslots.memory().mark_dirty(0..u64::MAX);
    let mut words = [0; 2];
    let mut fetch = memslots.memory().fetch_dirty(SlotId(1), 1, &mut words).unwrap();
    assert_eq!(fetch.range(), 64 * PAGE..192 * PAGE);
    assert_eq!(fetch.next_run(Gpa(0)), Some(64 * PAGE..192 * PAGE));
    fetch.add(0..u64::MAX);
    assert_eq!(fetch.finish(&receipt(), stamp()).unwrap(), 128);
    assert_eq!(words, [u64::MAX; 2]);
    for (first_word, expected) in [(0, [u64::MAX, 0]), (3, [0xff, 0]), (usize::MAX, [0; 2])] {
        let fetch = memslots.memory().fetch_dirty(SlotId(1), first_word, &mut words).unwrap();
        assert_eq!(fetch.slot().id, SlotId(1));
        fetch.finish(&receipt(), stamp()).unwrap();
        assert_eq!(words, expected, "from word {first_word} on");
    }
}

#[test]
fn listed_pages_are_marked_in_any_order_and_only_where_there_is_a_slot() {
    let memslots = untouched(&[slot(1, 8, 200, 0)]);
    start(&memslots, &[(1, log(4))]);
    memslots.memory().mark_listed([]);
    let pages = [70, 71, 69, 0, 8, 207, 208, 9, 130, 140, 8, 4096];
    memslots.memory().mark_listed(pages.map(|page| page * PAGE + 8));
    let mut words = [0; 4];
    let fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    assert_eq!(fetch.finish(&receipt(), stamp()).unwrap(), 8);
    for page in 0..200 {
        let is_marked = words[page as usize / 64] >> (page % 64) & 1 != 0;
        assert_eq!(is_marked, pages.contains(&(page + 8)), "{page}");
    }
}

#[test]
fn runs_of_dirty_pages_are_found_one_by_one() {
    let memslots = untouched(&[slot(1, 8, 200, 0)]);
    start(&memslots, &[(1, log(4))]);
    let mut words = [0; 4];
    let mut fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    assert_eq!((fetch.next_run(Gpa(0)), fetch.hull()), (None, None));
    let pages = |first: u64, end: u64| (8 + first) * PAGE..(8 + end) * PAGE;
    let runs = [pages(2, 3), pages(5, 64), pages(70, 72), pages(130, 140), pages(192, 193)];
    for run in &runs {
        // Of the last page one byte is enough.
        fetch.add(run.start..run.end - PAGE + 1);
    }
    let mut from = Gpa(0);
    for run in &runs {
        assert_eq!(fetch.next_run(from), Some(run.clone()));
        assert_eq!(fetch.next_run(Gpa(run.start)), Some(run.clone()));
        from = Gpa(run.end);
    }
    assert_eq!(fetch.next_run(from), None);
    assert_eq!(fetch.next_run(Gpa(pages(10, 11).start)), Some(pages(10, 64)), "from the middle of one");
    assert_eq!(fetch.hull(), Some(pages(2, 193)));
    assert_eq!(fetch.next_run(Gpa(u64::MAX)), None);
}

#[test]
fn p10_what_was_located_is_void_where_stores_are_logged_since() {
    let backing = Backing::new(1);
    // SAFETY: the backing outlives the slots and is accessed through them only.
    let memslots = unsafe { with(48, &[backing.slot(1, 0)]) };
    let located = memslots.memory().locate(Gpa(0), 16).unwrap();
    let is_there = || memslots.memory().has_at(&located, 0, &Pattern::new(&[0]));
    assert!(is_there());
    start(&memslots, &[(1, log(1))]);
    assert!(!is_there());
}

#[test]
fn p14_a_fetch_that_is_given_up_loses_nothing() {
    let memslots = untouched(&[slot(1, 0, 64, 0)]);
    start(&memslots, &[(1, log(1))]);
    memslots.memory().mark_dirty(0..PAGE);
    let mut words = [0];
    let mut given_up = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    given_up.add(2 * PAGE..3 * PAGE);
    memslots.memory().mark_dirty(PAGE..2 * PAGE);
    drop(given_up);
    assert_eq!(fetch(&memslots, 1), 0b111);
}

#[test]
fn p14_what_is_marked_before_the_flush_is_in_the_result_and_stays_marked() {
    let memslots = untouched(&[slot(1, 0, 64, 0)]);
    start(&memslots, &[(1, log(1))]);
    let mut words = [0];
    let fetch_1 = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    // A fault that another processor was still handling.
    memslots.memory().mark_dirty(0..PAGE);
    let fetch_1 = fetch_1.finish(&Stale, stamp()).expect_err("it may be under way still");
    assert_eq!(fetch_1.finish(&receipt(), stamp()).unwrap(), 1);
    assert_eq!(words, [1]);
    assert_eq!(fetch(&memslots, 1), 1, "its leaf is writable: the next fetch protects it");
}

#[test]
fn p12_an_update_waits_for_a_fetch() {
    let memslots = untouched(&[slot(1, 0, 64, 0)]);
    start(&memslots, &[(1, log(1))]);
    let mut words = [0];
    let fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: nothing is promised.
    unsafe { update.set_log(SlotId(1), None) }.unwrap();
    let published = update.publish().wait(|| false).expect_err("the words are in use");
    fetch.finish(&receipt(), stamp()).unwrap();
    let mut handed_back = 0;
    published.wait(|| false).unwrap().finish(|_| handed_back += 1).unwrap();
    assert_eq!(handed_back, 1);
}

#[test]
fn a_log_has_a_bit_for_each_page_and_moves_with_its_slot() {
    assert_eq!([1, 64, 65, 128].map(|pages| DirtyLog::words_for(pages * PAGE)), [1, 1, 2, 2]);
    let memslots = untouched(&[slot(1, 0, 65, 0), slot(2, 100, 1, 0)]);
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: the words live as long as the process.
    let result = [1, 2].map(|count| unsafe { update.set_log(SlotId(1), Some(log(count))) });
    assert_eq!(result, [Err(SlotError::LogTooShort), Ok(())]);
    // SAFETY: as above.
    assert_eq!(unsafe { update.set_log(SlotId(9), Some(log(2))) }, Err(SlotError::UnknownId));
    assert_eq!(update.set_flags(SlotId(1), SlotFlags::empty()), Err(SlotError::NoLog));
    assert_eq!(update.set_flags(SlotId(2), SlotFlags::LOG_DIRTY), Err(SlotError::NoLog));
    let with_log = Slot { flags: SlotFlags::LOG_DIRTY, ..slot(3, 200, 1, 0) };
    // SAFETY: the test only looks slots up.
    assert_eq!(unsafe { update.add(with_log) }, Err(SlotError::NoLog));
    update.move_to(SlotId(1), Gpa(300 * PAGE)).unwrap();
    finish(update);
    memslots.memory().mark_dirty(364 * PAGE..365 * PAGE);
    let mut words = [0; 2];
    let fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
    fetch.finish(&receipt(), stamp()).unwrap();
    assert_eq!(words, [0, 1]);
    let fetch = |id| memslots.memory().fetch_dirty(SlotId(id), 0, &mut [0]).map(|_| ()).unwrap_err();
    assert_eq!((fetch(2), fetch(3)), (SlotError::NoLog, SlotError::UnknownId));
}

/// The log is in the logged memory itself, so that a store erases an earlier mark.
#[test]
fn p14_the_mark_comes_after_the_store() {
    let backing = Backing::new(1);
    let slot = backing.slot(1, 0);
    // SAFETY: the backing lives as long as the slots and is accessed through them only, or by
    // atomics.
    let memslots = unsafe { with(48, &[slot]) };
    // SAFETY: aligned, in the backing, and accessed by atomics only.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(slot.host.0 as usize)) };
    start(&memslots, &[(1, DirtyLog::new(std::slice::from_ref(word)))]);
    let memory = memslots.memory();
    let stores: [&dyn Fn(); 5] = [
        &|| memory.write(Gpa(0), &[0; 16]).unwrap(),
        &|| memory.write_u64(Gpa(0), 0).unwrap(),
        &|| memory.write_u32(Gpa(0), 0).unwrap(),
        &|| assert_eq!(memory.fetch_and(Gpa(0), 0u64), Ok(0xff)),
        &|| assert_eq!(memory.compare_exchange(Gpa(0), 0xffu64, 0), Ok(0xff)),
    ];
    for (index, store) in stores.iter().enumerate() {
        word.store(0xff, Relaxed);
        store();
        assert_eq!(word.load(Relaxed), 1, "store {index}");
    }
}

#[test]
fn marks_of_many_words() {
    let memslots = untouched(&[slot(1, 16, 200, 0)]);
    start(&memslots, &[(1, log(5))]);
    for (first, last) in [(0, 0), (63, 64), (64, 127), (0, 199), (130, 199), (63, 128)] {
        memslots.memory().mark_dirty((16 + first) * PAGE..(17 + last) * PAGE);
        let mut words = [0; 6];
        let fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
        assert_eq!(fetch.next_run(Gpa(0)), Some((16 + first) * PAGE..(17 + last) * PAGE));
        assert_eq!(fetch.finish(&receipt(), stamp()).unwrap(), last - first + 1);
        for page in 0..6 * 64 {
            let is_marked = words[page as usize / 64] >> (page % 64) & 1 != 0;
            assert_eq!(is_marked, (first..=last).contains(&page), "{page} of {first} to {last}");
        }
    }
}

#[test]
fn bits_behind_the_last_page_are_nobodys() {
    let words: &[AtomicU64] = Box::leak((0..2).map(|_| AtomicU64::new(u64::MAX)).collect());
    let memslots = untouched(&[slot(1, 0, 3, 0)]);
    start(&memslots, &[(1, DirtyLog::new(words))]);
    let mut result = [0; 2];
    let fetch = memslots.memory().fetch_dirty(SlotId(1), 0, &mut result).unwrap();
    assert_eq!(fetch.finish(&receipt(), stamp()).unwrap(), 3);
    assert_eq!(result, [0b111, 0]);
    assert_eq!(words[0].load(Relaxed), 0);
}
