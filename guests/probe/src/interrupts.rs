//! What happens on each vector.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use tlfs::Control;

use crate::guarded::{self, FAULTED, guarded};
use crate::{apic, report, tables};

/// Wakes another processor for its job.
pub(crate) const VECTOR_WAKE: u8 = 0x30;
/// First of the vectors that the tests use; their interrupts are counted, like all.
pub(crate) const VECTOR_TEST: u8 = 0x40;
/// Only ends itself: the least that an interrupt can do.
pub(crate) const VECTOR_TICK: u8 = 0x50;
/// Ends itself and sends [`VECTOR_TICK`] to the first processor.
pub(crate) const VECTOR_ECHO: u8 = 0x51;
/// Spurious interrupts.
pub(crate) const VECTOR_SPURIOUS: u8 = 0xff;

const VECTOR_NMI: u8 = 2;

/// What the stub pushes, lowest address first.
#[repr(C)]
struct Frame {
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

// One stub of 16 bytes per vector: an error code of 0 where the processor pushes none (APM volume 2,
// table 8-1), the vector's number, then the common part. TICK and ECHO are what benchmarks count, so they
// do nothing beyond their purpose.
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

.balign 16
interrupt_tick:
    push rax
    push rcx
    push rdx
    inc dword ptr [{counts} + 4 * {tick}]
    mov ecx, 0x80b              // EOI
    xor eax, eax
    xor edx, edx
    wrmsr
    pop rdx
    pop rcx
    pop rax
    iretq

.balign 16
interrupt_echo:
    push rax
    push rcx
    push rdx
    mov ecx, 0x80b
    xor eax, eax
    xor edx, edx
    wrmsr
    mov ecx, 0x830              // ICR: fixed, physical, to the local APIC 0
    mov eax, 0x4000 + {tick}
    wrmsr
    pop rdx
    pop rcx
    pop rax
    iretq
"#,
    dispatch = sym dispatch,
    counts = sym COUNTS,
    tick = const VECTOR_TICK,
);

unsafe extern "C" {
    static interrupt_stubs: [[u8; 16]; 256];
    static interrupt_tick: u8;
    static interrupt_echo: u8;
}

/// How many interrupts each vector had. Handlers and those who wait run on one processor, or the waiting
/// one sees the count some time.
static COUNTS: [AtomicU32; 256] = [const { AtomicU32::new(0) }; 256];

/// NMIs that the handler is in at this moment, the most there ever were at once, and how many more NMIs it
/// is to send to its own processor from within.
static NMI_DEPTH: AtomicU32 = AtomicU32::new(0);
static NMI_DEPTH_MAX: AtomicU32 = AtomicU32::new(0);
static NMI_RESEND: AtomicU32 = AtomicU32::new(0);
/// What the NMI handler does beside: the address of a `fn()`, or 0.
static NMI_WORK: AtomicUsize = AtomicUsize::new(0);
/// Whether the next NMI's handler is to run into an IRET that faults.
static NMI_FAULT: AtomicBool = AtomicBool::new(false);

/// Interrupts of the kind that [`interrupted_calls`] counts.
static INTERRUPTED_CALLS: AtomicU32 = AtomicU32::new(0);

/// How many interrupts came between two parts of a hypercall: at its instruction, with a part of its list done.
pub(crate) fn interrupted_calls() -> u32 {
    INTERRUPTED_CALLS.load(Ordering::Acquire)
}

/// How often `vector` has been taken.
pub(crate) fn count(vector: u8) -> u32 {
    COUNTS[usize::from(vector)].load(Ordering::Acquire)
}

/// How often the NMI handler has been entered.
pub(crate) fn nmi_count() -> u32 {
    count(VECTOR_NMI)
}

/// How many NMI handlers there were at once at most.
pub(crate) fn nmi_depth_max() -> u32 {
    NMI_DEPTH_MAX.load(Ordering::Acquire)
}

/// Has the NMI handler send so many more to its own processor, one per NMI.
pub(crate) fn resend_nmis(count: u32) {
    NMI_RESEND.store(count, Ordering::Release);
}

