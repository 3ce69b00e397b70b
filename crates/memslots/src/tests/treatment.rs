use super::{PAGE, slot};
use crate::sync::AtomicU64;
use crate::treatment::SlotChange;
use crate::{DirtyLog, Gpa, PhysAddr, Slot, SlotFlags, SpaceId, Treatment};

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
