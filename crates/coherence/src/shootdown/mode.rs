//! How a flush goes about it, and what a batch must be like for that.

use crate::shootdown::batch::{Kind, Pages};

/// A way to carry out a flush of batches of kind `K`.
pub trait Mode<K: Kind>: sealed::Mode {}

/// The initiator flushes its own TLB, and only then asks the others. For comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

/// The others are asked first, and the initiator flushes its own TLB meanwhile. They read what to
/// flush from the initiator's list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Concurrent;

/// As [`Concurrent`], but the request lies whole in the target's own cache line, if its ranges fit
/// there; more of them become everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

/// As [`Inline`], but the target acknowledges before it flushes (G7).
///
/// Not for batches that free page tables: until the target has flushed, its walks may go through
/// them.
///
/// ```compile_fail,E0277
/// use quell_coherence::shootdown::{Async, Batch, ByInterrupt, LocalCpu, NoUserAccess, Tables, AddressSpace, Tlb};
///
/// fn free_tables(cpu: &mut LocalCpu<'_, &AddressSpace<1>, 1, 1>, batch: Batch<'_, Tables, (), 1>,
///     token: NoUserAccess, remote: &mut ByInterrupt<fn(&quell_coherence::TargetSet<1>)>, tlb: &mut impl Tlb) {
///     let _ = cpu.flush(batch, Async::new(token), remote, tlb);
/// }
/// ```
///
/// The same is accepted of a batch of pages:
///
/// ```
/// use quell_coherence::shootdown::{Async, Batch, ByInterrupt, LocalCpu, NoUserAccess, Pages, AddressSpace, Tlb};
///
/// fn free_pages(cpu: &mut LocalCpu<'_, &AddressSpace<1>, 1, 1>, batch: Batch<'_, Pages, (), 1>,
///     token: NoUserAccess, remote: &mut ByInterrupt<fn(&quell_coherence::TargetSet<1>)>, tlb: &mut impl Tlb) {
///     let _ = cpu.flush(batch, Async::new(token), remote, tlb);
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Async(NoUserAccess);

impl Async {
    /// The mode, for callers that can say what the token says.
    pub const fn new(token: NoUserAccess) -> Self {
        Self(token)
    }
}

/// States that nothing uses user addresses of a space between a CPU's acknowledgement of a flush
/// and the flush.
///
/// Nobody gets one without `unsafe`:
///
/// ```compile_fail,E0133
/// let _token = quell_coherence::shootdown::NoUserAccess::assert();
/// ```
///
/// ```compile_fail,E0423
/// let _token = quell_coherence::shootdown::NoUserAccess(());
/// ```
#[derive(Clone, Copy, Debug)]
pub struct NoUserAccess(());

impl NoUserAccess {
    /// The statement.
    ///
    /// # Safety
    ///
    /// On every CPU that may load a space which is flushed with this token: from the first
    /// instruction of [`serve`](super::LocalCpu::serve) to its return, no instruction that is
    /// executed there accesses memory by the space's translations. That includes handlers that
    /// interrupts-off does not hold back: NMI, machine check, debug exception, and probes that look
    /// at user memory (P25). What the caller frees for the receipt may otherwise be read or written
    /// by that CPU afterwards.
    #[allow(
        unsafe_code,
        reason = "a declaration only: it makes callers vouch; there is no unsafe operation in it"
    )]
    pub const unsafe fn assert() -> Self {
        Self(())
    }

    /// For CPUs that are models.
    #[cfg(test)]
    pub(super) const fn of_a_model() -> Self {
        Self(())
    }
}

impl<K: Kind> Mode<K> for Serial {}
impl<K: Kind> Mode<K> for Concurrent {}
impl<K: Kind> Mode<K> for Inline {}
impl Mode<Pages> for Async {}

pub(super) mod sealed {
    /// What distinguishes the modes.
    pub trait Mode {
        /// The initiator's own TLB comes first.
        const LOCAL_FIRST: bool;
        /// Ranges travel in the target's slot.
        const INLINE: bool;
        /// The target acknowledges before it flushes.
        const EARLY: bool;
    }

    impl Mode for super::Serial {
        const LOCAL_FIRST: bool = true;
        const INLINE: bool = false;
        const EARLY: bool = false;
    }

    impl Mode for super::Concurrent {
        const LOCAL_FIRST: bool = false;
        const INLINE: bool = false;
        const EARLY: bool = false;
    }

    impl Mode for super::Inline {
        const LOCAL_FIRST: bool = false;
        const INLINE: bool = true;
        const EARLY: bool = false;
    }

    impl Mode for super::Async {
        const LOCAL_FIRST: bool = false;
        const INLINE: bool = true;
        const EARLY: bool = true;
    }
}
