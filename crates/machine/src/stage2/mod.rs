//! TLB maintenance of the machine's software on Arm64: the sequences and operands of
//! `coherence::tlbi`, executed on the machine's processors, and VMIDs from `coherence::vmid`.

mod tlb;

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use coherence::tlbi::{self, Context, Errata, Features, Granule, Limits, Setup, Vttbr};
use coherence::vmid::{Home, LocalMaintenance, Residents, VmidAllocator, VmidSlot};
use coherence::{CpuId, Hardware, Ledger, SpaceReceipt, SpaceUnfinished, Walkers};
use paging::{FlushRange, Invalidation};
use stay::broadcast::{self, AddressSpace, CpuStage2};
use stay::{Mistake, Mistakes};
pub(crate) use tlb::Tlb;

use crate::bug::Bug;
use crate::hw::cpu::{Roots, Tag};
use crate::hw::format::Arch;
use crate::machine::AbstractMachine;
use crate::program::Config;

/// The most physical CPUs.
pub(crate) const CPUS_MAX: usize = 3;
/// Bits of a VMID: the fewest that suffice for this many CPUs, so that generations end.
const VMID_BITS: u32 = 2;

/// The tag of one virtual machine, from its creation to its end.
#[derive(Debug)]
pub(crate) struct MachineTag {
    vmid: VmidSlot,
    residents: Residents<CPUS_MAX>,
    /// Root of its stage 2.
    root: Cell<u64>,
    /// Its first VMID.
    first: Cell<Option<u16>>,
}

impl MachineTag {
    fn new() -> Self {
        let (vmid, residents) = (VmidSlot::new(), Residents::new());
        Self { vmid, residents, root: Cell::new(0), first: Cell::new(None) }
    }

    fn vttbr(&self) -> u64 {
        Vttbr::new(self.root.get(), self.vmid.current().unwrap_or(0)).bits()
    }
}

/// VMIDs, and the contents of registers.
#[derive(Debug)]
pub(crate) struct Stage2 {
    vmids: VmidAllocator<CPUS_MAX>,
    /// By virtual machine.
    tags: RefCell<Vec<Rc<MachineTag>>>,
    /// VTTBR_EL2 of each CPU.
    vttbr: Vec<Cell<u64>>,
    /// A table without entries.
    nowhere: u64,
    /// The CPUs that have yet to leave their address spaces.
    must_leave: Vec<Cell<bool>>,
    setup: Setup,
}

impl Stage2 {
    pub(crate) fn new(config: &Config, nowhere: u64) -> Self {
        Self {
            vmids: VmidAllocator::new(VMID_BITS, config.cpus).expect("enough VMIDs"),
            tags: RefCell::new((0..config.vms).map(|_| Rc::new(MachineTag::new())).collect()),
            vttbr: vec![Cell::new(0); config.cpus],
            nowhere,
            must_leave: vec![Cell::new(false); config.cpus],
            setup: setup(config),
        }
    }

    pub(crate) fn loaded(&self, cpu: usize) -> Tag {
        (self.vttbr[cpu].get() >> 48) as Tag
    }

    fn tag(&self, vm: usize) -> Rc<MachineTag> {
        Rc::clone(&self.tags.borrow()[vm])
    }
}

/// Whom an arriving vCPU meets on a CPU, for mistakes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Met {
    /// Another vCPU of its machine ran last, of those.
    pub(crate) another: bool,
    /// The vCPU that ran last, of any machine, had the same index.
    pub(crate) same_index: bool,
}

/// The one mistake of leaving out the drop at an arrival.
struct WithoutDrop;

