//! Sections: software uses translations on a vCPU's behalf.

use coherence::{Owner, Pending, Translation};
use memslots::MmioCache;

use crate::{MMIO_PAGES, Mistake, Mistakes};

/// A vCPU on a processor, out of guest mode.
pub trait Stay<'a>: Mistakes {
    /// Its own state.
    type State;
    /// What it has in common with others: its machine.
    type Vm: ?Sized;

    /// Whether sections are counted: they have to be where flushes are broadcast
    /// ([`Owner::begin_translation`]); where all are requests they need not be
    /// ([`Owner::begin_uncounted_translation`]).
    const COUNTED: bool;

    /// The owner, and what software that uses translations wants besides.
    fn split(&mut self) -> (&mut Owner<'a>, &mut Self::State, &Self::Vm);

    /// Takes the flush that pends: carries it out, or has the next entry do so.
    fn take_flush(&mut self);

    /// Where the vCPU has found that there is no memory.
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES>;
}

/// Runs `look` in a section in which the guest's translations are used by software: a flush that is
/// asked for meanwhile waits for its end, and one that was asked for before is taken first (H30).
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
        // The borrow of the owner ends with the section; `look` gets everything but the owner.
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
