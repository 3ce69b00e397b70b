//! The rings, in memory that the host tool can read.

use core::cell::OnceCell;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::counters::Beacon;
use hostlink::ring::{HEADER_BYTES, Writer};
use hostlink::trace::{Event, Record, WORDS, records_in_each, ring_bytes};

use crate::sched::CpuIndex;
use crate::vm::memory::{FreeMemory, PAGE};

/// The rings of all CPUs, adjacent. They exist forever.
#[derive(Debug)]
pub struct Rings {
    start: u64,
    rings: u32,
    records: u64,
}

impl Rings {
    /// Takes memory for this many rings; `None` if there is not enough.
    pub fn take(free: &mut FreeMemory, rings: u32) -> Option<Self> {
        let records = records_in_each(rings.into());
        let size = u64::from(rings) * ring_bytes(records);
        let start = free.take(size.next_multiple_of(PAGE), PAGE, u64::MAX)?;
        // SAFETY: the memory is free RAM, mapped one to one, and was just taken for this.
        unsafe { core::ptr::write_bytes(start as *mut u8, 0, size as usize) };
        Some(Self { start, rings, records })
    }

    /// Lets the host tool find them.
    pub fn publish(&self, beacon: &Beacon) {
        beacon.trace.store(self.start, Ordering::Relaxed);
        beacon.trace_rings.store(self.rings, Ordering::Relaxed);
        beacon.trace_records.store(self.records as u32, Ordering::Relaxed);
    }

    /// What a CPU has recorded.
    #[cfg(test)]
    pub(crate) fn records(&self, cpu: CpuIndex) -> impl Iterator<Item = Record> {
        let (count, places) = self.ring(cpu).expect("it has a ring");
        let written = places.iter().take(count.load(Ordering::Relaxed) as usize);
        written
            .filter_map(|words| Record::from_words(words.each_ref().map(|word| word.load(Ordering::Relaxed))))
    }

    /// The count and the places of a CPU's ring.
    fn ring(&self, cpu: CpuIndex) -> Option<(&'static AtomicU64, &'static [[AtomicU64; WORDS]])> {
        if cpu.0 >= self.rings {
            return None;
        }
        let header = self.start + u64::from(cpu) * ring_bytes(self.records);
        let places = header + HEADER_BYTES;
        // SAFETY: `take` has zeroed this memory, which is aligned and holds only atomics. It is
        // never freed. The host tool only reads it.
        Some(unsafe {
            let places = core::slice::from_raw_parts(places as *const _, self.records as usize);
            (&*(header as *const AtomicU64), places)
        })
    }
}

/// The ring of one CPU, once it has begun to write it.
#[derive(Default)]
pub struct CpuTrace(OnceCell<Writer<'static, [AtomicU64; WORDS]>>);

impl CpuTrace {
    /// Begins to write the ring of this CPU, which is the calling one.
    pub fn attach(&self, rings: &Rings, cpu: CpuIndex) {
        if let Some((count, places)) = rings.ring(cpu) {
            self.0.get_or_init(|| Writer::new(count, places));
        }
    }

    /// Writes a record.
    #[inline(always)]
    pub fn note(&self, now: impl FnOnce() -> u64, event: Event, vcpu: u16, detail: u32, [a, b]: [u64; 2]) {
        if let Some(writer) = self.0.get() {
            writer.push(Record { time: now(), event, vcpu, detail, a, b }.words());
        }
    }
}

impl fmt::Debug for CpuTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CpuTrace")
    }
}
