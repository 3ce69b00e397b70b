//! Interrupts, from the function to the vCPU.

use baremetal::moment::each_moment;

use super::{BAR, COMMAND, FIRST, MASTER, MEMORY, Machine, with_owned};
use crate::iommu::mock::{Arrived, NVME, Note, Refusal, SMALL, VIRTIO};
use crate::iommu::routes::FUNCTIONS;
use crate::owned::Bus;
use crate::sched::CpuIndex;
use crate::svm::tests::processor::Guest;

pub(super) const ONE: &str = "vcpus=2\nmemory=16777216\ndevices=nvme";
pub(super) const TABLE: u64 = 0xefff_a000;
/// The table of the machine's NVMe controller.
const REAL_TABLE: u64 = 0xfeb8_2000;
/// MSI-X's control, and its bits: enabled, all masked.
pub(super) const MSIX: u32 = 0x40;
pub(super) const ENABLE: u32 = 1 << 31;
const ALL_MASKED: u32 = 1 << 30;

/// The command register of a function that works for its guest: no pin.
const WORKS: u32 = 0x406;

/// The guest uses its function, with these vectors of vCPU 1.
pub(super) fn enable(guest: &mut Guest<'_, '_>, vectors: &[(u64, u32)]) {
    guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
    guest.write_config(FIRST, MSIX, ENABLE | ALL_MASKED);
    for &(number, vector) in vectors {
        guest.write_entry(TABLE, number, 0xfee0_1000, vector);
        guest.set_mask(TABLE, number, false);
    }
    guest.write_config(FIRST, MSIX, ENABLE);
}

#[test]
fn dma_is_on_while_the_guest_says_so_and_the_pin_is_silent() {
    with_owned(ONE, |machine, guest| {
        let command = |machine: &super::Machine| machine.bus.word(NVME, 4) & 0xffff;
        for (value, expected) in [(MEMORY, 0x402), (MEMORY | MASTER, WORKS), (0, 0x402), (MASTER, WORKS)] {
            guest.write_config(FIRST, COMMAND, value);
            assert_eq!(command(machine), expected, "{value:#x}");
        }
        machine.notes.take();
        guest.write_config(FIRST, COMMAND, MASTER);
        let config = |note: &Note| matches!(note, Note::Config(_, 4, _));
        assert_eq!(machine.notes.take().iter().filter(|note| config(note)).count(), 0, "nothing changes");
    });
}

#[test]
fn an_interrupt_reaches_the_vcpu_with_the_guests_vector() {
    with_owned(ONE, |machine, guest| {
        assert_eq!(machine.raise(NVME, 0), Arrived::Off);
        enable(guest, &[(0, 0x41), (2, 0x52), (64, 0x63)]);
        // What is in the real table while an entry is masked is nobody's message.
        guest.set_mask(TABLE, 2, true);
        (0..3).for_each(|word| machine.bus.store(REAL_TABLE + 2 * 16 + word * 4, 4, 0xffff_fff3));
        guest.set_mask(TABLE, 2, false);
        for (number, vector) in [(0, 0x41), (2, 0x52), (64, 0x63)] {
            let arrived = machine.raise(NVME, number);
            assert!(matches!(arrived, Arrived::At(0, real) if FUNCTIONS.contains(&real)), "{arrived:?}");
            assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![vector]), "{number}");
        }
        assert_eq!(machine.raise(NVME, 1), Arrived::Masked);
        // Another vCPU, and another vector: the real function is not concerned.
        machine.notes.take();
        guest.write_entry(TABLE, 2, 0xfee0_0000, 0x74);
        assert_eq!(machine.notes.take().iter().filter(|note| matches!(note, Note::Store(..))).count(), 0);
        machine.raise(NVME, 2);
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![0x74], vec![]));
        assert_eq!(machine.bus.entry(NVME, 2), (0xfee0_0000, 2, false), "it sends a number of its own");
    });
}

#[test]
fn nothing_is_sent_that_is_masked_or_switched_off() {
    with_owned(ONE, |machine, guest| {
        enable(guest, &[(0, 0x41), (1, 0x42)]);
        guest.set_mask(TABLE, 0, true);
        assert_eq!((machine.raise(NVME, 0), machine.bus.entry(NVME, 0).2), (Arrived::Masked, true));
        guest.set_mask(TABLE, 0, false);
        assert!(matches!(machine.send_pending(NVME, 0), Some(Arrived::At(..))));
        assert_eq!(guest.arrived(1), [0x41]);
        guest.write_config(FIRST, MSIX, ENABLE | ALL_MASKED);
        assert_eq!(machine.raise(NVME, 1), Arrived::Masked);
        guest.write_config(FIRST, MSIX, ENABLE);
        assert!(matches!(machine.send_pending(NVME, 1), Some(Arrived::At(..))));
        assert_eq!(guest.arrived(1), [0x42]);
        guest.write_config(FIRST, MSIX, 0);
        assert_eq!(machine.raise(NVME, 1), Arrived::Off);
        guest.write_config(FIRST, MSIX, ENABLE);
        assert!(matches!(machine.raise(NVME, 1), Arrived::At(..)));
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!(machine.raise(NVME, 1), Arrived::Off, "messages are DMA");
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![0x42]));
    });
}

