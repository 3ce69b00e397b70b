//! The driver of AMD-Vi, at an IOMMU that is made by the specification.

use ::iommu::amd::ivrs::units;
use ::iommu::amd::table::{DeviceEntry, InterruptEntry, InterruptTable};
use ::iommu::amd::{Commands, Event};
use ::iommu::{DeviceId, DomainId, Port, Stuck};
use alloc::boxed::Box;
use alloc::vec::Vec;
use baremetal::moment::each_moment;
use paging::{FlushRange, Invalidation, Level};
use stay::iommu::{Device, Domain, finish, nested as engine};

use super::{DEVICE, DOMAIN, Tables};
use crate::iommu::amd_vi::{Iommu, NotStarted};
use crate::iommu::mock::{MadeIommu, Note, Notes, Refusal, block};
use crate::iommu::remaps::Rewritten;
use crate::owned::NotAttached;

const CONTROL: u64 = 0x18;
const EVENT_HEAD: u64 = 0x2010;
const EVENT_TAIL: u64 = 0x2018;
const STATUS: u64 = 0x2020;
const FEATURES: u64 = 0x30;
/// What the driver switches on: translation, the log with its interrupt, coherent walks, commands.
const ON: u64 = 1 | 1 << 2 | 1 << 3 | 1 << 10 | 1 << 12;

/// An IOMMU, its driver, and what has happened between the two.
struct Pair {
    made: &'static MadeIommu,
    driver: Iommu,
    notes: &'static Notes,
}

/// Ranges 00:02.0 to 00:03.7 and 00:08.0 with another id, an I/O APIC 00:14.0 and a timer 00:14.1.
const ENTRIES: &[u8] = &[
    3, 0x10, 0, 0, 4, 0x1f, 0, 0, 0x42, 0x40, 0, 0, 0, 0x18, 0, 0, 0x48, 0, 0, 0, 1, 0xa0, 0, 1, 0x48, 0, 0,
    0, 0, 0xa1, 0, 2,
];

fn made() -> (&'static MadeIommu, &'static Notes) {
    let notes: &'static Notes = Box::leak(Box::default());
    (Box::leak(Box::new(MadeIommu::new(notes))), notes)
}

fn start(made: &'static MadeIommu, buses: u16) -> Result<Iommu, NotStarted> {
    let table = block(2, ENTRIES);
    Iommu::start(made, &units(&table).next().expect("one"), buses)
}

fn pair() -> Pair {
    let (made, notes) = made();
    let driver = start(made, 1).expect("it starts");
    notes.take();
    Pair { made, driver, notes }
}

/// Nested tables of one page of 2 MiB at 0 that can be written, and one of 4 KiB at 4 MiB that
/// cannot; and a table of interrupts.
fn tables() -> Tables {
    let tables = Tables::empty(5);
    let to = |table: usize, level: u64| tables.at(table) | level << 9 | 3 << 61 | 3;
    tables.set(0, 0, to(1, 3));
    tables.set(1, 0, to(2, 2));
    tables.set(2, 0, 0x20_0000 | 3 << 61 | 3);
    tables.set(2, 2, to(3, 1));
    tables.set(3, 0, 0x7000 | 1 << 61 | 1);
    tables
}

impl Tables {
    fn interrupts(&self) -> InterruptTable {
        let InterruptEntry(entry) = InterruptEntry::fixed(3, 0x55);
        self.set(4, 1, u64::from(entry) << 32);
        InterruptTable { address: self.at(4), order: 9 }
    }
}

