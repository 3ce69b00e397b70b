//! The allocator under loom, and proof that each of its parts is needed.
//!
//! Three CPUs, two bits, so three VMIDs, and enough machines for generations to end. CPUs keep
//! every entry that they are not told to drop. CPU 2 only continues with its machine: it stays in
//! its guest for a long time.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64 as Plain;

use super::*;
use crate::explored;
use crate::interleave::{explore, on_a_thread};
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release};

type Allocator = VmidAllocator<3>;

/// The steps of an assignment, one of which a mutant replaces.
struct Steps {
    exchange: fn(&AtomicU64, u64) -> u64,
    is_valid: fn(u64, u64) -> bool,
    keep: fn(&Allocator, u64) -> Option<u64>,
    roll_over: fn(&Allocator, CpuId),
    must_flush: fn(bool) -> bool,
    current: fn(&VmidSlot) -> Option<u16>,
}

const REAL: Steps = Steps {
    exchange: |active, word| active.swap(word, AcqRel),
    is_valid: |former, wanted| former & FLAGS == 0 && generation(former) == generation(wanted) && wanted != 0,
    keep: |allocator, old| allocator.keep(old),
    roll_over: |allocator, cpu| allocator.roll_over(cpu),
    must_flush: |must_flush| must_flush,
    current: |slot| slot.current(),
};

/// `VmidAllocator::assign`, made of these steps.
fn assign<'a>(steps: &Steps, allocator: &'a Allocator, cpu: CpuId, slot: &VmidSlot) -> Assignment<'a> {
    let place = &allocator.places[cpu.0 as usize];
    let wanted = slot.word.load(Acquire);
    let former = (steps.exchange)(&place.active, wanted);
    if (steps.is_valid)(former, wanted) {
        return Assignment { vmid: vmid(wanted), must_flush: false, place };
    }
    let assignment = allocator.locked(|| {
        let old = slot.word.load(Relaxed);
        let is_old = generation(old) != allocator.generation.load(Relaxed);
        let word = if is_old {
            let kept = (steps.keep)(allocator, old);
            kept.unwrap_or_else(|| allocator.take(|| (steps.roll_over)(allocator, cpu)))
        } else {
            old
        };
        if is_old {
            slot.word.swap(word, AcqRel);
        }
        allocator.settle(cpu, former, word)
    });
    Assignment { must_flush: (steps.must_flush)(assignment.must_flush), ..assignment }
}

/// The machines, and what runs.
struct World {
    /// `None` for the allocator as it is.
    steps: Option<&'static Steps>,
    allocator: Allocator,
    slots: [VmidSlot; 5],
    /// By CPU, the machine and VMID that run, 0 for none. Changed and read by read-modify-write, so
    /// of two CPUs one sees the other.
    running: [Plain; 3],
    /// An entry of machine 0's tables: whether it has been replaced.
    entry: Plain,
}

impl World {
    fn new(steps: Option<&'static Steps>) -> Self {
        Self {
            steps,
            allocator: Allocator::new(2, 3).expect("three CPUs, three VMIDs"),
            slots: core::array::from_fn(|_| VmidSlot::new()),
            running: core::array::from_fn(|_| Plain::new(0)),
            entry: Plain::new(0),
        }
    }
}

/// One CPU, and the machine whose entries it holds under each VMID.
#[derive(Clone, Copy, Default)]
struct Cpu {
    number: usize,
    tlb: [Option<usize>; 4],
}

impl Cpu {
    fn new(number: usize) -> Self {
        Self { number, ..Self::default() }
    }

    fn run(&mut self, world: &World, machine: usize) {
        let _vmid = self.enter(world, machine);
    }

    /// Leaves its machine, and enters a guest of `machine`. Returns the VMID.
    fn enter(&mut self, world: &World, machine: usize) -> u16 {
        world.running[self.number].swap(0, AcqRel);
        let (cpu, slot) = (CpuId(self.number as u32), &world.slots[machine]);
        let assignment = match world.steps {
            None => world.allocator.assign(cpu, slot),
            Some(steps) => assign(steps, &world.allocator, cpu, slot),
        };
        let vmid = assignment.vmid();
        if assignment.must_flush() {
            self.tlb = [None; 4];
        }
        assignment.executed();
        let held = self.tlb[usize::from(vmid)].replace(machine);
        assert!(held.is_none_or(|held| held == machine), "entries of another machine");
        world.running[self.number].swap(u64::from(vmid) << 8 | machine as u64 | 1 << 32, AcqRel);
        for other in (0..3).filter(|&other| other != self.number) {
            let other = world.running[other].fetch_or(0, AcqRel);
            if other != 0 {
                let (of, under) = (other as u8 as usize, (other >> 8) as u16);
                assert!(of == machine || under != vmid, "one VMID for two machines");
                assert!(of != machine || under == vmid, "two VMIDs for one machine");
            }
        }
        vmid
    }
}

