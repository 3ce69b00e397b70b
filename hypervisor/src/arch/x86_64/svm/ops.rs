//! This architecture's implementation of SVM's operations.

use core::arch::asm;
use core::num::NonZeroU32;

use super::{entry, features, invalidate};
use crate::image::{On, Processor};
use crate::svm::features::Features;
use crate::svm::processor::Svm;
use crate::svm::vendor::OnSvm;
use crate::svm::vmcb::Vmcb;
use crate::vm::PerCpu;
use crate::x86::vcpu::registers::Registers;

impl Svm for On<OnSvm<Processor>> {
    #[inline(always)]
    fn features() -> Features {
        features::get()
    }

    fn pretend() {
        features::pretend();
    }

    fn tags() -> NonZeroU32 {
        features::tags()
    }

    /// RFLAGS.IF is set while GIF is 0: a kick that arrives then ends guest mode at once.
    #[inline(always)]
    fn hold_interrupts() {
        // SAFETY: SVM is on; IF = 1 with GIF = 0 takes no interrupt.
        unsafe { asm!("clgi", "sti", options(nomem, nostack)) };
    }

    #[inline(always)]
    fn release_interrupts() {
        // SAFETY: handlers need nothing but the stack; no lock is held here.
        unsafe { asm!("stgi", "nop", "cli", options(nostack)) };
    }

    #[inline(always)]
    unsafe fn run(cpu: &PerCpu<Self>, vmcb: &mut Vmcb, registers: &mut Registers) {
        let guest = core::ptr::from_mut(vmcb).expose_provenance() as u64;
        // SAFETY: the caller vouches for the guest's block and registers; the host's is this CPU's
        // own.
        unsafe { entry::run_guest(guest, &raw mut *registers, cpu.arch.host_vmcb.get()) };
    }

    #[inline(always)]
    fn invalidate_page(address: u64, asid: u32) {
        invalidate::invalidate_page(address, asid);
    }

    #[cfg(feature = "audit")]
    fn books(cpu: &PerCpu<Self>) -> &core::cell::RefCell<crate::svm::audit::CpuBooks> {
        &cpu.arch.books
    }
}