#[test]
fn it_is_off_while_it_gets_its_tables_and_everything_is_blocked_before_it_is_on() {
    let (made, notes) = made();
    let driver = start(made, 1).expect("it starts");
    let writes: Vec<(u64, u64)> = notes
        .take()
        .into_iter()
        .filter_map(
            |note| if let Note::Register(offset, value) = note { Some((offset, value)) } else { None },
        )
        .collect();
    let offsets: Vec<u64> = writes.iter().map(|&(offset, _)| offset).collect();
    assert_eq!(
        offsets,
        [CONTROL, 0, 8, 0x10, 0x2000, 0x2008, EVENT_HEAD, EVENT_TAIL, STATUS, CONTROL, 0x2008],
        "{writes:x?}"
    );
    let firmwares = 1 << 1 | 1 << 8 | 1 << 9 | 1 << 11;
    assert_eq!((writes[0].1, writes[9].1), (firmwares, firmwares | ON), "firmware's bits for links stay");
    assert!(writes[4..8].iter().all(|&(_, value)| value == 0));
    assert_eq!(writes[1].1 & 0x1ff, 1, "256 devices in two pages");
    assert_eq!([writes[2].1 >> 56, writes[3].1 >> 56], [8, 8], "256 entries");
    assert_eq!((writes[8].1, made.register(STATUS)), (3, 0), "what happened before is over");
    for device in 0..256 {
        let passes = [0xa0, 0xa1].contains(&device);
        let expected = if passes { DeviceEntry::INTERRUPTS_PASS } else { DeviceEntry::BLOCKED };
        assert_eq!(made.entry_in_memory(device), expected.0, "{device:#x}");
    }
    assert_eq!(made.dma(0x18, 0, false), Err(Refusal::Blocked));
    assert_eq!(driver.requester(DeviceId(0x18)), Some(DeviceId(0x18)));
}

#[test]
fn what_it_kept_before_goes_by_one_command_or_by_one_for_each_device() {
    let (one, notes) = made();
    let _driver = start(one, 2).expect("it starts");
    let commands = notes.commands();
    assert_eq!((commands.len(), commands[0]), (2, [8 << 60, 0]));
    let (each, notes) = made();
    each.poke(FEATURES, 0);
    let _driver = start(each, 2).expect("it starts");
    let commands = notes.commands();
    let devices: Vec<u64> =
        commands.iter().filter(|command| command[0] >> 60 == 2).map(|command| command[0] & 0xffff).collect();
    assert_eq!(devices, (0..512).collect::<Vec<u64>>(), "all of two buses");
    assert_eq!(commands.last().map(|command| command[0] >> 60), Some(1));
}

#[test]
fn its_table_is_for_one_bus_at_least_and_all_at_most() {
    for (buses, pages) in [(0, 2), (1, 2), (3, 6), (256, 512), (1000, 512)] {
        let (made, _) = made();
        let driver = start(made, buses).expect("it starts");
        assert_eq!((made.register(0) & 0x1ff) + 1, pages, "{buses}");
        // Those that no entry is for are behind none.
        assert_eq!(driver.requester(DeviceId(0x3ff)), None);
    }
}

#[test]
fn one_that_reads_no_commands_is_not_used() {
    let (made, _) = made();
    made.hold();
    let stuck = start(made, 1).err().expect("it is stuck");
    assert_eq!(stuck, NotStarted::Stuck(Stuck { head: 2, queued: 2 }));
    assert!(stuck.to_string().contains("stands at entry 2"), "{stuck}");
    assert!(NotStarted::NoPlace.to_string().contains("cannot reach"));
    let (made, _) = self::made();
    let driver = start(made, 1).expect("it starts");
    let ends = [0, 1023, 1024].map(|turns| driver.queue().port().relax(turns).is_break());
    assert_eq!(ends, [false, false, true], "after so many turns, in tests");
}

#[test]
fn devices_are_known_by_the_id_that_the_table_gives() {
    let Pair { driver, .. } = pair();
    for (device, id) in
        [(0xf, None), (0x10, Some(0x10)), (0x1f, Some(0x1f)), (0x20, None), (0x40, Some(0x18)), (0xa0, None)]
    {
        assert_eq!(driver.requester(DeviceId(device)), id.map(DeviceId), "{device:#x}");
    }
    // The device table ends before this one.
    let (made, _) = made();
    let table = block(2, &[3, 0, 0, 0, 4, 0xff, 0xff, 0]);
    let driver = Iommu::start(made, &units(&table).next().expect("one"), 2).expect("it starts");
    assert_eq!(driver.requester(DeviceId(0x1ff)), Some(DeviceId(0x1ff)));
    assert_eq!(driver.requester(DeviceId(0x200)), None);
}

