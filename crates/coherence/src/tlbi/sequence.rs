//! The sequences of TLB maintenance, each in one function.
//!
//! ```text
//! changing processor                              any processor
//! A  store to the tables                          U  walk: TLB and walk caches are filled
//! B  DSB ISHST                                    V  access by a translation that is held
//! C  TLBI by IPA, inner shareable
//! D  DSB ISH
//! E  VMALLE1IS
//! F  DSB ISH
//! G  (repeated E and F, for the errata)
//! H  ISB; caches are cleaned; memory is reused
//!
//! A before C, by B   a walk after the TLBI finds the change: else U refills what C removed (O12)
//! C before E, by D   combined entries, of both stages, are not found by IPA: E removes them (P19); after D nothing
//!                    makes new ones from stage-2 entries that C has yet to remove
//! V before H, by F   DSB waits until accesses by removed translations are over. It is never weaker than the TLBI:
//!                    after an inner shareable one, NSH would wait for this processor alone (O11)
//! F before cleaning  a guest can dirty lines through a translation until it is gone (P20)
//! ```

use core::ops::Range;

use super::context::{Context, Stage2Tlb, Vttbr};
use super::plan::{Plan, Setup, Stale, by_page, by_range, plan};
use crate::vmid::Arrival;

/// Proof that every processor has done the invalidation, and that accesses through the removed
/// translations are over.
#[must_use = "what was unmapped may be given away now, and not before"]
#[derive(Debug, PartialEq, Eq)]
pub struct Invalidated(());

impl Invalidated {
    /// For models of a machine without this module's instructions.
    #[cfg(test)]
    pub(crate) const fn assumed() -> Self {
        Self(())
    }
}

/// A to H above, as `plan` chose. The tables must have been changed before.
///
/// Two instructions for a range of up to 3.75 GiB, one for the whole VMID, and one more with
/// [`Errata::repeat_tlbi`](super::Errata::repeat_tlbi).
#[inline]
pub fn invalidate<T: Stage2Tlb>(
    context: &Context<'_, T>,
    setup: &Setup,
    plan: Plan<impl Iterator<Item = Stale>>,
) -> Invalidated {
    let tlb = context.tlb();
    let by_address = match plan {
        Plan::Nothing => return Invalidated(()),
        Plan::Whole => {
            tlb.order_stores();
            false
        }
        Plan::Ranges(mut stale) => {
            tlb.order_stores();
            stale.all(|stale| issue_ranges(tlb, setup, &stale))
        }
        Plan::Pages(mut stale) => {
            tlb.order_stores();
            stale.all(|stale| issue_pages(tlb, setup, &stale))
        }
    };
    let last = if by_address {
        tlb.complete();
        T::combined
    } else {
        T::everything
    };
    last(tlb);
    tlb.complete();
    if setup.errata.repeat_tlbi {
        // Any broadcast will do: the accesses are late, not the removal.
        last(tlb);
        tlb.complete();
    }
    if setup.features.instructions_by_vmid {
        tlb.instruction_cache();
        tlb.complete();
    }
    tlb.context_sync();
    Invalidated(())
}

/// False if operands cannot name the range.
fn issue_ranges<T: Stage2Tlb>(tlb: &T, setup: &Setup, stale: &Stale) -> bool {
    match (by_page(setup, stale), by_range(setup, stale)) {
        // A single leaf: a range would be at least two pages.
        (Some(pages), _) if pages.count_left() <= 1 => pages.for_each(|operand| tlb.page(operand)),
        (_, Some(ranges)) => ranges.for_each(|operand| tlb.range(operand)),
        _ => return false,
    }
    true
}

fn issue_pages<T: Stage2Tlb>(tlb: &T, setup: &Setup, stale: &Stale) -> bool {
    let Some(pages) = by_page(setup, stale) else { return false };
    pages.for_each(|operand| tlb.page(operand));
    true
}

/// Between break and make: the entry for `stale` has been made invalid, and will become valid again
/// with another size, another address or a table in the place of a block. For a walker's hook.
pub fn break_before_make<T: Stage2Tlb>(context: &Context<'_, T>, setup: &Setup, stale: Stale) -> Invalidated {
    invalidate(context, setup, plan(setup, [stale]))
}

