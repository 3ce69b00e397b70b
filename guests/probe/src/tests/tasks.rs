//! Task switches in 32-bit protected mode: by CALL, and by NMIs with a task gate.

use super::prelude::*;
use core::mem::{offset_of, zeroed};
use core::ptr::addr_of_mut;

/// Selectors of the table below. The first two are as in the usual table.
const CODE_32: u16 = 0x18;
const TSS_OWN: u16 = 0x20;
const TSS_NMI: u16 = 0x28;
const TSS_CALLED: u16 = 0x30;

const RFLAGS_TF: u32 = 1 << 8;
/// Number of exits for which the NMIs are awaited.
const EXITS: u32 = 20_000;

/// A 32-bit task state segment: APM volume 2, section 12.2.4.
#[repr(C)]
#[derive(Clone, Copy)]
struct Tss {
    link: u32,
    /// Stacks of rings 0 to 2.
    stacks: [u32; 6],
    cr3: u32,
    eip: u32,
    eflags: u32,
    registers: [u32; 8],
    /// ES, CS, SS, DS, FS, GS.
    segments: [u32; 6],
    ldt: u32,
    io_map: u32,
}

const _: () =
    assert!(offset_of!(Tss, eflags) == 0x24 && offset_of!(Tss, ldt) == 0x60 && size_of::<Tss>() == 0x68);

/// The operand of LGDT and LIDT in 64-bit mode.
#[repr(C, packed)]
#[derive(Clone, Copy)]
struct Pointer {
    limit: u16,
    base: u64,
}

/// Used on both sides of the mode change.
#[repr(C)]
struct Area {
    gdt_pointer: Pointer,
    idt_pointer: Pointer,
    apic_id: u32,
    exits: u32,
    calls: u32,
    nmis: u32,
    gdt: [u64; 7],
    /// Up to the NMI's: any other exception ends in a triple fault.
    idt: [u64; 3],
    own: Tss,
    nmi: Tss,
    called: Tss,
}

// SAFETY: all zeros is a value of each, since they consist of numbers.
const EMPTY: Tss = unsafe { zeroed() };
// SAFETY: as above.
static mut TASKS_AREA: Area = unsafe { zeroed() };

// Memory below 4 GiB is mapped one to one, so addresses are the same without paging. A task that
// ended by IRET continues after it when it is entered again.
global_asm!(
    r#"
.section .bss.tasks, "aw", @nobits
.balign 16
.skip 1024
tasks_stack:
.skip 1024
.global tasks_nmi_stack
tasks_nmi_stack:
.skip 1024
.global tasks_called_stack
tasks_called_stack:
tasks_rsp: .skip 8
tasks_gs_base: .skip 8
tasks_gdt: .skip 16
tasks_idt: .skip 16
tasks_tr: .skip 8

.section .text
.code64
.global tasks_run
tasks_run:
    push rbx
    push rbp
    push r12
    push r13
    push r14
    push r15
    pushfq
    cli
    mov [rip + tasks_rsp], rsp
    mov ecx, 0xc0000101             // the base of GS
    rdmsr
    mov [rip + tasks_gs_base], eax
    mov [rip + tasks_gs_base + 4], edx
    sgdt [rip + tasks_gdt]
    sidt [rip + tasks_idt]
    str [rip + tasks_tr]
    lgdt [rip + {area} + {gdt_pointer}]
    lidt [rip + {area} + {idt_pointer}]
    push {code_32}
    lea rax, [rip + tasks_legacy]
    push rax
    retfq

.code32
tasks_legacy:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, offset tasks_stack
    mov eax, cr0
    and eax, 0x7fffffff
    mov cr0, eax
    mov ecx, 0xc0000080             // EFER: LME off
    rdmsr
    and eax, 0xfffffeff
    wrmsr
    mov eax, {own}
    ltr ax
    .byte 0x9a                      // lcall
    .long 0
    .word {called}
    call tasks_send_nmi
2:  xor eax, eax
    cpuid
    cmp dword ptr [{area} + {nmis}], 2
    jae 3f
    dec dword ptr [{area} + {exits}]
    jnz 2b
3:  clts                            // each switch has set it
    mov ecx, 0xc0000080
    rdmsr
    or eax, 0x100
    wrmsr
    mov eax, cr0
    or eax, 0x80000000
    mov cr0, eax
    .byte 0xea                      // ljmp
    .long tasks_end
    .word 0x08

.global tasks_called
tasks_called:
    inc dword ptr [{area} + {calls}]
    iretd
    jmp tasks_called

.global tasks_nmi
tasks_nmi:
    inc dword ptr [{area} + {nmis}]
    cmp dword ptr [{area} + {nmis}], 1
    jne 2f
    call tasks_send_nmi             // the second waits for the IRET below
    xor eax, eax
    cpuid
2:  iretd
    jmp tasks_nmi

tasks_send_nmi:
    mov ecx, 0x830                  // x2APIC: ICR
    mov edx, [{area} + {apic_id}]
    mov eax, 0x4400
    wrmsr
    ret

.code64
tasks_end:
    lgdt [rip + tasks_gdt]
    lidt [rip + tasks_idt]
    movzx eax, word ptr [rip + tasks_tr]
    mov rdx, [rip + tasks_gdt + 2]
    and byte ptr [rdx + rax + 5], 0xfd   // not busy
    ltr ax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    mov ecx, 0xc0000101
    mov eax, [rip + tasks_gs_base]
    mov edx, [rip + tasks_gs_base + 4]
    wrmsr
    mov rsp, [rip + tasks_rsp]
    popfq
    pop r15
    pop r14
    pop r13
    pop r12
    pop rbp
    pop rbx
    ret
"#,
    area = sym TASKS_AREA,
    gdt_pointer = const offset_of!(Area, gdt_pointer),
    idt_pointer = const offset_of!(Area, idt_pointer),
    apic_id = const offset_of!(Area, apic_id),
    exits = const offset_of!(Area, exits),
    calls = const offset_of!(Area, calls),
    nmis = const offset_of!(Area, nmis),
    code_32 = const CODE_32,
    own = const TSS_OWN,
    called = const TSS_CALLED,
);

