//! The driver of VT-d, at an IOMMU that is made by the specification.

use ::iommu::vtd::Unusable;
use ::iommu::vtd::dmar::Dmar;
use ::iommu::vtd::interrupt::LocalApics;
use ::iommu::vtd::table::ContextEntry;
use ::iommu::{DeviceId, DomainId, Port, Stuck};
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;
use baremetal::moment::each_moment;
use paging::{FlushRange, Invalidation, Level};
use pci::Message;
use pci::msix::Message as RealMessage;
use stay::iommu::{Device, Domain, finish, nested};

use super::{DEVICE, DOMAIN, Tables};
use crate::iommu::mock::{MadeVtd, Note, Notes};
use crate::iommu::remaps::{Remaps, Rewritten};
use crate::iommu::vtd::{Iommu, NotStarted, order};
use crate::owned::NotAttached;

const TE: u64 = 1 << 31;
const SRTP: u64 = 1 << 30;
const QIE: u64 = 1 << 26;
const IRE: u64 = 1 << 25;
const SIRTP: u64 = 1 << 24;
const CFI: u64 = 1 << 23;

struct Pair {
    made: &'static MadeVtd,
    driver: Iommu,
    notes: &'static Notes,
}

fn made() -> (&'static MadeVtd, &'static Notes) {
    let notes: &'static Notes = Box::leak(Box::default());
    (Box::leak(Box::new(MadeVtd::new(notes))), notes)
}

/// It has all devices; I/O APIC 7 interrupts as 00:14.0, a timer as 00:14.1.
fn start(made: &'static MadeVtd, buses: u16) -> Result<Iommu, NotStarted> {
    start_with(made, buses, LocalApics::Xapic)
}

fn start_with(made: &'static MadeVtd, buses: u16, apics: LocalApics) -> Result<Iommu, NotStarted> {
    let mut table = alloc::vec![0; 48];
    table.extend([0, 0, 32, 0, 1, 0, 0, 0, 0, 0, 0xd9, 0xfe, 0, 0, 0, 0]);
    table.extend([3, 8, 0, 0, 7, 0, 0x14, 0, 4, 8, 0, 0, 0, 0, 0x14, 1]);
    let unit = Dmar::new(&table, &|_| None).units().next().expect("one");
    Iommu::start(made, unit, buses, apics, false)
}

fn pair() -> Pair {
    let (made, notes) = made();
    let driver = start(made, 1).expect("it starts");
    driver.send_events(Message { address: 0xfee0_1000, data: 0xf0 });
    notes.take();
    Pair { made, driver, notes }
}

/// EPT of one page of 2 MiB at 0 that can be written, and one of 4 KiB at 4 MiB that cannot.
fn tables() -> Tables {
    let tables = Tables::empty(4);
    tables.set(0, 0, tables.at(1) | 0x107);
    tables.set(1, 0, tables.at(2) | 0x107);
    tables.set(2, 0, 0x20_0000 | 0x3b7);
    tables.set(2, 2, tables.at(3) | 0x107);
    tables.set(3, 0, 0x7000 | 0x135);
    tables
}

#[test]
fn it_is_off_while_it_gets_its_tables_and_keeps_nothing_from_before() {
    let (made, notes) = made();
    let driver = start(made, 1).expect("it starts");
    let write = |note| if let Note::Register(offset, value) = note { Some((offset, value)) } else { None };
    let writes: Vec<(u64, u64)> = notes.take().into_iter().filter_map(write).collect();
    let commands: Vec<u64> = writes.iter().filter(|(at, _)| *at == 0x18).map(|(_, value)| *value).collect();
    let (on, remaps) = (QIE, QIE | IRE);
    assert_eq!(
        commands,
        [QIE | IRE | CFI, QIE | CFI, QIE, 0, on, on | SRTP, on | SIRTP, remaps, remaps | TE],
        "{commands:x?}"
    );
    assert_eq!((writes[0], made.register(0x1c) & (TE | IRE | QIE | CFI)), ((0x38, 1 << 31), TE | IRE | QIE));
    assert!(writes.iter().all(|(at, _)| *at != 0x64), "firmware has protected nothing");
    assert_eq!((made.dma(0x18, 0, false), made.msi(0x18, 0xfee0_2010, 0)), (Err(2), Err(0x22)));
    assert_eq!(driver.requester(DeviceId(0x18)), Some(DeviceId(0x18)));
    assert_eq!(driver.requester(DeviceId(0x100)), None, "there is no table for its bus");
    assert_eq!(made.dma(0x100, 0, false), Err(1));
    assert_eq!([0xa0, 0xa1, 0x18].map(|id| driver.is_machines_own(DeviceId(id))), [true, true, false]);
    assert_eq!(made.interrupts(), 0, "until it is told where to");
    // A machine has a bus, whoever has counted.
    let least = start(self::made().0, 0).expect("it starts");
    assert_eq!([0x18, 0x100].map(|id| least.requester(DeviceId(id)).is_some()), [true, false]);
}

