//! INVLPGA: dropping single translations of a guest, and measuring the cost.

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use stay::Instruments;

use crate::arch::Local;
use crate::svm::features::tlb_entries;
use crate::vm::arch::Clock;

/// Drops the calling CPU's translations of one page under `asid`, including global ones and those
/// of a large page around it (APM volume 3, INVLPGA).
pub(crate) fn invalidate_page(address: u64, asid: u32) {
    // SAFETY: SVM is on; the instruction drops cached translations, which is always allowed.
    unsafe { asm!("invlpga rax, ecx", in("rax") address, in("ecx") asid, options(nostack, preserves_flags)) };
}

/// A word of ours, whose translation is dropped to measure the cost of a miss.
pub(crate) struct Word(u64);

impl Word {
    pub(crate) const fn new() -> Self {
        Self(0)
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
        // No guest uses any ASID yet.
        invalidate_page(0x1000, 1);
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn drop_translation(&self) {
        let address = core::ptr::from_ref(&self.0);
        // SAFETY: drops our own translation of the page, which the next access walks for.
        unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn read(&self) {
        // SAFETY: the word is our own.
        unsafe { core::ptr::from_ref(&self.0).read_volatile() };
    }

    fn entries(&self) -> u64 {
        let highest = __cpuid(0x8000_0000).eax;
        if highest >= 0x8000_0006 { tlb_entries(__cpuid(0x8000_0006).ebx) } else { 0 }
    }
}
