//! The ways to carry out a flush, and the batches that each accepts.

use crate::shootdown::batch::{Kind, Pages};

/// A way to carry out a flush of batches of kind `K`.
pub trait Mode<K: Kind>: sealed::Mode {}

/// The initiator flushes its own TLB, and only then sends requests to the others. For comparison.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

/// The initiator sends the requests first, and flushes its own TLB meanwhile. The targets read the
/// ranges from the initiator's list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Concurrent;

/// As [`Concurrent`], but the whole request is in the target's own cache line, if its ranges fit
/// there; more ranges become everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Inline;

/// As [`Inline`], but the target acknowledges before it flushes (G7).
///
/// Not for batches that free page tables: until a target has flushed, its walks may be in them.
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
/// For a batch of pages it is accepted:
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
    /// The mode, for callers that can vouch for the token's claim.
    pub const fn new(token: NoUserAccess) -> Self {
        Self(token)
    }
}

/// Asserts that nothing uses user addresses of a space between a CPU's acknowledgement of a flush
/// and the flush itself.
///
/// It cannot be made without `unsafe`:
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
    /// Makes the assertion.
    ///
    /// # Safety
    ///
    /// On every CPU that may load a space which is flushed with this token: from the first
    /// instruction of [`serve`](super::LocalCpu::serve) to its return, no instruction executed
    /// there accesses memory by the space's translations. That includes handlers that disabling
    /// interrupts does not hold off: NMI, machine check, debug exception, and probes that look at
    /// user memory (P25). Otherwise that CPU may afterwards read or write memory that the caller
    /// frees for the receipt.
    #[allow(
        unsafe_code,
        reason = "a declaration only: it makes callers vouch; there is no unsafe operation in it"
    )]
    pub const unsafe fn assert() -> Self {
        Self(())
    }

    /// For model CPUs.
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
    /// The properties that distinguish the modes.
    pub trait Mode {
        /// The initiator flushes its own TLB first.
        const LOCAL_FIRST: bool;
        /// Ranges travel in the target's slot.
        const INLINE: bool;
        /// The target acknowledges before it flushes.
        const EARLY: bool;
    }

    macro_rules! modes {
        ($($name:ident: $local_first:literal, $inline:literal, $early:literal;)+) => {$(
            impl Mode for super::$name {
                const LOCAL_FIRST: bool = $local_first;
                const INLINE: bool = $inline;
                const EARLY: bool = $early;
            }
        )+};
    }

    modes! {
        Serial: true, false, false;
        Concurrent: false, false, false;
        Inline: false, true, false;
        Async: false, true, true;
    }
}
