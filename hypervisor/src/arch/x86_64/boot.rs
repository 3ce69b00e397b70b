//! The way in: PVH and Multiboot 2 entries of the first CPU, start-up page of the others.
//!
//! Sources: Xen "x86/HVM direct boot ABI" (PVH); Multiboot2 Specification version 2.0, sections 3.1
//! and 3.3; AMD64 Architecture Programmer's Manual volume 2 (24593, rev. 3.42) sections 14.6
//! "Enabling and Activating Long Mode" and 15.27 for start-up IPIs.

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::bringup;

pvh::xen_elfnote_phys32_entry!(pvh_entry);

unsafe extern "C" {
    /// PVH entry point, 32-bit protected mode without paging.
    fn pvh_entry() -> !;
    /// First byte of the start-up page's template.
    static ap_template_start: u8;
    /// First byte behind the start-up page's template.
    static ap_template_end: u8;
}

/// Where the start-up page of the other CPUs is placed: below 1 MiB, page aligned.
pub(crate) const AP_PAGE: u64 = 0x8000;

/// Offset of the word in the start-up page that says which CPU is to start, and on which stack: see
/// [`bringup::offer`].
const AP_OFFER_OFFSET: u64 = 0xff8;

/// What the entries say they are.
pub(crate) const PROTOCOL_PVH: u32 = 1;
pub(crate) const PROTOCOL_MULTIBOOT2: u32 = 2;

/// Size of the boot CPU's first stack.
const BOOT_STACK_SIZE: usize = 64 << 10;

// The boot tables map the first 4 GiB one to one in 2 MiB pages, all rights; they serve until the
// real tables are built, and each further CPU for its first instructions.
global_asm!(
    r#"
.section .boot.header, "a"
.balign 8
multiboot2_header:
    .long 0xe85250d6, 0, multiboot2_header_end - multiboot2_header
    .long 0x100000000 - (0xe85250d6 + (multiboot2_header_end - multiboot2_header))
    .word 3, 0                  // the entry's address
    .long 12, multiboot2_entry
    .balign 8
    .word 6, 0                  // modules begin at a page
    .long 8
    .word 0, 0                  // no more tags
    .long 8
multiboot2_header_end:

.section .bss.boot, "aw", @nobits
.balign 4096
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4 * 4096
.balign 16
boot_stack: .skip {stack_size}
boot_stack_top:

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
multiboot2_entry:
    mov ebp, {multiboot2}
    jmp common_entry
.global pvh_entry
pvh_entry:
    mov ebp, {pvh}
common_entry:
    cli
    cld
    lgdt [boot_gdt_pointer]
    mov eax, 0x10               // a loader's own segments may lie in what is memory like any other now
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, offset boot_stack_top
    mov esi, ebx                // what the loader passes
    // PDPT[0..4] and PML4[0]
    mov eax, offset boot_pdpt + 3
    mov [boot_pml4], eax
    mov eax, offset boot_pd + 3
    mov edi, offset boot_pdpt
    mov ecx, 4
2:  mov [edi], eax
    add eax, 4096
    add edi, 8
    loop 2b
    // 2048 pages of 2 MiB: present, writable, large
    mov eax, 0x83
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

// Turns on PAE, long mode, NX, write protection and paging. Runs with 32-bit segments.
enable_long_mode:
    mov eax, cr4
    or eax, 0x20                // PAE
    mov cr4, eax
    mov eax, offset boot_pml4
    mov cr3, eax
    mov ecx, 0xc0000080         // EFER
    rdmsr
    or eax, 0x900               // LME, NXE
    wrmsr
    mov eax, cr0
    and eax, 0x9fffffff         // CD and NW off
    or eax, 0x80010001          // PG, WP, PE
    mov cr0, eax
    ret

.code64
load_data_segments:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    xor eax, eax
    mov fs, eax
    mov gs, eax
    ret

boot_long_mode:
    mov rsp, offset boot_stack_top
    call load_data_segments
    mov edi, ebp
    mov esi, esi                // the upper halves are undefined after 32-bit mode
    xor ebp, ebp
    call {bsp_main}
    ud2

ap_long_mode:
    mov esp, esp                // as above
    call load_data_segments
    xor ebp, ebp
    call {ap_main}
    ud2

// The template of the start-up page. It is copied to AP_PAGE and starts there in real mode, so its
// own addresses are written relative to where it will be.
.section .rodata.boot, "a"
.balign 16
.code16
.global ap_template_start
.global ap_template_end
ap_template_start:
    cli
    xor eax, eax
    mov ds, ax
    .byte 0x66, 0x0f, 0x01, 0x16    // lgdt with a 32-bit base
    .word {ap_page} + ap_gdt_pointer - ap_template_start
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    .byte 0x66, 0xea            // ljmp to a 32-bit offset
    .long {ap_page} + ap_protected - ap_template_start
    .word 0x18
.code32
ap_protected:
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    // The own APIC id as IPIs know it: by MSR in x2APIC mode, in memory otherwise.
    mov ecx, 0x1b
    rdmsr
    test eax, 0x400
    jnz 2f
    and eax, 0xfffff000
    mov eax, [eax + 0x20]
    shr eax, 24
    jmp 3f
2:  mov ecx, 0x802
    rdmsr
3:  mov esi, eax
    // Takes the offer, if it is for this CPU: see bringup.rs.
    mov eax, [{ap_page} + {ap_offer}]
    mov edx, [{ap_page} + {ap_offer} + 4]
    cmp edx, esi
    jne 4f
    test eax, eax
    jz 4f
    mov esp, eax
    xor ebx, ebx
    xor ecx, ecx
    lock cmpxchg8b [{ap_page} + {ap_offer}]
    jne 4f
    mov eax, offset enable_long_mode
    call eax
    .byte 0xea
    .long ap_long_mode
    .word 0x08
4:  hlt                         // nobody waits for this CPU
    jmp 4b
.balign 8
ap_gdt_pointer:
    .word 4 * 8 - 1
    .long boot_gdt
ap_template_end:
.code64
"#,
    stack_size = const BOOT_STACK_SIZE,
    pvh = const PROTOCOL_PVH,
    multiboot2 = const PROTOCOL_MULTIBOOT2,
    ap_page = const AP_PAGE,
    ap_offer = const AP_OFFER_OFFSET,
    bsp_main = sym super::start::bsp_main,
    ap_main = sym super::start::ap_main,
);

