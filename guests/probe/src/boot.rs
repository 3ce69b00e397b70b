//! The way in: PVH entry of the first processor, start-up page of the others.
//!
//! Sources: Xen "x86/HVM direct boot ABI" (PVH); AMD64 Architecture Programmer's Manual volume 2
//! (24593, rev. 3.42) section 14.6 "Enabling and Activating Long Mode".

use core::arch::global_asm;

use crate::processors::PROCESSORS;

pvh::xen_elfnote_phys32_entry!(pvh_entry);

unsafe extern "C" {
    /// PVH entry point, 32-bit protected mode without paging.
    fn pvh_entry() -> !;
    static startup_template: u8;
    static startup_template_end: u8;
}

/// Where the start-up page lies: below 1 MiB, page aligned, in what every loader reports as RAM.
pub(crate) const STARTUP_PAGE: u64 = 0x8000;

const STACK_SIZE: usize = 64 << 10;

// The tables map the first 4 GiB one to one in 2 MiB pages with all rights, ring 3's too. PML4 and PDPT
// have room for the window of paging.rs.
global_asm!(
    r#"
.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_pml4
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4 * 4096
.balign 16
.skip {stack_size}
boot_stack_top:
// One behind the other from processor 1 on: processor n's ends n sizes further.
other_stacks:
.skip {stack_size} * ({processors} - 1)

.section .rodata.boot, "a"
.balign 8
boot_gdt:
    .quad 0
    .quad 0x00af9b000000ffff    // 0x08: code, 64 bit
    .quad 0x00cf93000000ffff    // 0x10: data
    .quad 0x00cf9b000000ffff    // 0x18: code, 32 bit
boot_gdt_pointer:
    .word . - boot_gdt - 1
    .long boot_gdt

.section .text.boot, "ax"
.code32
.global pvh_entry
pvh_entry:
    cli
    cld
    lgdt [boot_gdt_pointer]
    mov esp, offset boot_stack_top
    mov esi, ebx                // hvm_start_info
    mov eax, offset boot_pdpt + 7
    mov [boot_pml4], eax
    mov eax, offset boot_pd + 7
    mov edi, offset boot_pdpt
    mov ecx, 4
2:  mov [edi], eax
    add eax, 4096
    add edi, 8
    loop 2b
    mov eax, 0x87               // present, writable, user, large
    mov edi, offset boot_pd
    mov ecx, 2048
3:  mov [edi], eax
    add eax, 0x200000
    add edi, 8
    loop 3b
    call enable_long_mode
    .byte 0xea                  // ljmp
    .long boot_long_mode
    .word 0x08

enable_long_mode:
    mov eax, cr4
    or eax, 0x620               // PAE, OSFXSR and OSXMMEXCPT
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080         // EFER
    rdmsr
    or eax, 0x100               // LME
    wrmsr
    mov eax, cr0
    and eax, 0x9ffffffb         // CD, NW and EM off
    or eax, 0x80010003          // PG, WP, MP, PE
    mov cr0, eax
    ret

.code64
boot_long_mode:
    mov rsp, offset boot_stack_top
    mov edi, esi
    xor ebp, ebp
    call {first_main}
    ud2
other_long_mode:
    mov esp, esp                // the upper halves are undefined after 32-bit mode
    mov edi, edi                // APIC id
    xor ebp, ebp
    call {other_main}
    ud2

// The template of the start-up page. It is copied to STARTUP_PAGE and starts there in real mode, so its
// own addresses are written relative to where it will be.
.section .rodata.boot, "a"
.balign 16
.code16
startup_template:
    cli
    xor eax, eax
    mov ds, ax
    .byte 0x66, 0x0f, 0x01, 0x16    // lgdt with a 32-bit base
    .word {startup} + startup_gdt_pointer - startup_template
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    .byte 0x66, 0xea            // ljmp to a 32-bit offset
    .long {startup} + startup_protected - startup_template
    .word 0x18
.code32
startup_protected:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov eax, 1
    cpuid
    shr ebx, 24                 // initial APIC id
    mov edi, ebx
    imul ebx, ebx, {stack_size}
    lea esp, [ebx + other_stacks]
    mov eax, offset enable_long_mode
    call eax
    .byte 0xea
    .long other_long_mode
    .word 0x08
.balign 8
startup_gdt_pointer:
    .word 4 * 8 - 1
    .long boot_gdt
startup_template_end:
.code64
"#,
    stack_size = const STACK_SIZE,
    startup = const STARTUP_PAGE,
    first_main = sym crate::first_main,
    other_main = sym crate::processors::main,
    processors = const PROCESSORS,
);

/// Copies the start-up code to [`STARTUP_PAGE`].
///
/// # Safety
///
/// Nobody uses the page for anything else.
pub(crate) unsafe fn install_startup_page() {
    let start = &raw const startup_template;
    let length = (&raw const startup_template_end).addr() - start.addr();
    // SAFETY: source is our own read-only data of less than a page; the caller vouches for the destination.
    unsafe { core::ptr::copy_nonoverlapping(start, STARTUP_PAGE as *mut u8, length) };
}
