//! Guests come and go while others run.

use super::Habit::{Sleeps, Works};
use super::*;

#[test]
fn accounts_begin_with_the_second_guest_and_end_with_it() {
    let mut machine = Machine::new(2, &[guest(100, vec![Works; 2])]);
    // Room for more.
    machine.sched = Scheduler::new([0, 1].map(CpuIndex).into(), 8, 4, Policy::new(SLICE));
    machine.cpus.iter_mut().for_each(|cpu| *cpu = Cpu { current: None, counted: 0, due: 0 });
    machine.vcpus.clear();
    machine.sets.clear();
    machine.add(&guest(100, vec![Works; 2]));
    machine.run(100 * MS);
    assert!(!machine.sched.ledger.is_in_use());
    for round in 1..200 {
        let vcpus = machine.vcpus.len() as u32;
        machine.add(&guest(100, vec![Sleeps(300 * round % 7000 + 1, u64::MAX / 2); 2]));
        assert!(machine.sched.ledger.is_in_use());
        machine.run(100 * MS);
        let rows = vcpus as usize..;
        assert!(machine.vcpus[rows.clone()].iter().all(|vcpu| vcpu.is_asleep), "they have slept by now");
        for vcpu in (vcpus..vcpus + 2).map(VcpuIndex) {
            assert_eq!(machine.sched.used_by(vcpu, machine.now), machine.vcpus[vcpu.place()].had);
            // A waker takes the timer away, and the vCPU blocks for good.
            machine.stop(vcpu);
        }
        let found = machine.sched.used(1, machine.now);
        assert_eq!(found, machine.vcpus[rows].iter().map(|vcpu| vcpu.had).sum::<u64>());
        machine.sched.remove_group(1);
        assert!(!machine.sched.ledger.is_in_use());
        machine.vcpus.truncate(vcpus as usize);
        machine.sets.truncate(1);
        let got = machine.measure(100 * MS);
        assert_eq!(got, [200.0], "the guest that is left has both CPUs");
    }
}

/// A guest that is to stop must run for it.
#[test]
fn a_guest_that_is_put_first_runs_within_a_slice_of_each_cpu() {
    for cpus in 1..=2 {
        let works = |weight| guest(weight, vec![Works; cpus as usize]);
        let mut machine = Machine::after(10_000 * MS, cpus, &[works(10_000), works(1), works(1).capped(1)]);
        for group in [1, 2] {
            let before = machine.had();
            machine.run(100 * MS);
            assert!(machine.had()[group] < before[group] + 2 * SLICE, "it gets little");
            machine.sched.put_first(group as GroupIndex, machine.now);
            let before: Vec<_> =
                machine.vcpus[machine.rows(group as u32)].iter().map(|vcpu| vcpu.had).collect();
            machine.run(3 * SLICE + u64::from(cpus) * SLICE);
            let after = machine.vcpus[machine.rows(group as u32)].iter().map(|vcpu| vcpu.had);
            assert!(after.zip(&before).all(|(after, before)| after > *before), "{cpus} CPUs, guest {group}");
        }
    }
}

/// Nobody takes it back: not the caller, and not in time.
#[test]
fn a_guest_that_is_put_first_all_the_time_has_no_more_than_its_share_and_its_cap() {
    let works = |weight, vcpus| guest(weight, vec![Works; vcpus]);
    for cpus in 1..=3 {
        let vcpus = 2 * cpus as usize;
        let heavy = || works(1000, vcpus);
        for (first, most) in [
            (works(1, vcpus), 100.0 * f64::from(cpus) / 1001.0),
            (works(1, 1), 100.0 * f64::from(cpus) / 1001.0),
            (works(300, vcpus), 100.0 * f64::from(cpus) * 300.0 / 1300.0),
            (works(1000, vcpus).capped(1), 1.0),
            (works(1000, vcpus).capped(20), 20.0),
        ] {
            let mut machine = Machine::after(1000 * MS, cpus, &[heavy(), first]);
            let before = machine.had()[1];
            for _ in 0..2000 {
                machine.sched.put_first(1, machine.now);
                machine.run(10 * MS);
            }
            // What it is lent, it is lent once.
            let lent = u64::from(2 * cpus + 2) * SLICE;
            let got = (machine.had()[1] - before).saturating_sub(lent) as f64 * 100.0 / (20_000 * MS) as f64;
            assert!(got <= most * 1.05, "{cpus} CPUs: {got:.3} and what it is lent for {most:.3}");
        }
    }
}

#[test]
fn time_that_is_left_out_of_a_turn_is_nobodys() {
    let mut machine = Machine::new(1, &[guest(100, vec![Works]), guest(100, vec![Works])]);
    let before = machine.had();
    for _ in 0..2000 {
        machine.run(MS);
        // The CPU works for somebody else for half of the first guest's time.
        if machine.cpus[0].current == Some(VcpuIndex(0)) {
            machine.run(MS);
            if machine.cpus[0].current == Some(VcpuIndex(0)) {
                machine.sched.leave_out(CpuIndex(0), MS, machine.now);
            }
        }
    }
    let had: Vec<_> = machine.had().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(had[0] > had[1] * 5 / 4, "its own time, and the time that is nobody's: {had:?}");
}

impl Machine {
    /// Wakes a vCPU that sleeps, and lets it stop when it runs.
    fn stop(&mut self, vcpu: VcpuIndex) {
        self.wake(vcpu, QueueClass::Work);
        self.vcpus[vcpu.place()].habit = Habit::Sleeps(1, 0);
        self.vcpus[vcpu.place()].left = u64::MAX;
        while !self.cpus.iter().any(|cpu| cpu.current == Some(vcpu)) {
            self.run(MS);
        }
        let cpu = self.cpus.iter().position(|cpu| cpu.current == Some(vcpu)).unwrap();
        let cpu = CpuIndex(cpu as u32);
        self.count(cpu);
        self.cpus[cpu.place()].current = None;
        self.vcpus[vcpu.place()].is_asleep = true;
        let Block::Next(turn) = self.sched.block(cpu, self.now, u64::MAX, || Some(Released::made())) else {
            panic!("a vCPU that runs may block")
        };
        self.begin(cpu, turn);
    }
}

#[test]
#[should_panic(expected = "may use no CPU")]
fn a_guest_needs_a_cpu() {
    let sched = Scheduler::new([0, 1].map(CpuIndex).into(), 1, 1, Policy::new(SLICE));
    let share = Share { cpus: [7].into_iter().collect(), ..Share::default() };
    sched.add_group(0, VcpuIndex(0)..VcpuIndex(1), share);
}
