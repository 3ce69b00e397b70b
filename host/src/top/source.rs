//! The source of the figures: the counters in the memory of a machine that another process runs.

use crate::machine::control::{Found, Notice};
use crate::machine::counters::{clock_hz, cpu_count};
use crate::machine::guests::{Entries, GuestSeen};
use crate::prelude::*;

#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    pub(super) counters: Snapshot,
    /// Ticks of the hypervisor's clock in a second.
    pub(super) hz: u64,
    /// CPUs that the vCPUs share.
    pub(super) cpus: u64,
    /// The guests, if there are several.
    pub(super) guests: Vec<GuestSeen>,
}

pub(super) struct Source {
    pub(super) machine: Found,
    pub(super) notice: Notice,
    ram: Ram,
}

impl Source {
    /// Opens the memory of a machine; `None` if the machine has ended meanwhile, or has no notice.
    pub(super) fn open(machine: &Found) -> Result<Option<Self>> {
        let Some(notice) = machine.notice()? else { return Ok(None) };
        match notice.open_ram(false) {
            Ok(ram) => Ok(Some(Self { machine: machine.clone(), notice, ram })),
            // Its process may have ended between the two steps, which is no error.
            Err(_) if !still_says(machine, &notice) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("machine {}", machine.name)),
        }
    }

    pub(super) fn is_running(&self) -> bool {
        still_says(&self.machine, &self.notice)
    }

    /// The counters now, or those at its end; `None` before its hypervisor has begun to count.
    pub(super) fn sample(&self) -> Result<Option<Sample>> {
        let (ram, beacon) = (&self.ram, self.notice.beacon);
        let read = || -> Result<Option<Sample>> {
            let at = Instant::now();
            let Some(counters) = Snapshot::read(ram, beacon)? else { return Ok(None) };
            let Some(hz) = clock_hz(ram, beacon)? else { return Ok(None) };
            let entries = Entries::find(ram, beacon)?;
            let guests = entries.map_or_else(|| Ok(Vec::new()), |entries| entries.guests(ram))?;
            Ok(Some(Sample { at, counters, hz, cpus: cpu_count(ram, beacon)?, guests }))
        };
        read().with_context(|| format!("machine {}", self.machine.name))
    }
}

fn still_says(machine: &Found, notice: &Notice) -> bool {
    machine.is_alive() && machine.notice().is_ok_and(|said| said.as_ref() == Some(notice))
}

#[cfg(test)]
pub(super) mod made {
    //! Mock machines: memory and a notice.

    use super::*;
    use crate::arch::Arch;
    use crate::machine::control::Registration;
    use hostlink::counters::{BEACON_MAGIC, Counter};
    use tempfile::TempDir;

    const BEACON: u64 = 0x1000;
    const ROWS: u64 = 0x2000;
    pub(crate) const HZ: u64 = 1_000_000;

    pub(crate) struct MockMachine {
        pub(crate) found: Found,
        registration: Option<Registration>,
        ram: Ram,
        vcpus: u32,
        _directory: TempDir,
    }

    impl MockMachine {
        /// A machine that has not begun to count.
        pub(crate) fn new(vcpus: u32) -> Self {
            let directory = tempfile::tempdir().expect("makes");
            let found = Found::made_up(&std::process::id().to_string(), directory.path());
            let registration = Registration::made_up(&found);
            let ram = Ram::new(0x80000, 0).expect("makes");
            let notice = Notice::new(Arch::X86_64, &ram, BEACON, Path::new("/b")).expect("says");
            registration.publish(&notice).expect("writes");
            Self { found, registration: Some(registration), ram, vcpus, _directory: directory }
        }

        pub(crate) fn begin(&self) {
            let counts = (Counter::COUNT as u64) << 32 | u64::from(self.vcpus);
            for (offset, word) in [(8, ROWS), (16, HZ), (24, counts), (32, 2), (0, BEACON_MAGIC)] {
                self.ram.put(BEACON + offset, word);
            }
        }

        pub(crate) fn set(&self, vcpu: u64, counter: Counter, value: u64) {
            self.ram.put(ROWS + (vcpu * Counter::COUNT as u64 + counter as u64) * 8, value);
        }

        pub(crate) fn end(&mut self) {
            self.registration = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made::{HZ, MockMachine};
    use super::*;

    #[test]
    fn a_machine_is_watched_from_before_it_counts_until_it_has_ended() {
        let mut machine = MockMachine::new(2);
        let source = Source::open(&machine.found).expect("opens").expect("is there");
        assert!(source.is_running() && source.sample().expect("reads").is_none());
        machine.begin();
        machine.set(1, Counter::ExitIo, 7);
        let sample = source.sample().expect("reads").expect("counts");
        assert_eq!((sample.counters.get(Counter::ExitIo), sample.hz, sample.cpus), (7, HZ, 2));
        machine.end();
        assert!(!source.is_running());
        assert!(source.sample().expect("reads").is_some(), "its last figures can be read");
        assert!(Source::open(&machine.found).expect("is no error").is_none());
    }
}
