//! The handling of each vector.

use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::port::Port;

pub use super::apic::VECTOR_SPURIOUS;
use super::guarded::{self, FAULTED};
use super::{apic, tables};
pub use crate::handlers::catch;
use crate::handlers::{self, catches};

/// Wakes another processor for its job.
pub const VECTOR_WAKE: u8 = 0x30;
/// The first vector that an image may use; all up to [`VECTOR_SPURIOUS`] are free.
pub const VECTOR_FREE: u8 = 0x40;
/// NMIs.
pub const VECTOR_NMI: u8 = 2;

/// The stub's stack frame, lowest address first: `KEPT` registers in addition to those that a C
/// function may change.
#[derive(Debug)]
#[repr(C)]
pub struct Frame<const KEPT: usize = 5> {
    /// R15, R14, R13, R12, RBX, if they are kept.
    preserved: [u64; KEPT],
    /// A frame with nothing but saved registers below it: the start of a backtrace.
    rbp: u64,
    r11: u64,
    r10: u64,
    r9: u64,
    r8: u64,
    rdi: u64,
    rsi: u64,
    rdx: u64,
    rcx: u64,
    rax: u64,
    vector: u64,
    error: u64,
    rip: u64,
    cs: u64,
    rflags: u64,
    rsp: u64,
    ss: u64,
}

/// Indices of registers in [`Frame::preserved`].
const R13: usize = 2;
const R12: usize = 3;

impl<const KEPT: usize> Frame<KEPT> {
    /// Address of the interrupted instruction.
    pub const fn rip(&self) -> u64 {
        self.rip
    }

    /// RBP at that instruction.
    pub const fn rbp(&self) -> u64 {
        self.rbp
    }

    /// The exception's error code; 0 if it has none.
    pub const fn error(&self) -> u64 {
        self.error
    }

    /// The vector's number.
    pub const fn vector(&self) -> u8 {
        self.vector as u8
    }

    /// RCX at that instruction.
    pub const fn rcx(&self) -> u64 {
        self.rcx
    }
}

/// The stubs of an image, which exist once per image: one of 16 bytes per vector, which pushes an
/// error code of 0 if the processor pushes none (APM volume 2, table 8-1) and the vector's number;
/// then the common part.
///
/// The function is an `extern "C" fn(&mut Frame<5>)` if all registers are pushed, and takes a
/// `Frame<0>` if only those are pushed that a C function may change.
#[macro_export]
macro_rules! interrupt_stubs {
    (all => $dispatch:path) => {
        $crate::interrupt_stubs!(
            "push rbx\npush r12\npush r13\npush r14\npush r15",
            "pop r15\npop r14\npop r13\npop r12\npop rbx",
            $dispatch
        );
    };
    (volatile => $dispatch:path) => {
        $crate::interrupt_stubs!("", "", $dispatch);
    };
    ($push:literal, $pop:literal, $dispatch:path) => {
        core::arch::global_asm!(
            r#"
.section .text
.global interrupt_stubs
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
"#,
            $push,
            r#"
    cld
    mov rdi, rsp
    mov rbp, rsp
    and rsp, -16
    call {dispatch}
    mov rsp, rbp
"#,
            $pop,
            r#"
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
            dispatch = sym $dispatch,
        );
    };
}

unsafe extern "C" {
    static interrupt_stubs: [[u8; 16]; 256];
}

/// Fills in the IDT with the image's stubs; `stack` returns the stack of each vector, in the form
/// that [`tables::set_gate_on_stack`] takes.
///
/// # Safety
///
/// No other processor runs, and this one loads the table afterwards. Named stacks are in its task
/// state segment then.
pub unsafe fn build(stack: impl Fn(u8) -> u16) {
    for vector in 0..=255u8 {
        // SAFETY: the address of our own text is taken, nothing is read.
        let stub = unsafe { &raw const interrupt_stubs[usize::from(vector)] };
        // SAFETY: a stub is an interrupt handler; the rest is the caller's.
        unsafe { tables::set_gate_on_stack(vector, stub.addr() as u64, stack(vector)) };
    }
}

