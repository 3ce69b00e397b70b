//! Random programs: nothing is lost, nothing is in two places, and nothing runs where it may not.

use super::Habit::{Bursts, Lends, Sleeps, Waits, Works, Yields};
use super::*;

/// A generator of numbers without a pattern (xorshift).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }

    fn habit(&mut self) -> Habit {
        match self.below(6) {
            0 => Works,
            1 => Sleeps(1 + self.below(8000), 1 + self.below(8000)),
            2 => Yields(10 + self.below(1000)),
            3 => Waits(10 + self.below(1000)),
            4 => Lends(10 + self.below(3000)),
            _ => Bursts(10 + self.below(1000), 1 + self.below(8000)),
        }
    }

    fn guest(&mut self, cpus: u32) -> Guest {
        let habits = (0..1 + self.below(6)).map(|_| self.habit()).collect();
        let weight = [1, 10, 100, 100, 1000, 10_000][self.below(6) as usize];
        let mut guest = guest(weight, habits);
        if self.below(3) == 0 {
            guest = guest.capped(5 + self.below(150) as u32);
        }
        if self.below(3) == 0 {
            let set: Vec<_> = (0..cpus).filter(|_| self.below(2) == 0).collect();
            let any = self.below(cpus.into()) as u32;
            guest = guest.on(set.into_iter().chain([any]));
        }
        guest
    }

    pub(super) fn weight(&mut self) -> u32 {
        [1, 10, 100, 1000][self.below(4) as usize] * (1 + self.below(10) as u32)
    }

    /// Sometimes a cap, sometimes a set, often of one CPU.
    pub(super) fn bounded(&mut self, mut guest: Guest, cpus: u32) -> Guest {
        if self.below(4) == 0 {
            guest = guest.capped(5 + self.below(200) as u32);
        }
        let any = self.below(cpus.into()) as u32;
        match self.below(4) {
            0 => guest.on([any]),
            1 => {
                let set: Vec<_> = (0..cpus).filter(|_| self.below(2) == 0).collect();
                guest.on(set.into_iter().chain([any]))
            }
            _ => guest,
        }
    }

    pub(super) fn any(&mut self, cpus: u32) -> Guest {
        let few = if self.below(4) == 0 { 24 } else { 4 };
        let habit = self.habit();
        let is_mixed = self.below(2) == 0;
        let habits = (0..1 + self.below(few)).map(|_| if is_mixed { self.habit() } else { habit }).collect();
        let guest = guest(self.weight(), habits);
        self.bounded(guest, cpus)
    }
}

/// How many random machines are tried: `QUELL_SCHED_MACHINES`, or these.
pub(super) fn seeds(few: u64) -> Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let first = number("QUELL_SCHED_SEED").unwrap_or(1);
    first..first + number("QUELL_SCHED_MACHINES").unwrap_or(few)
}

#[test]
fn no_vcpu_is_lost_or_in_two_places_whatever_guests_do() {
    for seed in 1..150_u64 {
        let mut random = Random::new(seed);
        let cpus = 1 + random.below(4) as u32;
        let guests: Vec<_> = (0..1 + random.below(4)).map(|_| random.guest(cpus)).collect();
        let mut machine = Machine::new(cpus, &guests);
        for _ in 0..20 {
            machine.run(50 * MS);
            check_places(&machine, seed);
        }
        machine.check_used(seed);
    }
}

/// Each vCPU that is awake waits or runs in one place, and all counts agree.
fn check_places(machine: &Machine, seed: u64) {
    let running = machine.cpus.iter().filter(|cpu| cpu.current.is_some()).count();
    let awake = machine.vcpus.iter().filter(|vcpu| !vcpu.is_asleep).count();
    let ready = machine.vcpus.iter().filter(|vcpu| vcpu.ready_since.is_some()).count();
    assert_eq!(running + ready, awake, "seed {seed}");
    let queued: usize = (0..machine.cpus.len())
        .map(|cpu| machine.sched.place(CpuIndex(cpu as u32)).queue.lock().load())
        .sum();
    assert_eq!(queued, awake, "seed {seed}: in queues, of those that are awake");
    for group in 0..machine.sets.len() as u32 {
        if machine.sched.ledger.is_in_use() {
            let rows = &machine.vcpus[machine.rows(group)];
            let awake = rows.iter().filter(|vcpu| !vcpu.is_asleep).count() as u32;
            assert_eq!(machine.sched.ledger.group(group).runnable(), awake, "seed {seed}: guest {group}");
        }
    }
}

impl Machine {
    /// The scheduler has counted what the vCPUs had, with the turns that still last.
    fn check_used(&self, seed: u64) {
        for (row, vcpu) in (0..).map(VcpuIndex).zip(&self.vcpus) {
            assert_eq!(self.sched.used_by(row, self.now), vcpu.had, "seed {seed}: vCPU {row}");
        }
    }
}
