//! Messages of MSI-X with random addresses and data, which the disk then sends.
//!
//! The task priority holds vectors of exceptions off, which the program has no handlers for. They
//! pend until the guest is reset. No message names INIT for the first processor, which would end
//! there; the others have not been started.

use baremetal::nvme::{self, Controller, Queue};
use baremetal::pages::Page;
use baremetal::pci::{MSIX_ENABLE, Messages};
use baremetal::random::Random;
use baremetal::x86_64::{apic, interrupts};
use core::arch::asm;

use super::{Devices, WILD, ensure, is_enough, table};
use crate::guest::{Failure, write};

static ADMIN: [Page; 2] = [const { Page::new() }; 2];
static QUEUE: [Page; 2] = [const { Page::new() }; 2];
/// The vector of the second queue's completions.
const SECOND: u16 = 3;
const ENTRIES: u32 = 8;
/// What a message consists of, and the mask in its last word.
const WORDS: u64 = 4;
/// All of MSI-X is masked.
const MASK: u32 = 1 << 30;
/// Delivery modes.
const MODE: u64 = 7 << 8;
const MODE_NMI: u64 = 4 << 8;
const MODE_INIT: u64 = 5 << 8;

pub(super) fn messages(devices: &Devices, random: &mut Random, count: u64) -> Result<(), Failure> {
    let (address, entries, control) = table(devices, &devices.nvme().function).ok_or(Failure::Absent)?;
    // SAFETY: the registers are in order, and commands name wild addresses.
    let controller = unsafe { Controller::new(devices.nvme().home) };
    let mut admin = Queue::new(0, ENTRIES, &ADMIN);
    let mut queue = Queue::new(1, ENTRIES, &QUEUE);
    apic::enable();
    // SAFETY: interrupts of the lowest class are held off; the program uses none.
    unsafe { asm!("mov cr8, {}", in(reg) 1u64, options(nostack, nomem, preserves_flags)) };
    let config = devices.nvme().function.config;
    config.write(control, MSIX_ENABLE);
    controller.start(&mut admin)?;
    controller.add(&mut admin, &mut queue, SECOND)?;
    let before = taken();
    for turn in 1..=count {
        for number in [0, u64::from(SECOND), random.below(entries)] {
            set(address + number * Messages::BYTES, random);
        }
        if random.one_in(8) {
            let bits = random.below(4) as u32;
            config.write(control, bits << 30 & (MSIX_ENABLE | MASK));
            config.write(control, MSIX_ENABLE);
        }
        raise(&controller, [&mut admin, &mut queue], random, turn)?;
        interrupts::enable();
        core::hint::spin_loop();
        interrupts::disable();
    }
    config.write(control, 0);
    controller.stop()?;
    is_enough(taken().wrapping_sub(before), count, "too few interrupts")
}

/// Interrupts that were taken so far, NMIs among them.
fn taken() -> u64 {
    let vectors = (interrupts::VECTOR_FREE..interrupts::VECTOR_SPURIOUS).chain([interrupts::VECTOR_NMI]);
    vectors.map(|vector| u64::from(interrupts::count(vector))).sum()
}

/// An entry of the table: mostly one that is sent.
fn set(at: u64, random: &mut Random) {
    let any = random.word();
    let mut address = match random.below(8) {
        0 => random.word(),
        1 => random.one_of(WILD),
        // Others' destinations, redirection hints, logical ones, and the format for remapping.
        _ => 0xfee0_0000 | any & 0xf_fffc,
    };
    let data = match random.below(8) {
        0 => any & 0xf,
        1 => 0x10 | any & 0xf,
        2 | 3 => any & 0xff | any & MODE,
        4 => MODE_NMI,
        5 => any >> 16,
        _ => 0x40 + any % 0xa0,
    };
    if data & MODE == MODE_INIT {
        // For the second processor, physically.
        address = 0xfee0_1000;
    }
    let mask = u64::from(random.one_in(4));
    for (word, value) in [(3, 1), (0, address), (1, address >> 32), (2, data), (3, mask)] {
        write(at + word * WORDS, value as u32);
    }
}

/// Has the disk send the messages of both queues.
fn raise(disk: &Controller, queues: [&mut Queue; 2], random: &mut Random, turn: u64) -> Result<(), Failure> {
    let [admin, queue] = queues;
    // It may report that it could not write there.
    let refused = |done: Result<(), nvme::Refused>| done == Err(nvme::Refused::Silent);
    let address = random.one_of(WILD);
    let first = admin.execute(disk, &nvme::identify(address));
    let second = queue.execute(disk, &nvme::read_two_pages(address & !0x1000));
    ensure(!refused(first) && !refused(second), "the disk is silent in turn", turn)
}
