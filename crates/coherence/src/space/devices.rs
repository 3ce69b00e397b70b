//! Devices that translate by a space's tables: an IOMMU's TLB is one more that has to forget.

use core::convert::Infallible;
use core::fmt;

use crate::flush::Stalled;

/// The IOMMUs that translate by one space's tables, and what they have to drop because of one
/// change.
///
/// [`flush_space`](fn@crate::flush_space) and [`broadcast`](fn@crate::broadcast) begin with them,
/// so that IOMMUs work while processors are waited for, and end with them.
///
/// # Ordering
///
/// ```text
/// initiator                                  IOMMU
/// A  change the tables                       P  walk the tables, keep what was found
/// B  begin: commands, a sync, the doorbell   Q  read the commands
/// C  ask the processors, wait for them       R  drop what they name
/// D  finish: wait for the sync               S  accesses by former translations are complete;
/// E  free unmapped memory                       report the sync
///
/// A before B, B before Q   a walk after R finds the change
/// S before D               accesses through the former translation are visible at E (G2)
/// ```
///
/// C and Q to S are at the same time. Neither needs the other: a processor's translations and those
/// of an IOMMU are separate copies, and E comes after both.
///
/// # Safety
///
/// [`begin`](Self::begin) makes each IOMMU that may hold a translation by an earlier state of the
/// tables drop at least what the change made stale, and each device behind it that may keep
/// translations itself (ATS). A walk that begins after its invalidation finds the tables as they
/// are at the call or later. [`finish`](Self::finish) returns `Ok` only when all of that is
/// complete, and every access by what was dropped is visible.
#[expect(
    unsafe_code,
    reason = "a declaration: whoever joins machine and engine vouches for what the engine cannot see"
)]
pub unsafe trait DeviceTlbs {
    /// What was begun.
    type Begun;
    /// Why an IOMMU does not finish.
    type Error;

    /// Gives the commands to the IOMMUs, without a wait for what they do.
    ///
    /// # Errors
    /// When an IOMMU takes no more commands. Nothing may be freed then.
    fn begin(&self) -> Result<Self::Begun, Self::Error>;

    /// Waits until they are complete.
    ///
    /// # Errors
    /// When an IOMMU does not go on. Nothing may be freed then.
    fn finish(&self, begun: Self::Begun) -> Result<(), Self::Error>;
}

/// No device translates by the tables.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDevices;

#[expect(unsafe_code, reason = "a claim that the user of the type makes")]
// SAFETY: nothing has to drop anything. `Walkers` promises that this is all of them.
unsafe impl DeviceTlbs for NoDevices {
    type Begun = ();
    type Error = Infallible;

    #[inline(always)]
    fn begin(&self) -> Result<(), Infallible> {
        Ok(())
    }

    #[inline(always)]
    fn finish(&self, (): ()) -> Result<(), Infallible> {
        Ok(())
    }
}

/// Why a flush of a whole space has not finished. Nothing may be freed then.
///
/// Exhaustive: who keeps translations is either a target or a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfinished<E> {
    /// A target did not do its part.
    Target(Stalled),
    /// An IOMMU did not do its part.
    Devices(E),
}

impl<E: fmt::Display> fmt::Display for Unfinished<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Target(stalled) => stalled.fmt(f),
            Self::Devices(error) => error.fmt(f),
        }
    }
}

impl<E: fmt::Debug + fmt::Display> core::error::Error for Unfinished<E> {}