#[test]
fn a_device_translates_and_interrupts_from_attachment_to_detachment() {
    let Pair { made, driver, notes } = pair();
    let tables = tables();
    assert_eq!(made.dma(0x18, 0, false), Err(Refusal::Blocked), "the entry is kept now");
    driver.attach(&DOMAIN, tables.root(), tables.interrupts()).expect("it goes on");
    assert_eq!(notes.commands().iter().map(|command| command[0] >> 60).collect::<Vec<_>>(), [2, 1]);
    assert_eq!((made.dma(0x18, 0x1234, true), made.dma(0x18, 0x40_0010, false)), (Ok(0x20_1234), Ok(0x7010)));
    assert_eq!(made.dma(0x18, 0x40_0010, true), Err(Refusal::NotMapped), "it is read-only");
    assert_eq!(made.dma(0x18, 0x60_0000, false), Err(Refusal::NotMapped));
    assert_eq!(made.dma(0x19, 0x1234, false), Err(Refusal::Blocked), "its neighbour");
    assert_eq!((made.msi(0x18, 3), made.msi(0x18, 4)), (Ok((3, 0x55)), Err(Refusal::NotMapped)));
    assert_eq!(made.msi(0x18, 512), Err(Refusal::Blocked), "beyond the table");
    assert_eq!((made.msi(0x19, 3), made.kept(5)), (Err(Refusal::Blocked), 2));
    driver.detach(&DOMAIN).expect("it goes on");
    let kinds: Vec<u64> = notes.commands().iter().map(|command| command[0] >> 60).collect();
    assert_eq!(kinds, [2, 1, 3, 1], "first its entry, then its translations");
    assert_eq!(made.dma(0x18, 0x1234, false), Err(Refusal::Blocked));
    assert_eq!((made.msi(0x18, 3), made.kept(5)), (Err(Refusal::Blocked), 0));
    assert_eq!(made.entry_in_memory(0x18), DeviceEntry::BLOCKED.0);
}

#[test]
fn an_id_without_an_owner_has_what_it_had_before_it_had_one() {
    let Pair { made, driver, .. } = pair();
    for (id, entry) in [(0x18, DeviceEntry::BLOCKED), (0xa0, DeviceEntry::INTERRUPTS_PASS)] {
        assert_eq!(driver.is_machines_own(DeviceId(id)), id == 0xa0);
        let device = Device { id: DeviceId(id), ats: None };
        driver.detach(&Domain { id: DomainId(5), devices: &[device] }).expect("it goes on");
        assert_eq!(made.entry_in_memory(id), entry.0, "{id:#x}");
    }
}

#[test]
fn p16_what_has_no_place_is_not_attached_and_changes_nothing() {
    let Pair { made, driver, notes } = pair();
    let (tables, Domain { id, devices }, _) = (tables(), DOMAIN, notes.take());
    let root = tables.root();
    for (root, id, interrupts) in [
        (root + 8, id, tables.interrupts()),
        (root, DomainId(0), tables.interrupts()),
        (root, id, InterruptTable { address: 64, order: 9 }),
    ] {
        assert_eq!(driver.attach(&Domain { id, devices }, root, interrupts), Err(NotAttached::NoPlace));
        assert_eq!(made.entry_in_memory(0x18), DeviceEntry::BLOCKED.0);
        assert_eq!((notes.commands(), made.dma(0x18, 0, false)), (Vec::new(), Err(Refusal::Blocked)));
    }
}

#[test]
fn a_device_with_ats_may_ask_for_translations() {
    let Pair { made, driver, .. } = pair();
    let tables = tables();
    let device = Device { ats: Some(3), ..DEVICE };
    driver
        .attach(&Domain { devices: &[device], ..DOMAIN }, tables.root(), tables.interrupts())
        .expect("it goes on");
    assert_eq!(made.entry_in_memory(0x18)[1] >> 32 & 1, 1);
    driver.attach(&DOMAIN, tables.root(), tables.interrupts()).expect("it goes on");
    assert_eq!(made.entry_in_memory(0x18)[1] >> 32 & 1, 0);
}