#[test]
fn one_that_cannot_be_used_says_why() {
    let (held, _) = made();
    held.hold();
    assert_eq!(start(held, 1).err(), Some(NotStarted::Stuck(Stuck { head: 4, queued: 4 })));
    for command in [TE, QIE, IRE, CFI, SRTP, SIRTP] {
        let (deaf, _) = made();
        deaf.ignore(command);
        let why = start(deaf, 1).err().expect("it does not start");
        assert_eq!(why, NotStarted::Silent(command as u32));
        assert!(why.to_string().contains(&alloc::format!("{command:#x}")), "{why}");
    }
    for (first, second, why) in [
        (1 << 7, 0, NotStarted::Unusable(Unusable::KeepsAbsence)),
        (0, 1, NotStarted::Unusable(Unusable::Incoherent)),
        // Its faults would be beyond its registers.
        (0x100 << 24, 0, NotStarted::NoPlace),
    ] {
        let (made, notes) = made();
        made.poke(8, made.register(8) ^ first);
        made.poke(0x10, made.register(0x10) ^ second);
        assert_eq!(start(made, 1).err(), Some(why), "{why}");
        assert!(notes.take().is_empty(), "nothing is written");
    }
}

#[test]
fn memory_that_firmware_has_protected_is_free_when_tables_protect_it() {
    let (made, notes) = made();
    made.poke(0x64, 1 << 31 | 1);
    let _driver = start(made, 1).expect("it starts");
    let notes = notes.take();
    assert_eq!((made.register(0x64), notes.last()), (0, Some(&Note::Register(0x64, 0))));
}

#[test]
fn a_device_translates_from_attachment_to_detachment() {
    let Pair { made, driver, notes } = pair();
    let tables = tables();
    assert_eq!(made.dma(0x18, 0, false), Err(2));
    driver.attach(&DOMAIN, tables.root()).expect("it goes on");
    assert_eq!((made.dma(0x18, 0x1234, true), made.dma(0x18, 0x40_0010, false)), (Ok(0x20_1234), Ok(0x7010)));
    assert_eq!(made.dma(0x18, 0x40_0010, true), Err(5), "it is read-only");
    assert_eq!(made.dma(0x18, 0x60_0000, false), Err(6));
    assert_eq!((made.dma(0x19, 0x1234, false), made.kept(5)), (Err(2), 2), "its neighbour");
    notes.take();
    driver.detach(&DOMAIN).expect("it goes on");
    let kinds: Vec<u64> = notes.commands().iter().map(|command| command[0] & 0x3f).collect();
    assert_eq!(kinds, [0x31, 0x25, 0x22, 0x25], "first its entry, then its translations");
    assert_eq!((made.dma(0x18, 0x1234, false), made.kept(5)), (Err(2), 0));
}

#[test]
fn p16_what_has_no_place_is_not_attached_and_changes_nothing() {
    let Pair { made, driver, notes } = pair();
    let root = tables().root();
    let beyond = Device { id: DeviceId(0x100), ats: None };
    for (domain, root) in [
        (DOMAIN, root + 8),
        (Domain { id: DomainId(0), ..DOMAIN }, root),
        (Domain { devices: &[DEVICE, beyond], ..DOMAIN }, root),
    ] {
        assert_eq!(driver.attach(&domain, root), Err(NotAttached::NoPlace));
        assert_eq!((notes.commands(), made.dma(0x18, 0, false)), (Vec::new(), Err(2)));
    }
}

