//! Reads the hypervisor's counters out of the machine's memory.

use super::guests::{Entries, Identity};
use crate::prelude::*;
use hostlink::counters::{BEACON_MAGIC, Beacon};
use std::mem::offset_of;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RowVcpu {
    /// Its guest; `None` if the machine has one guest, which uses its serial ports.
    pub(crate) guest: Option<Identity>,
    pub(crate) vcpu: u32,
}

impl RowVcpu {
    /// Its name in results: `vcpu-N`, after its guest's name if there are several.
    pub(crate) fn case(&self) -> String {
        self.guest.map_or_else(
            || format!("vcpu-{}", self.vcpu),
            |guest| format!("{}.vcpu-{}", guest.name, self.vcpu),
        )
    }

    pub(crate) fn label(&self) -> String {
        self.guest.map_or_else(|| self.vcpu.to_string(), |guest| format!("{}.{}", guest.name, self.vcpu))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    rows: Vec<[u64; Counter::COUNT]>,
    owners: Vec<RowVcpu>,
}

impl Snapshot {
    /// Reads the counters of the guests. `None` while the hypervisor has not filled the beacon in.
    pub(crate) fn read(ram: &Ram, beacon: u64) -> Result<Option<Self>> {
        let field = |offset: usize| ram.load(beacon.saturating_add(offset as u64));
        let Some(entries) = Entries::find(ram, beacon)? else { return Ok(None) };
        let counts = field(offset_of!(Beacon, vcpu_count))?;
        let (vcpus, columns) = (counts & u64::from(u32::MAX), counts >> 32);
        if columns != Counter::COUNT as u64 {
            bail!("the hypervisor has {columns} counters, this tool knows {}", Counter::COUNT);
        }
        if !entries.is_empty() {
            return Self::of_guests(ram, &entries).map(Some);
        }
        ensure!(vcpus <= u64::from(MAX_VCPUS), "the hypervisor claims {vcpus} vCPUs");
        let mut snapshot = Self { rows: Vec::new(), owners: Vec::new() };
        snapshot.add(ram, field(offset_of!(Beacon, counters))?, vcpus as u32, None)?;
        Ok(Some(snapshot))
    }

    /// Those of several guests. A guest that was destroyed meanwhile is left out.
    fn of_guests(ram: &Ram, entries: &Entries) -> Result<Self> {
        let mut snapshot = Self { rows: Vec::new(), owners: Vec::new() };
        for guest in entries.guests(ram)? {
            let before = snapshot.rows.len();
            snapshot.add(ram, guest.counters, guest.vcpus, Some(guest.identity()))?;
            if !entries.has(ram, guest.identity())? {
                snapshot.rows.truncate(before);
                snapshot.owners.truncate(before);
            }
        }
        Ok(snapshot)
    }

    fn add(&mut self, ram: &Ram, first: u64, vcpus: u32, guest: Option<Identity>) -> Result<()> {
        for vcpu in 0..vcpus {
            let mut values = [0u64; Counter::COUNT];
            for (column, value) in values.iter_mut().enumerate() {
                let index = u64::from(vcpu) * Counter::COUNT as u64 + column as u64;
                *value = ram.load(first.saturating_add(index * 8))?;
            }
            self.rows.push(values);
            self.owners.push(RowVcpu { guest, vcpu });
        }
        Ok(())
    }

    /// Of vCPUs that have counted this.
    #[cfg(test)]
    pub(crate) fn of_counts(vcpus: &[&[(Counter, u64)]]) -> Self {
        let mut rows = vec![[0; Counter::COUNT]; vcpus.len()];
        for (row, counts) in rows.iter_mut().zip(vcpus) {
            counts.iter().for_each(|(counter, count)| row[*counter as usize] = *count);
        }
        let owners = (0..rows.len() as u32).map(|vcpu| RowVcpu { guest: None, vcpu }).collect();
        Self { rows, owners }
    }

    /// The difference to `earlier`, by vCPU. One that was not there then has counted from 0.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let mut rows = self.rows.clone();
        for (index, (row, owner)) in rows.iter_mut().zip(&self.owners).enumerate() {
            let place = Some(index).filter(|place| earlier.owners.get(*place) == Some(owner));
            let place = place.or_else(|| earlier.owners.iter().position(|earlier| earlier == owner));
            let Some(before) = place.and_then(|place| earlier.rows.get(place)) else { continue };
            for (value, before) in row.iter_mut().zip(before) {
                *value = value.wrapping_sub(*before);
            }
        }
        Self { rows, owners: self.owners.clone() }
    }

    pub(crate) fn of(&self, vcpus: Range<usize>) -> Self {
        let indices = (0..self.rows.len()).take(vcpus.end).skip(vcpus.start);
        self.some(indices)
    }

    fn some(&self, indices: impl Iterator<Item = usize> + Clone) -> Self {
        let rows = indices.clone().filter_map(|index| self.rows.get(index).copied()).collect();
        Self { rows, owners: indices.filter_map(|index| self.owners.get(index).copied()).collect() }
    }