impl Mistakes for WithoutDrop {
    fn makes(&self, mistake: Mistake) -> bool {
        mistake == Mistake::ArrivalWithoutDrop
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

    /// Whether a mistake keeps this CPU from dropping its entries when a generation begins.
    pub(crate) fn misses_rollover(&self, cpu: usize) -> bool {
        self.has(Bug::RolloverMissesCpu) && cpu + 1 == self.config.cpus
    }

    /// The tag and the tables of a virtual machine.
    fn address_space<'a>(&'a self, tag: &'a MachineTag) -> AddressSpace<'a, CPUS_MAX> {
        let MachineTag { vmid, residents, root, .. } = tag;
        let Stage2 { vmids, setup, .. } = &self.stage2;
        AddressSpace { vmids, vmid, residents, root: root.get(), setup }
    }

    /// A virtual machine with this root is created, and gets a new tag.
    pub(crate) fn begin_tag(&self, vm: usize, root: u64) {
        let mut tags = self.stage2.tags.borrow_mut();
        if !self.has(Bug::TagHandedOn) {
            tags[vm] = Rc::new(MachineTag::new());
        }
        tags[vm].root.set(root);
    }

    /// The instructions of a CPU; with `roots`, VTTBR_EL2 is for them.
    pub(crate) fn tlb(&self, cpu: usize, roots: Option<Roots>) -> Tlb<'_> {
        let vttbr = if self.is_on(cpu) { self.stage2.vttbr[cpu].get() } else { self.any_vttbr() };
        Tlb { machine: self, cpu, vttbr: Cell::new(vttbr), in_effect: Cell::new(vttbr), roots }
    }

    /// The CPU on which a host runs may have any machine's tables loaded, or none.
    fn any_vttbr(&self) -> u64 {
        let tags = self.stage2.tags.borrow();
        let nowhere = Vttbr::new(self.stage2.nowhere, 0).bits();
        tags.get(self.below(tags.len() + 1)).map_or(nowhere, |tag| tag.vttbr())
    }

    /// A vCPU arrives at a CPU.
    pub(crate) fn arrive(&self, (cpu, vm): (usize, usize), place: &mut CpuStage2, home: &mut Home, met: Met) {
        let (tag, reach) = (self.stage2.tag(vm), self.reach());
        let id = CpuId(cpu as u32);
        let forgets = self.has(Bug::MigrationForgotten);
        let reach = if forgets { LocalMaintenance::Broadcast } else { reach };
        let mut space = self.address_space(&tag);
        let nobody = Residents::new();
        if self.has(Bug::VcpuMet) && met.another {
            let _ = space.residents.arrive(&mut home.clone(), id, reach);
            space.residents = &nobody;
        }
        // Moves are recorded elsewhere, and are not the point.
        if self.has(Bug::ResidentByIndex) && met.same_index && self.config.arm.forces_broadcast {
            place.arrive(&space, home, id, reach, &WithoutDrop);
        } else {
            place.arrive(&space, home, id, reach, &self.tlb(cpu, None));
        }
    }

    pub(crate) fn enter_address_space(&self, cpu: usize, vm: usize, roots: Roots, place: &mut CpuStage2) {
        let tag = self.stage2.tag(vm);
        let tlb = self.tlb(cpu, Some(roots));
        broadcast::enter_address_space(&tlb, self.known_as(cpu), place, &self.address_space(&tag), || ());
        if tag.first.get().is_none() {
            tag.first.set(tag.vmid.current());
        }
    }

    /// Whether a CPU has loaded these tables of a virtual machine, under its VMID.
    pub(crate) fn has_loaded(&self, cpu: usize, vm: usize, roots: Roots) -> bool {
        let vmid = self.stage2.tag(vm).vmid.current().unwrap_or(0);
        Vttbr::new(roots.nested, vmid).bits() == self.stage2.vttbr[cpu].get()
    }

    /// Whether a CPU has been asked to leave its address space.
    pub(crate) fn must_leave(&self, cpu: usize) -> bool {
        self.stage2.must_leave[cpu].get()
    }

    pub(crate) fn leave_address_space(&self, cpu: usize, place: &mut CpuStage2) {
        let Stage2 { nowhere, setup, must_leave, .. } = &self.stage2;
        match self.config.arch {
            Arch::Amd64 => return,
            Arch::Intel64 => {
                self.roots[cpu].let_go(self, |named| self.invept(cpu, named));
                must_leave[cpu].set(false);
                return;
            }
            Arch::Arm64 => {}
        }
        let roots = Roots { nested: *nowhere, guest: 0 };
        broadcast::leave_address_space(&self.tlb(cpu, Some(roots)), place, setup, *nowhere);
        self.note(|| "leaves its address space".into());
        must_leave[cpu].set(false);
    }