#[test]
fn an_interrupt_that_was_sent_before_the_mask_arrives_after_it() {
    with_owned(ONE, |machine, guest| {
        enable(guest, &[(0, 0x41)]);
        let Arrived::At(cpu, vector) = machine.raise_with(NVME, 0, |_, _| {}) else { panic!("it is sent") };
        guest.set_mask(TABLE, 0, true);
        machine.arrive(cpu, vector);
        assert_eq!(guest.arrived(1), [], "not while it is masked");
        guest.store(TABLE + 8, 4, 0x45);
        assert_eq!(guest.arrived(1), []);
        guest.set_mask(TABLE, 0, false);
        assert_eq!(guest.arrived(1), [0x45]);
        guest.set_mask(TABLE, 0, true);
        guest.set_mask(TABLE, 0, false);
        assert_eq!(guest.arrived(1), [], "once");
    });
}

#[test]
fn a_function_raises_its_own_vectors_only() {
    with_owned(ONE, |machine, guest| {
        // The IOMMU keeps what it finds, and so it is told of each change.
        assert_eq!(machine.forge(NVME, 0), Arrived::Refused(Refusal::NotMapped));
        assert_eq!(machine.forge(NVME, 3), Arrived::Refused(Refusal::NotMapped));
        enable(guest, &[(0, 0x41), (3, 0x42)]);
        let mut arrived = vec![];
        for data in 0..0x800 {
            match machine.forge(NVME, data) {
                Arrived::At(..) => arrived.push(data),
                other => assert!(matches!(other, Arrived::Refused(_)), "{data:#x}: {other:?}"),
            }
        }
        assert_eq!(arrived, [0, 3]);
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![0x41, 0x42]));
        assert_eq!(machine.forge(SMALL, 0), Arrived::Refused(Refusal::Blocked), "nobody's");
    });
}

#[test]
fn a_message_that_means_nothing_is_as_a_masked_one() {
    with_owned(ONE, |machine, guest| {
        enable(guest, &[(0, 0x41)]);
        for (address, data) in
            [(0xfed0_1000, 0x41), (0x1000, 0x41), (0xfee0_1000, 0x241), (0xfee0_1000, 0x741)]
        {
            guest.write_entry(TABLE, 0, address, data);
            assert_eq!(machine.raise(NVME, 0), Arrived::Masked, "{address:#x}, {data:#x}");
        }
        guest.write_entry(TABLE, 0, 0xfee0_1000, 0x41);
        assert_eq!(guest.arrived(1), []);
        machine.send_pending(NVME, 0);
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![0x41]));
    });
}

#[test]
fn a_function_with_msi_sends_one_message() {
    with_owned("vcpus=2\nmemory=16777216\ndevices=00:05.0", |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        let at = guest.capability(5);
        guest.write_config(FIRST, at + 4, 0xfee0_1000);
        guest.write_config(FIRST, at + 12, 0x47);
        assert_eq!(machine.raise_msi(SMALL), Arrived::Off);
        guest.write_config(FIRST, at, 1 << 16);
        assert!(matches!(machine.raise_msi(SMALL), Arrived::At(0, vector) if FUNCTIONS.contains(&vector)));
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![0x47]));
        assert_eq!((machine.bus.word(SMALL, 0x54), machine.bus.word(SMALL, 0x5c)), (0xfee0_0000, 0));
        guest.write_config(FIRST, at + 4, 0xfee0_0000);
        machine.raise_msi(SMALL);
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![0x47], vec![]));
        guest.write_config(FIRST, at, 0);
        assert_eq!(machine.raise_msi(SMALL), Arrived::Off);
        guest.write_config(FIRST, at, 1 << 16);
        guest.reset();
        assert_eq!(machine.raise_msi(SMALL), Arrived::Off);
        assert_eq!(machine.bus.word(SMALL, 0x50) >> 16 & 1, 0);
    });
}

/// The guest writes to these registers of its function, in configuration space or in the table.
fn write(machine: &Machine, guest: &mut Guest<'_, '_>, writes: &[(u64, u32)]) {
    for &(at, value) in writes {
        machine.bus.moment.pass();
        match u32::try_from(at).ok().filter(|at| *at < 0x1000) {
            Some(register) => _ = guest.write_config(FIRST, register, value),
            None => guest.store(at, 4, value),
        }
    }
}

