//! The guest's devices, as far as translations are concerned: they translate by its memory's tables
//! as its vCPUs do.

use arrayvec::ArrayVec;
use coherence::{DeviceTlbs, SpaceUnfinished};
use iommu::Stuck;
use paging::{Gpa, Invalidation, Progress};
use stay::iommu::Begun;

use super::arch::Arch;
use super::machine::Vm;

/// IOMMUs that a guest's devices may be behind.
pub const IOMMUS_MAX: usize = 8;

/// What was begun: one for each of the guest's IOMMUs, in the order of its list.
pub type Tickets = ArrayVec<Begun, IOMMUS_MAX>;

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

/// Pages that are mapped in a step.
const PAGES_MAX: u32 = 512;

/// All of a guest's memory is being mapped, before its devices may use it: they do not wait for
/// faults.
#[derive(Debug, Default)]
pub struct MapAhead {
    /// The next address to look at.
    next: Gpa,
}

impl MapAhead {
    /// Makes a step. [`Progress::Waiting`] while a change of the slots is in progress,
    /// [`Progress::OutOfTables`] if memory for tables is missing.
    pub fn step<A: Arch>(&mut self, vm: &Vm<A>) -> Progress {
        let Some(slot) = vm.space.slots().memory().next_memory(self.next) else {
            return A::map_for_devices(vm);
        };
        let Ok(mut prefault) = vm.space.prefault(slot.id, self.next.max(slot.gpa)) else {
            return Progress::Waiting;
        };
        let progress = prefault.step(PAGES_MAX);
        self.next = prefault.next();
        match progress {
            Progress::Done | Progress::More => Progress::More,
            progress => progress,
        }
    }
}
