//! Entering and leaving the guest: the only place with VMRUN.

use core::arch::naked_asm;

use crate::arch::x86_64::general::{each_register, load, store};
use crate::x86::vcpu::registers::Registers;

/// Runs the guest until it exits.
///
/// Called with GIF = 0 and IF = 1: a pending interrupt ends guest mode at once, and is taken when
/// the caller sets GIF again. FS, GS, TR, LDTR and the system call registers are switched here.
/// VMRUN switches the rest of the processor's state, except FPU and debug registers, which the
/// caller does.
///
/// # Safety
///
/// `guest` and `host` are the physical addresses of two VMCBs: the guest's, complete, and the one
/// that this CPU's host state was saved to by VMSAVE. `registers` belongs to the guest and is not
/// otherwise in use meanwhile. The host save area of this CPU is set. The guest's state and nested
/// tables give it access to its own memory only.
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn run_guest(guest: u64, registers: *mut Registers, host: u64) {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdx", // host VMCB
        "push rsi", // registers
        "mov rax, rdi",
        "vmload rax",
        each_register!(load, "rsi"),
        "mov rdi, [rsi + 0x38]",
        "mov rsi, [rsi + 0x30]",
        "vmrun rax",
        "vmsave rax", // VMRUN restores RAX: the guest's VMCB
        "mov rax, [rsp]",
        each_register!(store, "rax"),
        "mov [rax + 0x30], rsi",
        "mov [rax + 0x38], rdi",
        "mov rax, [rsp + 8]",
        "vmload rax",
        "add rsp, 16",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}
