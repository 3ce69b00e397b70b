//! VMIDs on a machine whose CPUs keep everything, one step after the other; `model.rs` has
//! concurrent steps.

use std::boxed::Box;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const CPUS: usize = 3;

/// CPUs with TLBs that record, for each VMID, the machine whose translations they hold.
struct World {
    allocator: VmidAllocator<CPUS>,
    slots: Vec<VmidSlot>,
    /// By CPU and VMID, the machines whose entries are held.
    tlbs: Vec<Vec<Vec<usize>>>,
    /// By CPU, the machine that runs, and its VMID.
    running: [Option<(usize, u16)>; CPUS],
    flushes: usize,
}

impl World {
    fn new(bits: u32, machines: usize) -> Self {
        Self {
            allocator: VmidAllocator::new(bits, CPUS).expect("enough"),
            slots: (0..machines).map(|_| VmidSlot::new()).collect(),
            tlbs: vec![vec![Vec::new(); 1 << bits]; CPUS],
            running: [None; CPUS],
            flushes: 0,
        }
    }

    /// The CPU enters a guest of the machine; `carries_out` is false if it is interrupted before it
    /// has flushed.
    fn enter(&mut self, cpu: usize, machine: usize, carries_out: bool) -> Result<(), TestCaseError> {
        self.running[cpu] = None;
        let assignment = self.allocator.assign(CpuId(cpu as u32), &self.slots[machine]);
        let vmid = assignment.vmid();
        prop_assert!(vmid != 0 && vmid <= self.allocator.vmid_max);
        if !carries_out {
            return Ok(());
        }
        if assignment.must_flush() {
            self.flushes += 1;
            self.tlbs[cpu].iter_mut().for_each(Vec::clear);
        }
        assignment.executed();
        let held = &mut self.tlbs[cpu][usize::from(vmid)];
        prop_assert!(
            held.iter().all(|&other| other == machine),
            "machine {machine} meets entries of {held:?}"
        );
        held.push(machine);
        held.dedup();
        self.running[cpu] = Some((machine, vmid));
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        for (machine, vmid) in self.running.iter().flatten() {
            for (other, of_other) in self.running.iter().flatten() {
                prop_assert_eq!(machine == other, vmid == of_other, "A4: one VMID for two, or two for one");
            }
            prop_assert_eq!(
                self.slots[*machine].current(),
                Some(*vmid),
                "who flushes must know the VMID that runs"
            );
        }
        Ok(())
    }
}

#[test]
fn bits_and_cpus_that_do_not_fit_are_refused() {
    let fits = |bits, cpu_count| VmidAllocator::<256>::new(bits, cpu_count).is_some();
    assert!(!fits(0, 1) && !fits(17, 1) && !fits(8, 0));
    assert!(fits(1, 1) && !fits(1, 2), "each CPU may hold on to a VMID, and 0 is none");
    assert!(fits(2, 3) && !fits(2, 4));
    assert!(fits(8, 255) && !fits(8, 256) && fits(16, 256) && !fits(16, 257));
    const { assert!(VmidAllocator::<64>::new(16, 64).is_some()) };
}

#[test]
#[should_panic(expected = "index out of bounds")]
fn cpu_beyond_those_in_use_is_not_served() {
    let allocator = VmidAllocator::<3>::new(2, 2).unwrap();
    allocator.assign(CpuId(2), &VmidSlot::new()).executed();
}

#[test]
fn zero_is_nobodys_and_each_machine_keeps_its_own() {
    let allocator = Box::new(VmidAllocator::<2>::new(8, 2).unwrap());
    let slots: Vec<_> = (0..255).map(|_| VmidSlot::new()).collect();
    assert!(slots.iter().all(|slot| slot.current().is_none()), "nothing to invalidate");
    let mut vmids: Vec<_> = slots.iter().map(|slot| allocator.assign(CpuId(0), slot).vmid()).collect();
    let again: Vec<_> = slots.iter().map(|slot| allocator.assign(CpuId(1), slot).vmid()).collect();
    assert_eq!(vmids, again);
    vmids.sort_unstable();
    assert!(vmids.iter().copied().eq(1..=255));
}