    /// All CPUs leave their address spaces, or let go of the root of one, and are waited for.
    pub(crate) fn wait_until_all_have_left(&self, root: u64) {
        let Stage2 { vttbr, nowhere, must_leave, .. } = &self.stage2;
        let has_left = |cpu: usize| match self.config.arch {
            Arch::Arm64 => vttbr[cpu].get() == Vttbr::new(*nowhere, 0).bits(),
            _ => !self.roots[cpu].holds(root),
        };
        for cpu in (0..self.config.cpus).filter(|&cpu| !has_left(cpu)) {
            must_leave[cpu].set(true);
            self.kick(cpu);
        }
        while must_leave.iter().any(Cell::get) {
            self.give_way();
        }
    }

    /// A vCPU of another virtual machine arrives at a CPU, uses a VMID, and leaves.
    pub(crate) fn be_visited(&self, cpu: usize, place: &mut CpuStage2) {
        let visitor = MachineTag::new();
        // A processor that uses entries of these tables uses a foreign entry.
        let tlb = self.tlb(cpu, Some(Roots { nested: 0, guest: 0 }));
        broadcast::enter_address_space(&tlb, self.known_as(cpu), place, &self.address_space(&visitor), || ());
        self.note(|| format!("is visited by a machine with VMID {}", self.stage2.loaded(cpu)));
    }

    /// Another virtual machine takes a VMID on this CPU, but does not enter its guest.
    pub(crate) fn be_passed(&self, cpu: usize) {
        let stranger = VmidSlot::new();
        let _it_does_not_run = self.stage2.vmids.assign(self.known_as(cpu), &stranger);
    }

    fn own_cpu(&self) -> usize {
        self.sched.current().filter(|&actor| actor < self.config.cpus).unwrap_or(0)
    }

    /// Drops the translations that `invalidation` names of a virtual machine's stage 2 from all
    /// processors, as [`broadcast::flush_space`] does.
    pub(crate) fn flush_stage2<'a, W: Walkers>(
        &self,
        vm: usize,
        walkers: &W,
        devices: &W::Devices<'a>,
        invalidation: Invalidation<'_>,
        ledger: &mut Ledger<2>,
        hardware: &impl Hardware,
    ) -> Result<SpaceReceipt<W::Stamp>, SpaceUnfinished<'a, W>> {
        let (tlb, tag) = (self.tlb(self.own_cpu(), None), self.tag_to_flush(vm));
        if self.has(Bug::VmidRemembered) {
            let (first, setup) = (tag.first.get().unwrap_or(0), &self.stage2.setup);
            return coherence::broadcast(walkers, devices, ledger, hardware, || {
                let context = Context::enter(&tlb, Vttbr::new(tag.root.get(), first), setup.errata);
                tlbi::invalidate(&context, setup, tlbi::Plan::<core::iter::Empty<_>>::Whole)
            });
        }
        let space = self.address_space(&tag);
        broadcast::flush_space(walkers, devices, &tlb, &space, invalidation, ledger, hardware)
    }

    /// The tag whose entries a flush for a virtual machine drops.
    fn tag_to_flush(&self, vm: usize) -> Rc<MachineTag> {
        self.stage2.tag(if self.has(Bug::WrongTagFlushed) { (vm + 1) % self.config.vms } else { vm })
    }

    /// An entry of a virtual machine's stage 2 was made invalid, and another follows.
    pub(crate) fn break_before_make(&self, vm: usize, range: &FlushRange) {
        let (tlb, tag) = (self.tlb(self.own_cpu(), None), self.tag_to_flush(vm));
        broadcast::break_before_make(&tlb, &self.address_space(&tag), range);
    }
}
