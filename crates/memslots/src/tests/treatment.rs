use super::{PAGE, settle, slot, untouched};
use crate::sync::AtomicU64;
use crate::treatment::SlotChange;
use crate::{DirtyLog, Gpa, Memslots, PhysAddr, Retired, Slot, SlotFlags, SlotId, SpaceId, Treatment};

/// An update of slot 1: whether it is read-only and its log, before and after; and its place
/// afterwards.
fn treatment(
    (was_rom, old_log): (bool, Option<DirtyLog>),
    (is_rom, new_log): (bool, Option<DirtyLog>),
    place: impl Fn(Slot) -> Slot,
) -> Option<Treatment> {
    let of = |is_rom, log: Option<DirtyLog>| {
        let mut flags = if is_rom { SlotFlags::READ_ONLY } else { SlotFlags::empty() };
        flags.set(SlotFlags::LOG_DIRTY, log.is_some());
        Slot { flags, ..slot(1, 16, 4, 0x10_0000) }
    };
    let (former, current) = (of(was_rom, old_log), place(of(is_rom, new_log)));
    SlotChange::of(SpaceId::FIRST, (&former, old_log.as_ref()), Some((&current, new_log.as_ref())))
        .map(|change| change.treatment)
}

#[test]
fn p8_every_pair_of_changes_has_the_treatment_that_serves_both() {
    use Treatment::{Collapse, Nothing, StartLog, WriteProtect, Zap};
    let words = [const { AtomicU64::new(0) }; 2];
    let [one, other] = [&words[..1], &words[1..]].map(DirtyLog::new);
    let (off, on, new) = (None, Some(one), Some(other));
    let (ram, rom) = (false, true);
    let table = [
        // Log before and after; RAM stays RAM, becomes ROM; ROM stays ROM, becomes RAM.
        (off, off, [None, Some(WriteProtect), None, Some(Nothing)]),
        (on, on, [None, Some(WriteProtect), None, Some(Nothing)]),
        (off, on, [Some(StartLog), Some(Zap), Some(StartLog), Some(StartLog)]),
        (on, new, [Some(StartLog), Some(Zap), Some(StartLog), Some(StartLog)]),
        (on, off, [Some(Collapse), Some(WriteProtect), Some(Collapse), Some(Collapse)]),
    ];
    for (before, after, expected) in table {
        let kinds = [(ram, ram), (ram, rom), (rom, rom), (rom, ram)];
        for ((was_rom, is_rom), expected) in kinds.into_iter().zip(expected) {
            let decided = treatment((was_rom, before), (is_rom, after), |slot| slot);
            assert_eq!(decided, expected, "{was_rom} {before:?} to {is_rom} {after:?}");
            // Elsewhere, of another size, or with other memory behind it: no translation is right
            // any more.
            for place in [
                |slot| Slot { gpa: Gpa(17 * PAGE), ..slot },
                |slot| Slot { size: 3 * PAGE, ..slot },
                |slot| Slot { size: 5 * PAGE, ..slot },
                |slot| Slot { host: PhysAddr(0), ..slot },
            ] {
                assert_eq!(treatment((was_rom, before), (is_rom, after), place), Some(Zap));
            }
        }
    }
}

#[test]
fn p8_only_what_takes_something_away_needs_a_receipt() {
    let needs = |treatment: Treatment| treatment.needs_receipt();
    assert!([Treatment::WriteProtect, Treatment::StartLog, Treatment::Zap].into_iter().all(needs));
    assert!(![Treatment::Nothing, Treatment::Collapse].into_iter().any(needs));
}