#[test]
fn a_mixture_of_two_entries_is_never_translated_by() {
    let valid = ContextEntry::translated(0x5000, DomainId(7)).expect("fits");
    for (former, next) in [(ContextEntry::BLOCKED, valid), (valid, ContextEntry::BLOCKED)] {
        let mut mixture = former;
        for index in order(next) {
            mixture.0[index] = next.0[index];
            assert!(!mixture.is_translated() || [former, next].contains(&mixture), "{mixture:x?}");
        }
        assert_eq!(mixture, next);
    }
}

#[test]
fn half_of_a_position_is_reported_and_the_whole_is_known() {
    let Pair { driver, .. } = pair();
    let port = driver.queue().port();
    let reported = port.reported().expect("it is told");
    let later = (1 << 40) + reported;
    assert_eq!(port.sync(later).0[0] >> 32, reported);
    assert_eq!(port.reported(), Some(later));
}

#[test]
fn what_is_begun_is_not_over_before_the_iommu_says_so() {
    let Pair { made, driver, notes } = pair();
    let tables = tables();
    driver.attach(&DOMAIN, tables.root()).expect("it goes on");
    made.dma(0x18, 0x1000, false).expect("is mapped");
    made.dma(0x18, 0x40_0000, false).expect("is mapped");
    notes.take();
    made.hold();
    let range = FlushRange { start: 0x40_0000, len: 0x1000, level: Level::Page4K, tables: false };
    let begun = nested::begin(driver.queue(), driver.commands(), &DOMAIN, Invalidation::Ranges(&[range]))
        .expect("there is room");
    assert!(finish(driver.queue(), begun).is_err(), "nothing is reported");
    assert_eq!(made.kept(5), 2);
    made.go_on();
    finish(driver.queue(), begun).expect("it is over");
    assert_eq!((made.kept(5), notes.commands()[0]), (1, [5 << 16 | 0xf2, 0x40_0040]), "the other one stays");
    assert!(driver.detach(&DOMAIN).is_err());
    made.go_on();
    assert_eq!(made.dma(0x18, 0x1000, false), Err(2), "it is blocked at least");
    assert!(driver.attach(&DOMAIN, tables.root()).is_err());
    assert!(driver.interrupts_changed(DEVICE.id, Rewritten::made()).is_err());
}

#[test]
fn a_function_raises_the_vectors_of_its_own_entries_alone() {
    let Pair { made, driver, .. } = pair();
    let [own, other] = [0x18, 0x20].map(|id| driver.remaps(DeviceId(id)));
    let send = |id, RealMessage { address, data }| made.msi(id, address, data);
    assert_eq!(send(0x18, own.message(3)), Err(0x22));
    let rewritten = own.set(3, 1, 0x55).expect("there is such a message");
    let proof = driver.interrupts_changed(DeviceId(0x18), rewritten).expect("it goes on");
    assert_eq!((proof.device(), send(0x18, own.message(3))), (DeviceId(0x18), Ok((1, 0x55))));
    assert_eq!(send(0x20, own.message(3)), Err(0x26), "it is another's");
    assert_eq!((send(0x20, other.message(3)), made.msi(0x18, 0xfee0_0000, 0x55)), (Err(0x22), Err(0x25)));
    assert!(own.set(256, 1, 0x55).is_none());
    // What is kept goes by what the other one is told, and by what it is told itself.
    let rewritten = own.clear();
    driver.interrupts_changed(DeviceId(0x20), other.clear()).expect("it goes on");
    assert_eq!(send(0x18, own.message(3)), Ok((1, 0x55)));
    driver.interrupts_changed(DeviceId(0x18), rewritten).expect("it goes on");
    assert_eq!(send(0x18, own.message(3)), Err(0x22));
}

#[test]
fn processors_in_x2apic_mode_are_interrupted_by_their_ids_of_32_bits() {
    let (made, _) = made();
    let start = || start_with(made, 1, LocalApics::X2apic);
    assert_eq!(start().err(), Some(NotStarted::Unusable(Unusable::NoX2apic)));
    made.poke(0x10, made.register(0x10) | 1 << 4);
    let own = start().expect("it starts").remaps(DeviceId(0x18));
    let _told = own.set(3, 9, 0x55);
    assert_eq!(made.msi(0x18, own.message(3).address, 0), Ok((9, 0x55)));
}

