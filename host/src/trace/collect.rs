//! Reads the trace rings while the machine runs, on a thread of its own.

use crate::poll::Poll;
use crate::prelude::*;
use hostlink::counters::{BEACON_MAGIC, Beacon};
use hostlink::ring::{HEADER_BYTES, Reader, Source};
use hostlink::trace::{RECORDS_MAX as RING_RECORDS_MAX, Record, WORDS, ring_bytes};
use std::mem::offset_of;

/// The maximum number of records kept for one run, all CPUs together. Later ones are counted.
pub(crate) const RECORDS_MAX: usize = 4 << 20;

/// The time between two reads of the rings. A ring holds some tenths of a second of a busy CPU.
const PERIOD: Duration = Duration::from_millis(20);

/// The maximum number of rings of a machine: one for each CPU.
const RINGS_MAX: u64 = 256;

#[derive(Debug, Default)]
pub(crate) struct CpuRecords {
    /// In the order in which they were written.
    pub(crate) records: Vec<Record>,
    pub(crate) lost: u64,
}

#[derive(Debug)]
pub(crate) struct Collected {
    /// Ticks per second of the records' clock.
    pub(crate) hz: u64,
    /// By CPU.
    pub(crate) cpus: Vec<CpuRecords>,
}

/// A thread that collects a trace. Finish it when the machine has ended.
pub(crate) type Collector = Poll<Collected>;

impl Collector {
    pub(crate) fn of(machine: &Machine) -> Result<Self> {
        let (ram, beacon) = machine.shared()?;
        Ok(Self::collect(ram, beacon))
    }

    fn collect(ram: Arc<Ram>, beacon: u64) -> Self {
        let look = move |rings: &mut Option<Rings>| {
            if rings.is_none() {
                *rings = Rings::find(&ram, beacon)?;
            }
            rings.as_mut().map_or(Ok(()), |rings| rings.read(&ram))
        };
        let found = |rings: Option<Rings>| {
            rings.map(Rings::collected).context("the machine ended before it had a trace")
        };
        Self::spawn(PERIOD, None, look, found)
    }
}

struct Rings {
    hz: u64,
    start: u64,
    records: u64,
    kept: usize,
    cpus: Vec<(Reader, CpuRecords)>,
}

impl Rings {
    /// Finds the rings that the beacon names; `None` until the beacon is filled in.
    fn find(ram: &Ram, beacon: u64) -> Result<Option<Self>> {
        let field = |offset: usize| ram.load(beacon.saturating_add(offset as u64));
        if field(offset_of!(Beacon, magic))? != BEACON_MAGIC {
            return Ok(None);
        }
        let start = field(offset_of!(Beacon, trace))?;
        if start == 0 {
            bail!("the hypervisor has no trace");
        }
        let sizes = field(offset_of!(Beacon, trace_rings))?;
        let (rings, records) = (sizes & u64::from(u32::MAX), sizes >> 32);
        ensure!(rings <= RINGS_MAX, "the hypervisor claims {rings} trace rings");
        ensure!(
            records.is_power_of_two() && records <= RING_RECORDS_MAX,
            "the hypervisor claims trace rings of {records} records"
        );
        let hz = field(offset_of!(Beacon, tsc_hz))?;
        ensure!(hz != 0, "the hypervisor's clock stands still");
        let cpus = (0..rings).map(|_| (Reader::new(records), CpuRecords::default())).collect();
        Ok(Some(Self { hz, start, records, kept: 0, cpus }))
    }

    fn read(&mut self, ram: &Ram) -> Result<()> {
        let records = self.records;
        let mut at = self.start;
        for (reader, cpu) in &mut self.cpus {
            let ring = InMemory { ram, start: at };
            at = at.saturating_add(ring_bytes(records));
            let lost = reader.read_each(&ring, |words| match Record::from_words(words) {
                Some(record) if self.kept < RECORDS_MAX => {
                    self.kept += 1;
                    cpu.records.push(record);
                }
                _ => cpu.lost += 1,
            })?;
            cpu.lost += lost;
        }
        Ok(())
    }

