//! One entry into the guest, and the case that it is called off.
//!
//! ```text
//! initiator                                this processor
//! A  tables changed                        P  entry: the word says "in guest mode" unless a request pends (try_enter)
//! B  request published                     Q  VMRUN with the tag and the drop under it
//! C  kick, if the word says so             R  exit: the word says so no longer (leave)
//! D  wait for R                            S  the drop under the tag has been done: it is no longer pending
//! ```
//!
//! * Interrupts are held off from before P to Q: a kick that arrives after P ends guest mode at
//!   once.
//! * If P finds B, the entry is called off: **the entry's flush has not been done**, and S is
//!   skipped. The request is taken, which adds to the pending flush, and the tag is assigned anew.
//! * If the processor refuses the guest's state, S is skipped as well.
//!
//! Source: APM volume 2 (24593, revision 3.42), sections 15.16 and 15.5.

use coherence::asid::{AsidAllocator, AsidSlot, TlbControl};
use coherence::{CpuId, GvaRange, Owner, Scope};

use super::plan::{Mode, Why, Work, obey};
use crate::{Mistake, Mistakes};

/// Operations that only a processor can do, for the vCPU whose state it has.
pub trait Processor: Mistakes {
    /// The processor's number.
    fn id(&self) -> CpuId;
    /// Sets the tag for the next VMRUN: ASID, `TLB_CONTROL`, and whether the VMCB state that the
    /// processor caches is of another ASID or processor, and must not be used.
    fn set_tag(&mut self, asid: u32, control: TlbControl, changed: bool);
    /// From here on interrupts are held off, and end guest mode as soon as it begins (SVM: CLGI
    /// with RFLAGS.IF = 1; VMX: RFLAGS.IF = 0).
    fn hold_interrupts(&mut self);
    /// VMRUN, VMLAUNCH or VMRESUME. False if the processor refuses the guest's state: then nothing
    /// has happened.
    fn run(&mut self) -> bool;
    /// Takes the interrupts that were held off.
    fn take_interrupts(&mut self);
    /// INVLPGA, INVVPID: drops the processor's translations of one guest page, including those of a
    /// large page around it.
    fn invalidate_page(&mut self, address: u64, asid: u32);
    /// The next VMRUN has to drop what is kept of the nested tables alone, besides what a flush of
    /// the tag drops. On AMD64 such a flush is pending whenever this is called, and drops both.
    /// Only for a processor with [an instruction of its own](super::two_flushes) for the second.
    #[inline(always)]
    fn owe_nested_flush(&mut self) {}
    /// The vCPU's current state that determines how it carries out a request.
    fn mode(&self) -> Mode;
}

/// Enters the guest and returns after the exit; or is called off, and returns false. Then a request
/// or an event is pending.
#[inline(always)] // The one way into the guest.
pub fn enter<P: Processor>(
    processor: &mut P,
    owner: &mut Owner<'_>,
    asids: &mut AsidAllocator,
    slot: &mut AsidSlot,
) -> bool {
    let assignment = asids.assign(slot);
    processor.set_tag(assignment.asid, assignment.control, assignment.changed);
    processor.hold_interrupts();
    let Ok(in_guest) = owner.try_enter(processor.id()) else {
        processor.take_interrupts();
        if processor.makes(Mistake::CalledOffEntrySettles) {
            asids.executed(slot, assignment);
        }
        return false;
    };
    let has_run = processor.run();
    in_guest.leave();
    if has_run {
        asids.executed(slot, assignment);
    }
    processor.take_interrupts();
    true
}

/// How a taken request was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Everything was requested: the next VMRUN flushes the tag.
    Everything,
    /// A list was requested, and the next VMRUN flushes the tag.
    Whole(Why),
    /// A list was requested, and it is done page by page.
    Pages {
        /// Ranges of the list.
        ranges: u64,
        /// Pages of all of them.
        pages: u64,
    },
    /// A list was requested, and there is nothing to drop.
    Nothing,
}

/// Takes the pending request: carries it out, or makes the next VMRUN do so. `None` if there is
/// none.
///
/// Page by page requires that the TLB holds each guest page in one piece. [`Processor::mode`] is
/// queried after the request has been taken: later TLB entries are made from the new tables.
pub fn take_flush<P: Processor>(
    processor: &mut P,
    owner: &mut Owner<'_>,
    asids: &AsidAllocator,
    slot: &mut AsidSlot,
    page_limit: u64,
) -> Option<Taken> {
    let work = owner.take_flush()?;
    if work.is_nested() {
        processor.owe_nested_flush();
    }
    let taken = match work.scope() {
        Scope::All => Taken::Everything,
        Scope::Ranges(ranges) => {
            let pages = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.pages));
            let asid = asids.resident(slot);
            if asid.is_none() && !processor.makes(Mistake::TagElsewhereForgotten) {
                // It may leave without an entry, and go back to where it has a tag.
                slot.owe_flush();
            }
            match obey(pages, asid, slot.owes_flush(), processor.mode(), page_limit) {
                Work::Nothing => Taken::Nothing,
                Work::Whole(why) => Taken::Whole(why),
                Work::Pages { asid } => {
                    invalidate(processor, ranges, asid);
                    Taken::Pages { ranges: ranges.len() as u64, pages }
                }
            }
        }
    };
    if matches!(taken, Taken::Everything | Taken::Whole(_)) && !processor.makes(Mistake::DebtForgotten) {
        slot.owe_flush();
    }
    work.complete();
    Some(taken)
}

/// The vCPU starts over, after INIT or a reset of its machine: its guest's translations are void.
/// The nested translations remain valid, and are flushed with the rest.
pub fn start_over(slot: &mut AsidSlot, mistakes: &impl Mistakes) {
    if !mistakes.makes(Mistake::StartsOverWithAll) {
        slot.owe_flush();
    }
}

/// Drops the processor's translations of `ranges` under `asid`.
fn invalidate<P: Processor>(processor: &mut P, ranges: &[GvaRange], asid: u32) {
    for range in ranges {
        for page in 0..range.pages {
            processor.invalidate_page(range.first.wrapping_add(page << 12), asid);
        }
    }
}
