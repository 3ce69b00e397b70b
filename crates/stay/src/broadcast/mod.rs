//! Tags of a machine that are the same on all processors, and flushes that are broadcasts: Arm64,
//! with VMIDs.
//!
//! ```text
//! changing processor                       a processor
//! A  entries changed                       P  gets the machine's VMID (VmidAllocator::assign)
//! B  gets the VMID (VmidSlot::current)     Q  VTTBR_EL2, then drops entries the vCPU must not use
//! C  TLBI for that VMID, DSB               R  walks
//! D  open sections have ended
//! ```
//!
//! * B after A and Q before R: a processor that gets a new VMID after B walks the new tables. See
//!   `coherence::vmid`.
//! * The drops that an [`Arrival`] requires are done at the next P, whether or not the VMID is new;
//!   that P may belong to an entry that is called off.
//! * Machines come and go. A processor keeps the VTTBR_EL2 of the last one, so before a machine's
//!   tables are returned each processor [leaves](leave_address_space) them. Its VMID is handed out
//!   again in a later generation, in which each processor drops everything at its first P.
//!
//! Source: Arm DDI 0487, D8.13 and D8.17.

use coherence::tlbi::{self, Context, LeafLevel, Setup, Stage2Tlb, Stale, Vttbr};
use coherence::vmid::{Arrival, Home, LocalMaintenance, Residents, VmidAllocator, VmidSlot};
use coherence::{CpuId, Hardware, Ledger, Owner, SpaceReceipt, SpaceUnfinished, Walkers};
use paging::{FlushRange, Invalidation, Level};

use crate::{Mistake, Mistakes};

/// The tag of a machine's translations, and their tables.
#[derive(Clone, Copy, Debug)]
pub struct AddressSpace<'a, const CPUS: usize> {
    /// VMIDs of all machines.
    pub vmids: &'a VmidAllocator<CPUS>,
    /// The machine's own. A machine that takes another one's place has a new one.
    pub vmid: &'a VmidSlot,
    /// The machine's vCPUs that ran last. As old as `vmid`.
    pub residents: &'a Residents<CPUS>,
    /// Root of stage 2.
    pub root: u64,
    /// Processor and limits.
    pub setup: &'a Setup,
}

/// The state that a processor has loaded, and the entries that it has to drop.
#[derive(Debug, Default)]
pub struct CpuStage2 {
    /// The VMID in VTTBR_EL2; 0 before the first, and for no machine.
    ///
    /// That is enough to know the machine, and with it the root, however many come and go: in one
    /// generation a VMID has one machine, and the first entry of a generation loads the register
    /// whatever it holds ([`must_flush`](coherence::vmid::Assignment::must_flush)).
    vmid: u16,
    /// Entries to drop before the vCPU on this processor enters the guest.
    arrival: Option<Arrival>,
}

/// The effect of [`enter_address_space`], and the proof that the address space is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Entered {
    /// Something was loaded or dropped. Stage-1 walks may then be disabled until TCR_EL1 is loaded
    /// (see [`tlbi::enter_vm`]).
    pub has_changed: bool,
    /// A generation of VMIDs has begun, and the processor's entries of all machines were dropped.
    pub dropped_all: bool,
}

impl CpuStage2 {
    /// Nothing is loaded.
    pub const fn new() -> Self {
        Self { vmid: 0, arrival: None }
    }

    /// A vCPU of the machine that has this `space` arrives at this processor. Returns whether
    /// entries that it must not use have to be dropped, which happens when it
    /// [enters](enter_address_space) its address space.
    pub fn arrive<const CPUS: usize>(
        &mut self,
        space: &AddressSpace<'_, CPUS>,
        home: &mut Home,
        cpu: CpuId,
        reach: LocalMaintenance,
        mistakes: &impl Mistakes,
    ) -> bool {
        let arrival = space.residents.arrive(home, cpu, reach);
        // The records say that an earlier vCPU's drop was done, and it may be of another machine.
        let arrival = arrival.with_all_vms(self.arrival.is_some_and(|pending| pending != Arrival::NOTHING));
        self.arrival = (!mistakes.makes(Mistake::ArrivalWithoutDrop)).then_some(arrival);
        arrival.stage1
    }
}

