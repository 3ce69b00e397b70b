//! One virtual CPU, as others see it.

use coherence::Target;
use core::cell::UnsafeCell;

use super::arch::Arch;
use super::awaited::Awaited;
use super::machine::VpIndex;
use crate::sched::VcpuIndex;

/// One virtual CPU.
pub struct Vcpu<A: Arch> {
    /// Index in the machine; also its VP index.
    pub index: VpIndex,
    /// Its row among the vCPUs of all machines.
    pub row: VcpuIndex,
    /// The flush engine's view of the vCPU, which belongs to the row. Its owner is the only one
    /// that may touch `state`.
    pub target: &'static Target,
    /// Interrupts posted by other CPUs.
    pub inbox: A::Inbox,
    /// The word it waits for, if it is passive in a queue.
    pub awaited: Awaited,
    state: UnsafeCell<A::State>,
}

// SAFETY: `state` is reached only through `state()`, whose caller owns the target; the rest is
// atomic.
unsafe impl<A: Arch> Sync for Vcpu<A> {}

impl<A: Arch> Vcpu<A> {
    /// A vCPU with its index and its row, in the state after power-on.
    pub(super) fn new((index, row): (VpIndex, VcpuIndex), target: &'static Target, state: A::State) -> Self {
        let (inbox, awaited) = (A::Inbox::default(), Awaited::default());
        Self { index, row, target, inbox, awaited, state: UnsafeCell::new(state) }
    }

    /// The private state.
    ///
    /// # Safety
    ///
    /// The caller holds the target's `Owner`, and no reference from an earlier call is alive.
    #[expect(clippy::mut_from_ref, reason = "ownership is proved by the target's token")]
    pub unsafe fn state(&self) -> &mut A::State {
        // SAFETY: the token is exclusive, and the caller vouches that no reference from an earlier
        // call is alive.
        unsafe { &mut *self.state.get() }
    }
}