    pub(crate) fn each(&self) -> impl Iterator<Item = Self> {
        (0..self.rows.len()).map(|index| self.some(std::iter::once(index)))
    }

    /// The counters of each guest, with its name if it is not the machine's only one.
    pub(crate) fn by_guest(&self) -> Vec<(Option<Identity>, Self)> {
        let mut guests: Vec<Option<Identity>> = self.owners.iter().map(|owner| owner.guest).collect();
        guests.dedup();
        let of = |guest: Option<Identity>| {
            let indices = (0..self.owners.len()).filter(|&index| self.owners[index].guest == guest);
            self.some(indices.collect::<Vec<_>>().into_iter())
        };
        guests.into_iter().map(|guest| (guest, of(guest))).collect()
    }

    pub(crate) fn owners(&self) -> &[RowVcpu] {
        &self.owners
    }

    /// One counter, summed over the vCPUs.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        self.rows.iter().fold(0, |sum, row| sum.wrapping_add(row[counter as usize]))
    }

    /// Served flush hypercalls; one that was done in parts counts once.
    pub(crate) fn flush_requests(&self) -> u64 {
        [Counter::FlushLists, Counter::FlushWholeAsked, Counter::FlushWholeRanges, Counter::FlushWholePages]
            .into_iter()
            .fold(0, |sum, counter| sum.wrapping_add(self.get(counter)))
    }

    /// Targets of flushes, counted once for each part of a call.
    pub(crate) fn flush_targets(&self) -> u64 {
        self.get(Counter::FlushBusy).wrapping_add(self.get(Counter::FlushDeferred))
    }

    /// Every counter with its name, in the order of a row, followed by values derived from several.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counters = Counter::ALL.into_iter().map(|counter| (counter.name(), self.get(counter)));
        counters.chain([("flush.requests", self.flush_requests()), ("flush.targets", self.flush_targets())])
    }

    pub(crate) fn exits(&self) -> u64 {
        self.iter().filter(|(name, _)| name.starts_with("exit.")).map(|(_, value)| value).sum()
    }
}

/// Ticks per second of the hypervisor's clock; `None` while the beacon is not filled in.
pub(crate) fn clock_hz(ram: &Ram, beacon: u64) -> Result<Option<u64>> {
    let field = |offset: usize| ram.load(beacon.saturating_add(offset as u64));
    if field(offset_of!(Beacon, magic))? != BEACON_MAGIC {
        return Ok(None);
    }
    let hz = field(offset_of!(Beacon, tsc_hz))?;
    ensure!(hz != 0, "the hypervisor's clock stands still");
    Ok(Some(hz))
}

pub(crate) fn cpu_count(ram: &Ram, beacon: u64) -> Result<u64> {
    let word = ram.load(beacon.saturating_add(offset_of!(Beacon, cpu_count) as u64))?;
    Ok(word & u64::from(u32::MAX))
}

/// The end of the run as the hypervisor reports it; `None` if it does not.
pub(crate) fn exit_code(ram: &Ram, beacon: u64) -> Result<Option<ExitCode>> {
    let word = ram.load(beacon.saturating_add(offset_of!(Beacon, cpu_count) as u64))?;
    Ok(i32::try_from(word >> 32).ok().and_then(ExitCode::from_code))
}

// `exit_code` loads two halves at once: the count of CPUs below, the code above.
const _: () = assert!(offset_of!(Beacon, exit) == offset_of!(Beacon, cpu_count) + 4);
const _: () = assert!(offset_of!(Beacon, cpu_count).is_multiple_of(8));

