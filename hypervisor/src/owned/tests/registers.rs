//! BARs among the guest's memory slots, and accesses that are trapped.

use super::{BAR, COMMAND, FIRST, MASTER, MEMORY, SECOND, on, with_owned};
use crate::iommu::mock::{Machine, NVME, Note, Refusal, SMALL, VIRTIO, device_id};
use crate::owned::{buses, hypervisors_pages};
use crate::svm::tests::memory::ROM;
use crate::svm::tests::processor::CODE;
use crate::vm::dma::MapAhead;
use crate::x86::vcpu::registers::{RAX, RDI, RSI};

/// The real BAR 0 of the NVMe controller, and where the guest finds it first.
const REAL: u64 = 0xfeb8_0000;
const PLACED: u64 = 0xefff_8000;
const ONE: &str = "vcpus=2\nmemory=16777216\ndevices=nvme";

/// The slots of the controller's two pieces if its BAR is at an address.
fn at(gpa: u64) -> Vec<(u64, u64, u64)> {
    vec![(gpa, 0x2000, REAL), (gpa + 0x4000, 0x4000, REAL + 0x4000)]
}

/// Tables of messages are trapped by whole pages; a page of a small BAR may have others.
#[test]
fn the_hypervisor_maps_tables_of_messages_and_what_is_less_than_a_page() {
    let bus = Machine::new().bus;
    for (at, pages) in [
        (NVME, &[(REAL + 0x2000, 2)][..]),
        (VIRTIO, &[(0xfebf_1000, 1)]),
        (SMALL, &[(0xfebf_2000, 1)]),
        ("00:06.0", &[(0xfebf_c000, 1), (0xfebf_e000, 1)]),
        ("00:07.0", &[]),
        ("00:00.0", &[]),
        ("00:1d.0", &[]),
    ] {
        let pages = pages.iter().map(|&(first, count)| first..first + count * 0x1000);
        let mut found = hypervisors_pages(bus, at.parse().unwrap());
        found.sort_by_key(|range| range.start);
        assert_eq!(found, pages.collect::<Vec<_>>(), "{at}");
    }
    bus.set_word(SMALL, 0x10, 0);
    assert_eq!((hypervisors_pages(bus, SMALL.parse().unwrap()), buses(&[])), (vec![], 1));
}

#[test]
fn a_bar_appears_without_its_trapped_pages_moves_and_vanishes() {
    with_owned(ONE, |_, guest| {
        assert_eq!(guest.device_slots(), []);
        assert_eq!(guest.read_config(FIRST, BAR), PLACED as u32 | 4, "firmware has placed it");
        assert_eq!(guest.write_config(FIRST, COMMAND, MEMORY), 1, "one change at a time is possible");
        assert_eq!(guest.device_slots(), at(PLACED));
        assert_eq!(guest.write_config(FIRST, COMMAND, MEMORY), 0, "nothing changes");
        // Each piece is removed, and added elsewhere.
        assert_eq!(guest.write_config(FIRST, BAR, 0xe800_0000), 3);
        assert_eq!(guest.device_slots(), at(0xe800_0000));
        guest.write_config(FIRST, BAR, u32::MAX);
        assert_eq!(guest.device_slots(), [], "it is nowhere while its size is asked for");
        assert_eq!(guest.read_config(FIRST, BAR), 0xffff_8004);
        guest.write_config(FIRST, BAR, 0xe800_0000);
        assert_eq!(guest.device_slots(), at(0xe800_0000));
        guest.write_config(FIRST, COMMAND, 0);
        assert_eq!(guest.device_slots(), []);
        guest.write_config(FIRST, COMMAND, MEMORY);
        guest.reset();
        assert_eq!(guest.device_slots(), []);
        assert_eq!(guest.read_config(FIRST, BAR), PLACED as u32 | 4);
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!(guest.device_slots(), at(PLACED));
    });
}

#[test]
fn a_bar_of_one_page_is_a_slot() {
    // They are one group.
    let all = "vcpus=1\nmemory=16777216\ndevices=serial serial serial serial serial serial serial serial";
    with_owned(all, |_, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        let place = u64::from(guest.read_config(FIRST, BAR) & !0xf);
        assert_eq!(guest.device_slots(), [(place, 0x1000, 0xfea0_0000)]);
    });
}