#[test]
fn a_function_keeps_its_place_and_there_are_no_more_places_than_fit() {
    let Pair { driver, .. } = pair();
    let first = |id| driver.remaps(DeviceId(id)).message(0).address;
    assert_eq!((first(0x18), first(0x20), first(0x18)), (0xfee0_2010, 0xfee0_4010, 0xfee0_2010));
    let places = (0..80).filter(|&id| !matches!(driver.remaps(DeviceId(0x40 + id)), Remaps::Nowhere));
    assert_eq!(places.count(), 61);
    let nowhere = driver.remaps(DeviceId(0xf8));
    assert!(nowhere.set(0, 0, 0x55).is_none() && nowhere.own().is_none());
    let told = driver.interrupts_changed(DeviceId(0xf8), nowhere.clear());
    assert_eq!(told.map(|proof| proof.device()), Ok(DeviceId(0xf8)));
}

#[test]
fn the_machines_own_pins_have_entries_that_are_the_io_apics() {
    let Pair { made, driver, .. } = pair();
    let entry = driver.route_pin(7, 2, 0xf1).expect("it is behind it");
    assert_eq!(entry, 0xf1 << 49 | 1 << 48 | 0xf1);
    let address = 0xfee0_0010 | 0xf1 << 5;
    assert_eq!((made.msi(0xa0, address, 0), made.msi(0x18, address, 0)), (Ok((2, 0xf1)), Err(0x26)));
    assert_eq!(driver.route_pin(7, 3, 0xf1), Some(entry));
    assert_eq!(made.msi(0xa0, address, 0), Ok((3, 0xf1)), "the former entry is forgotten");
    assert_eq!(driver.route_pin(8, 2, 0xf1), None);
}

fn faults(driver: &Iommu) -> (Vec<u64>, bool) {
    let mut found = Vec::new();
    let has_lost = driver.take_events(|fault| {
        assert_eq!((fault.device, fault.reason), (DeviceId(0x18), 6));
        found.push(fault.address >> 12);
    });
    // The next register may be any.
    found.sort_unstable();
    (found, has_lost)
}

#[test]
fn faults_are_taken_once_and_the_next_one_interrupts_again() {
    let Pair { made, driver, .. } = pair();
    for (at, value) in [(0x3c, 0xf0), (0x40, 0xfee0_1000), (0x44, 0), (0x38, 0)] {
        assert_eq!(made.register(at), value, "{at:#x}");
    }
    assert_eq!(faults(&driver), (Vec::new(), false), "that of firmware's time is forgotten");
    for round in 1..=20 {
        made.fault(round << 12);
        made.fault((round + 1) << 12);
        assert_eq!(made.interrupts(), round as u32, "one for both");
        assert_eq!(faults(&driver), (alloc::vec![round, round + 1], false));
    }
    (0..3).for_each(|fault| made.fault(fault << 12));
    assert_eq!(faults(&driver), (alloc::vec![0, 1], true));
    made.fault(7 << 12);
    assert_eq!((faults(&driver), made.interrupts()), ((alloc::vec![7], false), 22));
}

#[test]
fn faults_at_any_moment_are_taken_or_are_said_to_be_lost_and_the_next_one_interrupts() {
    for count in [1, 2, 3] {
        each_moment(|at| {
            let Pair { made, driver, .. } = pair();
            made.fault(0);
            made.moment.set(at, move || (1..=count).for_each(|index| made.fault(index << 12)));
            let (mut taken, mut losses, mut served) = (0, 0, 0);
            let mut serve = || {
                while served < made.interrupts() {
                    served += 1;
                    let (found, has_lost) = faults(&driver);
                    taken += found.len() as u64;
                    losses += u64::from(has_lost);
                }
                (taken, losses)
            };
            let (taken, losses) = serve();
            let has_come = made.moment.has_come();
            if has_come {
                assert!(taken == 1 + count || losses > 0, "before access {at}: {taken} of {count}");
                made.fault(0x5000);
                assert_eq!(serve(), (taken + 1, losses), "it goes on, before access {at}");
            }
            has_come
        });
    }
}
