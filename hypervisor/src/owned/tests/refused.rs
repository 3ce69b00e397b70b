//! Which functions a guest gets.

use super::{board_of_several, with_owned};
use crate::devices::pc::pci;
use crate::iommu::messages::{MachineDevices, Remapping};
use crate::iommu::mock::{Machine, device_id, set_machine};
use crate::iommu::routes::Routes;
use crate::owned::{Functions, Refused};
use crate::svm::tests::processor::MockSvm;
use ::pci::function::Windows;
use hostlink::name::Name;

/// Why a guest does not get these functions; `None` if it does.
fn refused(machine: &'static Machine, names: &'static str) -> Option<Refused> {
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    Functions::claim(Some(machine.devices), names, Name::GUEST, &windows).err()
}

pub(super) fn at(text: &str) -> ::pci::Address {
    text.parse().expect("an address")
}

#[test]
fn functions_that_nobody_may_have_are_refused_and_nothing_is_taken() {
    let machine = Machine::new();
    for (names, why) in [
        ("00:1e.0", Refused::Unknown("00:1e.0")),
        ("virtio-blk", Refused::Unknown("virtio-blk")),
        ("00:03.0 nvme", Refused::Unknown("nvme")),
        ("00:00.0", Refused::NotForGuests(at("00:00.0"))),
        ("00:01.0", Refused::NotForGuests(at("00:01.0"))),
        ("00:02.0", Refused::NotForGuests(at("00:02.0"))),
        ("bridge", Refused::NotForGuests(at("00:02.0"))),
        ("00:03.0 00:03.0", Refused::Twice(at("00:03.0"))),
        ("00:06.0", Refused::Group(at("00:06.0"), at("00:06.1"))),
        ("00:06.1", Refused::Group(at("00:06.1"), at("00:06.0"))),
        ("00:07.0", Refused::NoReset(at("00:07.0"))),
        ("sata", Refused::NoRegisters(at("00:08.0"))),
        ("00:09.0", Refused::NoIommu(at("00:09.0"))),
        ("00:0d.0", Refused::Group(at("00:0d.0"), at("00:0e.0"))),
        ("00:0e.0", Refused::Group(at("00:0e.0"), at("00:0d.0"))),
        ("00:0d.0 00:0e.0", Refused::SameId(at("00:0d.0"), at("00:0e.0"))),
        ("00:0f.0 00:1f.0", Refused::NotForGuests(at("00:0f.0"))),
        ("00:1f.0 00:0f.0", Refused::NotForGuests(at("00:1f.0"))),
        ("02:00.0 02:01.0", Refused::SameId(at("02:00.0"), at("02:01.0"))),
        ("serial serial serial serial serial serial serial serial nvme", Refused::TooMany),
    ] {
        assert_eq!(refused(machine, names), Some(why), "{names}");
        assert!(why.to_string().starts_with("devices: "), "{why}");
    }
    let all = "nvme 00:04.0 00:05.0 00:06.0 00:06.1 01:00.0";
    assert_eq!(refused(machine, all), None);
    assert_eq!(refused(machine, all), None, "what is dropped is free");
    assert_eq!(refused(machine, "00:0c.0"), None, "its neighbour is no part of its group");
    assert_eq!(refused(machine, "serial serial serial serial serial serial serial serial"), None);
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    assert_eq!(
        Functions::<Remapping>::claim(None, "nvme", Name::GUEST, &windows).err(),
        Some(Refused::NoPci)
    );
    assert!(
        Functions::<Remapping>::claim(None, "", Name::GUEST, &windows)
            .is_ok_and(|claim| claim.functions.is_empty())
    );
}

/// The I/O APIC's interrupts, the hypervisor's own, have the id of 00:1f.0 on the made machine.
#[test]
fn the_machines_own_interrupts_pass_whoever_asks_for_a_function_with_their_id() {
    let machine = Machine::new();
    let passes = ::iommu::amd::table::DeviceEntry::INTERRUPTS_PASS.0;
    let create = |config| board_of_several(machine, &[config]).answer(&["guest-create a"]);
    for config in [
        "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=00:1f.0",
        "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=00:1f.0 00:0f.0",
    ] {
        let found = create(config);
        assert!(found[0].starts_with("1 error devices: 00:1f.0 is"), "{found:?}");
        assert_eq!(machine.iommu.entry_in_memory(device_id("00:1f.0")), passes);
    }
}

