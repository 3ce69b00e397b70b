//! TLB maintenance of the machine's software on Arm64: the sequences and operands of
//! `coherence::tlbi`, executed on the machine's processors, and VMIDs from `coherence::vmid`.

use std::cell::Cell;
use std::ops::Range;

use coherence::tlbi::{self, Context, Errata, Features, Granule, Limits, Setup, Stage2Tlb, Vttbr};
use coherence::vmid::{LocalMaintenance, VmidAllocator, VmidSlot};
use coherence::{CpuId, Hardware, Ledger, SpaceReceipt, Stalled, Walkers};
use paging::{FlushRange, Invalidation};
use stay::arm64::{self, AddressSpace, Place};
use stay::{Mistake, Mistakes};

use crate::bug::Bug;
use crate::hw::cpu::{Roots, Tag};
use crate::hw::instruction::Tlbi;
use crate::machine::AbstractMachine;
use crate::program::Config;

/// The most physical CPUs.
pub(crate) const CPUS_MAX: usize = 3;
/// Bits of a VMID: the fewest that suffice for this many CPUs, so that generations end.
const VMID_BITS: u32 = 2;
/// Root of the tables in VTTBR_EL2 during an invalidation: it does not matter, because nothing
/// walks meanwhile.
const ROOT: u64 = 0x1000;

/// VMIDs, and the contents of registers.
#[derive(Debug)]
pub(crate) struct Stage2 {
    vmids: VmidAllocator<CPUS_MAX>,
    /// By virtual machine.
    slots: Vec<VmidSlot>,
    /// By virtual machine, its first VMID.
    first: Vec<Cell<Option<u16>>>,
    /// VTTBR_EL2 of each CPU.
    vttbr: Vec<Cell<u64>>,
    setup: Setup,
}

impl Stage2 {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            vmids: VmidAllocator::new(VMID_BITS, config.cpus).expect("enough VMIDs"),
            slots: (0..config.vms).map(|_| VmidSlot::new()).collect(),
            first: vec![Cell::new(None); config.vms],
            vttbr: vec![Cell::new(0); config.cpus],
            setup: setup(config),
        }
    }

    /// The VMID that a CPU has loaded.
    pub(crate) fn loaded(&self, cpu: usize) -> Tag {
        (self.vttbr[cpu].get() >> 48) as Tag
    }
}

/// Instructions, as one CPU executes them.
pub(crate) struct Tlb<'m> {
    machine: &'m AbstractMachine,
    cpu: usize,
    vttbr: Cell<u64>,
    /// Tables that are loaded with VTTBR_EL2; `None` if it is written only for a sequence, while
    /// nothing walks.
    roots: Option<Roots>,
}

impl Tlb<'_> {
    fn ask(&self, what: Tlbi) {
        let what = if self.machine.has(Bug::WalkCacheKept) { what.of_leaves() } else { what };
        self.machine.hw.borrow_mut().tlbi(self.cpu, (self.vttbr.get() >> 48) as Tag, what);
    }

    /// Reserved encodings do nothing.
    fn ask_if(&self, what: Option<Tlbi>) {
        match what {
            Some(what) => self.ask(what),
            None => self.machine.fail(|| "the operand of a TLBI is reserved".into()),
        }
    }
}

impl Stage2Tlb for Tlb<'_> {
    // Memory is sequentially consistent here, and there are no caches except TLBs.
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
        if !self.machine.has(Bug::GenerationFlushedEarly) {
            self.ask(Tlbi::AllLocal);
        }
    }

    fn vttbr(&self) -> u64 {
        self.vttbr.get()
    }

    fn set_vttbr(&self, value: u64) {
        self.vttbr.set(value);
        if let Some(roots) = self.roots {
            if self.machine.has(Bug::GenerationFlushedEarly) {
                // As if it were always necessary, but not afterwards.
                self.ask(Tlbi::AllLocal);
                self.complete_local();
            }
            self.machine.stage2.vttbr[self.cpu].set(value);
            self.machine.hw.borrow_mut().load(self.cpu, (value >> 48) as Tag, roots);
            self.machine.hook();
        }
    }
}

impl Mistakes for Tlb<'_> {
    fn makes(&self, mistake: Mistake) -> bool {
        self.machine.makes(mistake)
    }
}

/// The processors' features, and how much is done page by page.
fn setup(config: &Config) -> Setup {
    let arm = config.arm;
    Setup {
        granule: Granule::Size4K,
        features: Features { range: arm.range, ttl: arm.ttl, ..Features::default() },
        errata: Errata::default(),
        limits: Limits { pages_max: arm.pages_max, ranges_max: arm.ranges_max },
    }
}

