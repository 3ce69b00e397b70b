//! The guest's devices, as far as translations are concerned: they translate by its memory's tables
//! as its vCPUs do.

use arrayvec::ArrayVec;
use coherence::{DeviceTlbs, NoDevices, SpaceUnfinished};
use iommu::Stuck;
use paging::{Gpa, Invalidation, Progress};
use stay::iommu::Begun;

use super::arch::Arch;
use super::machine::Vm;

/// IOMMUs that a guest's devices may be behind.
pub const IOMMUS_MAX: usize = 8;

/// What was begun: one for each of the guest's IOMMUs, in the order of its list.
pub type Tickets = ArrayVec<Begun, IOMMUS_MAX>;

/// The devices of the machine that guests own. The defaults are those of guests without any.
///
/// # Safety
///
/// Every device that translates by a machine's nested tables does so through an IOMMU that
/// [`begin_flush`](Self::begin_flush) reaches, and that has forgotten what is named when
/// [`finish_flush`](Self::finish_flush) returns.
pub unsafe trait Devices<A: Arch> {
    /// Whether the guest owns any.
    fn are_owned(_: &Vm<A>) -> bool {
        false
    }

    /// Has the IOMMUs of the guest's devices drop what `invalidation` names, without a wait for
    /// them.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when one takes no more commands.
    #[inline(always)]
    fn begin_flush(_: &Vm<A>, _: Invalidation<'_>) -> Result<Tickets, Stuck> {
        Ok(Tickets::new())
    }

    /// Waits until they have.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when one does not go on.
    fn finish_flush(_: &Vm<A>, _: &Tickets) -> Result<(), Stuck> {
        Ok(())
    }

    /// Makes a step of mapping all memory for the guest's devices, where they do not translate by
    /// its nested tables. To be called when all slots are mapped there.
    fn map(_: &Vm<A>) -> Progress {
        Progress::Done
    }

    /// Makes a step of switching off and resetting the guest's devices; `Done` when they do nothing
    /// any more until the guest starts them. No vCPU runs.
    fn step_reset(_: &Vm<A>) -> Progress {
        Progress::Done
    }

    /// All memory of the guest is filled and mapped: its devices may translate by its tables.
    fn attach(_: &Vm<A>) {}

    /// The guest has ended: its devices do nothing any more until they are reset. No vCPU runs.
    fn silence(_: &Vm<A>) {}

    /// The guest is being destroyed: its devices reach nothing any more when this returns.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when an IOMMU does not do its part: nothing may be freed then.
    fn detach(_: &Vm<A>) -> Result<(), Stuck> {
        Ok(())
    }

    /// Makes a step of returning the devices, which are detached; `Done` when they are free for
    /// other guests.
    fn give_back(_: &Vm<A>) -> Progress {
        Progress::Done
    }
}

// SAFETY: there is no device.
unsafe impl<A: Arch> Devices<A> for NoDevices {}

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

// SAFETY: `Devices` promises it of the two functions.
unsafe impl<A: Arch> DeviceTlbs for DmaFlush<'_, A> {
    type Begun = Tickets;
    type Error = Stuck;

    #[inline(always)]
    fn begin(&self) -> Result<Tickets, Stuck> {
        A::Devices::begin_flush(self.vm, self.invalidation)
    }

    #[inline(always)]
    fn finish(&self, begun: Tickets) -> Result<(), Stuck> {
        if begun.is_empty() { Ok(()) } else { A::Devices::finish_flush(self.vm, &begun) }
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
            return A::Devices::map(vm);
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
