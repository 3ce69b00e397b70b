//! Entering and leaving the guest: the only place with VMLAUNCH and VMRESUME.

use core::arch::naked_asm;

use crate::arch::x86_64::general::{each_register, load, store};
use crate::x86::vcpu::registers::Registers;

unsafe extern "C" {
    /// Where an exit goes on, in [`run_guest`].
    fn vmx_exit();
}

/// The address where an exit goes on.
pub(super) fn exit() -> u64 {
    (vmx_exit as *const ()).addr() as u64
}

/// Runs the guest until it exits. Returns 0, or with the guest not entered 1 for VMfailInvalid and
/// 2 for VMfailValid.
///
/// Called with IF = 0: a pending interrupt ends guest mode at once, and is taken when the caller
/// sets IF. The VMCS switches the rest of the processor's state, except FPU, debug registers, CR2
/// and the MSRs that it does not have, which the caller does.
///
/// # Safety
///
/// The current VMCS is complete but for HOST_RSP: `host_stack` has its value, 0 in a new VMCS, and
/// both become the stack of this call. `registers` belongs to its guest and is not otherwise in use
/// meanwhile. The guest's state and nested tables give it access to its own memory only.
#[unsafe(naked)]
pub(super) unsafe extern "C" fn run_guest(
    registers: *mut Registers,
    is_launched: u64,
    host_stack: *mut u64,
) -> u64 {
    naked_asm!(
        "push rbx",
        "push rbp",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "push rdi", // registers
        // The stack is nearly always the same: a write costs an exit where VMX is nested.
        "cmp rsp, [rdx]",
        "je 1f",
        "mov [rdx], rsp",
        "mov eax, 0x6c14", // HOST_RSP
        "vmwrite rax, rsp",
        "1:",
        "test esi, esi", // MOV keeps the flags
        "mov rax, [rdi]",
        each_register!(load, "rdi"),
        "mov rsi, [rdi + 0x30]",
        "mov rdi, [rdi + 0x38]",
        "jnz 2f",
        "vmlaunch",
        "jmp 3f",
        "2:",
        "vmresume",
        "3:",
        "mov eax, 1",
        "mov edx, 2",
        "cmovz eax, edx",
        "jmp 4f",
        ".global vmx_exit",
        "vmx_exit:",
        "push rdi",
        "mov rdi, [rsp + 8]",
        "mov [rdi], rax",
        each_register!(store, "rdi"),
        "mov [rdi + 0x30], rsi",
        "pop qword ptr [rdi + 0x38]",
        "xor eax, eax",
        "4:",
        "add rsp, 8",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbp",
        "pop rbx",
        "ret",
    )
}
