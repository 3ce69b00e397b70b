//! Sections: software uses translations on a vCPU's behalf.

use coherence::{Owner, Pending, Translation};
use memslots::MmioCache;

use crate::{MMIO_PAGES, Mistake, Mistakes};

/// A vCPU on a processor, out of guest mode.
pub trait Stay<'a>: Mistakes {
    /// The vCPU's own state.
    type State;
    /// The state shared with other vCPUs: its machine.
    type Vm: ?Sized;

    /// Whether sections are counted. They must be where flushes are broadcast
    /// ([`Owner::begin_translation`]); they need not be where all flushes are requests
    /// ([`Owner::begin_uncounted_translation`]).
    const COUNTED: bool;

    /// The owner, and the other state that software needs to use translations.
    fn split(&mut self) -> (&mut Owner<'a>, &mut Self::State, &Self::Vm);

    /// Takes the pending flush: carries it out, or makes the next entry do so.
    fn take_flush(&mut self);

    /// The addresses that the vCPU has found to have no memory.
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES>;
}

/// Runs `look` in a section in which software uses the guest's translations: a flush requested
/// meanwhile waits for its end, and one requested before is taken first (H30).
///
/// `look` has to begin its walks in memory.
#[inline(always)] // On the way of most exits.
pub fn in_section<'a, S: Stay<'a>, R>(stay: &mut S, look: impl FnOnce(&mut S::State, &S::Vm) -> R) -> R {
    if stay.makes(Mistake::NoSection) {
        let (_, state, machine) = stay.split();
        return look(state, machine);
    }
    loop {
        let in_spite = stay.makes(Mistake::SectionInSpite);
        // The borrow of the owner ends with the section; `look` gets everything except the owner.
        let (owner, state, machine) = stay.split();
        if let Ok(section) = begin(owner, S::COUNTED) {
            let result = look(state, machine);
            section.end();
            return result;
        }
        if in_spite {
            return look(state, machine);
        }
        stay.take_flush();
    }
}

#[inline(always)]
fn begin<'o>(owner: &'o mut Owner<'_>, counted: bool) -> Result<Translation<'o>, Pending> {
    if counted { owner.begin_translation() } else { owner.begin_uncounted_translation() }
}
