//! ASIDs against a TLB that keeps everything that it is not told to drop.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::vec::Vec;

fn allocator(cpu: u32, asid_max: u32, has_flush_by_asid: bool) -> AsidAllocator {
    AsidAllocator::new(CpuId(cpu), NonZeroU32::new(asid_max).unwrap(), has_flush_by_asid)
}

/// Assigns and runs.
fn enter(cpu: &mut AsidAllocator, slot: &mut AsidSlot) -> (u32, TlbControl, bool) {
    let assignment = cpu.assign(slot);
    let seen = (assignment.asid, assignment.control, assignment.changed);
    cpu.executed(slot, assignment);
    seen
}

#[test]
fn a1_rollover_flushes_all_and_renews_everybody() {
    let mut cpu = allocator(0, 3, true);
    let mut slots: [AsidSlot; 4] = Default::default();
    let controls: Vec<_> = slots.iter_mut().map(|slot| enter(&mut cpu, slot)).collect();
    assert_eq!(controls[0], (1, TlbControl::FlushAll, true), "what ran before this allocator?");
    assert_eq!(controls[1], (2, TlbControl::DoNothing, true));
    assert_eq!(controls[2], (3, TlbControl::DoNothing, true));
    assert_eq!(controls[3], (1, TlbControl::FlushAll, true));
    assert_eq!(enter(&mut cpu, &mut slots[3]), (1, TlbControl::DoNothing, false));
    assert_eq!(enter(&mut cpu, &mut slots[0]), (2, TlbControl::DoNothing, true));
}

#[test]
fn a7_aborted_vmrun_leaves_the_debts() {
    let (mut cpu, mut one, mut two) = (allocator(0, 8, true), AsidSlot::new(), AsidSlot::new());
    assert_eq!(cpu.assign(&mut one).control, TlbControl::FlushAll);
    assert_eq!(enter(&mut cpu, &mut two).1, TlbControl::FlushAll, "the CPU's debt, whoever enters");
    assert_eq!(enter(&mut cpu, &mut one).1, TlbControl::DoNothing);
    one.owe_flush();
    for _ in 0..3 {
        assert_eq!(cpu.assign(&mut one).control, TlbControl::FlushAsid);
    }
    assert_eq!(enter(&mut cpu, &mut one).1, TlbControl::FlushAsid);
    assert_eq!(enter(&mut cpu, &mut one).1, TlbControl::DoNothing, "flushed once per debt");
}

#[test]
fn a8_flush_without_flush_by_asid_takes_a_new_asid() {
    let (mut cpu, mut slot) = (allocator(0, 2, false), AsidSlot::new());
    assert_eq!(enter(&mut cpu, &mut slot), (1, TlbControl::FlushAll, true));
    slot.owe_flush();
    assert_eq!(enter(&mut cpu, &mut slot), (2, TlbControl::DoNothing, true));
    slot.owe_flush();
    assert_eq!(enter(&mut cpu, &mut slot), (1, TlbControl::FlushAll, true));
    assert_eq!(enter(&mut cpu, &mut slot), (1, TlbControl::DoNothing, false));
}

const VCPUS: usize = 8;
const CPUS: usize = 2;

/// One step of a schedule.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The vCPU runs on the CPU and touches its page.
    Run { vcpu: usize, cpu: usize },
    /// It gets only as far as the assignment.
    Abort { vcpu: usize, cpu: usize },
    /// Its page table changes; it needs a flush.
    Change { vcpu: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0..VCPUS, 0..CPUS).prop_map(|(vcpu, cpu)| Step::Run { vcpu, cpu }),
        1 => (0..VCPUS, 0..CPUS).prop_map(|(vcpu, cpu)| Step::Abort { vcpu, cpu }),
        2 => (0..VCPUS).prop_map(|vcpu| Step::Change { vcpu }),
    ]
}

/// Every CPU's entries by ASID: the owner of the page, and the version of its table.
#[derive(Default)]
struct Tlbs([BTreeMap<u32, Vec<(usize, u32)>>; CPUS]);

impl Tlbs {
    /// VMRUN, and a touch that caches one more entry. False if a usable entry is not the vCPU's
    /// current one.
    fn run(&mut self, cpu: usize, assignment: &Assignment, present: (usize, u32)) -> bool {
        let tlb = &mut self.0[cpu];
        match assignment.control {
            TlbControl::DoNothing => {}
            TlbControl::FlushAll => tlb.clear(),
            TlbControl::FlushAsid => drop(tlb.remove(&assignment.asid)),
        }
        let entries = tlb.entry(assignment.asid).or_default();
        entries.push(present);
        entries.iter().all(|&entry| entry == present)
    }
}

proptest! {
    /// A1–A3, A5, A7, A8 at once: 8 vCPUs on 2 CPUs with as few as one ASID.
    #[test]
    fn a1_a2_a3_no_schedule_meets_a_stale_entry(
        steps in prop::collection::vec(step(), 1..200),
        asid_max in 1u32..=4,
        has_flush_by_asid: bool,
    ) {
        let mut cpus = [0, 1].map(|cpu| allocator(cpu, asid_max, has_flush_by_asid));
        let mut slots: [AsidSlot; VCPUS] = Default::default();
        let (mut versions, mut tlbs) = ([0u32; VCPUS], Tlbs::default());
        // Earlier software left entries under every ASID.
        for tlb in &mut tlbs.0 {
            tlb.extend((1..=asid_max).map(|asid| (asid, std::vec![(usize::MAX, 0)])));
        }
        for step in steps {
            match step {
                Step::Change { vcpu } => {
                    versions[vcpu] += 1;
                    slots[vcpu].owe_flush();
                }
                Step::Abort { vcpu, cpu } => drop(cpus[cpu].assign(&mut slots[vcpu])),
                Step::Run { vcpu, cpu } => {
                    let assignment = cpus[cpu].assign(&mut slots[vcpu]);
                    prop_assert!((1..=asid_max).contains(&assignment.asid));
                    prop_assert!(has_flush_by_asid || assignment.control != TlbControl::FlushAsid);
                    prop_assert!(tlbs.run(cpu, &assignment, (vcpu, versions[vcpu])), "stale at {step:?}");
                    cpus[cpu].executed(&mut slots[vcpu], assignment);
                }
            }
        }
    }
}

#[test]
fn only_an_asid_that_was_run_here_may_have_entries() {
    let (mut here, mut there, mut slot) = (allocator(0, 3, true), allocator(1, 3, true), AsidSlot::new());
    assert_eq!(here.resident(&slot), None, "never run");
    let _not_executed = here.assign(&mut slot);
    assert_eq!(here.resident(&slot), None, "not run yet");
    let (asid, ..) = enter(&mut here, &mut slot);
    assert_eq!((here.resident(&slot), there.resident(&slot)), (Some(asid), None));
    enter(&mut there, &mut slot);
    assert_eq!(here.resident(&slot), None, "it comes back to a new one");
    enter(&mut here, &mut slot);
    let mut others: [AsidSlot; 3] = Default::default();
    others.iter_mut().for_each(|other| _ = enter(&mut here, other));
    assert_eq!(here.resident(&slot), None, "of an earlier generation");
    slot.owe_flush();
    assert!(slot.owes_flush());
    enter(&mut here, &mut slot);
    assert!(!slot.owes_flush());
}
