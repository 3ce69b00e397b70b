//! AMD64: a disk that reads all the time, for each processor by a queue of its own, with an
//! interrupt for each completion and doorbells as fast as the processor can.

use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::nvme::{self, Controller, ENTRIES_MAX, Queue};
use baremetal::pages::Page;
use baremetal::pci::{CLASS, COMMAND, ConfigSpace, MEMORY_AND_DMA};
use baremetal::x86_64::{interrupts, processors};
use spin::Mutex;

use crate::machine;
use crate::report::{Verdict, ensure, failure};

/// Processors that read; others only compute.
const READERS: usize = 4;
const ADMIN_ENTRIES: u32 = 4;
/// The capability MSI-X, and that it is enabled.
const MSIX: u8 = 0x11;
const MSIX_ENABLED: u32 = 1 << 31;
/// Doorbells of a burst.
const BURST: u32 = 256;
/// So many bursts without a read mean that it does not read.
const BURSTS_MAX: u32 = 1 << 16;

/// Queues of the administrator and of each processor, and what processors read into.
static ADMIN: [Page; 2] = [const { Page::new() }; 2];
static QUEUES: [[Page; 2]; READERS] = [const { [const { Page::new() }; 2] }; READERS];
static SCRATCH: [[Page; 2]; READERS] = [const { [const { Page::new() }; 2] }; READERS];
static READING: [Mutex<Option<Reader>>; READERS] = [const { Mutex::new(None) }; READERS];
/// Commands that were completed. It orders nothing.
static DONE: AtomicU64 = AtomicU64::new(0);

struct Reader {
    controller: Controller,
    queue: Queue,
    in_flight: u32,
}

/// Starts the disk, with a queue for each processor whose completions interrupt it.
pub(super) fn prepare() -> Verdict {
    let is_disk = |config: &ConfigSpace| config.read(CLASS) >> 8 == nvme::CLASS;
    let Some(config) = ConfigSpace::find(is_disk) else {
        return Err(failure(format_args!("there is no disk")));
    };
    config.write(COMMAND, MEMORY_AND_DMA);
    let Some(at) = config.capability(MSIX) else {
        return Err(failure(format_args!("the disk has no MSI-X")));
    };
    config.write(at, MSIX_ENABLED);
    let table = config.read(at + 4);
    let table = config.base(table as u8 & 7) + u64::from(table & !7);
    // SAFETY: the BAR is decoded; all reads go to scratch pages.
    let controller = unsafe { Controller::new(config.base(0)) };
    let mut admin = Queue::new(0, ADMIN_ENTRIES, &ADMIN);
    let started = controller.start(&mut admin);
    ensure!(started.is_ok(), "the disk does not start: {started:?}");
    for (number, (pages, reading)) in QUEUES.iter().zip(&READING).enumerate().take(machine::count()) {
        let message = [0xfee0_0000 | processors::apic_id(number) << 12, 0, vector(number), 0];
        for (word, value) in message.into_iter().enumerate() {
            let entry = table + 16 * (number as u64 + 1) + 4 * word as u64;
            // SAFETY: it is the table of messages; vectors are only counted.
            unsafe { (entry as *mut u32).write_volatile(value) };
        }
        let mut queue = Queue::new(number as u16 + 1, ENTRIES_MAX, pages);
        let added = controller.add(&mut admin, &mut queue, number as u16 + 1);
        ensure!(added.is_ok(), "the disk takes no queue: {added:?}");
        *reading.lock() = Some(Reader { controller, queue, in_flight: 0 });
    }
    // That it works is seen here, and not taken for granted. The first reads may take long.
    let reads = |_| {
        read(0);
        DONE.load(Ordering::Relaxed) != 0
    };
    ensure!((0..BURSTS_MAX).any(reads), "the disk reads nothing");
    Ok(())
}

fn vector(number: usize) -> u32 {
    u32::from(interrupts::VECTOR_FREE) + number as u32
}

/// A processor's burst; nothing on one that has no queue.
pub(super) fn read(number: usize) {
    let Some(mut reading) = READING.get(number).map(Mutex::lock) else { return };
    let Some(reader) = reading.as_mut() else { return };
    let address = SCRATCH[number].each_ref().map(Page::address);
    for _ in 0..BURST {
        while reader.in_flight < ENTRIES_MAX - 1 {
            reader.queue.push(&nvme::read_two_pages(address[0]));
            reader.in_flight += 1;
        }
        reader.queue.ring(&reader.controller);
        interrupts::enable();
        core::hint::spin_loop();
        interrupts::disable();
        while let Some(status) = reader.queue.take() {
            reader.in_flight -= 1;
            DONE.fetch_add(u64::from(status == 0), Ordering::Relaxed);
        }
        reader.queue.release(&reader.controller);
    }
}