#[test]
fn a4_first_entry_on_each_cpu_flushes_and_the_debt_stays_until_it_is_paid() {
    let allocator = VmidAllocator::<2>::new(8, 2).unwrap();
    let (slot, other) = (VmidSlot::new(), VmidSlot::new());
    for cpu in [CpuId(0), CpuId(1)] {
        assert!(allocator.assign(cpu, &slot).must_flush(), "somebody was here before us");
        assert!(allocator.assign(cpu, &slot).must_flush(), "it was not done");
        assert!(allocator.assign(cpu, &other).must_flush(), "nor for another machine");
        allocator.assign(cpu, &slot).executed();
        assert!(!allocator.assign(cpu, &slot).must_flush());
        assert!(!allocator.assign(cpu, &other).must_flush());
    }
}

#[test]
fn all_sixteen_bits_are_used_before_anything_is_flushed() {
    let allocator = Box::new(VmidAllocator::<2>::new(16, 2).unwrap());
    let mut flushes = 0;
    for turn in 0..0x2_0000 {
        let slot = VmidSlot::new();
        let assignment = allocator.assign(CpuId(0), &slot);
        flushes += u32::from(assignment.must_flush());
        assert_eq!(u32::from(assignment.vmid()), turn % 0xffff + 1);
        assignment.executed();
    }
    assert_eq!(flushes, 3);
}

proptest! {
    #[test]
    fn a4_no_schedule_gives_two_machines_one_vmid(
        bits in 2u32..5,
        machines in 1usize..12,
        steps in prop::collection::vec((0..CPUS, any::<prop::sample::Index>(), 0u8..6), 1..200),
    ) {
        let mut world = World::new(bits, machines);
        for (cpu, machine, kind) in steps {
            let machine = machine.index(machines);
            match kind {
                // A machine is destroyed, if it does not run, and another takes its place.
                0 if !world.running.iter().flatten().any(|(other, _)| *other == machine) => {
                    world.slots.push(VmidSlot::new());
                    world.slots.swap_remove(machine);
                    world.tlbs.iter_mut().flatten().flatten().filter(|held| **held == machine).for_each(|held| {
                        *held = usize::MAX;
                    });
                }
                1 => world.enter(cpu, machine, false)?,
                _ => world.enter(cpu, machine, true)?,
            }
        }
    }

    /// Two machines; and a vCPU may take the place of another.
    #[test]
    fn a3_a21_no_schedule_meets_what_a_vcpu_must_not(
        is_broadcast in any::<bool>(),
        steps in prop::collection::vec((0usize..2, 0usize..3, 0usize..3, 0u8..6), 1..80),
    ) {
        let reach = if is_broadcast { LocalMaintenance::Broadcast } else { LocalMaintenance::Local };
        let residents = [(); 2].map(|()| Residents::<3>::new());
        // Each vCPU, with a number of its own, where it was last, and how often it has invalidated.
        let mut vcpus = [0, 1, 2, 3, 4, 5].map(|number| (Home::new(), number, None, 0));
        // By machine and CPU: the vCPU whose entries are held, and how often it had invalidated
        // when it made them; and the vCPU that was last here.
        let mut held = [const { [const { Vec::<(usize, u32)>::new() }; 3] }; 2];
        let mut last = [[None; 3]; 2];
        for (step, (machine, index, cpu, what)) in (6..).zip(steps) {
            let (home, number, was, invalidated) = &mut vcpus[machine * 3 + index];
            if what == 0 {
                (*home, *number, *was, *invalidated) = (Home::new(), step, None, 0);
            }
            let arrival = residents[machine].arrive(home, CpuId(cpu as u32), reach);
            let from = was.replace(cpu);
            let has_moved = !is_broadcast && from.is_some_and(|from| from != cpu);
            let stage1 = last[machine][cpu].replace(*number).is_some_and(|last| last != *number || has_moved);
            let expected = Arrival { stage1, instructions: has_moved, ..Arrival::NOTHING };
            prop_assert_eq!(arrival, expected, "and no more is dropped than that");
            let held = &mut held[machine];
            if arrival.stage1 {
                held[cpu].clear();
            }
            for &(of, age) in &held[cpu] {
                prop_assert_eq!(of, *number, "A3");
                prop_assert_eq!(age, *invalidated, "A21");
            }
            held[cpu].push((*number, *invalidated));
            if what > 3 {
                *invalidated += 1;
                let reached = if is_broadcast { 0..3 } else { cpu..cpu + 1 };
                held[reached].iter_mut().for_each(|held| held.retain(|(of, _)| of != number));
            }
        }
    }
}