/// Has the next NMI's handler send another one to its own processor, then execute an IRET that faults.
pub(crate) fn fault_in_nmi() {
    NMI_FAULT.store(true, Ordering::Release);
}

/// Has each NMI's handler do `work`, or nothing any more.
pub(crate) fn work_in_nmi(work: Option<fn()>) {
    NMI_WORK.store(work.map_or(0, |work| work as usize), Ordering::Release);
}

/// Address of the code for a vector.
pub(crate) fn handler(vector: u8) -> u64 {
    let address = match vector {
        VECTOR_TICK => &raw const interrupt_tick,
        VECTOR_ECHO => &raw const interrupt_echo,
        // SAFETY: the address of our own text is taken, nothing is read.
        _ => unsafe { (&raw const interrupt_stubs[usize::from(vector)]).cast() },
    };
    address.addr() as u64
}

extern "C" fn dispatch(frame: &mut Frame) {
    let vector = frame.vector as u8;
    COUNTS[usize::from(vector)].fetch_add(1, Ordering::AcqRel);
    match vector {
        VECTOR_NMI => on_nmi(),
        0..=31 => on_exception(vector, frame),
        VECTOR_SPURIOUS => {}
        _ => {
            note_interrupted_call(frame);
            apic::end_of_interrupt();
        }
    }
}

fn note_interrupted_call(frame: &Frame) {
    const VMMCALL: [u8; 3] = [0x0f, 0x01, 0xd9];
    // SAFETY: what is executed is mapped, and text goes on behind it.
    let code = unsafe { (frame.rip as *const [u8; 3]).read_unaligned() };
    if code == VMMCALL && Control::from_bits(frame.rcx).rep_start() != 0 {
        INTERRUPTED_CALLS.fetch_add(1, Ordering::AcqRel);
    }
}

/// Goes on where the table of guarded instructions says, in ring 0, with the fault in R11 and R10.
fn on_exception(vector: u8, frame: &mut Frame) {
    let Some(next) = guarded::fixup(frame.rip) else {
        let cr2 = x86_64::registers::control::Cr2::read_raw();
        report::abort(format_args!(
            "exception {vector} (error {:#x}) at {:#x}, CR2 {cr2:#x}",
            frame.error, frame.rip
        ));
    };
    frame.rip = next;
    frame.r11 = FAULTED | u64::from(vector);
    frame.r10 = frame.error;
    frame.cs = u64::from(tables::KERNEL_CODE);
    frame.ss = u64::from(tables::KERNEL_DATA);
}

fn on_nmi() {
    let depth = NMI_DEPTH.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    NMI_DEPTH_MAX.fetch_max(depth, Ordering::AcqRel);
    let work = NMI_WORK.load(Ordering::Acquire);
    if work != 0 {
        // SAFETY: `work_in_nmi` stored it, and nothing else does.
        unsafe { core::mem::transmute::<usize, fn()>(work)() };
    }
    let resend = |left: u32| left.checked_sub(1);
    if NMI_RESEND.try_update(Ordering::AcqRel, Ordering::Acquire, resend).is_ok() {
        apic::send_nmi(apic::id());
        // Exits during which the second one must not come in.
        for _ in 0..100 {
            let _ = apic::id();
        }
    }
    NMI_DEPTH.fetch_sub(1, Ordering::AcqRel);
    if NMI_FAULT.swap(false, Ordering::AcqRel) {
        apic::send_nmi(apic::id());
        faulting_iret();
    }
}

/// An IRET to a null code segment: #GP. A trap flag that the fault's handler were to restore would raise #DB
/// afterwards, where none is expected.
fn faulting_iret() {
    // SAFETY: it faults, and goes on with the stack that R9 kept.
    unsafe {
        asm!(
            "mov r9, rsp",
            "push {ss}", "push r9", "push 2", "push 0",
            "lea r11, [rip + 3f]", "push r11",
            "xor r11d, r11d",
            guarded!("iretq"),
            "mov rsp, r9",
            ss = const tables::KERNEL_DATA,
            out("r9") _, out("r10") _, out("r11") _,
        );
    }
}
