//! Events that cannot be delivered, because the stack or the IDT is at an address without memory.

use core::arch::asm;

use baremetal::x86_64::guarded::FAULTED;
use baremetal::x86_64::tables;

use super::io::HOLE;
use super::prelude::*;

const VECTOR_DF: u8 = 8;
const VECTOR: u8 = VECTOR_TEST + 9;
/// A stack on which nothing can be pushed.
const STACK: u64 = HOLE + 0x800;

// Continues at the address in R13, with the stack in R12.
global_asm!(
    r#"
.section .text
.balign 16
delivery_failed:
    mov r11d, {fault}
    mov r10, [rsp]
    mov r9, [rsp + 8]
    mov rsp, r12
    jmp r13
"#,
    fault = const FAULTED | VECTOR_DF as u64,
);

unsafe extern "C" {
    static delivery_failed: u8;
}

/// The outcome of an instruction with an invalid stack.
struct Failed {
    fault: Result<(), Fault>,
    /// Distance from the first instruction at which it occurred.
    at: u64,
    rax: u64,
}

const RAX: u64 = 0x0123_4567_89ab_cdef;

/// Executes instructions with [`STACK`].
macro_rules! without_stack {
    ($($instruction:literal),+) => {{
        let (rax, at, start, fault, error): (u64, u64, u64, u64, u64);
        // SAFETY: nothing is pushed, or the double fault continues here with R12's stack pointer.
        unsafe {
            asm!(
                "mov r12, rsp", "lea r13, [rip + 3f]", "lea r8, [rip + 2f]", "xor r9d, r9d",
                "mov rsp, {stack}",
                "2:", $($instruction,)+
                "3:", "cli", "mov rsp, r12",
                stack = in(reg) STACK, in("rdi") IOAPIC, inout("rax") RAX => rax,
                out("r8") start, out("r9") at, inout("r10") 0u64 => error, inout("r11") 0u64 => fault,
                out("r12") _, out("r13") _,
            );
        }
        Failed { fault: Fault::check(fault, error), at: at.wrapping_sub(start), rax }
    }};
}

/// An event that cannot be pushed is a double fault at the instruction, which is not executed.
pub(super) fn stack_in_nothing() -> Verdict {
    // SAFETY: it is a handler for the vector, and no other processor needs one.
    unsafe { tables::set_gate_apart(VECTOR_DF, (&raw const delivery_failed).addr() as u64) };
    const DOUBLE: Result<(), Fault> = Err(Fault { vector: VECTOR_DF, error: 0 });
    let before = count(VECTOR);
    apic::send_fixed(apic::id(), VECTOR);
    // STI and NOP have two bytes, MOV two; the interrupt is taken before the MOV from a device.
    let interrupt = without_stack!("sti", "nop", "mov eax, [rdi]", "ud2");
    ensure!(interrupt.fault == DOUBLE, "an interrupt: {:?}", interrupt.fault);
    ensure!((interrupt.at, interrupt.rax) == (2, RAX), "at {}, RAX {:#x}", interrupt.at, interrupt.rax);
    ensure!(count(VECTOR) == before, "the interrupt has come as well");
    x86_64::instructions::interrupts::enable();
    x86_64::instructions::nop();
    x86_64::instructions::interrupts::disable();
    ensure!(count(VECTOR) == before + 1, "the interrupt is lost");
    let exception = without_stack!("ud2");
    ensure!(exception.fault == DOUBLE && exception.at == 0, "#UD: {:?}", exception.fault);
    let raised = without_stack!("xor ecx, ecx", "dec ecx", "rdmsr");
    ensure!(raised.fault == DOUBLE && raised.at == 4, "#GP that an exit raises: {:?}", raised.fault);
    let software = without_stack!("int 0x49");
    ensure!(software.fault == DOUBLE && software.at == 0, "INT n: {:?}", software.fault);
    Ok(())
}

/// With an unreadable IDT no exception has a handler: the processor shuts down.
pub(super) fn idt_in_nothing() -> ! {
    // SAFETY: this does not return, as intended.
    unsafe {
        asm!(
            "sub rsp, 16", "mov word ptr [rsp + 6], 0xfff", "mov [rsp + 8], {hole}", "lidt [rsp + 6]", "ud2",
            hole = in(reg) HOLE, options(noreturn),
        );
    }
}
