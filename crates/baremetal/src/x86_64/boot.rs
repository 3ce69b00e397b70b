//! The way in: PVH and Multiboot 2 entries of the first processor, start-up page of the others. The Linux boot protocol's
//! beginning is in `linux.rs`; it ends here.
//!
//! Sources: Xen "x86/HVM direct boot ABI" (PVH); Multiboot2 Specification version 2.0, sections 3.1 and 3.3; AMD64
//! Architecture Programmer's Manual volume 2 (24593, rev. 3.42) section 14.6 "Enabling and Activating Long Mode".

use core::arch::global_asm;
use core::sync::atomic::{AtomicU64, Ordering};

use super::info::{self, BootInfo};
use super::{interrupts, processors, tables};

pvh::xen_elfnote_phys32_entry!(pvh_entry);

unsafe extern "C" {
    /// PVH entry point, 32-bit protected mode without paging.
    fn pvh_entry() -> !;
    static startup_template: u8;
    static startup_template_end: u8;
    static __image_end: u8;
}

unsafe extern "Rust" {
    /// The image's main function, see [`entry!`](crate::entry).
    fn baremetal_image_main(info: BootInfo) -> !;
}

/// Names the image's main function: a `fn(BootInfo) -> !`.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[unsafe(no_mangle)]
        fn baremetal_image_main(info: $crate::x86_64::info::BootInfo) -> ! {
            let main: fn($crate::x86_64::info::BootInfo) -> ! = $main;
            main(info)
        }
    };
}

/// Where the start-up page lies: below 1 MiB, page aligned, in what every loader reports as RAM.
pub const STARTUP_PAGE: u64 = 0x8000;

/// What the entries say they are.
pub(super) const PROTOCOL_PVH: u32 = 1;
pub(super) const PROTOCOL_MULTIBOOT2: u32 = 2;
pub(super) const PROTOCOL_LINUX: u32 = 3;

const STACK_SIZE: usize = 64 << 10;

/// Which processor is to start: its APIC id in the upper half, its number (and so its stack) in the lower; 0 for none. The processor
/// takes it by a compare-exchange, so one that comes late finds nothing, or what is another's, and halts.
static OTHER: AtomicU64 = AtomicU64::new(0);

// The tables map the first 4 GiB one to one in 2 MiB pages with all rights, ring 3's too. The PML4 has room for
// what the image maps itself.
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
    .word 0, 0                  // no more tags
    .long 8
multiboot2_header_end:

.section .bss.boot, "aw", @nobits
.balign 4096
.global boot_pml4
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pd:   .skip 4 * 4096
.balign 16
.skip {stack_size}
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
.global linux_entry
linux_entry:                    // from linux.rs; EBX is the parameters' address
    mov ebp, {linux}
    jmp common_entry
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
    mov eax, 0x10
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, offset boot_stack_top
    mov esi, ebx                // what the loader passes
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
    mov edi, ebp
    mov esi, esi                // the upper halves are undefined after 32-bit mode
    xor ebp, ebp
    call {first}
    ud2
other_long_mode:
    mov edi, edi                // as above; the number
    imul rsp, rdi, {other_stack_size}
    lea rax, [rip + {stacks} + {other_stack_size}]
    add rsp, rax
    xor ebp, ebp
    call {first_of_other}
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
    mov eax, [{other}]
    mov edx, [{other} + 4]
    cmp edx, esi
    jne 4f
    test eax, eax
    jz 4f
    mov edi, eax
    xor ebx, ebx
    xor ecx, ecx
    lock cmpxchg8b [{other}]
    jne 4f
    imul esp, edi, {other_stack_size}
    add esp, offset {stacks} + {other_stack_size}
    mov eax, offset enable_long_mode
    call eax
    .byte 0xea
    .long other_long_mode
    .word 0x08
4:  hlt                         // nobody waits for this processor
    jmp 4b
.balign 8
startup_gdt_pointer:
    .word 4 * 8 - 1
    .long boot_gdt
startup_template_end:
.code64
"#,
    stack_size = const STACK_SIZE,
    startup = const STARTUP_PAGE,
    pvh = const PROTOCOL_PVH,
    multiboot2 = const PROTOCOL_MULTIBOOT2,
    linux = const PROTOCOL_LINUX,
    first = sym first,
    first_of_other = sym processors::other,
    other = sym OTHER,
    stacks = sym processors::STACKS,
    other_stack_size = const processors::STACK_SIZE,
);

/// Where the first processor arrives, once.
extern "C" fn first(protocol: u32, info: u32) -> ! {
    interrupts::build();
    interrupts::silence();
    // SAFETY: this is the first processor, which comes here once.
    unsafe { tables::load(0) };
    // SAFETY: the entry passes on what the loader of its protocol passed; memory below 4 GiB is mapped.
    let info = unsafe { info::read(protocol, info) };
    // SAFETY: `entry!` defines the function with this signature.
    unsafe { baremetal_image_main(info) }
}

/// The first address behind the image.
pub fn image_end() -> u64 {
    (&raw const __image_end).addr() as u64
}

/// Copies the start-up code to [`STARTUP_PAGE`], and lets the processor with this APIC id start there as number `number`.
///
/// # Safety
///
/// Nobody uses the page for anything else, and the number is nobody else's.
pub(super) unsafe fn offer_start(apic_id: u32, number: u32) {
    let start = &raw const startup_template;
    let length = (&raw const startup_template_end).addr() - start.addr();
    // SAFETY: source is our own read-only data of less than a page; the caller vouches for the destination. A processor that comes
    // late runs the same bytes.
    unsafe { core::ptr::copy_nonoverlapping(start, STARTUP_PAGE as *mut u8, length) };
    // The interrupt that starts the processor is sent after all of this is to be seen.
    // It pairs with the locked exchange of the code on the page.
    OTHER.swap(u64::from(apic_id) << 32 | u64::from(number), Ordering::SeqCst);
}

/// Takes the offer back, if it has not been taken.
pub(super) fn withdraw_start() {
    // Pairs with the locked exchange of the code on the page: one of them takes the offer.
    OTHER.swap(0, Ordering::SeqCst);
}
