use super::{PAGE, finish, slot};
use crate::generation::Numbers;
use crate::{Generation, Gpa, Memslots, MmioCache, SlotId};

#[test]
fn pages_are_known_by_all_their_addresses_and_the_oldest_is_forgotten() {
    let generation = Memslots::new(48).generation();
    let mut cache = MmioCache::<4>::new();
    assert!(!cache.has(Gpa(0), generation) && !cache.has(Gpa(u64::MAX), generation));
    for page in [7, 8, 7, 9, 11] {
        assert!(cache.insert(Gpa(page * PAGE + 5), generation));
    }
    let known = |cache: &MmioCache<4>, page: u64| {
        let has = [0, 8, PAGE - 1].map(|offset| cache.has(Gpa(page * PAGE + offset), generation));
        assert!(has == [true; 3] || has == [false; 3]);
        has[0]
    };
    assert_eq!([6, 7, 8, 9, 10, 11].map(|page| known(&cache, page)), [false, true, true, true, false, true]);
    assert!(cache.insert(Gpa(10 * PAGE), generation));
    assert_eq!([7, 8, 9, 10, 11].map(|page| known(&cache, page)), [false, true, true, true, true]);
    let mut none = MmioCache::<0>::new();
    assert!(none.insert(Gpa(0), generation) && !none.has(Gpa(0), generation));
}

#[test]
fn p9_generations_of_three_bits_come_to_an_end_and_do_not_wrap() {
    let of_three_bits = |numbers| Memslots::<1>::with_generation(48, Generation::new(0), numbers);
    // A page is MMIO, and then memory for 8 updates: is it still taken for MMIO?
    let is_stale = |memslots: &Memslots| {
        let mut cache = MmioCache::<4>::new();
        assert!(cache.insert(Gpa(PAGE), memslots.memory().generation()));
        let mut is_stale = false;
        for round in 0..16 {
            let Ok(mut update) = memslots.begin_update() else { break };
            match round {
                // SAFETY: the test only looks slots up.
                0 => unsafe { update.add(slot(1, 1, 1, 0)) }.unwrap(),
                _ => update.move_to(SlotId(2), Gpa((16 + round) * PAGE)).unwrap(),
            }
            finish(update);
            assert!(memslots.memory().find(Gpa(PAGE)).is_some());
            is_stale |= cache.has(Gpa(PAGE), memslots.generation());
        }
        is_stale
    };
    let with_another = |memslots: Memslots| {
        let mut update = memslots.begin_update().unwrap();
        // SAFETY: the test only looks slots up.
        unsafe { update.add(slot(2, 8, 1, 0)) }.unwrap();
        finish(update);
        memslots
    };
    let good = with_another(of_three_bits(Numbers::of_bits(3)));
    assert!(!is_stale(&good));
    assert!(good.generation().is_in_progress(), "rather than to wrap, it stays in progress");
    assert_eq!(good.generation().number(), 7);
    assert!(!MmioCache::<4>::new().insert(Gpa(0), good.generation()));
    let wrapping = with_another(of_three_bits(Numbers::of_bits_that_wrap(3)));
    assert!(is_stale(&wrapping), "the bug would be seen");
    let mut numbers: Vec<_> = Vec::new();
    for _ in 0..8 {
        numbers.push(finish(wrapping.begin_update().unwrap()).number());
    }
    let first = numbers.iter().position(|number| *number == 0).unwrap();
    numbers.rotate_left(first);
    assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6, 7]);
}