/// RFLAGS as pushed by the last exception.
static FAULT_FLAGS: AtomicU64 = AtomicU64::new(0);

/// The page of [`guard_page`]; initially no address of code.
static GUARDED_PAGE: AtomicU64 = AtomicU64::new(u64::MAX);

/// How often `vector` has been taken, by all processors.
pub fn count(vector: u8) -> u32 {
    handlers::count(vector.into())
}

/// RFLAGS as pushed by the last exception, on any processor.
pub fn fault_flags() -> u64 {
    // Pairs with `on_exception`.
    FAULT_FLAGS.load(Ordering::Acquire)
}

/// Sets or removes the handler of `vector`. An interrupt is ended at the APIC before its handler
/// runs.
pub fn handle(vector: u8, handler: Option<fn(&Frame)>) {
    handlers::handle(vector.into(), handler);
}

/// Lets the processor take interrupts.
pub fn enable() {
    x86_64::instructions::interrupts::enable();
}

/// Masks interrupts.
pub fn disable() {
    x86_64::instructions::interrupts::disable();
}

/// Makes faults of instructions in the page at `page` continue at the address in R13 with the stack
/// in R12; the code that calls into the page sets both.
pub fn guard_page(page: u64) {
    // Pairs with `on_exception`.
    GUARDED_PAGE.store(page, Ordering::Release);
}

/// Silences all interrupts that have not been requested, whatever state the firmware has left the
/// 8259s in. On the first processor, once, while the first MiB is mapped one to one. I/O APICs are
/// found later, with the firmware's other tables.
pub fn silence() {
    // SAFETY: memory is mapped one to one, and nothing has been written below 1 MiB yet.
    let has_imcr = unsafe { pic::firmware_has_imcr() };
    // SAFETY: the ports are those of the 8259s and of the IMCR, or unused.
    pic::silence(has_imcr, |port, value| unsafe { Port::new(port).write(value) });
}

#[doc(hidden)]
pub extern "C" fn dispatch(frame: &mut Frame) {
    let vector = frame.vector as u8;
    handlers::tally(vector.into());
    match vector {
        VECTOR_NMI => {}
        0..=31 => return on_exception(vector, frame),
        // A spurious interrupt, or one of the 8259s that was in transit while they were masked:
        // neither is in service, and the local APIC would take an end of interrupt for that of
        // another one. Interprocessor interrupts may have these vectors as well.
        _ if (vector == VECTOR_SPURIOUS || pic::VECTORS.contains(&vector))
            && !apic::is_in_service(vector) =>
        {
            return;
        }
        _ => apic::end_of_interrupt(),
    }
    handlers::run(vector.into(), frame);
}

/// Continues where the table of guarded instructions or the guarded page's caller says, in ring 0,
/// with the fault in R11 and R10.
fn on_exception(vector: u8, frame: &mut Frame) {
    // Pairs with `fault_flags`; the page pairs with `guard_page`.
    FAULT_FLAGS.store(frame.rflags, Ordering::Release);
    let page = GUARDED_PAGE.load(Ordering::Acquire);
    if let Some(next) = guarded::fixup(frame.rip) {
        frame.rip = next;
    } else if frame.rip & !0xfff == page {
        frame.rip = frame.preserved[R13];
        frame.rsp = frame.preserved[R12];
    } else if catches(frame) {
        return;
    } else {
        let cr2 = x86_64::registers::control::Cr2::read_raw();
        panic!("exception {vector} (error {:#x}) at {:#x}, CR2 {cr2:#x}", frame.error, frame.rip);
    }
    frame.r11 = FAULTED | u64::from(vector);
    frame.r10 = frame.error;
    frame.cs = u64::from(tables::KERNEL_CODE);
    frame.ss = u64::from(tables::KERNEL_DATA);
}