unsafe extern "C" {
    /// Enters 32-bit protected mode, switches tasks, and returns.
    fn tasks_run();
    static tasks_called: u8;
    static tasks_called_stack: u8;
    static tasks_nmi: u8;
    static tasks_nmi_stack: u8;
}

fn tss_descriptor(tss: *const Tss) -> u64 {
    let base = tss.addr() as u64;
    (size_of::<Tss>() as u64 - 1) | (base & 0xff_ffff) << 16 | 0x89 << 40 | (base >> 24 & 0xff) << 56
}

fn task(code: *const u8, stack_top: *const u8, cr3: u64) -> Tss {
    Tss {
        cr3: cr3 as u32,
        eip: code.addr() as u32,
        eflags: 2,
        // Of the eight, ESP is the fifth.
        registers: [0, 0, 0, 0, stack_top.addr() as u32, 0, 0, 0],
        segments: [0x10, CODE_32.into(), 0x10, 0x10, 0x10, 0x10],
        io_map: (size_of::<Tss>() as u32) << 16,
        ..EMPTY
    }
}

/// Tasks are switched as on a processor, the second NMI is delivered when the first one's task has
/// ended by IRET, and no flag that is not the guest's stays in its state. VMX leaves a task switch
/// to the hypervisor, for which it is the end of the guest.
pub(super) fn task_switch() -> Verdict {
    if crate::hypercall::is_intels() {
        return Ok(());
    }
    let (cr3, _) = x86_64::registers::control::Cr3::read();
    let cr3 = cr3.start_address().as_u64();
    // SAFETY: only this processor runs, and only `tasks_run` uses the area besides this function.
    let area = unsafe { &mut *addr_of_mut!(TASKS_AREA) };
    area.own = Tss { cr3: cr3 as u32, ..EMPTY };
    area.nmi = task(&raw const tasks_nmi, &raw const tasks_nmi_stack, cr3);
    area.called = task(&raw const tasks_called, &raw const tasks_called_stack, cr3);
    let [own, nmi, called] =
        [&raw const area.own, &raw const area.nmi, &raw const area.called].map(tss_descriptor);
    area.gdt = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff, 0x00cf_9b00_0000_ffff, own, nmi, called];
    area.idt = [0, 0, u64::from(TSS_NMI) << 16 | 0x85 << 40];
    area.gdt_pointer =
        Pointer { limit: size_of_val(&area.gdt) as u16 - 1, base: (&raw const area.gdt).addr() as u64 };
    area.idt_pointer =
        Pointer { limit: size_of_val(&area.idt) as u16 - 1, base: (&raw const area.idt).addr() as u64 };
    (area.apic_id, area.exits, area.calls, area.nmis) = (apic::id() as u32, EXITS, 0, 0);
    // SAFETY: the image is below 4 GiB, mapped one to one; the code restores what it changes.
    unsafe { tasks_run() };
    // SAFETY: the area is this processor's, and the code that writes to it has returned.
    let Area { calls, nmis, nmi: Tss { eflags: flags, .. }, .. } =
        unsafe { (&raw const TASKS_AREA).read_volatile() };
    ensure!(calls == 1, "the task that is called ran {calls} times");
    ensure!(nmis == 2, "{nmis} NMIs instead of 2");
    ensure!(flags & RFLAGS_TF == 0, "the flags of the task that handled NMIs are {flags:#x}");
    Ok(())
}
