//! What the machine's software does about TLBs on Arm64: the sequences and operands of `coherence::tlbi`, executed on the
//! machine's processors, and VMIDs from `coherence::vmid`.

use std::cell::Cell;
use std::ops::Range;

use coherence::CpuId;
use coherence::tlbi::{
    Context, Errata, Features, Granule, Invalidated, LeafLevel, Limits, Plan, Setup, Stage2Tlb, Stale, Vttbr,
    enter_vm, invalidate, plan,
};
use coherence::vmid::{Arrival, Home, LocalMaintenance, Resident, VmidAllocator, VmidSlot};
use paging::{FlushRange, Level};

use crate::bug::Bug;
use crate::hw::cpu::{Roots, Tag};
use crate::hw::instruction::Tlbi;
use crate::machine::Machine;
use crate::program::Config;

/// Most physical CPUs.
pub(crate) const CPUS_MAX: usize = 3;
/// Bits of a VMID: as few as so many CPUs can do with, so that generations end.
const VMID_BITS: u32 = 2;

/// VMIDs, and what is in registers.
#[derive(Debug)]
pub(crate) struct Stage2 {
    vmids: VmidAllocator<CPUS_MAX>,
    /// By virtual machine.
    slots: Vec<VmidSlot>,
    /// By virtual machine, the first VMID that it had.
    first: Vec<Cell<Option<u16>>>,
    /// VTTBR_EL2 of each CPU.
    vttbr: Vec<Cell<u64>>,
}

impl Stage2 {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            vmids: VmidAllocator::new(VMID_BITS, config.cpus).expect("enough VMIDs"),
            slots: (0..config.vms).map(|_| VmidSlot::new()).collect(),
            first: vec![Cell::new(None); config.vms],
            vttbr: vec![Cell::new(0); config.cpus],
        }
    }

    /// The VMID that a CPU has loaded.
    pub(crate) fn loaded(&self, cpu: usize) -> Tag {
        (self.vttbr[cpu].get() >> 48) as Tag
    }
}

/// Which vCPUs of each virtual machine were on a CPU.
pub(crate) type Residents = Vec<Resident>;

/// Instructions, as one CPU executes them.
struct Tlb<'m> {
    machine: &'m Machine,
    cpu: usize,
    vttbr: Cell<u64>,
    /// Tables that come into use with VTTBR_EL2; `None` if it is written for a sequence only, while nobody walks.
    roots: Option<Roots>,
}

impl Tlb<'_> {
    fn ask(&self, what: Tlbi) {
        let what = if self.machine.has(Bug::WalkCacheKept) { what.of_leaves() } else { what };
        self.machine.hw.borrow_mut().tlbi(self.cpu, (self.vttbr.get() >> 48) as Tag, what);
    }

    /// What the architecture reserves does nothing.
    fn ask_if(&self, what: Option<Tlbi>) {
        match what {
            Some(what) => self.ask(what),
            None => self.machine.fail(|| "the operand of a TLBI is reserved".into()),
        }
    }
}

impl Stage2Tlb for Tlb<'_> {
    // Memory is sequentially consistent here, and there are no caches but TLBs.
    fn order_stores(&self) {}
    fn context_sync(&self) {}
    fn complete_caches(&self) {}
    fn instruction_cache(&self) {}
    fn local_instruction_cache(&self) {}
    fn clean(&self, _memory: Range<u64>) {}
    fn restore_stage1_walks(&self, _former: u64) {}

    fn forbid_stage1_walks(&self) -> u64 {
        0
    }

    fn complete(&self) {
        if self.machine.has(Bug::CompletedLocally) {
            return self.complete_local();
        }
        self.machine.hw.borrow_mut().dsb(self.cpu);
        self.machine.hook();
    }

    fn complete_local(&self) {
        self.machine.hw.borrow_mut().dsb_local(self.cpu);
        self.machine.hook();
    }

    fn page(&self, operand: u64) {
        self.ask_if(Tlbi::page(operand));
    }

    fn range(&self, operand: u64) {
        if !self.machine.config.arm.range {
            self.machine.fail(|| "a range instruction, which the processor does not have".into());
        }
        self.ask_if(Tlbi::range(operand));
    }

    fn combined(&self) {
        if !self.machine.has(Bug::CombinedKept) {
            self.ask(Tlbi::Vmall);
        }
    }

    fn everything(&self) {
        self.ask(Tlbi::VmallS12);
    }

    fn all_vms(&self) {
        self.machine.fail(|| "nobody invalidates for all machines".into());
    }

    fn local_combined(&self) {
        self.ask(Tlbi::VmallLocal);
    }

    fn local_all_vms(&self) {
        self.ask(Tlbi::AllLocal);
    }

    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.vttbr.set(value);
        if let Some(roots) = self.roots {
            self.machine.stage2.vttbr[self.cpu].set(value);
            self.machine.hw.borrow_mut().load(self.cpu, (value >> 48) as Tag, roots);
            self.machine.hook();
        }
    }
}

