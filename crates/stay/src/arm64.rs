//! Arm64: translations are tagged by a machine's VMID, the same on all processors, and flushes are
//! broadcasts.
//!
//! ```text
//! who changes the tables                   a processor
//! A  entries changed                       P  asks for the machine's VMID (VmidAllocator::assign)
//! B  asks for the VMID (VmidSlot::current) Q  VTTBR_EL2, then drops what the vCPU must not meet here
//! C  TLBI for that VMID, DSB               R  walks
//! D  sections that are open have ended
//! ```
//!
//! * B after A and Q before R: a processor that gets a new VMID after B walks the new tables.
//!   `coherence::vmid` says more.
//! * What an [`Arrival`] asks for is carried out at the next P that comes, whether or not the VMID
//!   is new: that may be one for an entry that is called off.
//!
//! Source: Arm DDI 0487, D8.13 and D8.17.

use coherence::tlbi::{self, Context, LeafLevel, Setup, Stage2Tlb, Stale, Vttbr};
use coherence::vmid::{Arrival, Home, LocalMaintenance, Resident, VmidAllocator, VmidSlot};
use coherence::{CpuId, Hardware, Ledger, Owner, SpaceReceipt, Stalled, Walkers};
use paging::{FlushRange, Invalidation, Level};

use crate::{Mistake, Mistakes};

/// What a machine's translations are tagged with, and where they come from.
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a, const CPUS: usize> {
    /// VMIDs of all machines.
    pub vmids: &'a VmidAllocator<CPUS>,
    /// The machine's own.
    pub vmid: &'a VmidSlot,
    /// Root of stage 2.
    pub root: u64,
    /// Processor and limits.
    pub setup: &'a Setup,
}

/// What a processor has loaded, and what it has to drop.
#[derive(Debug, Default)]
pub struct Place {
    /// The VMID in VTTBR_EL2; 0 before the first.
    vmid: u16,
    /// What has to be dropped before the vCPU on this processor enters the guest.
    arrival: Option<Arrival>,
}

/// What [`enter_address_space`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// Something was loaded or dropped. Stage-1 walks may be forbidden then, until TCR_EL1 is
    /// loaded (see [`tlbi::enter_vm`]).
    pub has_changed: bool,
    /// A generation of VMIDs has begun, and what the processor held of all machines is dropped.
    pub dropped_all: bool,
}

impl Place {
    /// Nothing is loaded.
    pub const fn new() -> Self {
        Self { vmid: 0, arrival: None }
    }

    /// A vCPU of a machine comes to this processor, where `resident` is the machine's record.
    /// Whether what it must not meet here has to be dropped: that is done when it enters its
    /// address space.
    pub fn arrive(
        &mut self,
        resident: &mut Resident,
        (vcpu, home): (u32, &mut Home),
        cpu: CpuId,
        reach: LocalMaintenance,
        mistakes: &impl Mistakes,
    ) -> bool {
        let arrival = resident.arrive(vcpu, home, cpu, reach);
        self.arrival = (!mistakes.makes(Mistake::ArrivalWithoutDrop)).then_some(arrival);
        arrival.stage1
    }
}

/// Loads VTTBR_EL2 with the machine's VMID, where it is not loaded, and drops what has to be
/// dropped before the guest runs. `before` comes ahead of all that.
///
/// Call it when a vCPU has arrived, and before each entry: meanwhile the VMID may have become
/// another machine's.
#[inline(always)] // On the way of each entry.
pub fn enter_address_space<T: Stage2Tlb + Mistakes, const CPUS: usize>(
    tlb: &T,
    cpu: CpuId,
    place: &mut Place,
    space: &AddressSpace<'_, CPUS>,
    before: impl FnOnce(),
) -> Entered {
    let assignment = space.vmids.assign(cpu, space.vmid);
    let is_known = place.vmid == assignment.vmid() || tlb.makes(Mistake::VmidNotLoaded) && place.vmid != 0;
    let must_flush = assignment.must_flush() && !tlb.makes(Mistake::GenerationKept);
    let arrives = place.arrival.is_some() && !tlb.makes(Mistake::DropWithVmidOnly);
    let has_changed = !is_known || must_flush || arrives;
    if has_changed {
        before();
        let arrival = place.arrival.take().unwrap_or_default().with_all_vms(must_flush);
        let vmid = if is_known { place.vmid } else { assignment.vmid() };
        tlbi::enter_vm(tlb, space.setup, Vttbr::new(space.root, vmid), arrival);
        place.vmid = vmid;
    }
    assignment.executed();
    Entered { has_changed, dropped_all: must_flush }
}