/// CPU 0 runs machine 2, CPU 1 machine 1, CPU 2 nothing; machines 0 to 2 have the VMIDs 1 to 3, and
/// no VMID is left.
fn exhausted(steps: Option<&'static Steps>) -> (Arc<World>, [Cpu; 3]) {
    let world = Arc::new(World::new(steps));
    let mut cpus = [0, 1, 2].map(Cpu::new);
    cpus[0].enter(&world, 0);
    cpus[1].enter(&world, 1);
    cpus[0].enter(&world, 2);
    (world, cpus)
}

/// Two CPUs, each on a thread of its own.
fn beside(
    world: &Arc<World>,
    mut first: Cpu,
    mut second: Cpu,
    on_first: fn(&World, &mut Cpu),
    on_second: fn(&World, &mut Cpu),
) {
    let other = on_a_thread(&world, move |world| on_first(world, &mut first));
    on_second(world, &mut second);
    other.join().unwrap();
}

/// One CPU returns to a machine of this generation while the other begins the next.
fn stealing(steps: Option<&'static Steps>) {
    let (world, cpus) = exhausted(steps);
    beside(&world, cpus[0], cpus[1], |world, cpu| cpu.run(world, 0), |world, cpu| cpu.run(world, 3));
}

/// The same, and then it takes a machine of the new generation: its entries under that VMID are
/// another machine's.
fn returning(steps: Option<&'static Steps>) {
    let (world, cpus) = exhausted(steps);
    let on_first = |world: &World, cpu: &mut Cpu| {
        cpu.enter(world, 0);
        cpu.enter(world, 3);
    };
    beside(&world, cpus[0], cpus[1], on_first, |world, cpu| cpu.run(world, 3));
}

/// Both begin a generation, or only one of them does; two vCPUs of one machine are involved.
fn both_rolling(steps: Option<&'static Steps>) {
    let (world, cpus) = exhausted(steps);
    let on_first = |world: &World, cpu: &mut Cpu| {
        cpu.enter(world, 3);
        cpu.enter(world, 1);
    };
    beside(&world, cpus[0], cpus[1], on_first, |world, cpu| cpu.run(world, 4));
}

/// CPU 2 runs machine 3 under the VMID that machine 0 had a generation ago. CPU 0 is about to enter
/// machine 0 when CPU 1 begins the next generation.
fn long_ago(steps: Option<&'static Steps>) {
    let (world, mut cpus) = exhausted(steps);
    assert_eq!(cpus[2].enter(&world, 3), 1, "machine 0 does not run");
    cpus[1].enter(&world, 1);
    cpus[0].enter(&world, 2);
    beside(&world, cpus[0], cpus[1], |world, cpu| cpu.run(world, 0), |world, cpu| cpu.run(world, 4));
}

/// CPU 2 stays with machine 3 for several generations; then another vCPU of that machine runs,
/// twice.
fn staying(steps: Option<&'static Steps>) {
    let (world, mut cpus) = exhausted(steps);
    let vmid = cpus[2].enter(&world, 3);
    for _ in 0..2 {
        // A CPU renews machine 3 and then leaves it; others take the remaining VMIDs until
        // generations end.
        assert_eq!(cpus[1].enter(&world, 3), vmid, "two VMIDs for one machine");
        cpus[1].run(&world, 2);
        for machine in [0, 1, 4] {
            cpus[0].enter(&world, machine);
        }
    }
    assert_eq!(cpus[1].enter(&world, 3), vmid, "two VMIDs for one machine");
}

/// A CPU enters a machine under a new VMID while another one changes its tables and determines the
/// VMID to invalidate.
fn invalidating(steps: Option<&'static Steps>) {
    let (world, cpus) = exhausted(steps);
    let mut other = cpus[1];
    other.enter(&world, 3);
    let mut entering = cpus[0];
    let guest = on_a_thread(&world, move |world| {
        let vmid = entering.enter(world, 0);
        (vmid, world.entry.load(Relaxed))
    });
    world.entry.store(1, Relaxed);
    let current = match steps {
        None => world.slots[0].current(),
        Some(steps) => (steps.current)(&world.slots[0]),
    };
    let (vmid, entry) = guest.join().unwrap();
    assert!(entry == 1 || current == Some(vmid), "the old entry is held, and is not invalidated");
}

