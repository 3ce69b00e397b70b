//! One entry into the guest, and what is found there if it is called off.
//!
//! ```text
//! initiator                                this processor
//! A  tables changed                        P  entry: the word says "in guest mode" unless a request pends (try_enter)
//! B  request published                     Q  VMRUN with the tag and what to drop under it
//! C  kick, if the word says so             R  exit: the word says so no longer (leave)
//! D  wait for R                            S  what was to be dropped under the tag has been: it is owed no longer
//! ```
//!
//! * Interrupts are held from before P to Q: a kick that comes after P ends guest mode at once.
//! * If P finds B, the entry is called off: **nothing of what it was to drop has been dropped**,
//!   and S is left out. The request is taken, which adds to what is owed, and the tag is assigned
//!   anew.
//! * If the processor refuses the guest's state, S is left out as well.
//!
//! Source: APM volume 2 (24593, revision 3.42), sections 15.16 and 15.5.

use coherence::asid::{AsidAllocator, AsidSlot, Assignment};
use coherence::{CpuId, GvaRange, Owner, Scope};

use super::plan::{Mode, Why, Work, obey};
use crate::{Mistake, Mistakes};

/// What only a processor can do, for the vCPU whose state it has.
pub trait Processor: Mistakes {
    /// Which one it is.
    fn id(&self) -> CpuId;
    /// Says what the next VMRUN does about tags: ASID, `TLB_CONTROL`, and whether the VMCB may be
    /// cached.
    fn set_tag(&mut self, assignment: &Assignment);
    /// From here on interrupts are held, and end guest mode as soon as it begins (CLGI with
    /// RFLAGS.IF = 1).
    fn hold_interrupts(&mut self);
    /// VMRUN. False if the processor refuses the guest's state: then nothing has happened.
    fn run(&mut self) -> bool;
    /// Takes the interrupts that were held.
    fn take_interrupts(&mut self);
    /// INVLPGA: drops the processor's translations of one page of the guest's, with those of a
    /// large page around it.
    fn invalidate_page(&mut self, address: u64, asid: u32);
    /// What decides how a request is obeyed, now.
    fn mode(&self) -> Mode;
}

/// Enters the guest and comes back from it; or is called off, and returns false. Then a request or
/// an event pends.
#[inline(always)] // The one way into the guest.
pub fn enter<P: Processor>(
    processor: &mut P,
    owner: &mut Owner<'_>,
    asids: &mut AsidAllocator,
    slot: &mut AsidSlot,
) -> bool {
    let assignment = asids.assign(slot);
    if !processor.makes(Mistake::TagNotWritten) {
        processor.set_tag(&assignment);
    }
    processor.hold_interrupts();
    let Ok(in_guest) = owner.try_enter(processor.id()) else {
        if processor.makes(Mistake::EnteredInSpite) {
            processor.run();
        }
        processor.take_interrupts();
        if processor.makes(Mistake::CalledOffEntrySettles) {
            asids.executed(slot, assignment);
        }
        return false;
    };
    let has_run = processor.run();
    in_guest.leave();
    if has_run || processor.makes(Mistake::RefusedEntrySettles) {
        asids.executed(slot, assignment);
    }
    processor.take_interrupts();
    true
}

/// What became of a request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Everything was asked for: the next VMRUN drops the tag.
    Everything,
    /// A list was asked for, and the next VMRUN drops the tag.
    Whole(Why),
    /// A list was asked for, and it is done: so many ranges, of so many pages together.
    Pages {
        /// Ranges of the list.
        ranges: u64,
        /// Pages of all of them.
        pages: u64,
    },
    /// A list was asked for, and there is nothing to drop.
    Nothing,
}

/// Takes the request that pends: carries it out, or has the next VMRUN do so. `None` if there is
/// none.
///
/// Page by page is for a guest whose pages lie in the TLB in one piece each, which
/// [`Processor::mode`] says when the request has been taken: what comes into the TLB later is of
/// the new tables.
pub fn take_flush<P: Processor>(
    processor: &mut P,
    owner: &mut Owner<'_>,
    asids: &AsidAllocator,
    slot: &mut AsidSlot,
    page_limit: u64,
) -> Option<Taken> {
    let work = owner.take_flush()?;
    if processor.makes(Mistake::FlushNotCarriedOut) {
        work.complete();
        return Some(Taken::Nothing);
    }
    let taken = match work.scope() {
        Scope::All => Taken::Everything,
        Scope::Ranges(ranges) => {
            let pages = ranges.iter().fold(0, |sum: u64, range| sum.saturating_add(range.pages));
            let mode = processor.mode();
            let mode = Mode {
                pcid: mode.pcid && !processor.makes(Mistake::PcidsKept),
                pieces: mode.pieces && !processor.makes(Mistake::PiecesKept),
                ..mode
            };
            match obey(pages, asids.resident(slot), slot.owes_flush(), mode, page_limit) {
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

/// The vCPU starts over, after INIT or a reset of its machine: what its guest had translated is
/// void. The nested translations stay true, and go with the rest.
pub fn start_over(slot: &mut AsidSlot, mistakes: &impl Mistakes) {
    if !mistakes.makes(Mistake::StartsOverWithAll) {
        slot.owe_flush();
    }
}

/// Drops the processor's translations of `ranges` under `asid`.
fn invalidate<P: Processor>(processor: &mut P, ranges: &[GvaRange], asid: u32) {
    let ranges =
        if processor.makes(Mistake::RangeLeftOut) { ranges.get(..1).unwrap_or(ranges) } else { ranges };
    for range in ranges {
        let pages = range.pages - u64::from(processor.makes(Mistake::PageLeftOut) && range.pages > 1);
        for page in 0..pages {
            processor.invalidate_page(range.first.wrapping_add(page << 12), asid);
        }
    }
}