/// Loads VTTBR_EL2 with the machine's VMID, if it is not loaded, and drops the entries that must be
/// dropped before the guest runs. `before` is called ahead of all that.
///
/// Call it when a vCPU has arrived, and before each entry: meanwhile the VMID may have been given
/// to another machine.
#[inline(always)] // On the way of each entry.
pub fn enter_address_space<T: Stage2Tlb + Mistakes, const CPUS: usize>(
    tlb: &T,
    cpu: CpuId,
    place: &mut CpuStage2,
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

/// This processor's vCPU has gone, and the processor leaves the address space that it has loaded. A
/// machine's tables may be returned when none of its vCPUs can enter any more, and after that each
/// processor has done this, or has entered another address space.
///
/// `nowhere` is the root of a table without entries, which is never returned.
pub fn leave_address_space<T: Stage2Tlb>(
    tlb: &T,
    place: &mut CpuStage2,
    setup: &Setup,
    nowhere: u64,
) -> Nowhere {
    tlbi::leave_vm(tlb, setup, Vttbr::new(nowhere, 0));
    place.vmid = 0;
    Nowhere(())
}

/// The proof that a processor has left the address space that it had loaded: others must not be
/// told before. [`leave_address_space`] alone makes it:
///
/// ```compile_fail,E0603
/// let left = stay::broadcast::Nowhere(());
/// ```
///
/// ```compile_fail,E0639
/// let entered = stay::broadcast::Entered { has_changed: true, dropped_all: false };
/// ```
#[derive(Debug)]
pub struct Nowhere(());

/// Operations that only a processor can do, for the vCPU whose state it has.
pub trait Processor {
    /// The processor's number.
    fn id(&self) -> CpuId;
    /// Puts pending interrupts into the list registers.
    fn fill_lists(&mut self);
    /// ERET, and return on exit. Interrupts are masked: one that arrives ends guest mode as soon as
    /// it begins.
    fn run(&mut self);
    /// Takes back the remaining interrupts from the list registers.
    fn take_lists_back(&mut self);
}

/// Enters the guest and returns after the exit; or is called off, and returns false. Then a request
/// or an event is pending. The address space must have been [entered](enter_address_space).
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

/// Takes a flush that was requested of this processor alone. Usually there is none: flushes are
/// broadcasts.
#[cold]
pub fn take_flush<T: Stage2Tlb>(tlb: &T, owner: &mut Owner<'_>) {
    if let Some(work) = owner.take_flush() {
        tlb.local_combined();
        tlb.complete_local();
        tlb.context_sync();
        work.complete();
    }
}

/// Drops the translations that `invalidation` names from all processors, and waits for the sections
/// that may have used them, and for `devices`.
///
/// # Errors
/// [`Unfinished`](coherence::Unfinished) when a section does not end, or an IOMMU does not go on.
/// Nothing may be freed then.
pub fn flush_space<'a, W: Walkers, T: Stage2Tlb + Mistakes, const CPUS: usize, const BANKS: usize>(
    walkers: &W,
    devices: &W::Devices<'a>,
    tlb: &T,
    space: &AddressSpace<'_, CPUS>,
    invalidation: Invalidation<'_>,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
) -> Result<SpaceReceipt<W::Stamp>, SpaceUnfinished<'a, W>> {
    coherence::broadcast(walkers, devices, ledger, hardware, || invalidate(tlb, space, invalidation))
}

/// Drops the translations that `invalidation` names from all processors. The tables have been
/// changed before.
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

/// The walker has made an entry invalid, and will replace it: no processor may hold the former
/// entry then.
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

/// The engine's name for a leaf level.
const fn leaf_level(level: Level) -> Option<LeafLevel> {
    match level {
        Level::Page4K => Some(LeafLevel::Three),
        Level::Page2M => Some(LeafLevel::Two),
        Level::Page1G => Some(LeafLevel::One),
        Level::Page512G => None,
    }
}

/// A range of the walker in the engine's terms.
fn stale(mistakes: &impl Mistakes, range: &FlushRange) -> Stale {
    let FlushRange { start, len, level, tables } = *range;
    if mistakes.makes(Mistake::WrongLevelHint) {
        return Stale { start, len, leaf: Some(LeafLevel::Two), tables: false };
    }
    Stale { start, len, leaf: leaf_level(level), tables }
}

#[cfg(test)]
mod tests;
