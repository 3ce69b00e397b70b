//! Flushes of all translations by one space's tables, and the only proof that frees tables and
//! frames.
//!
//! There are two ways: [`flush_space`] sends a request to every target, for machines where flushes
//! use interrupts (x86-64); [`broadcast`](fn@crate::broadcast) has the hardware reach every
//! processor (Arm64). Both end in a [`SpaceReceipt`], which nothing else makes, and only when the
//! last target, and the last IOMMU, has been waited for. It carries the stamp that the tables had
//! before. A page-table crate compares the stamp with the change whose memory is to be freed
//! (`paging`'s feature `coherence` does).

mod devices;

pub use devices::{DeviceTlbs, NoDevices, Unfinished};

use crate::flush::{FlushOutcome, Hardware, Ledger, Targets, issue_unless};
use crate::mailbox::Scope;
use crate::set::Members;
use crate::word;

/// All users of the translations of one space: the targets of its machine, its devices, and no
/// others.
///
/// # Safety
///
/// [`stamp`](Self::stamp) returns the state of this space's tables at the time of the call, and no
/// later state. At any time, for those tables:
///
/// * every processor that translates by them does so for one of these targets, between
///   [`Owner::try_enter`](crate::Owner::try_enter) and [`InGuest::leave`](crate::InGuest::leave);
/// * a CPU that takes the request because of which [`try_enter`](crate::Owner::try_enter) refuses
///   to enter drops the translations that the request names, including nested translations if
///   [`FlushWork::is_nested`](crate::FlushWork::is_nested) says so;
/// * software walks them on behalf of a target only in one of its sections
///   ([`Owner::begin_translation`](crate::Owner::begin_translation)), or while nothing is freed;
/// * every IOMMU that translates by them is among those of any value of
///   [`Devices`](Self::Devices) that is made after the tables were changed; and such a value names
///   all that the changes made stale.
#[expect(
    unsafe_code,
    reason = "a declaration: whoever joins machine and engine vouches for what the engine cannot see"
)]
pub unsafe trait Walkers: Targets {
    /// Identifies a state of the tables.
    type Stamp;

    /// The devices that translate by the tables, with what they have to drop: [`NoDevices`] where
    /// processors alone translate.
    type Devices<'a>: DeviceTlbs;

    /// The current state of the tables.
    fn stamp(&self) -> Self::Stamp;

    /// One more than the highest index of a target.
    fn count(&self) -> usize;
}

/// The set of all walkers.
pub(crate) struct Everybody(usize);

impl Everybody {
    pub(crate) fn of(walkers: &(impl Walkers + ?Sized)) -> Self {
        Self(walkers.count())
    }
}

impl Members for Everybody {
    fn for_each_bank(&self, mut visit: impl FnMut(usize, u64)) {
        // Targets that do not exist are skipped.
        (0..self.0.div_ceil(64)).for_each(|bank| visit(bank, u64::MAX));
    }
}

/// Proof that a flush of a whole space is over: memory unmapped before the stamp was taken may be
/// reused (G1, G2, G3).
///
/// It cannot be made in another way:
///
/// ```compile_fail,E0451
/// use quell_coherence::{FlushOutcome, SpaceReceipt};
/// let _receipt = SpaceReceipt { stamp: 7, outcome: FlushOutcome::default() };
/// ```
#[must_use = "nothing may be freed without it"]
#[derive(Debug, PartialEq, Eq)]
pub struct SpaceReceipt<S> {
    stamp: S,
    outcome: FlushOutcome,
}

impl<S> SpaceReceipt<S> {
    /// Only for the two ways, when the last walker has been waited for.
    pub(crate) const fn after(stamp: S, outcome: FlushOutcome) -> Self {
        Self { stamp, outcome }
    }

    /// The state of the tables when the flush began.
    pub const fn stamp(&self) -> &S {
        &self.stamp
    }

    /// The effects of the flush. After a broadcast, `targets` counts all targets that were checked,
    /// and `deferred` those of them that were in no section.
    pub const fn outcome(&self) -> FlushOutcome {
        self.outcome
    }
}

/// The error of a flush of a whole space.
pub type SpaceUnfinished<'a, W> = Unfinished<<<W as Walkers>::Devices<'a> as DeviceTlbs>::Error>;

/// Makes every walker drop all its translations, nested ones included, and `devices` those that
/// they name, and waits until that is done: like [`flush`](fn@crate::flush) for all, between the
/// two parts of [`DeviceTlbs`].
///
/// The stamp is taken before the request is published, so that a change made meanwhile is not taken
/// for a flushed one.
///
/// # Errors
/// [`Unfinished`] when [`Hardware::relax`] gave up on a target, or an IOMMU does not go on. Nothing
/// may be freed then.
///
/// # Panics
/// If there are more walkers than the ledger has places.
pub fn flush_space<'a, W: Walkers + ?Sized, const BANKS: usize>(
    walkers: &W,
    devices: &W::Devices<'a>,
    ledger: &mut Ledger<BANKS>,
    hardware: &impl Hardware,
) -> Result<SpaceReceipt<W::Stamp>, SpaceUnfinished<'a, W>> {
    let stamp = walkers.stamp();
    let begun = devices.begin().map_err(Unfinished::Devices)?;
    let set = Everybody::of(walkers);
    let issued = issue_unless(walkers, &set, Scope::All, word::FLUSH_NESTED, ledger, |_| false);
    let receipt = issued.dispatch(hardware).wait(hardware).map_err(Unfinished::Target)?;
    devices.finish(begun).map_err(Unfinished::Devices)?;
    Ok(SpaceReceipt::after(stamp, receipt.outcome()))
}

#[cfg(test)]
#[expect(unsafe_code, reason = "targets of a test are used by that test alone")]
// SAFETY: nothing translates.
unsafe impl Walkers for [crate::Target] {
    type Stamp = usize;
    type Devices<'a> = NoDevices;

    fn stamp(&self) -> usize {
        self.len() + 7
    }

    fn count(&self) -> usize {
        self.len()
    }
}

#[cfg(all(test, not(loom)))]
mod device_tests;
#[cfg(all(test, not(loom)))]
mod tests;
