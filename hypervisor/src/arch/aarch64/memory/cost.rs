//! The cost of invalidating a page here, compared with the guest's cost when all of its
//! translations are dropped.

use coherence::tlbi::Stage2Tlb;
use core::arch::asm;
use stay::Instruments;

use super::flush::Tlb;
use crate::arch::Local;
use crate::vm::arch::Clock;

/// A word of ours: measures IPAS2E1IS with its completion, and a walk of the hypervisor's own
/// tables, which is the cost of a miss.
pub(super) struct Word(u64);

impl Word {
    pub(super) const fn new() -> Self {
        Self(0)
    }

    fn page(&self) -> u64 {
        core::ptr::from_ref(&self.0).addr() as u64 >> 12
    }
}

impl Instruments for Word {
    fn now(&self) -> u64 {
        Local::now()
    }

    fn ticks_of_us(&self, us: u64) -> u64 {
        Local::ticks_of_us(us)
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn invalidate_page(&self) {
        Tlb.page(self.page());
        Tlb.complete();
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn drop_translation(&self) {
        // SAFETY: drops our own translation of the page on this CPU, which the next access walks
        // for.
        unsafe { asm!("tlbi vae2, {}", "dsb nsh", in(reg) self.page(), options(nostack, preserves_flags)) };
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn read(&self) {
        // SAFETY: the word is our own.
        unsafe { core::ptr::from_ref(&self.0).read_volatile() };
    }

    /// No register reports it; Cortex-A72 has 1,024 and Neoverse N1 1,280 (their Technical
    /// Reference Manuals, "Memory Management Unit").
    fn entries(&self) -> u64 {
        1024
    }
}
