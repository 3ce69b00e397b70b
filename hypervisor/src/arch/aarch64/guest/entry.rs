//! Guest entry and exit; EL2's vectors.
//!
//! Interrupts and exceptions that the guest causes are exits. Those of the hypervisor itself are
//! bugs: interrupts are masked while it runs, so none of its vectors is ever meant to be used.
//!
//! Source: Arm DDI 0487, D1.3.1.5 "Exception vector tables", D1.4 "Exception return".

use core::arch::global_asm;
use core::mem::offset_of;

use crate::arch::aarch64::sysreg::{isb, read, write};
use crate::arm64::processor::{Registers, Vector};
use crate::image::blocks::{BLOCK_SIZE, FAULT_STACK_TOP};
use crate::image::panic;

const PC: usize = offset_of!(Registers, pc);
const _: () = assert!(PC == 248 && offset_of!(Registers, pstate) == PC + 8);

const _: () =
    assert!(Vector::Synchronous as u8 == 0 && Vector::Interrupt as u8 == 1 && Vector::SError as u8 == 3);

global_asm!(
    r#"
.section .text
.global run_guest
run_guest:
    stp x29, x30, [sp, #-96]!
    mov x29, sp
    stp x19, x20, [sp, #16]
    stp x21, x22, [sp, #32]
    stp x23, x24, [sp, #48]
    stp x25, x26, [sp, #64]
    stp x27, x28, [sp, #80]
    msr tpidr_el2, x0
    ldp x1, x2, [x0, #{pc}]
    msr elr_el2, x1
    msr spsr_el2, x2
    ldp x2, x3, [x0, #16]
    ldp x4, x5, [x0, #32]
    ldp x6, x7, [x0, #48]
    ldp x8, x9, [x0, #64]
    ldp x10, x11, [x0, #80]
    ldp x12, x13, [x0, #96]
    ldp x14, x15, [x0, #112]
    ldp x16, x17, [x0, #128]
    ldp x18, x19, [x0, #144]
    ldp x20, x21, [x0, #160]
    ldp x22, x23, [x0, #176]
    ldp x24, x25, [x0, #192]
    ldp x26, x27, [x0, #208]
    ldp x28, x29, [x0, #224]
    ldr x30, [x0, #240]
    ldp x0, x1, [x0]
    eret
    dsb nsh                     // no speculative execution past ERET
    isb

.macro guest_exit kind
    .balign 128
    stp x0, x1, [sp, #-16]!
    mov x1, #\kind
    b guest_exit_common
.endm

// An exception of the hypervisor itself. The guest's values in these registers are lost: the run is
// over.
.macro own_exception kind
    .balign 128
    msr tpidr_el0, x0
    msr tpidrro_el0, x1
    mov x0, sp
    b own_exception_common
.endm

.balign 2048
el2_vectors:
    own_exception 0
    own_exception 1
    own_exception 2
    own_exception 3
    own_exception 4
    own_exception 5
    own_exception 6
    own_exception 7
    guest_exit 0
    guest_exit 1
    guest_exit 1
    guest_exit 3
    guest_exit 0
    guest_exit 1
    guest_exit 1
    guest_exit 3

guest_exit_common:
    mrs x0, tpidr_el2
    stp x2, x3, [x0, #16]
    stp x4, x5, [x0, #32]
    stp x6, x7, [x0, #48]
    stp x8, x9, [x0, #64]
    stp x10, x11, [x0, #80]
    stp x12, x13, [x0, #96]
    stp x14, x15, [x0, #112]
    stp x16, x17, [x0, #128]
    stp x18, x19, [x0, #144]
    stp x20, x21, [x0, #160]
    stp x22, x23, [x0, #176]
    stp x24, x25, [x0, #192]
    stp x26, x27, [x0, #208]
    stp x28, x29, [x0, #224]
    str x30, [x0, #240]
    ldp x2, x3, [sp], #16
    stp x2, x3, [x0]
    mrs x2, elr_el2
    mrs x3, spsr_el2
    stp x2, x3, [x0, #{pc}]
    mov x0, x1
    ldp x19, x20, [sp, #16]
    ldp x21, x22, [sp, #32]
    ldp x23, x24, [sp, #48]
    ldp x25, x26, [sp, #64]
    ldp x27, x28, [sp, #80]
    ldp x29, x30, [sp], #96
    ret

// x0: the stack pointer, which may be in the guard page. The report has its own stack.
own_exception_common:
    and x1, x0, #{block_mask}
    add x1, x1, #{fault_top}
    mov sp, x1
    mov x1, x29
    b {on_exception}
"#,
    pc = const PC,
    block_mask = const !(BLOCK_SIZE - 1),
    fault_top = const FAULT_STACK_TOP,
    on_exception = sym on_exception,
);

unsafe extern "C" {
    // The vectors above return only numbers of `Vector`.
    fn run_guest(registers: *mut Registers) -> Vector;
    static el2_vectors: u8;
}

/// Enters the guest, and returns the vector through which it exited.
///
/// # Safety
///
/// The registers are this CPU's vCPU's; EL2 and EL1 are set up for it.
#[inline(always)]
pub(in crate::arch::aarch64) unsafe fn run(registers: &mut Registers) -> Vector {
    // SAFETY: the caller vouches for everything; the layout is what the code expects.
    unsafe { run_guest(registers) }
}

/// Installs these vectors on the calling CPU, which is on its block's stack.
pub(crate) fn install_vectors() {
    // SAFETY: the vectors are complete, aligned to 2 KiB, and mapped.
    unsafe { write!("vbar_el2", (&raw const el2_vectors).addr() as u64) };
    isb();
}

extern "C" fn on_exception(stack: u64, frame: u64) -> ! {
    let (syndrome, address) = (read!("esr_el2"), read!("far_el2"));
    let return_address = read!("elr_el2");
    panic::report_exception(
        format_args!(
            "exception at {return_address:#x}: {}, ESR_EL2 {syndrome:#x}, FAR_EL2 {address:#x}, SP {stack:#x}",
            class_name(syndrome >> 26 & 0x3f),
        ),
        frame,
        return_address,
    )
}

fn class_name(class: u64) -> &'static str {
    match class {
        0x00 => "undefined instruction",
        0x21 => "instruction abort",
        0x25 => "data abort",
        0x22 => "misaligned PC",
        0x26 => "misaligned stack pointer",
        0x2f => "SError",
        0x3c => "BRK",
        _ => "see the manual",
    }
}