#[test]
fn the_slots_are_no_ones_memory() {
    with_owned(ONE, |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        let memory = guest.0.vm.space.slots().memory();
        assert!(memory.write(memslots::Gpa(PLACED), &[1]).is_err(), "software does not reach them");
        drop(memory);
        machine.notes.take();
        // An access to a device's slot exits once, and is mapped then: it is not emulated.
        guest.store(PLACED + 0x10, 4, 7);
        assert_eq!((guest.advanced(), machine.notes.take()), (0, vec![]));
    });
}

#[test]
fn a_bar_over_the_rom_is_not_seen_until_the_rom_has_gone() {
    with_owned(ONE, |_, guest| {
        guest.write_config(1, COMMAND, MEMORY);
        guest.write_config(1, 0x30, ROM as u32 | 1);
        guest.write_config(FIRST, BAR, ROM as u32);
        guest.write_config(FIRST, COMMAND, MEMORY);
        let (first, second) = (at(ROM)[0], at(ROM)[1]);
        // The ROM has less than 64 KiB: both pieces are over it.
        assert_eq!(guest.device_slots(), [], "{first:x?} {second:x?}");
        assert_eq!(guest.write_config(FIRST, COMMAND, MEMORY), 0, "that is no reason to wait");
        guest.write_config(1, 0x30, 0);
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!(guest.device_slots(), at(ROM));
        guest.write_config(1, 0x30, ROM as u32 | 1);
        assert_eq!(guest.device_slots(), at(ROM), "now it is the ROM that is not seen");
        guest.write_config(FIRST, BAR, 0xe800_0000);
        assert_eq!(guest.device_slots(), at(0xe800_0000));
    });
}

#[test]
fn two_functions_have_their_own_slots() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=nvme 00:04.0", |_, guest| {
        // BAR 1, which is all table, is in front of BAR 4.
        let net = guest.read_config(SECOND, BAR + 16) & !0xf;
        guest.write_config(SECOND, COMMAND, MEMORY);
        assert_eq!(guest.device_slots(), [(net.into(), 0x4000, 0x80_0000_0000)]);
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!(guest.device_slots().len(), 3);
        // The second function's registers are where the first one's are: they are not seen.
        guest.write_config(SECOND, BAR + 16, PLACED as u32);
        assert_eq!(guest.device_slots(), at(PLACED));
        // The first one goes: now they are.
        guest.write_config(FIRST, COMMAND, 0);
        assert_eq!(guest.device_slots(), [(PLACED, 0x4000, 0x80_0000_0000)]);
        guest.write_config(SECOND, BAR + 16, net);
        assert_eq!(guest.device_slots(), [(net.into(), 0x4000, 0x80_0000_0000)]);
    });
}

#[test]
fn the_table_is_the_guests_and_what_is_beside_it_the_functions() {
    with_owned(ONE, |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        machine.notes.take();
        let table = PLACED + 0x2000;
        assert_eq!([0, 4, 8, 12].map(|at| guest.load(table + at, 4)), [0, 0, 0, 1], "masked");
        guest.store(table + 4, 4, 0xffff_ffff);
        guest.store(table, 4, 0xfee0_1003);
        assert_eq!((guest.load(table, 4), guest.load(table + 4, 4)), (0xfee0_1000, 0xffff_ffff));
        guest.store(table + 8, 2, 0xffff);
        assert_eq!((guest.load(table + 8, 4), guest.load(table + 8, 2)), (0, 0xffff), "not of this width");
        let is_store = |note: &Note| matches!(note, Note::Store(..));
        assert!(!machine.notes.take().iter().any(is_store), "the real one has not changed");
        // Behind the table, in its page.
        guest.store(table + 0x800, 4, 0x1234_5678);
        guest.store(table + 0x801, 1, 0xaa);
        guest.store(table + 0x806, 2, 0xbbcc);
        assert_eq!(machine.bus.register(NVME, 0, 0x2800), 0x1234_aa78);
        assert_eq!((guest.load(table + 0x800, 4), guest.load(table + 0x803, 1)), (0x1234_aa78, 0x12));
        assert_eq!((guest.load(table + 0x804, 4), guest.load(table + 0x806, 2)), (0xbbcc_0000, 0xbbcc));
        // The array of pending bits is the function's, and cannot be written.
        machine.bus.set_register(NVME, 0, 0x3000, 0x21);
        assert_eq!(guest.load(table + 0x1000, 4), 0x21);
        guest.store(table + 0x1000, 4, 0);
        assert_eq!(guest.load(table + 0x1000, 4), 0x21);
    });
}

