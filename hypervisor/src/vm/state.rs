//! The trait of a vCPU's private state, which the core knows nothing else of.

use coherence::Space;
use memslots::MmioCache;
use stay::MMIO_PAGES;

use super::machine::VpIndex;
use crate::sched::spinning::Look;

/// A vCPU's private state: registers, interrupt controller, timers.
pub trait State: Send {
    /// The items that other CPUs post to the vCPU.
    type Inbox: Sync + Send;
    /// Resets everything to the state after power-on. Discards earlier posts.
    fn reset(&mut self, inbox: &Self::Inbox);
    /// The current address space, as initiators of a flush may know it while the vCPU halts.
    fn space(&self) -> Space;

    /// Whether the vCPU has instructions to run: it waits neither for an interrupt nor for
    /// start-up.
    fn is_running(&self) -> bool;

    /// Checks whether a posted item ends the vCPU's wait.
    fn update_activity(&mut self);

    /// Whether something already present ends a wait for an interrupt. Does not look at what others
    /// have posted.
    fn wakes_from_halt(&self) -> bool;

    /// When the vCPU next needs attention for one of its timers. The result is not later than `now`
    /// if a timer has expired already, and `u64::MAX` if none runs.
    fn next_deadline(&self, now: u64) -> u64;

    /// Sets whether the processor exits when the guest signals that it spins.
    fn intercept_pause(&mut self, wanted: bool);
    /// Whether it is time to check if the guest spins.
    fn is_look_due(&self, now: u64) -> bool;

    /// Checks whether the guest spins, where the processor does not report it. `first` is the time
    /// from the beginning of a turn to the first check.
    fn check_spinning(&mut self, now: u64, first: u64) -> Look;

    /// The pages without memory that the vCPU accessed most recently.
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES>;
    /// Logs `what` happened, and the registers.
    fn dump(&self, vcpu: VpIndex, what: &str);
}
