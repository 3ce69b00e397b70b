//! A disk that reads all the time, for each processor by a queue of its own, with doorbells as fast
//! as the processor can, and on AMD64, where guests see messages, an interrupt for each completion.

use baremetal::nvme::{self, Controller, ENTRIES_MAX, Queue};
use baremetal::pci::{CLASS, COMMAND, MEMORY_AND_DMA};

use super::own;
use crate::tests::prelude::*;

/// Processors that read; others only compute.
const READERS: usize = 4;
const ADMIN_ENTRIES: u32 = 4;
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
    own::enable_messages(&config, READERS.min(machine::count()))?;
    // SAFETY: the BAR is decoded; all reads go to scratch pages.
    let controller = unsafe { Controller::new(config.base(0)) };
    let mut admin = Queue::new(0, ADMIN_ENTRIES, &ADMIN);
    let started = controller.start(&mut admin);
    ensure!(started.is_ok(), "the disk does not start: {started:?}");
    for (number, (pages, reading)) in QUEUES.iter().zip(&READING).enumerate().take(machine::count()) {
        let mut queue = Queue::new(number as u16 + 1, ENTRIES_MAX, pages);
        let message = if own::HAS_MESSAGES { number as u16 + 1 } else { 0 };
        let added = controller.add(&mut admin, &mut queue, message);
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
        own::take_interrupts();
        while let Some(status) = reader.queue.take() {
            reader.in_flight -= 1;
            DONE.fetch_add(u64::from(status == 0), Ordering::Relaxed);
        }
        reader.queue.release(&reader.controller);
    }
}