impl AbstractMachine {
    /// The reach of a guest's local instructions.
    pub(crate) const fn reach(&self) -> LocalMaintenance {
        match self.config.arm.forces_broadcast {
            true => LocalMaintenance::Broadcast,
            false => LocalMaintenance::Local,
        }
    }

    /// The number under which a CPU reports to the allocator.
    fn known_as(&self, cpu: usize) -> CpuId {
        CpuId(if self.has(Bug::VmidStolen) { 0 } else { cpu as u32 })
    }

    /// The tag of a virtual machine's translations.
    fn address_space<'a>(&'a self, slot: &'a VmidSlot, root: u64) -> AddressSpace<'a, CPUS_MAX> {
        AddressSpace { vmids: &self.stage2.vmids, vmid: slot, root, setup: &self.stage2.setup }
    }

    /// The instructions of a CPU; with `roots`, VTTBR_EL2 is for them.
    pub(crate) fn tlb(&self, cpu: usize, roots: Option<Roots>) -> Tlb<'_> {
        let loaded = if roots.is_some() { self.stage2.vttbr[cpu].get() } else { 0 };
        Tlb { machine: self, cpu, vttbr: Cell::new(loaded), roots }
    }

    /// A CPU enters the address space of a virtual machine.
    pub(crate) fn enter_address_space(&self, cpu: usize, vm: usize, roots: Roots, place: &mut Place) {
        let space = self.address_space(&self.stage2.slots[vm], roots.nested);
        let tlb = self.tlb(cpu, Some(roots));
        arm64::enter_address_space(&tlb, self.known_as(cpu), place, &space, || ());
        if self.stage2.first[vm].get().is_none() {
            self.stage2.first[vm].set(self.stage2.slots[vm].current());
        }
    }

    /// Whether these are the tables that a CPU has loaded.
    pub(crate) fn has_loaded(&self, cpu: usize, roots: Roots) -> bool {
        let vttbr = self.stage2.vttbr[cpu].get();
        Vttbr::new(roots.nested, (vttbr >> 48) as u16).bits() == vttbr
    }

    /// A vCPU of another virtual machine arrives at a CPU, uses a VMID, and leaves.
    pub(crate) fn be_visited(&self, cpu: usize, place: &mut Place) {
        let slot = VmidSlot::new();
        // A processor that uses entries of these tables uses a foreign entry.
        let roots = Roots { nested: 0, guest: 0 };
        let tlb = self.tlb(cpu, Some(roots));
        let space = self.address_space(&slot, roots.nested);
        arm64::enter_address_space(&tlb, self.known_as(cpu), place, &space, || ());
        self.note(|| format!("is visited by a machine with VMID {}", self.stage2.loaded(cpu)));
    }

    /// Another virtual machine takes a VMID on this CPU, but does not enter its guest.
    pub(crate) fn be_passed(&self, cpu: usize) {
        let stranger = VmidSlot::new();
        let _it_does_not_run = self.stage2.vmids.assign(self.known_as(cpu), &stranger);
    }

    /// The CPU of the current actor.
    fn own_cpu(&self) -> usize {
        self.sched.current().filter(|&actor| actor < self.config.cpus).unwrap_or(0)
    }

    /// Drops the translations that `invalidation` names of a virtual machine's stage 2 from all
    /// processors, as [`arm64::flush_space`] does.
    pub(crate) fn flush_stage2<W: Walkers>(
        &self,
        vm: usize,
        walkers: &W,
        invalidation: Invalidation<'_>,
        ledger: &mut Ledger<2>,
        hardware: &impl Hardware,
    ) -> Result<SpaceReceipt<W::Stamp>, Stalled> {
        let tlb = self.tlb(self.own_cpu(), None);
        let space = self.address_space(&self.stage2.slots[vm], ROOT);
        if self.has(Bug::VmidRemembered) {
            let first = self.stage2.first[vm].get().unwrap_or(0);
            let setup = &self.stage2.setup;
            return coherence::broadcast(walkers, ledger, hardware, || {
                let context = Context::enter(&tlb, Vttbr::new(ROOT, first), setup.errata);
                tlbi::invalidate(&context, setup, tlbi::Plan::<core::iter::Empty<_>>::Whole)
            });
        }
        arm64::flush_space(walkers, &tlb, &space, invalidation, ledger, hardware)
    }

    /// An entry of a virtual machine's stage 2 was made invalid, and another follows.
    pub(crate) fn break_before_make(&self, vm: usize, range: &FlushRange) {
        let tlb = self.tlb(self.own_cpu(), None);
        let space = self.address_space(&self.stage2.slots[vm], ROOT);
        arm64::break_before_make(&tlb, &space, range);
    }
}
