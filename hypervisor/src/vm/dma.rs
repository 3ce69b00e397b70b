//! The guest's devices, as far as translations are concerned: they translate by its memory's tables
//! as its vCPUs do.

use arrayvec::ArrayVec;
use coherence::{DeviceTlbs, SpaceUnfinished};
use iommu::{Stuck, Ticket};
use paging::Invalidation;

use super::arch::Arch;
use super::machine::Vm;

/// IOMMUs that a guest's devices may be behind.
pub const IOMMUS_MAX: usize = 8;

/// What was begun: a ticket for each of the guest's IOMMUs, in the order of its list.
pub type Tickets = ArrayVec<Ticket, IOMMUS_MAX>;

/// The guest's devices, and what they have to drop.
pub struct DmaFlush<'a, A: Arch> {
    vm: &'a Vm<A>,
    invalidation: Invalidation<'a>,
}

/// Why a flush of a guest's memory has not finished.
pub type NotFlushed<A> = SpaceUnfinished<'static, Vm<A>>;

impl<'a, A: Arch> DmaFlush<'a, A> {
    /// For a change of the tables that was made before, and made stale what `invalidation` names.
    pub const fn new(vm: &'a Vm<A>, invalidation: Invalidation<'a>) -> Self {
        Self { vm, invalidation }
    }
}

// SAFETY: `Arch` promises it of the two functions.
unsafe impl<A: Arch> DeviceTlbs for DmaFlush<'_, A> {
    type Begun = Tickets;
    type Error = Stuck;

    #[inline(always)]
    fn begin(&self) -> Result<Tickets, Stuck> {
        A::begin_dma_flush(self.vm, self.invalidation)
    }

    #[inline(always)]
    fn finish(&self, begun: Tickets) -> Result<(), Stuck> {
        if begun.is_empty() { Ok(()) } else { A::finish_dma_flush(self.vm, &begun) }
    }
}
