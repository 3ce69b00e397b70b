//! Flushing where the hardware reaches every processor: without kick, request, or wait for guests.

use crate::flush::{FlushOutcome, Hardware, Ledger, Stalled, Targets};
use crate::mailbox::Generation;
use crate::space::{DeviceTlbs, Everybody, SpaceReceipt, SpaceUnfinished, Unfinished, Walkers};
use crate::sync::Ordering;
use crate::target::Target;
use crate::tlbi::Invalidated;
use crate::word;

/// Invalidates translations by broadcast and waits for the sections of all walkers that may still
/// use them, and for `devices`.
///
/// The stamp is taken before anything is invalidated. `invalidate` executes the sequence, i.e.
/// [`tlbi::invalidate`](crate::tlbi::invalidate). The caller's own section must have ended.
///
/// On Arm64 one processor's TLBI and DSB remove a translation everywhere and wait for the accesses
/// that use it. They do not reach software that has walked the tables on a guest's behalf. This
/// function waits for the sections of such software
/// ([`Owner::begin_translation`](crate::Owner::begin_translation)) that began before. It does not
/// disturb targets, whether they are in guest mode, halted or out of guest mode.
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
/// F  free unmapped memory
///
/// C before H   H acquires what C has released: I walks the changed tables
/// H before C   C finds TRANSLATING: E waits for J
/// J before E   I's accesses are visible at F (G2)
/// A before B   the sequence in B begins with DSB ISHST: hardware that walks later finds the change
/// ```
///
/// C and H change one word by read-modify-write, so one happens first and the other sees it. The
/// count distinguishes the section that C has found from later ones, however many, which E need not
/// wait for. The count wraps: if it has returned to the same number between two looks, E waits for
/// one more section.
///
/// # Guarantees
///
/// * **G1** After this, no processor and no section uses a translation that was replaced before.
///   Nothing is recorded for later: software must not keep translations from one section to the
///   next.
/// * **G2** Everything done through the old translation is visible: accesses by guests before the
///   DSB of B completes, accesses by software at E.
/// * **G3** A [`SpaceReceipt`] is made only after both, and requires the proof that the TLBI was
///   done.
///
/// # Errors
/// [`Unfinished`] when [`Hardware::relax`] gave up on a target's section, or an IOMMU does not go
/// on. Nothing may be freed then.
///
/// # Panics
/// If the ledger has no place for a target that is in a section.
#[inline]
pub fn broadcast<'a, W: Walkers + ?Sized, const BANKS: usize>(
    walkers: &W,
    devices: &W::Devices<'a>,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
    invalidate: impl FnOnce() -> Invalidated,
) -> Result<SpaceReceipt<W::Stamp>, SpaceUnfinished<'a, W>> {
    let stamp = walkers.stamp();
    let begun = devices.begin().map_err(Unfinished::Devices)?;
    let Invalidated { .. } = invalidate();
    let (mut outcome, mut busy) = (FlushOutcome::default(), 0u32);
    walkers.for_each(
        &Everybody::of(walkers),
        #[inline(always)]
        |index, target| {
            // There are fewer targets than addresses.
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
        wait(walkers, ledger, hardware, &mut outcome).map_err(Unfinished::Target)?;
    }
    devices.finish(begun).map_err(Unfinished::Devices)?;
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
    /// C: the section that the target is in, by its count. A read-modify-write: to a section that
    /// begins now, a load could appear older than the change of the tables.
    pub(crate) fn section(&self) -> Option<Generation> {
        // Pairs with `Owner::begin_translation` on the same word: a section that begins later walks
        // the changed tables.
        let word = self.word.fetch_or(0, Ordering::AcqRel);
        (word & word::TRANSLATING != 0).then_some(Generation(word::section(word)))
    }

    /// E: whether that section has ended. Acquires the accesses made in it.
    pub(crate) fn has_ended(&self, section: Generation) -> bool {
        // Pairs with the drop of `Translation`.
        let word = self.word.load(Ordering::Acquire);
        word & word::TRANSLATING == 0 || word::section(word) != section.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