/// What only a processor can do, for the vCPU whose state it has.
pub trait Processor {
    /// Which one it is.
    fn id(&self) -> CpuId;
    /// Puts interrupts that wait into the list registers.
    fn fill_lists(&mut self);
    /// ERET, and back. Interrupts are masked: one that comes ends guest mode as soon as it begins.
    fn run(&mut self);
    /// Takes back what is left in the list registers.
    fn take_lists_back(&mut self);
}

/// Enters the guest and comes back from it; or is called off, and returns false. Then a request or
/// an event pends. The address space has been [entered](enter_address_space).
#[inline(always)] // The one way into the guest.
pub fn enter<P: Processor>(processor: &mut P, owner: &mut Owner<'_>) -> bool {
    processor.fill_lists();
    let Ok(in_guest) = owner.try_enter(processor.id()) else {
        processor.take_lists_back();
        return false;
    };
    processor.run();
    in_guest.leave();
    processor.take_lists_back();
    true
}

/// Takes a flush that was asked for by request, of this processor alone. None is, usually: flushes
/// are broadcasts.
#[cold]
pub fn take_flush<T: Stage2Tlb>(tlb: &T, owner: &mut Owner<'_>) {
    if let Some(work) = owner.take_flush() {
        tlb.local_combined();
        tlb.complete_local();
        tlb.context_sync();
        work.complete();
    }
}

/// Drops what `invalidation` names from all processors, and waits for the sections that may have
/// used it.
///
/// # Errors
/// [`Stalled`] when a section does not end. Nothing may be freed then.
pub fn flush_space<W: Walkers, T: Stage2Tlb + Mistakes, const CPUS: usize, const BANKS: usize>(
    walkers: &W,
    tlb: &T,
    space: &AddressSpace<'_, CPUS>,
    invalidation: Invalidation<'_>,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
) -> Result<SpaceReceipt<W::Stamp>, Stalled> {
    coherence::broadcast(walkers, ledger, hardware, || invalidate(tlb, space, invalidation))
}

/// Drops what `invalidation` names from all processors. The tables have been changed.
fn invalidate<T: Stage2Tlb + Mistakes, const CPUS: usize>(
    tlb: &T,
    space: &AddressSpace<'_, CPUS>,
    invalidation: Invalidation<'_>,
) -> tlbi::Invalidated {
    let setup = space.setup;
    // After the tables were changed: see `VmidSlot::current`.
    let vmid = space.vmid.current();
    let context = Context::enter(tlb, Vttbr::new(space.root, vmid.unwrap_or(0)), setup.errata);
    let nothing = tlbi::Plan::<core::iter::Empty<Stale>>::Nothing;
    let whole = tlbi::Plan::<core::iter::Empty<Stale>>::Whole;
    match invalidation {
        _ if vmid.is_none() => tlbi::invalidate(&context, setup, nothing),
        Invalidation::Nothing => tlbi::invalidate(&context, setup, nothing),
        Invalidation::Everything => tlbi::invalidate(&context, setup, whole),
        Invalidation::Ranges(ranges) => {
            let left_out = usize::from(tlb.makes(Mistake::StaleRangeLeftOut) && ranges.len() > 1);
            let named = ranges.get(..ranges.len() - left_out).unwrap_or(ranges);
            let plan = tlbi::plan(setup, named.iter().map(|range| stale(tlb, range)));
            tlbi::invalidate(&context, setup, plan)
        }
    }
}

/// The walker has made an entry invalid, and puts another there next: no processor may hold the
/// former one then.
pub fn break_before_make<T: Stage2Tlb + Mistakes, const CPUS: usize>(
    tlb: &T,
    space: &AddressSpace<'_, CPUS>,
    range: &FlushRange,
) {
    if tlb.makes(Mistake::NoBreak) {
        return;
    }
    if let Some(vmid) = space.vmid.current() {
        let context = Context::enter(tlb, Vttbr::new(space.root, vmid), space.setup.errata);
        let _no_receipt_is_asked_for = tlbi::break_before_make(&context, space.setup, stale(tlb, range));
    }
}

/// The engine's name for a level of leaves.
const fn leaf_level(level: Level) -> Option<LeafLevel> {
    match level {
        Level::Page4K => Some(LeafLevel::Three),
        Level::Page2M => Some(LeafLevel::Two),
        Level::Page1G => Some(LeafLevel::One),
        Level::Page512G => None,
    }
}

/// A range of the walker's in the engine's terms.
fn stale(mistakes: &impl Mistakes, range: &FlushRange) -> Stale {
    let FlushRange { start, len, level, tables } = *range;
    if mistakes.makes(Mistake::WrongLevelHint) {
        return Stale { start, len, leaf: Some(LeafLevel::Two), tables: false };
    }
    Stale { start, len, leaf: leaf_level(level), tables }
}