impl Machine {
    fn setup(&self) -> Setup {
        let arm = self.config.arm;
        Setup {
            granule: Granule::Size4K,
            features: Features { range: arm.range, ttl: arm.ttl, ..Features::default() },
            errata: Errata::default(),
            limits: Limits { pages_max: arm.pages_max, ranges_max: arm.ranges_max },
        }
    }

    /// How far a guest's instructions for its own processor reach.
    const fn reach(&self) -> LocalMaintenance {
        match self.config.arm.forces_broadcast {
            true => LocalMaintenance::Broadcast,
            false => LocalMaintenance::Local,
        }
    }

    /// As which CPU one presents itself to the allocator.
    fn known_as(&self, cpu: usize) -> CpuId {
        CpuId(if self.has(Bug::VmidStolen) { 0 } else { cpu as u32 })
    }

    /// A vCPU of a virtual machine comes to a CPU: its VMID, and what has to be dropped. Returns the tag.
    pub(crate) fn arrive(
        &self,
        cpu: usize,
        vm: usize,
        roots: Roots,
        resident: &mut Resident,
        (number, home): (usize, &mut Home),
    ) -> Tag {
        let assignment = self.stage2.vmids.assign(self.known_as(cpu), &self.stage2.slots[vm]);
        let vmid = assignment.vmid();
        let was_here = *resident;
        let mut arrival = resident.arrive(number as u32, home, CpuId(cpu as u32), self.reach());
        let is_same = was_here == *resident;
        if self.has(Bug::VcpuMet) && !is_same || self.has(Bug::MigrationForgotten) && is_same {
            arrival.stage1 = false;
        }
        self.load(cpu, Vttbr::new(roots.nested, vmid), roots, arrival.with_all_vms(assignment.must_flush()));
        assignment.executed();
        if self.stage2.first[vm].get().is_none() {
            self.stage2.first[vm].set(Some(vmid));
        }
        vmid.into()
    }

    /// A vCPU of some other virtual machine comes to a CPU, and goes. It has used a VMID.
    pub(crate) fn be_visited(&self, cpu: usize) {
        let slot = VmidSlot::new();
        let assignment = self.stage2.vmids.assign(self.known_as(cpu), &slot);
        // Who ever uses what was loaded by these tables has somebody else's entry.
        let roots = Roots { nested: 0, guest: 0 };
        let arrival = Arrival::NOTHING.with_all_vms(assignment.must_flush());
        self.load(cpu, Vttbr::new(roots.nested, assignment.vmid()), roots, arrival);
        self.note(|| format!("is visited by a machine with VMID {}", assignment.vmid()));
        assignment.executed();
    }

    fn load(&self, cpu: usize, vttbr: Vttbr, roots: Roots, mut arrival: Arrival) {
        let now = Cell::new(self.stage2.vttbr[cpu].get());
        let tlb = Tlb { machine: self, cpu, vttbr: now, roots: Some(roots) };
        if self.has(Bug::GenerationFlushedEarly) && arrival.all_vms {
            tlb.local_all_vms();
            tlb.complete_local();
        }
        arrival.all_vms &= !self.has(Bug::GenerationKept) && !self.has(Bug::GenerationFlushedEarly);
        enter_vm(&tlb, &self.setup(), vttbr, arrival);
    }

    /// Invalidates ranges of a virtual machine's stage 2, or all of it, for whoever runs.
    pub(crate) fn invalidate_stage2(&self, vm: usize, ranges: Option<&[FlushRange]>) -> Invalidated {
        let cpu = self.sched.current().filter(|&actor| actor < self.config.cpus).unwrap_or(0);
        let current = self.stage2.slots[vm].current();
        let first = self.stage2.first[vm].get();
        // 0 if it has never run: nobody holds anything.
        let vmid = if self.has(Bug::VmidRemembered) { first } else { current }.unwrap_or(0);
        let (setup, tlb) = (self.setup(), Tlb { machine: self, cpu, vttbr: Cell::new(0), roots: None });
        // The tables do not matter: nobody walks meanwhile.
        let context = Context::enter(&tlb, Vttbr::new(0x1000, vmid), setup.errata);
        let stale = ranges.unwrap_or(&[]).iter().map(|range| self.stale(range));
        let plan = if ranges.is_some() { plan(&setup, stale) } else { Plan::Whole };
        invalidate(&context, &setup, plan)
    }

    fn stale(&self, range: &FlushRange) -> Stale {
        let FlushRange { start, len, level, tables } = *range;
        let leaf = match level {
            Level::Page4K => Some(LeafLevel::Three),
            Level::Page2M => Some(LeafLevel::Two),
            Level::Page1G => Some(LeafLevel::One),
            Level::Page512G => None,
        };
        match self.has(Bug::WrongLevelHint) {
            false => Stale { start, len, leaf, tables },
            // The level of the table that was cut off, or of the block that pages have been.
            true => Stale { start, len, leaf: Some(LeafLevel::Two), tables: false },
        }
    }
}