/// What to do with instruction caches.
///
/// Exhaustive: there are only these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Instructions {
    /// Nothing: no CPU executes the memory's contents before software cleans for it.
    Keep,
    /// Invalidate all of them: the memory's next user executes it without maintenance of its own.
    Invalidate,
}

/// Cleans and invalidates the data cache lines of memory that was mapped, so that its next user,
/// which may map it with other attributes, finds the guest's writes. Does nothing with FEAT_S2FWB.
/// Only valid after the TLBI, hence the proof (P20).
pub fn clean<T: Stage2Tlb>(
    tlb: &T,
    _after: &Invalidated,
    setup: &Setup,
    memory: impl IntoIterator<Item = Range<u64>>,
    instructions: Instructions,
) {
    if !setup.features.forces_write_back {
        memory.into_iter().for_each(|range| tlb.clean(range));
        tlb.complete_caches();
    }
    if instructions == Instructions::Invalidate {
        tlb.instruction_cache();
        tlb.complete();
        tlb.context_sync();
    }
}

/// A vCPU arrives at this processor: loads VTTBR_EL2, and drops entries that the vCPU must not use.
///
/// The VTTBR is loaded first. Until then, this processor may walk under the former VMID, which may
/// be another machine's by now; entries made that way must be dropped with the rest. With
/// [`Errata::speculative_at`](super::Errata::speculative_at) stage-1 walks stay disabled when this
/// returns: load the guest's own TCR_EL1 last of its registers.
///
/// Call it behind a lock, or an exchange in a loop, by which the vCPU was handed over: a TLBI
/// without a barrier before it comes after what another processor did because it depends on that.
pub fn enter_vm<T: Stage2Tlb>(tlb: &T, setup: &Setup, vttbr: Vttbr, arrival: Arrival) {
    if tlb.vttbr() != vttbr.bits() {
        if setup.errata.speculative_at {
            let _replaced_by_the_guests = tlb.forbid_stage1_walks();
            tlb.context_sync();
        }
        // Walks by the new VMID must come after the allocator's read-modify-writes: acquire orders
        // loads, but not walks. ISH: others take part in them, and NSH is for this processor alone.
        tlb.complete();
        tlb.set_vttbr(vttbr.bits());
        tlb.context_sync();
    }
    let Arrival { all_vms, stage1, instructions } = arrival;
    if all_vms {
        tlb.local_all_vms();
    } else if stage1 {
        tlb.local_combined();
    }
    let drops_instructions = instructions || all_vms && setup.features.instructions_by_vmid;
    if drops_instructions {
        tlb.local_instruction_cache();
    }
    if all_vms || stage1 || drops_instructions {
        tlb.complete_local();
        tlb.context_sync();
    }
}

/// No vCPU is on this processor: loads a VTTBR_EL2 of no machine, so that the former one's tables
/// can be returned. Their memory may be in use again before the next vCPU arrives here, and until
/// then the register would name it.
///
/// `nowhere` has VMID 0, and the root of a table without entries that is never returned. Stage-1
/// walks stay disabled as after [`enter_vm`]. Entries under the former VMID stay, too: nobody uses
/// them before it is handed out again, which is after everything was dropped
/// ([`vmid`](crate::vmid)).
pub fn leave_vm<T: Stage2Tlb>(tlb: &T, setup: &Setup, nowhere: Vttbr) {
    if setup.errata.speculative_at {
        let _replaced_by_the_next_guests = tlb.forbid_stage1_walks();
        tlb.context_sync();
    }
    tlb.set_vttbr(nowhere.bits());
    tlb.context_sync();
    // Walks that had begun by the former register are over, before others store there.
    tlb.complete();
}

/// Drops all entries of all virtual machines everywhere. Call it before the first of them runs,
/// since firmware and earlier software may have used any VMID.
pub fn invalidate_all_vms<T: Stage2Tlb>(tlb: &T, setup: &Setup) -> Invalidated {
    tlb.order_stores();
    tlb.all_vms();
    tlb.complete();
    if setup.errata.repeat_tlbi {
        tlb.all_vms();
        tlb.complete();
    }
    tlb.instruction_cache();
    tlb.complete();
    tlb.context_sync();
    Invalidated(())
}
