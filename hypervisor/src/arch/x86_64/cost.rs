//! Measuring the cost of flushes.

use core::arch::asm;
use core::arch::x86_64::{__cpuid, __cpuid_count, CpuidResult};
use core::marker::PhantomData;
use stay::{Cost, Instruments};

use super::svm::{self, invalidate};
use super::vmx;
use crate::arch::Local;
use crate::svm::features::tlb_entries;
use crate::vm::arch::Clock;
use crate::vmx::tlb;

/// Measures what this processor's way to drop a page of a guest costs. No vCPU has run yet.
pub(super) fn measure() -> Cost {
    if svm::features::is_there() {
        Cost::measure(&Word::<Invlpga>(0, PhantomData))
    } else {
        Cost::measure(&Word::<vmx::invalidate::Page>(0, PhantomData))
    }
}

struct Invlpga;

impl Drops for Invlpga {
    #[inline(always)]
    fn drop_page() {
        invalidate::invalidate_page(0x1000, 1);
    }
}

/// A word of ours, whose translation is dropped to measure the cost of a miss.
struct Word<D>(u64, PhantomData<D>);

/// Drops a translation of a page under a tag that no guest uses yet.
pub(super) trait Drops {
    fn drop_page();
}

impl<D: Drops> Instruments for Word<D> {
    fn now(&self) -> u64 {
        Local::now()
    }

    fn ticks_of_us(&self, us: u64) -> u64 {
        Local::ticks_of_us(us)
    }

    #[inline(always)] // A call would use the stack, see `Cost::measure`.
    fn invalidate_page(&self) {
        D::drop_page();
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
        let cpuid = |leaf: u32, subleaf| {
            if leaf > __cpuid(leaf & 1 << 31).eax {
                return [0; 4];
            }
            let CpuidResult { eax, ebx, ecx, edx } = __cpuid_count(leaf, subleaf);
            [eax, ebx, ecx, edx]
        };
        // Each vendor has the other's leaves empty.
        let [_, ebx, ..] = cpuid(0x8000_0006, 0);
        tlb_entries(ebx).max(tlb::entries(cpuid))
    }
}