#[test]
fn pages_on_all_sides_of_trapped_ones_are_mapped() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=xhci xhci", |machine, guest| {
        let bar = u64::from(guest.read_config(FIRST, BAR) & !0xf);
        guest.write_config(FIRST, COMMAND, MEMORY);
        // The pending bits are in the first page, the table in the third.
        let expected = [(bar + 0x1000, 0x1000, 0xfebf_d000), (bar + 0x3000, 0x1000, 0xfebf_f000)];
        assert_eq!(guest.device_slots(), expected);
        // In front of the table, in its page.
        guest.store(bar + 0x2000, 4, 0x77);
        assert_eq!((machine.bus.register("00:06.0", 0, 0x2000), guest.load(bar + 0x2000, 4)), (0x77, 0x77));
    });
}

#[test]
fn registers_that_the_guest_reaches_directly_are_not_accessed_for_it() {
    with_owned(ONE, |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        machine.bus.set_register(NVME, 0, 0x20, 0x1234_5678);
        // MOVSD between a trapped page and one that is not: the hypervisor has mapped only one.
        for (from, to) in [(PLACED + 0x2000, PLACED + 0x20), (PLACED + 0x20, PLACED + 0x2800)] {
            guest.begin(&[0xa5]);
            guest.legacy_mode(crate::x86::vcpu::block::Segment::DEFAULT_32);
            guest.set_all(&[(RSI, from), (RDI, to)]);
            machine.notes.take();
            guest.exit(crate::svm::tests::rows::NESTED, 0, PLACED + 0x2000);
            let stores: Vec<Note> =
                machine.notes.take().into_iter().filter(|note| matches!(note, Note::Store(..))).collect();
            assert!(
                stores.iter().all(|note| *note == Note::Store(REAL + 0x2800, 0xffff_ffff)),
                "{stores:x?}"
            );
        }
        assert_eq!(machine.bus.register(NVME, 0, 0x20), 0x1234_5678);
        // Another vCPU comes before the second slot is there.
        guest.write_config(FIRST, COMMAND, 0);
        guest.select(FIRST, COMMAND);
        guest.set(RAX, MEMORY.into());
        guest.vmcb().rip = CODE;
        let _begun = guest.exit(
            crate::svm::tests::rows::IOIO,
            crate::svm::tests::rows::port(0xcfc, 4, false),
            CODE + 1,
        );
        assert!(guest.0.vm.is_changing());
        assert_eq!(guest.load(PLACED + 0x4020, 4), u32::MAX);
        guest.store(PLACED + 0x4020, 4, 7);
        assert_eq!(machine.bus.register(NVME, 0, 0x4020), 0);
    });
}

#[test]
fn registers_are_not_mapped_ahead_for_dma() {
    with_owned(ONE, |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        let mut ahead = MapAhead::default();
        while ahead.step(guest.0.vm) != paging::Progress::Done {}
        let entry = machine.iommu.entry_in_memory(device_id(NVME));
        assert_eq!(machine.iommu.walk(entry, PLACED), Err(Refusal::NotMapped));
        machine.iommu.walk(entry, 0).expect("memory is");
    });
}