/// The page on which other CPUs start.
pub(crate) struct StartupPage(());

impl StartupPage {
    /// Copies the template to [`AP_PAGE`].
    ///
    /// # Safety
    ///
    /// The page at [`AP_PAGE`] is RAM that nobody else uses, now or later, and is mapped writable.
    pub(crate) unsafe fn install() -> Self {
        let start = &raw const ap_template_start;
        let length = (&raw const ap_template_end).addr() - start.addr();
        assert!(length < AP_OFFER_OFFSET as usize, "the start-up template is too long");
        // SAFETY: source is our own read-only data; the caller vouches for the destination.
        unsafe { core::ptr::copy_nonoverlapping(start, AP_PAGE as *mut u8, length) };
        let page = Self(());
        let _none_was_made = page.withdraw();
        page
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: `install`'s caller vouches for the page; the word is aligned and only accessed
        // atomically.
        unsafe { AtomicU64::from_ptr((AP_PAGE + AP_OFFER_OFFSET) as *mut u64) }
    }

    /// Offers the stack that ends at `stack_top`, below 4 GiB, to the CPU with this APIC id.
    pub(crate) fn offer(&self, apic_id: u32, stack_top: u64) {
        debug_assert!(stack_top >> 32 == 0, "blocks lie below 4 GiB");
        // Pairs with the locked exchange of the code on the page.
        self.word().store(bringup::offer(apic_id, stack_top as u32), Ordering::Release);
    }

    /// Takes back what has not been taken; says whether there was anything.
    pub(crate) fn withdraw(&self) -> bool {
        // Pairs with the locked exchange of the code on the page: one of them takes the offer.
        self.word().swap(0, Ordering::AcqRel) != 0
    }
}