/// The function has an event before each write of its guest's, and before each access that these
/// make. The guest gets it once, with the message of before or of after the change.
fn amid((function, number): (&'static str, u16), begin: &[(u64, u32)], change: &[(u64, u32)]) {
    let config = format!("vcpus=2\nmemory=16777216\ndevices={function}").leak();
    each_moment(|at| {
        with_owned(config, |machine, guest| {
            write(machine, guest, &[(COMMAND.into(), MEMORY | MASTER)]);
            write(machine, guest, begin);
            machine.bus.moment.set(at, move || {
                let is_msi = function == SMALL;
                let came = if is_msi { machine.raise_msi(function) } else { machine.raise(function, number) };
                assert!(matches!(came, Arrived::At(..) | Arrived::Masked), "before access {at}: {came:?}");
            });
            write(machine, guest, change);
            let has_come = machine.bus.moment.has_come();
            if function != SMALL {
                machine.send_pending(function, number);
            }
            guest.0.vm.spread_messages();
            let got = [guest.arrived(0), guest.arrived(1)].concat();
            assert!(!has_come || got.len() == 1, "{change:x?}, before access {at}: {got:x?}");
            has_come
        })
    });
}

#[test]
fn an_interrupt_that_comes_amid_a_change_arrives_once() {
    let (msix, mask, of_all) = (u64::from(MSIX), TABLE + 12, ENABLE | ALL_MASKED);
    let begin = [(msix, ENABLE), (TABLE, 0xfee0_1000), (TABLE + 8, 0x41), (mask, 0)];
    for (number, change) in [
        (0, &[(mask, 1), (mask, 0)][..]),
        (0, &[(msix, of_all), (msix, ENABLE)]),
        (2, &[(TABLE + 32, 0xfee0_1000), (TABLE + 40, 0x52), (TABLE + 44, 0)]),
        (0, &[(mask, 1), (TABLE, 0xfee0_0000), (TABLE + 8, 0x63), (mask, 0)]),
        (0, &[(TABLE + 8, 0x63), (msix, ENABLE)]),
    ] {
        amid((NVME, number), &begin, change);
    }
    // The guest sees MSI here.
    let begin = [(0x44, 0xfee0_1000), (0x4c, 0x41), (0x50, 0), (0x40, 1 << 16)];
    for change in [&[(0x44, 0xfee0_0000), (0x4c, 0x63)][..], &[(0x50, 1), (0x4c, 0x63), (0x50, 0)]] {
        amid((SMALL, 0), &begin, change);
    }
}

#[test]
fn a_virtio_function_interrupts_by_the_table_in_its_first_bar() {
    with_owned("vcpus=2\nmemory=16777216\ndevices=virtio-net", |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        let table = u64::from(guest.read_config(FIRST, BAR + 4) & !0xf);
        let at = guest.capability(0x11);
        guest.write_config(FIRST, at, ENABLE);
        guest.write_entry(table, 1, 0xfee0_1000, 0x51);
        guest.set_mask(table, 1, false);
        assert!(matches!(machine.raise(VIRTIO, 1), Arrived::At(..)));
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![0x51]));
    });
}

#[test]
fn a_reset_masks_everything_and_frees_the_vectors() {
    with_owned(ONE, |machine, guest| {
        enable(guest, &[(0, 0x41), (1, 0x42)]);
        let vectors: Vec<u8> = [0, 1]
            .map(|number| match machine.raise(NVME, number) {
                Arrived::At(_, vector) => vector,
                other => panic!("{other:?}"),
            })
            .into();
        assert_ne!(vectors[0], vectors[1]);
        guest.arrived(1);
        guest.reset();
        assert_eq!(machine.raise(NVME, 0), Arrived::Off);
        assert!(machine.bus.entry(NVME, 0).2 && machine.bus.entry(NVME, 1).2, "masked");
        assert_eq!(machine.forge(NVME, 0), Arrived::Refused(Refusal::NotMapped));
        for vector in vectors.iter().copied().chain([0x1f, 0xdf, 0xe0, 0xff]) {
            assert!(!machine.devices.routes.deliver(CpuIndex(0), vector), "{vector:#x} has no route");
        }
        assert_eq!((guest.arrived(0), guest.arrived(1)), (vec![], vec![]));
        // All 65 messages have vectors, in turn and again.
        for _ in 0..5 {
            let all: Vec<(u64, u32)> = (0..65).map(|number| (number, 0x20 + number as u32)).collect();
            enable(guest, &all);
            assert!(matches!(machine.raise(NVME, 64), Arrived::At(..)));
            assert_eq!(guest.arrived(1), [0x60]);
            guest.reset();
        }
    });
}