// `read` loads two halves at once: the count of rows below, the count of columns above.
const _: () = assert!(offset_of!(Beacon, counter_count) == offset_of!(Beacon, vcpu_count) + 4);
const _: () = assert!(offset_of!(Beacon, vcpu_count).is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::*;

    const BEACON: u64 = 0x1000;
    const ROWS: u64 = 0x2000;

    fn ram(magic: u64, vcpus: u32, columns: u32) -> Ram {
        let ram = Ram::new(0x40000, 0).expect("makes");
        let counts = u64::from(columns) << 32 | u64::from(vcpus);
        for (offset, word) in [(0, magic), (8, ROWS), (16, 2_000_000_000), (24, counts), (32, 2)] {
            ram.put(BEACON + offset, word);
        }
        for word in 0..u64::from(vcpus) * u64::from(columns) {
            ram.put(ROWS + word * 8, word);
        }
        ram
    }

    #[test]
    fn an_empty_beacon_is_no_error() {
        let ram = ram(0, 2, Counter::COUNT as u32);
        assert_eq!(Snapshot::read(&ram, BEACON).expect("reads"), None);
    }

    #[test]
    fn nonsense_in_the_beacon_is_an_error_and_not_a_crash() {
        assert!(Snapshot::read(&ram(BEACON_MAGIC, 2, 3), BEACON).is_err());
        assert!(Snapshot::read(&ram(BEACON_MAGIC, 0xffff, 0), BEACON).is_err());
        assert!(Snapshot::read(&ram(BEACON_MAGIC, 255, Counter::COUNT as u32), BEACON).is_ok());
        assert!(Snapshot::read(&ram(BEACON_MAGIC, 1, 1), u64::MAX).is_err());
    }

    #[test]
    fn the_beacon_says_how_a_run_ended_if_it_did() {
        let said = |word: u64| {
            let ram = ram(0, 1, 1);
            ram.put(BEACON + offset_of!(Beacon, cpu_count) as u64, word);
            exit_code(&ram, BEACON).expect("reads")
        };
        let status = |code: ExitCode| (code as u64) << 32 | 2;
        assert_eq!((said(2), said(1 << 32 | 2), said(u64::MAX)), (None, None, None));
        for code in ExitCode::ALL {
            assert_eq!(said(status(code)), Some(code));
        }
        assert!(exit_code(&ram(0, 1, 1), u64::MAX).is_err());
    }

    #[test]
    fn the_beacon_says_how_fast_the_clock_is() {
        assert_eq!(clock_hz(&ram(0, 1, 1), BEACON).expect("reads"), None);
        assert_eq!(clock_hz(&ram(BEACON_MAGIC, 1, 1), BEACON).expect("reads"), Some(2_000_000_000));
        assert!(clock_hz(&ram(BEACON_MAGIC, 1, 1), u64::MAX).is_err());
    }

    #[test]
    fn some_of_the_rows_are_those_of_these_vcpus() {
        let columns = Counter::COUNT as u64;
        let ram = ram(BEACON_MAGIC, 3, Counter::COUNT as u32);
        let snapshot = Snapshot::read(&ram, BEACON).expect("reads").expect("is filled in");
        let cpuid = |vcpus| snapshot.of(vcpus).get(Counter::ExitCpuid);
        assert_eq!(
            [cpuid(0..1), cpuid(1..2), cpuid(1..3), cpuid(2..9)],
            [0, columns, 3 * columns, 2 * columns]
        );
        let each: Vec<_> = snapshot.each().map(|vcpu| vcpu.get(Counter::ExitWait)).collect();
        assert_eq!(each, [1, 1 + columns, 1 + 2 * columns]);
        let rows = snapshot.rows.iter().map(|row| row.map(|value| value + 5)).collect();
        let later = Snapshot { rows, owners: snapshot.owners.clone() };
        assert!(later.since(&snapshot).each().all(|vcpu| vcpu.get(Counter::ExitWait) == 5));
    }

    #[test]
    fn several_guests_have_rows_of_their_own() {
        use crate::machine::guests::made::{self, MockGuests};
        use hostlink::guests::GuestState;
        let made = MockGuests::new(2);
        assert!(Snapshot::read(&made.ram, made::BEACON).is_err(), "it has no columns");
        made.count_columns();
        let read = || Snapshot::read(&made.ram, made::BEACON).expect("reads").expect("is filled in");
        assert_eq!(read().each().count(), 0);
        made.fill(0, "web", GuestState::Running);
        made.fill(1, "db", GuestState::Running);
        let before = read();
        let cases: Vec<_> = before.owners().iter().map(RowVcpu::case).collect();
        assert_eq!(cases, ["web.vcpu-0", "web.vcpu-1", "db.vcpu-0", "db.vcpu-1"]);
        assert_eq!(before.owners()[3].label(), "db.1");
        let cpuid = made::COUNTERS + Counter::ExitCpuid as u64 * 8;
        made.put(cpuid, 5);
        let after = read();
        // Both mock guests have the same rows.
        let counts: Vec<_> = after.since(&before).each().map(|vcpu| vcpu.get(Counter::ExitCpuid)).collect();
        assert_eq!(counts, [5, 0, 5, 0]);
        let guests: Vec<_> = after
            .by_guest()
            .iter()
            .map(|(guest, rows)| (guest.map(|guest| guest.name.to_string()), rows.get(Counter::ExitCpuid)))
            .collect();
        assert_eq!(guests, [(Some("web".to_owned()), 5), (Some("db".to_owned()), 5)]);
        made.fill(0, "web", GuestState::Running);
        let again = read();
        let counts: Vec<_> = again.since(&after).each().map(|vcpu| vcpu.get(Counter::ExitCpuid)).collect();
        assert_eq!(counts, [5, 0, 0, 0], "another guest of the same name counts from 0");
    }

    #[test]
    fn rows_are_summed_by_column() {
        let columns = Counter::COUNT as u64;
        let snapshot = Snapshot::read(&ram(BEACON_MAGIC, 3, Counter::COUNT as u32), BEACON);
        let snapshot = snapshot.expect("reads").expect("is filled in");
        assert_eq!(snapshot.get(Counter::ExitCpuid), 3 * columns);
        assert_eq!(snapshot.get(Counter::ExitWait), 3 + 3 * columns);
        assert_eq!(snapshot.since(&snapshot).exits(), 0);
    }
}
