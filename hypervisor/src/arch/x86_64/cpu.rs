//! The CPU itself: waiting for interrupts, stacks, the end of the run.

use baremetal::x86_64::power;
use baremetal::x86_64::tables::Tables;
use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use hostlink::exit::{self, ExitCode};
use stay::tagged::two_flushes::Roots;
use x86_64::instructions::interrupts;
use x86_64::registers::control::{Efer, EferFlags};

use super::{apic, console};
use crate::arch::{Local, PerCpu};
use crate::image::Bare;
use crate::vmx::soft_state::LoadedValues;
use crate::x86::vectors;

#[allow(unreachable_pub, reason = "the traits that name it are public")]
pub struct CpuData {
    /// GDT, TSS; used by the processor.
    pub(crate) tables: UnsafeCell<Tables>,
    /// Physical address of the page with the host state that VMRUN saves, or of VMXON's.
    pub(crate) own_page: Cell<u64>,
    /// The roots of nested tables by which this CPU may hold translations. VMX only.
    pub(crate) roots: Roots,
    /// What it has of vCPUs' registers. VMX only.
    pub(crate) held: LoadedValues,
    /// Physical address of the VMCB that holds the host's own VMSAVE state.
    pub(crate) host_vmcb: Cell<u64>,
    /// The auditor's record of this CPU.
    #[cfg(feature = "audit")]
    pub(crate) books: core::cell::RefCell<crate::svm::audit::CpuBooks>,
}

impl Default for CpuData {
    /// The data of a CPU that has not started.
    fn default() -> Self {
        Self {
            tables: UnsafeCell::new(Tables::new()),
            own_page: Cell::new(0),
            roots: Roots::new(),
            held: LoadedValues::default(),
            host_vmcb: Cell::new(0),
            #[cfg(feature = "audit")]
            books: core::cell::RefCell::new(crate::svm::audit::CpuBooks::default()),
        }
    }
}

/// Takes the pending interrupts. STI admits them only after the instruction that follows it.
pub(crate) fn take_interrupts() {
    // SAFETY: handlers need nothing but the stack, and callers hold no lock that one of them takes.
    unsafe { asm!("sti", "nop", "cli", options(nostack)) };
}

pub(crate) fn wait_for_interrupt() {
    // STI takes effect after HLT has begun, so a pending interrupt ends the HLT.
    interrupts::enable_and_hlt();
    interrupts::disable();
}

pub(crate) fn kick(cpu: &PerCpu) {
    apic::send_fixed(cpu.id, vectors::KICK);
}

/// Zeroes memory by words: a byte-wise string store is many times slower in emulation.
///
/// # Safety
///
/// The range is RAM, mapped, aligned to 64 bytes, and not in use.
pub(crate) unsafe fn zero(start: u64, size: u64) {
    // SAFETY: the caller vouches for the range.
    unsafe { core::slice::from_raw_parts_mut(start as *mut [u64; 8], (size / 64) as usize) }.fill([0; 8]);
}

pub(crate) fn stop() -> ! {
    loop {
        interrupts::disable();
        x86_64::instructions::hlt();
    }
}

/// Ends the run with `code`. Without QEMU's exit device the CPUs stop here.
pub(crate) fn exit(code: ExitCode) -> ! {
    power::debug_exit(exit::PORT, code as u8);
    stop()
}

impl Bare for Local {
    #[inline(always)]
    fn stack_pointer() -> u64 {
        let rsp: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rsp", out(reg) rsp, options(nomem, nostack, preserves_flags)) };
        rsp
    }

    #[inline(always)]
    fn frame_pointer() -> u64 {
        let rbp: u64;
        // SAFETY: reads a register.
        unsafe { asm!("mov {}, rbp", out(reg) rbp, options(nomem, nostack, preserves_flags)) };
        rbp
    }

    unsafe fn switch_stack(top: u64, main: extern "C" fn() -> !) -> ! {
        // SAFETY: the caller vouches that the stack is not in use, and what is on the former one is
        // not returned to. The frame pointer is cleared so that backtraces end here.
        unsafe {
            asm!(
                "mov rsp, {stack}",
                "xor ebp, ebp",
                "call {main}",
                "ud2",
                stack = in(reg) top,
                main = in(reg) main,
                options(noreturn),
            )
        }
    }

    /// The NMIs that stop other CPUs can be delivered.
    fn quiesce() {
        interrupts::disable();
        if Efer::read().contains(EferFlags::SECURE_VIRTUAL_MACHINE_ENABLE) {
            // SAFETY: SVM is on, and interrupts are off: STGI lets in what is not maskable alone.
            // If the panic occurred between CLGI and STGI, NMIs would be held without it.
            unsafe { asm!("stgi", options(nomem, nostack)) };
        }
    }

    fn stop_other(cpu: &PerCpu) {
        apic::send_nmi(cpu.id);
    }

    fn log_text(text: &str) {
        console::log_text(text);
    }
}
