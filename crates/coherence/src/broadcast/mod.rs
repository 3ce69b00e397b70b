//! Flushing where the hardware reaches every processor: no kick, no request, no wait for guest
//! mode.

use crate::flush::{FlushOutcome, Hardware, Ledger, Stalled, Targets};
use crate::mailbox::Generation;
use crate::space::{Everybody, SpaceReceipt, Walkers};
use crate::sync::Ordering;
use crate::target::Target;
use crate::tlbi::Invalidated;
use crate::word;

/// Has translations invalidated by broadcast, and waits for the sections of all walkers that may
/// use them still.
///
/// The stamp is taken before anything is invalidated. `invalidate` executes the sequence,
/// [`tlbi::invalidate`](crate::tlbi::invalidate). The caller's own section must have ended.
///
/// On Arm64 one processor's TLBI and DSB remove a translation everywhere and wait for the accesses
/// that use it. What they do not reach is software that has walked the tables on a guest's behalf:
/// its sections ([`Owner::begin_translation`](crate::Owner::begin_translation)) are waited for,
/// those that began before. Targets in guest mode, halted or out of it are left alone.
///
/// # Ordering
///
/// ```text
/// initiator                                  target's CPU
/// A  change the tables                       H  begin a section: set TRANSLATING, count it
/// B  TLBI, inner shareable, completed        I  walk the tables, access
/// C  word: read-modify-write, learn          J  end the section: clear TRANSLATING
///    TRANSLATING and the count
/// E  if in a section: wait until the word
///    shows no section, or another count
/// F  free what was unmapped
///
/// C before H   H acquires what C has released: I walks the changed tables
/// H before C   C finds TRANSLATING: E waits for J
/// J before E   I's accesses are visible at F (G2)
/// A before B   the sequence in B begins with DSB ISHST: hardware that walks later finds the change
/// ```
///
/// C and H change one word by read-modify-write, so one comes first and the other sees it. The
/// count tells the section that C has found from those that begin later, which E need not wait for
/// however many there are. It wraps: if it has come round to the same number while nobody looked, E
/// waits for one section more.
///
/// # What holds
///
/// * **G1** After it, no processor and no section uses a translation that was replaced before.
///   Nothing is recorded for later: software must not keep translations from one section to the
///   next.
/// * **G2** What was done by the old translation is visible: by guests before the DSB of B
///   completes, by software at E.
/// * **G3** A [`SpaceReceipt`] is made after both only, and out of the proof that the TLBI was
///   done.
///
/// # Errors
/// [`Stalled`] when [`Hardware::relax`] gave up on a target's section. Nothing may be freed then.
///
/// # Panics
/// If a target is in a section that has no place in the ledger.
#[inline]
pub fn broadcast<W: Walkers + ?Sized, const BANKS: usize>(
    walkers: &W,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
    invalidate: impl FnOnce() -> Invalidated,
) -> Result<SpaceReceipt<W::Stamp>, Stalled> {
    let stamp = walkers.stamp();
    let Invalidated { .. } = invalidate();
    let (mut outcome, mut busy) = (FlushOutcome::default(), 0u32);
    walkers.for_each(
        &Everybody::of(walkers),
        #[inline(always)]
        |index, target| {
            // Fewer than there are addresses.
            outcome.targets = outcome.targets.wrapping_add(1);
            if let Some(section) = target.section() {
                if busy == 0 {
                    ledger.clear();
                }
                busy = busy.wrapping_add(1);
                ledger.note(index, section);
            }
        },
    );
    outcome.deferred = outcome.targets.wrapping_sub(busy);
    if busy != 0 {
        wait(walkers, ledger, hardware, &mut outcome)?;
    }
    Ok(SpaceReceipt::after(stamp, outcome))
}

/// E, for each target in the ledger.
#[cold]
fn wait<T: Targets + ?Sized, const BANKS: usize>(
    targets: &T,
    ledger: &Ledger<BANKS>,
    hardware: &impl Hardware,
    outcome: &mut FlushOutcome,
) -> Result<(), Stalled> {
    for index in ledger.awaited().iter() {
        let Some(target) = targets.target(index) else { continue };
        let section = ledger.generation(index);
        let mut turns = 0u64;
        while !target.has_ended(section) {
            if hardware.relax(turns).is_break() {
                return Err(Stalled { index, cpu: target.cpu(), outcome: *outcome });
            }
            turns = turns.saturating_add(1);
            outcome.turns = outcome.turns.saturating_add(1);
        }
    }
    Ok(())
}

impl Target {
    /// C: the section that the target is in, by its count. A read-modify-write: a load could be
    /// older than the change of the tables is to a section that begins now.
    pub(crate) fn section(&self) -> Option<Generation> {
        // Pairs with `Owner::begin_translation` on the same word: a section that begins later walks
        // the changed tables.
        let word = self.word.fetch_or(0, Ordering::AcqRel);
        (word & word::TRANSLATING != 0).then_some(Generation(word::section(word)))
    }

    /// E: whether that section is over. Acquires what was done in it.
    pub(crate) fn has_ended(&self, section: Generation) -> bool {
        // Pairs with the drop of `Translation`.
        let word = self.word.load(Ordering::Acquire);
        word & word::TRANSLATING == 0 || word::section(word) != section.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
