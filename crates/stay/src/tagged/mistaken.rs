//! A processor that does operations wrongly: how the steps around an entry go wrong without a
//! mistake in them. Tests plant it, in the abstract machine and in images for other emulators.

use coherence::CpuId;
use coherence::asid::TlbControl;

use super::entry::Processor;
use super::plan::Mode;
use crate::{Mistake, Mistakes};

/// A list is cut short after so many pages.
const PAGES_OF_CUT_LIST: u32 = 2;

/// Pauses from the look at what an entry owes to the entry itself.
const SPINS: u32 = 2000;

/// A processor that makes the mistakes that it is told to make: one entry, or one taken flush.
#[derive(Debug)]
pub struct Mistaken<'p, P> {
    processor: &'p mut P,
    /// The page that was invalidated last, and how many were.
    invalidated: Option<u64>,
    pages: u32,
    /// Guest mode was not entered since interrupts were held.
    is_called_off: bool,
}

impl<'p, P: Processor> Mistaken<'p, P> {
    /// Around the processor that does what it is not told to do wrongly.
    pub const fn new(processor: &'p mut P) -> Self {
        Self { processor, invalidated: None, pages: 0, is_called_off: false }
    }

    /// Whether the invalidation of this page is left out.
    fn is_left_out(&mut self, address: u64) -> bool {
        let goes_on = self.invalidated.map(|last| last.wrapping_add(0x1000) == address);
        self.invalidated = Some(address);
        self.pages += 1;
        self.makes(Mistake::PageNotInvalidated)
            || self.pages > PAGES_OF_CUT_LIST && self.makes(Mistake::ListCutShort)
            || goes_on == Some(true) && self.makes(Mistake::PageLeftOut)
            || goes_on == Some(false) && self.makes(Mistake::RangeLeftOut)
    }
}

impl<P: Processor> Mistakes for Mistaken<'_, P> {
    fn makes(&self, mistake: Mistake) -> bool {
        use Mistake::{DebtForgotten, FlushNotCarriedOut, NestedTakenAsGuests, PageNotInvalidated};
        // What is not carried out at all is owed in no way, and done for no page.
        let is_part = matches!(mistake, DebtForgotten | NestedTakenAsGuests | PageNotInvalidated);
        self.processor.makes(mistake) || is_part && self.processor.makes(FlushNotCarriedOut)
    }
}

impl<P: Processor> Processor for Mistaken<'_, P> {
    fn id(&self) -> CpuId {
        self.processor.id()
    }

    fn set_tag(&mut self, asid: u32, control: TlbControl, changed: bool) {
        let is_kept = changed && control == TlbControl::DoNothing && self.makes(Mistake::TagKept);
        if is_kept || self.makes(Mistake::TagNotWritten) {
            return;
        }
        let asid = if self.makes(Mistake::TagShared) { 1 } else { asid };
        let control = match control {
            _ if self.makes(Mistake::ControlNotWritten) => TlbControl::DoNothing,
            TlbControl::FlushAll if self.makes(Mistake::RolloverKept) => TlbControl::DoNothing,
            TlbControl::FlushAll if self.makes(Mistake::RolloverByTag) => TlbControl::FlushAsid,
            control => control,
        };
        self.processor.set_tag(asid, control, changed);
    }

    fn hold_interrupts(&mut self) {
        self.is_called_off = true;
        self.processor.hold_interrupts();
        if self.makes(Mistake::CalledOffEntrySettles) {
            // Time for a request that calls the entry off.
            (0..SPINS).for_each(|_| core::hint::spin_loop());
        }
    }

    fn run(&mut self) -> bool {
        self.is_called_off = false;
        self.processor.run() || self.makes(Mistake::RefusedEntrySettles)
    }

    fn take_interrupts(&mut self) {
        if self.is_called_off && self.makes(Mistake::EnteredInSpite) {
            self.processor.run();
        }
        self.processor.take_interrupts();
    }

    fn invalidate_page(&mut self, address: u64, asid: u32) {
        if !self.is_left_out(address) {
            let asid = if self.makes(Mistake::WrongTagInvalidated) { asid + 1 } else { asid };
            self.processor.invalidate_page(address, asid);
        }
    }

    fn owe_nested_flush(&mut self) {
        if !self.makes(Mistake::NestedTakenAsGuests) {
            self.processor.owe_nested_flush();
        }
    }

    fn mode(&self) -> Mode {
        let Mode { pcid, pae, pieces } = self.processor.mode();
        let [pcids, large] = [Mistake::PcidsKept, Mistake::PiecesKept].map(|mistake| !self.makes(mistake));
        Mode { pcid: pcid && pcids, pae, pieces: pieces && large }
    }
}