    fn collected(self) -> Collected {
        Collected { hz: self.hz, cpus: self.cpus.into_iter().map(|(_, cpu)| cpu).collect() }
    }
}

struct InMemory<'r> {
    ram: &'r Ram,
    start: u64,
}

impl Source for InMemory<'_> {
    type Item = [u64; WORDS];
    type Error = anyhow::Error;

    fn count(&self) -> Result<u64> {
        self.ram.load(self.start) // Acquires; pairs with the writer's count, C.
    }

    fn load(&self, place: u64) -> Result<[u64; WORDS]> {
        let mut words = [0; WORDS];
        for (index, word) in (place * WORDS as u64..).zip(&mut words) {
            *word = self.ram.load(self.start.saturating_add(HEADER_BYTES + 8 * index))?;
        }
        Ok(words)
    }
}

// `find` loads two halves at once: the number of rings below, their size above.
const _: () = assert!(offset_of!(Beacon, trace_records) == offset_of!(Beacon, trace_rings) + 4);
const _: () = assert!(offset_of!(Beacon, trace_rings).is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::trace::Event;

    fn machine(rings: u64, records: u64) -> Arc<Ram> {
        let ram = Ram::new(16384, 0).expect("makes");
        ram.put(offset_of!(Beacon, tsc_hz) as u64, 1000);
        ram.put(offset_of!(Beacon, trace) as u64, 4096);
        ram.put(offset_of!(Beacon, trace_rings) as u64, rings | records << 32);
        ram.put(offset_of!(Beacon, magic) as u64, BEACON_MAGIC);
        Arc::new(ram)
    }

    fn write(ram: &Ram, ring: u64, number: u64, words: [u64; WORDS]) {
        let start = 4096 + ring * ring_bytes(4);
        for (index, word) in (0..).zip(words) {
            ram.put(start + HEADER_BYTES + 8 * (number % 4 * WORDS as u64 + index), word);
        }
        ram.put(start, number + 1);
    }

    #[test]
    fn records_are_collected_by_cpu_and_missing_ones_are_counted() {
        let ram = machine(2, 4);
        let record = |time| Record { time, event: Event::Enter, vcpu: 3, detail: 0, a: 1, b: 2 };
        write(&ram, 0, 0, record(7).words());
        write(&ram, 0, 1, [8, 0xee, 0, 0]);
        (0..9).for_each(|number| write(&ram, 1, number, record(number).words()));
        let collector = Collector::collect(Arc::clone(&ram), 0);
        let collected = collector.finish().expect("collects");
        assert_eq!(collected.hz, 1000);
        assert_eq!(collected.cpus[0].records, [record(7)]);
        assert_eq!(collected.cpus[0].lost, 1, "an unknown event");
        assert_eq!(collected.cpus[1].records, [record(6), record(7), record(8)]);
        assert_eq!(collected.cpus[1].lost, 6);
    }

    #[test]
    fn claims_that_cannot_be_true_are_refused() {
        for (rings, records) in [(257, 4), (1, 3), (1, 1 << 20)] {
            let error = Collector::collect(machine(rings, records), 0).finish().expect_err("is refused");
            assert!(error.to_string().contains("claims"), "{error}");
        }
        let ram = machine(1, 4);
        ram.put(offset_of!(Beacon, trace) as u64, 0);
        let error = Collector::collect(ram, 0).finish().expect_err("has none");
        assert!(error.to_string().contains("no trace"), "{error}");
        let ram = Arc::new(Ram::new(4096, 0).expect("makes"));
        let error = Collector::collect(ram, 0).finish().expect_err("has no beacon");
        assert!(error.to_string().contains("before it had a trace"), "{error}");
    }
}