#[test]
fn what_is_begun_is_not_over_before_the_iommu_says_so() {
    let Pair { made, driver, notes } = pair();
    let tables = tables();
    driver.attach(&DOMAIN, tables.root(), tables.interrupts()).expect("it goes on");
    made.dma(0x18, 0x1000, false).expect("is mapped");
    made.dma(0x18, 0x40_0000, false).expect("is mapped");
    notes.take();
    made.hold();
    let range = FlushRange { start: 0x40_0000, len: 0x1000, level: Level::Page4K, tables: false };
    let begun = engine::begin(driver.queue(), &Commands, &DOMAIN, Invalidation::Ranges(&[range]))
        .expect("there is room");
    assert_eq!(made.kept(5), 2);
    assert!(finish(driver.queue(), begun).is_err(), "nothing is reported");
    made.go_on();
    finish(driver.queue(), begun).expect("it is over");
    assert_eq!(made.kept(5), 1, "the other one stays");
    assert_eq!(notes.commands()[0], [3 << 60 | 5 << 32, 0x40_0000]);
    let nothing =
        engine::begin(driver.queue(), &Commands, &DOMAIN, Invalidation::Nothing).expect("there is room");
    finish(driver.queue(), nothing).expect("nothing is waited for");
    let stuck = driver.detach(&DOMAIN).expect_err("it does not go on");
    assert_eq!(made.entry_in_memory(0x18), DeviceEntry::BLOCKED.0, "at least that: {stuck}");
    assert!(driver.attach(&DOMAIN, tables.root(), tables.interrupts()).is_err());
    assert!(driver.interrupts_changed(DEVICE.id, Rewritten::made()).is_err());
}

#[test]
fn a_changed_interrupt_is_used_when_the_iommu_was_told() {
    let Pair { made, driver, .. } = pair();
    let tables = tables();
    driver.attach(&DOMAIN, tables.root(), tables.interrupts()).expect("it goes on");
    assert_eq!(made.msi(0x18, 3), Ok((3, 0x55)));
    tables.set(4, 1, u64::from(InterruptEntry::fixed(1, 0x66).0) << 32);
    assert_eq!(made.msi(0x18, 3), Ok((3, 0x55)), "the former one is kept");
    driver.interrupts_changed(DeviceId(0x19), Rewritten::made()).expect("it goes on");
    assert_eq!(made.msi(0x18, 3), Ok((3, 0x55)), "that was another device");
    driver.interrupts_changed(DEVICE.id, Rewritten::made()).expect("it goes on");
    assert_eq!(made.msi(0x18, 3), Ok((1, 0x66)));
}

#[test]
fn a_mixture_of_two_entries_is_never_translated_by() {
    let table = InterruptTable { address: 0x8000, order: 9 };
    let valid = DeviceEntry::translated(0x5000, DomainId(7))
        .and_then(|entry| entry.with_interrupts(table))
        .expect("fits");
    for (former, next) in [(DeviceEntry::BLOCKED, valid), (valid, DeviceEntry::BLOCKED)] {
        let mut mixture = former;
        for index in crate::iommu::amd_vi::order(next) {
            mixture.0[index] = next.0[index];
            assert!(!mixture.is_translated() || [former, next].contains(&mixture), "{mixture:x?}");
        }
        assert_eq!(mixture, next);
    }
}

fn fault(device: u16, address: u64) -> [u64; 2] {
    [2 << 60 | 5 << 32 | u64::from(device), address]
}

fn events(driver: &Iommu) -> (Vec<(u16, u64)>, bool) {
    let mut found = Vec::new();
    let has_lost = driver.take_events(|event| match event {
        Event::PageFault { device, address, .. } => found.push((device.0, address)),
        other => panic!("{other}"),
    });
    (found, has_lost)
}