explored! {
    a4_running_vmid_is_not_stolen: Some(4) => || stealing(None);
    a4_nothing_of_a_former_generation_is_met: Some(3) => || returning(None);
    a4_two_generations_at_once: Some(3) => || both_rolling(None);
    a4_vmid_of_long_ago_is_not_claimed: Some(3) => || long_ago(None);
    a4_machine_that_stays_keeps_its_vmid: Some(1) => || staying(None);
    o3_invalidation_is_for_the_vmid_that_walks_the_old_tables: Some(4) => || invalidating(None);
    the_steps_are_those_of_the_allocator:
        Some(2) => || stealing(Some(&REAL)),
        Some(2) => || long_ago(Some(&REAL));
}

/// Defines a mutant: steps of which one is replaced, and the scenario that detects it.
macro_rules! mutants {
    ($($(#[$doc:meta])+ $test:ident: $scenario:ident, $seen:literal, $step:ident = $instead:expr;)+) => {$(
        $(#[$doc])+
        #[test]
        #[should_panic(expected = $seen)]
        fn $test() {
            const MUTANT: Steps = Steps { $step: $instead, ..REAL };
            explore(Some(3), || $scenario(Some(&MUTANT)));
        }
    )+};
}

mutants! {
    /// C ignores REVOKED.
    entry_that_ignores_revocation: stealing, "one VMID for two machines",
    is_valid = |former, wanted| generation(former) == generation(wanted) && wanted != 0;

    /// O5: B is a load and a store, and erases what S sets in between.
    o5_own_word_by_load_and_store: stealing, "one VMID for two machines",
    exchange = |active, word| {
        let former = active.load(Acquire);
        active.store(word, Release);
        former
    };
}

/// Steps R and S, with the look at a CPU's word and the VMID then reserved for it replaced.
fn roll_over_by(
    allocator: &Allocator,
    cpu: CpuId,
    look: fn(&AtomicU64) -> u64,
    reserved: fn(active: u64, ending: u64) -> Option<u64>,
) {
    let ending = allocator.generation.load(Relaxed);
    allocator.generation.store(ending + 1, Relaxed);
    allocator.newest.store(0, Relaxed);
    for (index, place) in allocator.places.iter().enumerate() {
        if index == cpu.0 as usize {
            place.reserved.store(0, Relaxed);
        } else if let Some(reserved) = reserved(look(&place.active), ending) {
            place.reserved.store(reserved, Relaxed);
        }
    }
}

fn revoked(active: &AtomicU64) -> u64 {
    active.fetch_or(REVOKED, AcqRel)
}

fn reserved(active: u64, ending: u64) -> Option<u64> {
    let reserved = if generation(active) == ending { active & !FLAGS } else { 0 };
    (active & REVOKED == 0).then_some(reserved)
}

mutants! {
    /// S is a load: B may come after it, and that CPU is not told.
    o3_running_vmids_by_a_load: stealing, "one VMID for two machines",
    roll_over = |allocator, cpu| roll_over_by(allocator, cpu, |active| active.load(Acquire), reserved);

    /// A4: nothing is reserved.
    a4_running_vmids_are_not_reserved: stealing, "one VMID for two machines",
    roll_over = |allocator, cpu| roll_over_by(allocator, cpu, revoked, |_, _| Some(0));

    /// A4: the word stored by a CPU between B and D is taken for a machine that runs, though
    /// another has its VMID now.
    a4_words_of_long_ago_are_reserved: long_ago, "one VMID for two machines",
    roll_over = |allocator, cpu| {
        roll_over_by(allocator, cpu, revoked, |active, _| (active & REVOKED == 0).then_some(active & !FLAGS))
    };

    /// A VMID that stays reserved from generation to generation reverts to its first name.
    a4_reserved_under_its_former_name: staying, "two VMIDs for one machine",
    roll_over = |allocator, cpu| {
        roll_over_by(allocator, cpu, revoked, |active, ending| {
            let runs = active & REVOKED != 0 || generation(active) == ending;
            Some(if runs { active & !FLAGS } else { 0 })
        })
    };

    /// A machine that runs elsewhere is given another VMID.
    a4_running_machine_is_renumbered: staying, "two VMIDs for one machine",
    keep = |_, _| None;

    /// E is left out.
    a4_nothing_is_dropped_in_a_new_generation: returning, "entries of another machine",
    must_flush = |_| false;

    /// W is a load.
    o3_current_vmid_by_a_load: invalidating, "is not invalidated",
    current = |slot| Some(vmid(slot.word.load(Acquire)));
}
