//! What a guest sends to its serial ports: to the machine's own ports if it is the only guest,
//! otherwise into rings in memory, which the host tool reads (`hostlink::ring`).

use core::slice;
use core::sync::atomic::{AtomicU8, AtomicU64};
use hostlink::guests::CONSOLES;
use hostlink::ring::{HEADER_BYTES, Writer};
use spin::Mutex;

use super::guests::Unlisted;
use super::memory::{FreeMemory, PAGE};

const RING_BYTES: u32 = 64 << 10;
const RING_MEMORY: u64 = (RING_BYTES as u64 + HEADER_BYTES).next_multiple_of(PAGE);

pub(super) struct Rings {
    start: u64,
    writers: Mutex<[Writer<'static, AtomicU8>; CONSOLES]>,
}

impl Rings {
    /// Takes memory for the rings of a guest; `None` if there is not enough.
    pub(super) fn take(free: &mut FreeMemory) -> Option<Self> {
        let start = free.take(CONSOLES as u64 * RING_MEMORY, PAGE, u64::MAX)?;
        let writer = |index: usize| {
            let header = start + index as u64 * RING_MEMORY;
            // SAFETY: the memory is free RAM, mapped one to one, and was just taken for this; it is
            // freed only after the last use of the rings. The host tool only reads it.
            unsafe {
                core::ptr::write_bytes(header as *mut u8, 0, RING_MEMORY as usize);
                let count = &*(header as *const AtomicU64);
                let places = (header + HEADER_BYTES) as *const AtomicU8;
                Writer::new(count, slice::from_raw_parts(places, RING_BYTES as usize))
            }
        };
        Some(Self { start, writers: Mutex::new(core::array::from_fn(writer)) })
    }

    /// The address and size of each.
    pub(super) fn places(&self) -> [(u64, u32); CONSOLES] {
        core::array::from_fn(|index| (self.start + index as u64 * RING_MEMORY, RING_BYTES))
    }

    /// Adds a byte, and calls `then` before another one is added.
    pub(super) fn push(&self, port: usize, byte: u8, then: impl FnOnce()) {
        let writers = self.writers.lock();
        if let Some(writer) = writers.get(port) {
            writer.push(byte);
            then();
        }
    }

    /// Calls `show` with what the guest's console has shown, before a byte is added to that.
    pub(super) fn show(&self, show: impl FnOnce(&mut dyn Iterator<Item = u8>)) {
        if let Some(writer) = self.writers.lock().first() {
            show(&mut writer.written());
        }
    }

    /// Readers have learnt from the guest's entry that the memory may be in use again.
    pub(super) fn give_back(self, free: &mut FreeMemory, _: Unlisted) {
        free.add(self.start..self.start + CONSOLES as u64 * RING_MEMORY);
    }
}