#[test]
fn events_are_taken_once_and_the_next_one_interrupts_again() {
    let Pair { made, driver, .. } = pair();
    assert_eq!((events(&driver), made.interrupts()), ((Vec::new(), false), 0));
    for round in 1..=300u64 {
        made.log(fault(0x18, round << 12));
        made.log(fault(0x19, round << 12 | 8));
        assert_eq!(made.interrupts(), round as u32, "one for both");
        let expected = alloc::vec![(0x18, round << 12), (0x19, round << 12 | 8)];
        assert_eq!(events(&driver), (expected, false), "round {round}");
        assert_eq!(made.register(EVENT_HEAD), made.register(EVENT_TAIL));
    }
}

#[test]
fn events_at_any_moment_are_taken_once_and_in_order_or_are_said_to_be_lost() {
    for count in [1, 300] {
        each_moment(|at| {
            let Pair { made, driver, .. } = pair();
            made.log(fault(0x18, 0));
            made.moment.set(at, move || (1..=count).for_each(|index| made.log(fault(0x18, index << 12))));
            let (mut found, mut losses, mut served) = (Vec::new(), 0, 0);
            let mut serve = || {
                while served < made.interrupts() {
                    served += 1;
                    let (events, has_lost) = events(&driver);
                    found.extend(events.into_iter().map(|(_, address)| address >> 12));
                    losses += u32::from(has_lost);
                }
                (core::mem::take(&mut found), losses)
            };
            let (taken, losses) = serve();
            let has_come = made.moment.has_come();
            if has_come {
                assert_eq!(losses, u32::from(count > 1), "before access {at}");
                let all: Vec<_> = (0..=count).collect();
                let is_right = if count > 1 { all.starts_with(&taken) } else { taken == all };
                assert!(is_right && !taken.is_empty(), "before access {at}: {taken:?}");
                made.log(fault(0x18, 0x5000));
                assert_eq!(serve(), (alloc::vec![5], losses), "it goes on, before access {at}");
            }
            has_come
        });
    }
}

#[test]
fn an_event_that_is_not_there_yet_is_taken_later_and_whole() {
    let Pair { made, driver, .. } = pair();
    made.log(fault(0x18, 0x1000));
    let place = made.announce_early();
    assert_eq!((events(&driver), made.register(EVENT_HEAD)), ((alloc::vec![(0x18, 0x1000)], false), 16));
    // Its second word comes first.
    made.put_late(place, [0, 0x2000]);
    assert_eq!(events(&driver), (Vec::new(), false));
    made.put_late(place, fault(0x19, 0x2000));
    assert_eq!(events(&driver), (alloc::vec![(0x19, 0x2000)], false));
    made.log(fault(0x1a, 0x3000));
    assert_eq!(events(&driver), (alloc::vec![(0x1a, 0x3000)], false));
}

#[test]
fn a_log_that_was_full_goes_on_from_its_beginning() {
    let Pair { made, driver, .. } = pair();
    for index in 0..300u64 {
        made.log(fault(0x18, index << 12));
    }
    assert_eq!(made.register(STATUS) & 1, 1);
    let (found, has_lost) = events(&driver);
    assert_eq!((found.len(), has_lost, found.last()), (255, true, Some(&(0x18, 254 << 12))));
    assert_eq!((made.register(STATUS), made.register(CONTROL) & ON, made.register(EVENT_HEAD)), (0, ON, 0));
    made.log(fault(0x19, 0x5000));
    assert_eq!(events(&driver), (alloc::vec![(0x19, 0x5000)], false));
}

#[test]
fn what_is_left_in_a_full_log_is_not_taken_for_a_new_event() {
    let Pair { made, driver, .. } = pair();
    let place = made.announce_early();
    for index in 0..300u64 {
        made.log(fault(0x18, index << 12));
    }
    assert_eq!(events(&driver), (Vec::new(), true), "the first one is not there");
    made.put_late(place, [0, 0]);
    made.log(fault(0x19, 0x5000));
    assert_eq!(events(&driver), (alloc::vec![(0x19, 0x5000)], false));
    made.announce_early();
    assert_eq!(events(&driver), (Vec::new(), false), "nothing is there yet");
}
