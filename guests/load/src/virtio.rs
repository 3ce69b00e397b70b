//! Another device with DMA: the first virtio disk.
//!
//! Source: Virtual I/O Device 1.1, sections 2.1 (status), 2.6 (queues), 4.1.4 (capabilities and
//! registers), 5.2.6 (requests).

use core::sync::atomic::{AtomicU64, Ordering, fence};

use baremetal::arch::clock;
use baremetal::pages::{PAGE, Page};
use baremetal::pci::{COMMAND, ConfigSpace, MEMORY_AND_DMA};
use load::ring;

use crate::guest::{Failure, write};

/// What it is: its first register of configuration space.
const DISK: u32 = 0x1042_1af4;
/// Its capabilities, by their types: the common registers, and those that are told of requests.
const VENDOR: u32 = 9;
const COMMON: u32 = 1;
const NOTIFY: u32 = 2;
/// Common registers.
const FEATURES_WORD: u64 = 0x08;
const FEATURES: u64 = 0x0c;
const STATUS: u64 = 0x14;
const QUEUE: u64 = 0x16;
const QUEUE_SIZE: u64 = 0x18;
const QUEUE_ENABLE: u64 = 0x1c;
const QUEUE_PARTS: [u64; 3] = [0x20, 0x28, 0x30];
/// Version 1, and addresses that are translated: bits 32 and 33.
const WANTED: u32 = 3;
/// The status: the driver is there; features are chosen; it works.
const DRIVER: u8 = 3;
const CHOSEN: u8 = 8;
const WORKS: u8 = 4;
/// Entries of the queue: a page of descriptors.
const ENTRIES: u16 = 256;
/// Descriptors of a request: its header, its data, its status.
const PARTS: u16 = 3;
/// Flags of a descriptor: another one follows; the device writes.
const NEXT: u64 = 1;
const WRITES: u64 = 2;
const REQUESTS_MAX: u16 = ENTRIES / PARTS;
/// Words of a ring: the flags, the count, and the entries.
const RING_WORDS: usize = 1 + ENTRIES as usize / 4;
/// Milliseconds to wait for the disk.
const PATIENCE_MS: u64 = 10_000;

/// Descriptors, requests that are offered, those that were used, and what requests share: a header,
/// which is all zeros for a read of the disk's beginning, and behind it the status.
static DESCRIPTORS: Page = Page::new();
static OFFERED: Page = Page::new();
static USED: Page = Page::new();
static REQUEST: Page = Page::new();
const HEADER_BYTES: u64 = 16;

/// The disk's common registers, and the one by which its queue is told of requests: it has only
/// one queue here, whose number is also the offset of that register.
struct Disk {
    common: u64,
    notify: u64,
}

pub(crate) fn is_there() -> bool {
    find().is_some()
}

fn find() -> Option<ConfigSpace> {
    ConfigSpace::find(|config| config.read(0) == DISK)
}

/// Has the disk read its beginning, a page, to `address` and the pages after it, as often as there
/// is room for. None of that is waited for, unless the disk is then reset.
///
/// Of pages without a translation the emulator reads to one at a time, and fails the next one.
pub(crate) fn fly(address: u64, count: u64, then_reset: bool) -> Result<u64, Failure> {
    let disk = Disk::start()?;
    let count = count.min(REQUESTS_MAX.into()) as u16;
    for number in 0..u64::from(count) {
        let first = number * u64::from(PARTS);
        let describe = |part: u64, [address, len, flags]: [u64; 3]| {
            let words = [address, len | flags << 32 | (first + part + 1) << 48];
            DESCRIPTORS.write_at(((first + part) * 2) as usize, &words);
        };
        describe(0, [REQUEST.address(), HEADER_BYTES, NEXT]);
        describe(1, [address.wrapping_add(number * PAGE), PAGE, NEXT | WRITES]);
        describe(2, [REQUEST.address() + HEADER_BYTES, 1, WRITES]);
    }
    // Release: pairs with the disk, which may be reading the queue since its start.
    for (index, word) in ring::offered::<RING_WORDS>(count, PARTS) {
        OFFERED.words()[index].store(word, Ordering::Release);
    }
    // SeqCst: pairs with the disk, whose loads follow the notification.
    fence(Ordering::SeqCst);
    disk.store_half(disk.notify, 0);
    if then_reset {
        disk.stop()?;
    }
    Ok(count.into())
}

impl Disk {
    /// The first one, started with an empty queue.
    fn start() -> Result<Self, Failure> {
        let config = find().ok_or(Failure::Absent)?;
        config.write(COMMAND, MEMORY_AND_DMA);
        let place = |kind| {
            let is_it = |at| config.read(at) & 0xff == VENDOR && config.read(at) >> 24 == kind;
            let at = config.capability_where(is_it).ok_or(Failure::Absent)?;
            Ok::<_, Failure>(config.base(config.read(at + 4) as u8) + u64::from(config.read(at + 8)))
        };
        let disk = Self { common: place(COMMON)?, notify: place(NOTIFY)? };
        disk.stop()?;
        // Relaxed: the disk is not told of them yet.
        let pages = [&DESCRIPTORS, &OFFERED, &USED];
        let words = pages.into_iter().flat_map(Page::words);
        words.for_each(|word: &AtomicU64| word.store(0, Ordering::Relaxed));
        disk.store_byte(STATUS, DRIVER);
        for (word, value) in [(0, 0), (1, WANTED)] {
            write(disk.common + FEATURES_WORD, word);
            write(disk.common + FEATURES, value);
        }
        disk.store_byte(STATUS, DRIVER | CHOSEN);
        disk.store_half(disk.common + QUEUE, 0);
        disk.store_half(disk.common + QUEUE_SIZE, ENTRIES);
        for (register, page) in QUEUE_PARTS.into_iter().zip(pages) {
            write(disk.common + register, page.address() as u32);
            write(disk.common + register + 4, (page.address() >> 32) as u32);
        }
        disk.store_half(disk.common + QUEUE_ENABLE, 1);
        disk.store_byte(STATUS, DRIVER | CHOSEN | WORKS);
        Ok(disk)
    }

    /// Resets it: it forgets its queue, and what it was asked for.
    fn stop(&self) -> Result<(), Failure> {
        self.store_byte(STATUS, 0);
        // SAFETY: the register is there.
        let is_reset = || unsafe { ((self.common + STATUS) as *const u8).read_volatile() } == 0;
        if clock::wait_until(PATIENCE_MS, is_reset) { Ok(()) } else { Err(Failure::Silent) }
    }

    fn store_byte(&self, register: u64, value: u8) {
        // SAFETY: the register is there; the program can cope with what the disk does.
        unsafe { ((self.common + register) as *mut u8).write_volatile(value) };
    }

    fn store_half(&self, at: u64, value: u16) {
        // SAFETY: as above.
        unsafe { (at as *mut u16).write_volatile(value) };
    }
}