#[test]
fn a_page_that_holds_less_than_a_page_of_registers_is_trapped() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=00:05.0", |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!(guest.device_slots(), [], "the rest of the real page is another's");
        let page = u64::from(guest.read_config(FIRST, BAR) & !0xf);
        assert_eq!(page % 4096, 0);
        guest.store(page + 0x10, 4, 0x1122_3344);
        assert_eq!(machine.bus.register(SMALL, 0, 0x10), 0x1122_3344);
        assert_eq!((guest.load(page + 0x11, 1), guest.load(page + 0x12, 2)), (0x33, 0x1122));
        machine.bus.set_register(SMALL, 0, 0xfc, 0x5566_7788);
        assert_eq!(guest.load(page + 0xfc, 4), 0x5566_7788, "the last ones");
        machine.notes.take();
        for at in [0xfd, 0x100, 0x200, 0xffc] {
            guest.store(page + at, 4, 0);
            assert_eq!(guest.load(page + at, 4), u32::MAX, "{at:#x}");
        }
        for around in [page - 4, page + 0x1000] {
            guest.store(around, 4, 0);
            assert_eq!(guest.load(around, 4), u32::MAX);
        }
        assert_eq!(machine.notes.take(), [], "the neighbours hear nothing");
        guest.write_config(FIRST, COMMAND, 0);
        assert_eq!(guest.load(page + 0x10, 4), u32::MAX, "it is not decoded");
    });
}

#[test]
fn a_guest_without_functions_finds_none() {
    let machine = Machine::new();
    on(machine, "vcpus=1\nmemory=16777216", |guest| {
        for device in [FIRST, SECOND, 31] {
            assert_eq!(guest.read_config(device, 0), u32::MAX);
        }
        machine.notes.take();
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        guest.store(PLACED, 4, 1);
        assert_eq!((guest.load(PLACED, 4), guest.device_slots()), (u32::MAX, vec![]));
        assert_eq!(machine.notes.take(), []);
    });
    assert!(machine.bus.word(VIRTIO, 4) & 4 == 0);
}

#[test]
fn functions_are_devices_of_the_bus_in_the_order_of_their_names() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=00:05.0 nvme", |_, guest| {
        assert_eq!((guest.read_config(FIRST, 0), guest.read_config(SECOND, 0)), (0x100e_8086, 0x0010_1b36));
        assert_eq!(guest.read_config(4, 0), u32::MAX);
        // Only function 0 is there.
        guest.select(FIRST, 1 << 8);
        let read = guest.0.vm.port_read(0xcfc, crate::devices::pc::platform::PortSize::Dword);
        assert_eq!(read, u32::MAX);
    });
}

#[test]
fn registers_are_placed_apart_and_a_bar_that_does_not_fit_is_nowhere() {
    use crate::devices::pc::pci::rom_device::RomLen;
    use crate::devices::pc::pci::{Pci, WINDOW};
    let bus = Machine::new().bus;
    let shown = |name: &str, len: Option<u64>| {
        let mut physical = pci::Physical::read(&bus, name.parse().expect("an address")).expect("it is there");
        if let (Some(len), Some(bar)) = (len, &mut physical.bars[0]) {
            bar.size = len;
        }
        pci::Function::new(&physical, pci::function::Windows { low: WINDOW, high: 0..0 })
    };
    let mut board = Pci::new(RomLen::default());
    // The middle of the window is free for the guest: half of it is left for these.
    let large = shown("00:06.0", Some(128 << 20));
    board.add(vec![shown(NVME, None), shown(VIRTIO, None), large, shown("00:06.1", Some(64 << 20))]);
    let placed = |board: &Pci| -> Vec<[u32; 6]> {
        let bars = board.owned().iter();
        bars.map(|function| core::array::from_fn(|bar| function.read(4 + bar as u16) & !0xf)).collect()
    };
    let first = placed(&board);
    assert_eq!((first[0][0], first[1][1], first[1][4]), (0xefff_8000, 0xefff_7000, 0xefff_0000));
    assert_eq!(first[2][0], 0, "it would take what is the guest's");
    assert_eq!(first[3][0], 0xe800_0000);
    for function in board.owned_mut() {
        function.write(1, MEMORY, u32::MAX);
        function.write(4, 0xe000_0000, u32::MAX);
    }
    board.reset();
    assert_eq!((placed(&board), board.owned()[0].read(1) & 7), (first, 0));
}
