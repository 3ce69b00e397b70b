//! Vectors and handlers of the real machine.
//!
//! Interrupts are taken at two places only: right after an exit, between STGI and CLI, and while a
//! CPU idles. Everything else runs with interrupts off, so a handler never meets a lock that its
//! own CPU holds, and may take any.

use core::arch::global_asm;
use core::fmt::Write;

use x86_64::registers::control::Cr2;

use super::{apic, cpu};
use crate::arch::Local;
use crate::image::console::LogPort;
use crate::image::panic;
use crate::vm::GUEST;
use crate::vm::run;

/// The one-shot timer.
pub(crate) const VECTOR_TIMER: u8 = 0x20;
/// "Look again": sent to a CPU that should leave guest mode or idling.
pub(crate) const VECTOR_KICK: u8 = 0x21;
/// The real COM1 has received something.
pub(crate) const VECTOR_SERIAL: u8 = 0x22;
/// The control channel has received something.
pub(crate) const VECTOR_CONTROL: u8 = 0x23;
/// Spurious interrupts of the local APIC; the low four bits are ones as old APICs want them.
pub(crate) const VECTOR_SPURIOUS: u8 = 0xff;

/// What the stub pushes, lowest address first.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) rbp: u64,
    pub(crate) r11: u64,
    pub(crate) r10: u64,
    pub(crate) r9: u64,
    pub(crate) r8: u64,
    pub(crate) rdi: u64,
    pub(crate) rsi: u64,
    pub(crate) rdx: u64,
    pub(crate) rcx: u64,
    pub(crate) rax: u64,
    pub(crate) vector: u64,
    pub(crate) error: u64,
    pub(crate) rip: u64,
    pub(crate) cs: u64,
    pub(crate) rflags: u64,
    pub(crate) rsp: u64,
    pub(crate) ss: u64,
}

// One stub of 16 bytes per vector: an error code of 0 where the processor pushes none (APM volume
// 2, table 8-1), the vector's number, then the common part. rbp is pushed last so that it forms a
// frame with nothing but saved registers above it.
global_asm!(
    r#"
.section .text
.balign 16
interrupt_stubs:
.set vector, 0
.rept 256
    .balign 16
    .if (vector == 8) || (vector >= 10 && vector <= 14) || (vector == 17) || (vector == 21) || (vector == 29) || (vector == 30)
    .else
    push 0
    .endif
    push vector
    jmp interrupt_common
    .set vector, vector + 1
.endr
.balign 16
interrupt_common:
    push rax
    push rcx
    push rdx
    push rsi
    push rdi
    push r8
    push r9
    push r10
    push r11
    push rbp
    cld
    mov rdi, rsp
    mov rbp, rsp
    and rsp, -16
    call {dispatch}
    mov rsp, rbp
    pop rbp
    pop r11
    pop r10
    pop r9
    pop r8
    pop rdi
    pop rsi
    pop rdx
    pop rcx
    pop rax
    add rsp, 16
    iretq
"#,
    dispatch = sym dispatch,
);

unsafe extern "C" {
    static interrupt_stubs: [[u8; 16]; 256];
}

/// Address of a vector's stub.
pub(crate) fn stub_address(vector: usize) -> u64 {
    // SAFETY: the address of our own text is taken, nothing is read.
    (unsafe { &raw const interrupt_stubs[vector] }).addr() as u64
}

extern "C" fn dispatch(frame: &Frame) {
    match frame.vector as u8 {
        vector @ 0..=31 => on_exception(vector, frame),
        VECTOR_TIMER => {
            run::on_timer::<Local>();
            apic::end_of_interrupt();
        }
        VECTOR_KICK => {
            run::on_kick::<Local>();
            apic::end_of_interrupt();
        }
        VECTOR_SERIAL => {
            run::on_serial_interrupt::<Local>();
            apic::end_of_interrupt();
        }
        VECTOR_CONTROL => {
            run::on_control_interrupt::<Local>();
            apic::end_of_interrupt();
        }
        // Spurious interrupts get no end of interrupt; others are not enabled anywhere.
        VECTOR_SPURIOUS => {}
        // They are masked, and this one was on its way. It came past the local APIC.
        vector if pic::VECTORS.contains(&vector) => log::warn!(target: GUEST, "interrupt of an 8259"),
        vector => {
            log::warn!(target: GUEST, "interrupt on unused vector {vector:#x}");
            apic::end_of_interrupt();
        }
    }
}

/// A processor exception in the hypervisor itself.
fn on_exception(vector: u8, frame: &Frame) {
    // NMIs stop the other CPUs when one has panicked; any other NMI is none of our making.
    if vector == 2 {
        if panic::has_panicked() {
            cpu::stop();
        }
        // Whoever was interrupted may hold the log's lock.
        let _ = writeln!(LogPort, "quell: warning: unexpected NMI");
        return;
    }
    panic::report_exception(
        format_args!(
            "exception {vector} ({}), error code {:#x}, CR2 {:#x}\n  {frame:x?}",
            exception_name(vector),
            frame.error,
            Cr2::read_raw(),
        ),
        frame.rbp,
        frame.rip,
    )
}

fn exception_name(vector: u8) -> &'static str {
    match vector {
        0 => "divide error",
        6 => "invalid opcode",
        8 => "double fault, most likely a stack overflow",
        13 => "general protection",
        14 => "page fault",
        18 => "machine check",
        _ => "see the manual",
    }
}
