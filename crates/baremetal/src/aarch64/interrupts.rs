//! The exception vectors, and the handling of each interrupt. DDI 0487 M.b, D1.3 "Exceptions".

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

use super::guarded::{self, FAULTED};
use super::{clock, gic};
/// On Arm64, the catcher is also called for interrupts without another handler, including SErrors
/// and FIQs.
pub use crate::handlers::catch;
use crate::handlers::{self, catches};
use crate::processors::MAX_PROCESSORS;

/// The SGI that wakes another processor for its job.
pub const WAKE: u8 = 0;
/// The first SGI that an image may use; all up to 15 are free.
pub const FREE: u8 = 1;

/// The registers that the vectors store, lowest address first.
#[repr(C)]
pub struct Frame {
    /// X0 to X30.
    registers: [u64; 31],
    /// ELR_EL1.
    address: u64,
    /// SPSR_EL1.
    state: u64,
    /// ESR_EL1.
    syndrome: u64,
    /// FAR_EL1.
    fault: u64,
    /// The vector's number, from 0.
    vector: u64,
}

#[doc(hidden)]
pub const FRAME: usize = size_of::<Frame>();
const _: () = assert!(FRAME == 36 * 8 && FRAME.is_multiple_of(16));

impl Frame {
    /// ESR_EL1: the reason for the exception, if it was one.
    pub const fn syndrome(&self) -> u64 {
        self.syndrome
    }

    /// The vector's number: 4 is an exception, 6 an FIQ, 7 an SError.
    pub const fn vector(&self) -> u64 {
        self.vector
    }

    /// Address of the interrupted instruction.
    pub const fn address(&self) -> u64 {
        self.address
    }
}

/// The exception vectors of an image at EL1, which exist once per image: 16 of 128 bytes each. The
/// current level with its own stack has 4 (synchronous), 5 (IRQ), 6 (FIQ), 7 (SError); the program
/// never runs at another level.
#[doc(hidden)]
#[macro_export]
macro_rules! exception_vectors {
    () => {
        core::arch::global_asm!(
            r#"
.section .text
.balign 2048
.global exception_vectors
exception_vectors:
.set vector, 0
.rept 16
    .balign 128
    sub sp, sp, #{frame}
    stp x0, x1, [sp]
    mov x0, #vector
    b exception_common
    .set vector, vector + 1
.endr
.balign 128
exception_common:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x1, elr_el1
    stp x30, x1, [sp, #240]
    mrs x1, spsr_el1
    mrs x2, esr_el1
    stp x1, x2, [sp, #256]
    mrs x1, far_el1
    stp x1, x0, [sp, #272]
    mov x0, sp
    bl {dispatch}
    ldp x30, x1, [sp, #240]
    msr elr_el1, x1
    ldr x1, [sp, #256]
    msr spsr_el1, x1
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldp x0, x1, [sp]
    add sp, sp, #{frame}
    eret
"#,
            frame = const $crate::aarch64::interrupts::FRAME,
            dispatch = sym $crate::aarch64::interrupts::dispatch,
        );
    };
}

unsafe extern "C" {
    static exception_vectors: u8;
}

/// How often the SGI or PPI `id` has been taken, by all processors.
pub fn count(id: u32) -> u32 {
    handlers::count(id as usize)
}

/// Sets or removes the handler of SGI or PPI `id`. The timer is stopped before the handler runs.
pub fn handle(id: u32, handler: Option<fn(&Frame)>) {
    handlers::handle(id as usize, handler);
}

/// Pages of [`guard_page`]; initially no address of code.
static GUARDED_PAGES: [AtomicU64; MAX_PROCESSORS] = [const { AtomicU64::new(u64::MAX) }; MAX_PROCESSORS];

/// Makes exceptions of instructions in the page at `page` continue at the next instruction, with
/// the fault in X16 and X17, on the calling processor.
pub fn guard_page(page: u64) {
    // Pairs with `on_exception`, on the same processor.
    GUARDED_PAGES[number()].store(page, Ordering::Release);
}

/// Lets the processor take interrupts.
pub fn enable() {
    // SAFETY: the vectors are set up, and handlers touch only data that they may touch at any time.
    unsafe { asm!("msr daifclr, #2", options(nostack, preserves_flags)) };
}

/// Masks interrupts.
pub fn disable() {
    // SAFETY: it has no other effect.
    unsafe { asm!("msr daifset, #2", options(nostack, preserves_flags)) };
}

/// Waits for an interrupt, which may be pending already, takes it, and masks interrupts again. They
/// must be masked before.
pub fn wait() {
    // SAFETY: WFI also ends with a masked interrupt; then it is taken.
    unsafe {
        asm!("dsb sy", "wfi", "msr daifclr, #2", "isb", "msr daifset, #2", options(nostack, preserves_flags))
    };
}

/// Routes the processor's exceptions here, and stores its number.
///
/// # Safety
///
/// Once on each processor after its start, with its own number.
pub(super) unsafe fn load(number: usize) {
    let vectors = (&raw const exception_vectors).addr();
    // SAFETY: the vectors have the architecture's layout; TPIDR_EL1 has no other user.
    unsafe {
        asm!("msr vbar_el1, {}", "msr tpidr_el1, {}", "isb", in(reg) vectors, in(reg) number, options(nostack))
    };
}

/// The calling processor's number.
pub fn number() -> usize {
    let number: usize;
    // SAFETY: `load` has put it there.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) number, options(nomem, nostack, preserves_flags)) };
    number
}

#[doc(hidden)]
pub extern "C" fn dispatch(frame: &mut Frame) {
    match frame.vector {
        4 => on_exception(frame),
        5 => on_interrupt(frame),
        vector => {
            let (syndrome, at) = (frame.syndrome, frame.address);
            assert!(catches(frame), "vector {vector} at {at:#x}, syndrome {syndrome:#x}");
        }
    }
}

fn on_interrupt(frame: &Frame) {
    let id = gic::acknowledge();
    // SAFETY: a barrier, which keeps the handler's accesses after the acknowledgement.
    unsafe { asm!("dsb sy", options(nostack, preserves_flags)) };
    if id >= gic::SPECIAL {
        return;
    }
    if id == clock::virtual_timer() {
        // Its line stays asserted until then.
        clock::stop_timer();
    }
    gic::end(id);
    // SAFETY: a barrier: the end takes effect before the handler begins.
    unsafe { asm!("isb", options(nostack, preserves_flags)) };
    handlers::tally(id as usize);
    handlers::run(id as usize, frame);
}

/// Continues where the table of guarded instructions says, with the fault in X16 and X17.
fn on_exception(frame: &mut Frame) {
    let in_page = || {
        // Pairs with `guard_page`.
        let page = GUARDED_PAGES[number()].load(Ordering::Acquire);
        (frame.address & !0xfff == page).then(|| frame.address + 4)
    };
    let Some(next) = guarded::fixup(frame.address).or_else(in_page) else {
        if catches(frame) {
            return;
        }
        let (syndrome, fault, at) = (frame.syndrome, frame.fault, frame.address);
        panic!("exception with syndrome {syndrome:#x} at {at:#x}, address {fault:#x}");
    };
    frame.address = next;
    frame.registers[16] = FAULTED | frame.syndrome;
    frame.registers[17] = frame.fault;
}