#[test]
fn what_firmware_goes_on_using_is_nobodys() {
    let bus = Machine::new().bus;
    let id = |text| ::iommu::DeviceId(at(text).id());
    let devices =
        MachineDevices::new(bus, crate::owned::nodes(bus), Vec::new(), Vec::new(), Routes::default())
            .without(vec![(id("00:03.0"), id("00:04.0"))]);
    let devices: &'static MachineDevices = Box::leak(Box::new(devices));
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    let refused = |name| Functions::claim(Some(devices), name, Name::GUEST, &windows).err();
    assert_eq!(refused("00:03.0"), Some(Refused::Firmware(at("00:03.0"))));
    assert_eq!(refused("00:04.0"), Some(Refused::Firmware(at("00:04.0"))));
    assert_eq!(refused("00:05.0"), Some(Refused::NoIommu(at("00:05.0"))));
}

#[test]
fn kinds_name_the_first_that_is_free() {
    let machine = Machine::new();
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    let new = |names, guest: &str| {
        Functions::claim(Some(machine.devices), names, Name::parse(guest).expect("a name"), &windows)
    };
    // Both functions of the device are of the kind.
    let one = new("xhci xhci ethernet", "one").expect("all are free");
    assert_eq!((one.shown.len(), one.domains.is_some()), (3, true));
    assert_eq!(new("xhci", "two").err(), Some(Refused::Unknown("xhci")));
    assert_eq!(new("00:06.0", "two").err(), Some(Refused::Taken(at("00:06.0"))));
    assert_eq!(new("00:05.0 nvme", "two").err(), Some(Refused::Taken(at("00:05.0"))));
    assert!(new("nvme", "two").is_ok());
}

#[test]
fn there_is_a_domain_for_each_of_many_guests() {
    let machine = Machine::new();
    let windows = Windows { low: pci::WINDOW, high: 0..0 };
    for _ in 0..200 {
        let claim = Functions::claim(Some(machine.devices), "nvme", Name::GUEST, &windows)
            .expect("it was given back");
        drop(claim);
    }
    with_owned("vcpus=1\nmemory=16777216\ndevices=nvme", |machine, _| {
        assert_eq!(machine.iommu.entry_in_memory(device_id("00:03.0"))[1] & 0xffff, 1);
    });
}

#[test]
fn refusals_say_what_is_wrong() {
    let one = at("00:03.0");
    for (why, words) in [
        (Refused::NoPci, "no PCI bus and IOMMU"),
        (Refused::Unknown("x"), "there is no 'x'"),
        (Refused::NotForGuests(one), "00:03.0 is a bridge, an IOMMU or the hypervisor's own"),
        (Refused::NoIommu(one), "00:03.0 is behind no IOMMU"),
        (Refused::Taken(one), "another guest owns 00:03.0"),
        (Refused::Lost(one), "00:03.0 does not answer"),
        (Refused::Twice(one), "00:03.0 is named twice"),
        (Refused::Group(one, at("00:04.0")), "00:03.0 is given only together with 00:04.0"),
        (Refused::SameId(one, at("00:04.0")), "tell 00:03.0 from 00:04.0"),
        (Refused::Line(one, at("00:07.0")), "00:03.0 shares its interrupt line with 00:07.0"),
        (Refused::NoLine(one), "00:03.0 has no interrupt line"),
        (Refused::Firmware(one), "firmware goes on using 00:03.0"),
        (Refused::NoReset(one), "00:03.0 cannot be reset"),
        (Refused::NoRegisters(one), "given 00:03.0 no place"),
        (Refused::TooMany, "at most 8 functions"),
        (Refused::NoDomain, "too many guests"),
        (Refused::Switches, "zap=everything"),
    ] {
        assert!(why.to_string().contains(words), "{why}");
    }
}

#[test]
fn a_guest_whose_slots_take_others_translations_along_gets_none() {
    let create = |config: &'static str, machine: Option<&'static Machine>| {
        set_machine(machine);
        let files = crate::vm::Files {
            kernel: Vec::leak(crate::loader::test_kernel()),
            initrd: None,
            config: hostlink::config::Config::parse(config).expect("parses"),
        };
        let cpus = [crate::svm::tests::processor::CpuData::default()];
        crate::vm::mock::MockBoard::<MockSvm>::create_from(cpus, 32 << 20, files)
            .err()
            .map(|why| why.to_string())
    };
    let machine = Machine::new();
    let zap = Refused::Switches.to_string();
    assert_eq!(create("memory=16777216\nzap=everything\ndevices=nvme", Some(machine)), Some(zap));
    assert_eq!(create("memory=16777216\nzap=everything", Some(machine)), None);
    assert_eq!(create("memory=16777216\ndevices=nvme", Some(machine)), None);
    let none = create("memory=16777216\ndevices=nvme", None).expect("there is no IOMMU");
    assert!(none.contains("no PCI bus"), "{none}");
    let _board = board_of_several(machine, &["name=c\nmemory=16777216\nstart=manual"]);
}