/// The changes of an update: the treatment, and the range.
fn changes(memslots: &Memslots, edit: impl FnOnce(&mut crate::Update<'_>)) -> Vec<(u16, Treatment, u64)> {
    let mut update = memslots.begin_update().unwrap();
    edit(&mut update);
    let quiesced = settle(update);
    let mut seen = Vec::new();
    quiesced.for_each_change(|change| seen.push(*change));
    let one_by_one: Vec<_> = (0..).map_while(|index| quiesced.change(index)).collect();
    assert_eq!(seen, one_by_one);
    quiesced.finish(|_| ()).unwrap();
    seen.iter().map(|change| (change.former.id.0, change.treatment, change.range().start / PAGE)).collect()
}

#[test]
fn p8_changes_are_those_of_the_slots_that_were_there() {
    let memslots = untouched(&[slot(1, 0, 4, 0), slot(2, 8, 4, 0), slot(3, 16, 4, 0), slot(4, 24, 4, 0)]);
    let seen = changes(&memslots, |update| {
        update.set_flags(SlotId(4), SlotFlags::READ_ONLY).unwrap();
        update.move_to(SlotId(3), Gpa(18 * PAGE)).unwrap();
        update.remove(SlotId(1)).unwrap();
        // SAFETY: the test only looks slots up.
        unsafe { update.add(slot(5, 2, 1, 0)) }.unwrap();
    });
    assert_eq!(seen, [(1, Treatment::Zap, 0), (3, Treatment::Zap, 16), (4, Treatment::WriteProtect, 24)]);
    let seen = changes(&memslots, |update| {
        update.move_to(SlotId(3), Gpa(16 * PAGE)).unwrap();
        update.move_to(SlotId(3), Gpa(18 * PAGE)).unwrap();
        update.set_flags(SlotId(4), SlotFlags::empty()).unwrap();
    });
    assert_eq!(seen, [(4, Treatment::Nothing, 24)], "what is as it was is no change");
}

#[test]
fn p2_memory_and_log_are_given_back_when_they_go_and_not_before() {
    let words = [const { AtomicU64::new(0) }; 2];
    let [one, other] = [&words[..1], &words[1..]].map(DirtyLog::new);
    let memslots = untouched(&[slot(1, 0, 4, 0)]);
    let retired = |edit: &dyn Fn(&mut crate::Update<'_>)| {
        let mut update = memslots.begin_update().unwrap();
        edit(&mut update);
        let mut retired = Vec::new();
        settle(update).finish(|what| retired.push(what)).unwrap();
        retired
    };
    let log = |update: &mut crate::Update<'_>, log| {
        // SAFETY: the words outlive the slots.
        unsafe { update.set_log(SlotId(1), log) }.unwrap();
    };
    let (space, flags) = (SpaceId::FIRST, SlotFlags::LOG_DIRTY);
    let logged = Slot { flags, ..slot(1, 0, 4, 0) };
    assert_eq!(retired(&|update| log(update, Some(one))), []);
    assert_eq!(retired(&|update| update.move_to(SlotId(1), Gpa(PAGE)).unwrap()), [], "moves with both");
    assert_eq!(retired(&|update| update.set_flags(SlotId(1), flags | SlotFlags::READ_ONLY).unwrap()), []);
    assert_eq!(retired(&|update| update.set_flags(SlotId(1), flags).unwrap()), []);
    assert_eq!(retired(&|update| update.move_to(SlotId(1), Gpa(0)).unwrap()), []);
    let former = Retired::Log { space, slot: logged, log: one };
    assert_eq!(retired(&|update| log(update, Some(other))), [former]);
    let continued = retired(&|update| {
        update.remove(SlotId(1)).unwrap();
        // SAFETY: the test only looks slots up.
        unsafe { update.add(slot(1, 7, 4, 0)) }.unwrap();
    });
    assert_eq!(continued, [Retired::Log { space, slot: logged, log: other }], "the memory goes on");
    assert_eq!(retired(&|update| log(update, Some(one))), []);
    let gone = Slot { gpa: Gpa(7 * PAGE), ..logged };
    assert_eq!(
        retired(&|update| update.remove(SlotId(1)).unwrap()),
        [Retired::Memory { space, slot: gone }, Retired::Log { space, slot: gone, log: one }]
    );
}

#[test]
fn p14_a_log_can_be_stopped_without_a_flush_and_not_started() {
    let words = [const { AtomicU64::new(0) }; 1];
    let memslots = untouched(&[slot(1, 0, 4, 0)]);
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: the words outlive the slots.
    unsafe { update.set_log(SlotId(1), Some(DirtyLog::new(&words))) }.unwrap();
    let mut quiesced = update.publish().wait(|| false).unwrap();
    assert!(quiesced.needs_receipt(SpaceId::FIRST));
    quiesced = quiesced.finish(|_| panic!("given back")).expect_err("write access is to be taken away first");
    assert!(quiesced.settle(SpaceId::FIRST, &super::receipt(), super::stamp()));
    assert!(!quiesced.needs_receipt(SpaceId::FIRST));
    quiesced.finish(|_| ()).unwrap();
    let mut update = memslots.begin_update().unwrap();
    // SAFETY: nothing is promised.
    unsafe { update.set_log(SlotId(1), None) }.unwrap();
    let mut logs = 0;
    let quiesced = update.publish().wait(|| false).unwrap();
    assert!(!quiesced.needs_receipt(SpaceId::FIRST));
    quiesced.finish(|_| logs += 1).unwrap();
    assert_eq!(logs, 1);
}
