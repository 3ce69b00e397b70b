//! The handlers of all vectors.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use tlfs::Control;

use baremetal::guarded;
pub(crate) use baremetal::x86_64::interrupts::VECTOR_SPURIOUS;
use baremetal::x86_64::interrupts::{self, Frame, VECTOR_NMI};
use baremetal::x86_64::tables;

use crate::apic;

/// First of the vectors that the tests use; their interrupts are counted, like all.
pub(crate) const VECTOR_TEST: u8 = 0x40;
/// Only ends itself: the minimum for an interrupt.
pub(crate) const VECTOR_TICK: u8 = 0x50;
/// Ends itself and sends [`VECTOR_TICK`] to the first processor.
pub(crate) const VECTOR_ECHO: u8 = 0x51;
/// Ends itself through the register in memory if the local APIC is in xAPIC mode.
pub(crate) const VECTOR_PAGE: u8 = 0x52;
/// Executes [`SLOW_INSTRUCTIONS`] before it ends itself.
pub(crate) const VECTOR_SLOW: u8 = 0x53;
pub(crate) const SLOW_INSTRUCTIONS: u32 = 1000;

// The two stubs that benchmarks count do nothing beyond their purpose, the third one is slow, and
// the fourth one knows another way to the local APIC. All other vectors have the stubs of
// `baremetal`.
global_asm!(
    r#"
.section .text
.macro begin_handler name
.balign 16
\name:
    push rax
    push rcx
    push rdx
.endm
.macro end_interrupt
    mov ecx, 0x80b              // EOI
    xor eax, eax
    xor edx, edx
    wrmsr
.endm
.macro end_handler
    pop rdx
    pop rcx
    pop rax
    iretq
.endm

begin_handler interrupt_tick
    inc dword ptr [{counts}]
    end_interrupt
    end_handler

begin_handler interrupt_echo
    end_interrupt
    mov ecx, 0x830              // ICR: fixed, physical, to the local APIC 0
    mov eax, 0x4000 + {tick}
    wrmsr
    end_handler

begin_handler interrupt_slow
    inc dword ptr [{counts} + 4 * ({slow} - {tick})]
    mov ecx, {turns}
2:  dec ecx
    jnz 2b
    end_interrupt
    end_handler

begin_handler interrupt_page
    inc dword ptr [{counts} + 4 * ({page} - {tick})]
    mov ecx, 0x1b               // APIC_BASE
    rdmsr
    test eax, 0x400             // x2APIC mode
    jnz 2f
    mov eax, 0xfee000b0         // EOI
    mov dword ptr [rax], 0
    jmp 3f
2:  end_interrupt
3:  end_handler
"#,
    counts = sym COUNTS,
    tick = const VECTOR_TICK,
    page = const VECTOR_PAGE,
    slow = const VECTOR_SLOW,
    turns = const SLOW_INSTRUCTIONS / 2,
);

unsafe extern "C" {
    static interrupt_tick: u8;
    static interrupt_echo: u8;
    static interrupt_page: u8;
    static interrupt_slow: u8;
}

/// Numbers of interrupts of [`VECTOR_TICK`] and the vectors after it, except [`VECTOR_ECHO`].
/// Handler and waiter run on one processor, or the waiter sees the count eventually.
static COUNTS: [AtomicU32; 4] = [const { AtomicU32::new(0) }; 4];

/// The nesting depth of NMI handlers, its maximum, and how many NMIs the handler should send
/// itself.
static NMI_DEPTH: AtomicU32 = AtomicU32::new(0);
static NMI_DEPTH_MAX: AtomicU32 = AtomicU32::new(0);
static NMI_RESEND: AtomicU32 = AtomicU32::new(0);
/// Whether the next NMI's handler should execute an IRET that faults.
static NMI_FAULT: AtomicBool = AtomicBool::new(false);

/// Interrupts of the kind that [`interrupted_calls`] counts.
static INTERRUPTED_CALLS: AtomicU32 = AtomicU32::new(0);

/// Interrupts between two parts of a hypercall: at its instruction, with a part of its list done.
pub(crate) fn interrupted_calls() -> u32 {
    INTERRUPTED_CALLS.load(Ordering::Acquire)
}

pub(crate) fn count(vector: u8) -> u32 {
    match vector {
        VECTOR_TICK..=VECTOR_SLOW => COUNTS[usize::from(vector - VECTOR_TICK)].load(Ordering::Acquire),
        _ => interrupts::count(vector),
    }
}

pub(crate) fn nmi_count() -> u32 {
    count(VECTOR_NMI)
}

/// Maximum nesting depth of NMI handlers.
pub(crate) fn nmi_depth_max() -> u32 {
    NMI_DEPTH_MAX.load(Ordering::Acquire)
}

/// Makes the NMI handler send this many more to its own processor, one per NMI.
pub(crate) fn resend_nmis(count: u32) {
    NMI_RESEND.store(count, Ordering::Release);
}

/// Makes the next NMI's handler send another one to itself, then execute an IRET that faults.
pub(crate) fn fault_in_nmi() {
    NMI_FAULT.store(true, Ordering::Release);
}

/// Installs the handlers. To be called before any other processor starts.
pub(crate) fn prepare() {
    // SAFETY: the four are interrupt handlers, and no other processor runs.
    unsafe {
        tables::set_gate(VECTOR_TICK, (&raw const interrupt_tick).addr() as u64);
        tables::set_gate(VECTOR_ECHO, (&raw const interrupt_echo).addr() as u64);
        tables::set_gate(VECTOR_PAGE, (&raw const interrupt_page).addr() as u64);
        tables::set_gate(VECTOR_SLOW, (&raw const interrupt_slow).addr() as u64);
    }
    interrupts::handle(VECTOR_NMI, Some(on_nmi));
    (32..VECTOR_SPURIOUS).for_each(|vector| interrupts::handle(vector, Some(note_interrupted_call)));
}

fn note_interrupted_call(frame: &Frame) {
    // SAFETY: executed code is mapped, and further text follows it.
    let code = unsafe { (frame.rip() as *const [u8; 3]).read_unaligned() };
    let is_call = matches!(code, [0x0f, 0x01, 0xd9 | 0xc1]);
    if is_call && Control::from_bits(frame.rcx()).rep_start() != 0 {
        INTERRUPTED_CALLS.fetch_add(1, Ordering::AcqRel);
    }
}

fn on_nmi(_: &Frame) {
    let depth = NMI_DEPTH.fetch_add(1, Ordering::AcqRel).wrapping_add(1);
    NMI_DEPTH_MAX.fetch_max(depth, Ordering::AcqRel);
    let resend = |left: u32| left.checked_sub(1);
    if NMI_RESEND.try_update(Ordering::AcqRel, Ordering::Acquire, resend).is_ok() {
        apic::send_nmi(apic::id());
        // Exits during which the second one must not be delivered.
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

/// An IRET to a null code segment: #GP. If its handler restored a trap flag, #DB would follow.
fn faulting_iret() {
    // SAFETY: it faults, and continues with the stack pointer kept in R9.
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
