//! Entry code: PVH and Multiboot 2 entries of the first processor, start-up page of the others. The
//! beginning of the Linux boot protocol is in `linux.rs`; it ends here.
//!
//! Sources: Xen "x86/HVM direct boot ABI" (PVH); Multiboot2 Specification version 2.0, sections 3.1
//! and 3.3; AMD64 Architecture Programmer's Manual volume 2 (24593, rev. 3.42) section 14.6
//! "Enabling and Activating Long Mode" and 15.27 for start-up IPIs.

use core::sync::atomic::{AtomicU64, Ordering};

#[doc(hidden)]
pub use pvh::xen_elfnote_phys32_entry;

use super::info::{self, BootInfo, Protocol};
use super::{apic, interrupts, tables};
use crate::HardwareId;
use crate::startup::offer;

unsafe extern "C" {
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

        // Present, writable, user; long mode.
        $crate::x86_64_entry_code! {
            rights: 7,
            efer: 0x100,
            first: $crate::x86_64::boot::first,
            other: $crate::x86_64::processors::other,
        }
        $crate::linux_entry_code!();
        $crate::interrupt_stubs!(all => $crate::x86_64::interrupts::dispatch);
    };
}

/// Address of the start-up page: below 1 MiB, page aligned, in memory that every loader reports as
/// RAM.
pub const STARTUP_PAGE: u64 = 0x8000;

/// Size of the first processor's first stack.
pub const STACK_SIZE: usize = 64 << 10;

/// The [offer](crate::startup::offer) to the processor that is to start, or 0. The code on the
/// start-up page takes it by a compare-exchange, so a late processor finds no offer, or one for
/// another processor, and halts.
#[doc(hidden)]
pub static OFFER: AtomicU64 = AtomicU64::new(0);

/// The entry code of an image, which exists once per image. The image's linker script begins its
/// text with `.boot.header` and `.text.boot`, and links it below 2 GiB.
///
/// `first` is an `extern "C" fn(protocol: u32, info: u32) -> !`: the entry of the first processor,
/// once, on a stack of [`STACK_SIZE`]. `other` is an `extern "C" fn(stack_top: u64) -> !`: the
/// entry of another processor, on the stack that [`StartupPage::offer`] has named. Both have the
/// boot tables, which map the first 4 GiB one to one in pages of 2 MiB with `rights` (the lowest
/// three bits of an entry); EFER has the bits of `efer`. Data segments are flat, FS and GS null.
#[macro_export]
macro_rules! x86_64_entry_code {
    (rights: $rights:expr, efer: $efer:expr, first: $first:path, other: $other:path $(,)?) => {
        unsafe extern "C" {
            fn pvh_entry() -> !;
        }

        $crate::x86_64::boot::xen_elfnote_phys32_entry!(pvh_entry);

        core::arch::global_asm!(
            r#"
.section .boot.header, "a"
.balign 8
multiboot2_header:
    .long 0xe85250d6, 0, multiboot2_header_end - multiboot2_header
    .long 0x100000000 - (0xe85250d6 + (multiboot2_header_end - multiboot2_header))
    .word 3, 0                  // the entry's address
    .long 12, multiboot2_entry
    .balign 8
    .word 5, 1                  // a framebuffer, if there can be one
    .long 20, 1024, 768, 32
    .balign 8
    .word 6, 0                  // modules begin at a page
    .long 8
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
multiboot2_entry:
    mov ebp, {multiboot2}
    jmp common_entry
.global pvh_entry
pvh_entry:
    mov ebp, {pvh}
.global common_entry
common_entry:                   // EBP is the protocol, EBX what the loader passes
    cli
    cld
    lgdt [boot_gdt_pointer]
    mov eax, 0x10               // a loader's own segments may lie in what is memory like any other now
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov esp, offset boot_stack_top
    mov esi, ebx
    mov eax, offset boot_pdpt + {rights}
    mov [boot_pml4], eax
    mov eax, offset boot_pd + {rights}
    mov edi, offset boot_pdpt
    mov ecx, 4
2:  mov [edi], eax
    add eax, 4096
    add edi, 8
    loop 2b
    mov eax, 0x80 + {rights}    // large
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
    or eax, {efer}
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
    mov fs, ebp
    mov gs, ebp
    call {first}
    ud2
other_long_mode:
    mov esp, esp                // as above
    mov rdi, rsp
    xor ebp, ebp
    mov fs, ebp
    mov gs, ebp
    call {other}
    ud2

// The template of the start-up page. It is copied to STARTUP_PAGE and starts there in real mode, so
// its addresses are relative to that location.
.section .rodata.boot, "a"
.balign 16
.code16
.global startup_template
.global startup_template_end
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
    // This processor's APIC id as used for IPIs: by MSR in x2APIC mode, in memory otherwise.
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
    // Takes the offer, if it is for this processor.
    mov eax, [{offer}]
    mov edx, [{offer} + 4]
    cmp edx, esi
    jne 4f
    test eax, eax
    jz 4f
    mov esp, eax
    xor ebx, ebx
    xor ecx, ecx
    lock cmpxchg8b [{offer}]
    jne 4f
    mov eax, offset enable_long_mode
    call eax
    .byte 0xea
    .long other_long_mode
    .word 0x08
4:  hlt                         // nothing waits for this processor
    jmp 4b
.balign 8
startup_gdt_pointer:
    .word 4 * 8 - 1
    .long boot_gdt
startup_template_end:
.code64
"#,
            stack_size = const $crate::x86_64::boot::STACK_SIZE,
            startup = const $crate::x86_64::boot::STARTUP_PAGE,
            pvh = const $crate::x86_64::info::PROTOCOL_PVH,
            multiboot2 = const $crate::x86_64::info::PROTOCOL_MULTIBOOT2,
            rights = const $rights,
            efer = const $efer,
            first = sym $first,
            other = sym $other,
            offer = sym $crate::x86_64::boot::OFFER,
        );
    };
}

/// Entry of the first processor of a program, once.
#[doc(hidden)]
pub extern "C" fn first(protocol: u32, info: u32) -> ! {
    // SAFETY: this is the only running processor, and it loads the table next. No other stack is
    // named.
    unsafe { interrupts::build(|_| 0) };
    interrupts::silence();
    // SAFETY: this is the first processor, which runs this once.
    unsafe { tables::load(0) };
    apic::probe();
    // SAFETY: the entry passes on the value of its protocol's loader; memory below 4 GiB is mapped.
    let info = unsafe { info::read(protocol, info) };
    // SAFETY: `entry!` defines the function with this signature.
    unsafe { baremetal_image_main(info.unwrap_or_else(|_| BootInfo::new(Protocol::Pvh))) }
}

/// The first address after the image.
pub fn image_end() -> u64 {
    (&raw const __image_end).addr() as u64
}

/// The page on which other processors start.
pub struct StartupPage(());

impl StartupPage {
    /// Copies the template to [`STARTUP_PAGE`].
    ///
    /// # Safety
    ///
    /// The page is RAM without another user, now or later, and is mapped writable.
    pub unsafe fn install() -> Self {
        let start = &raw const startup_template;
        let length = (&raw const startup_template_end).addr() - start.addr();
        // SAFETY: the source is our own read-only data, less than a page; the caller vouches for
        // the destination. A late processor runs the same bytes.
        unsafe { core::ptr::copy_nonoverlapping(start, STARTUP_PAGE as *mut u8, length) };
        Self(())
    }

    /// Offers the stack that ends at `stack_top`, below 4 GiB, to the processor with this APIC id.
    /// Send the interrupt that starts it afterwards.
    pub fn offer(&self, id: HardwareId, stack_top: u64) {
        debug_assert!(stack_top >> 32 == 0, "stacks lie below 4 GiB");
        // Pairs with the locked exchange of the code on the page, which sees all earlier stores.
        OFFER.swap(offer(id.apic(), stack_top as u32), Ordering::SeqCst);
    }

    /// Withdraws an offer that has not been taken; returns whether there was one.
    pub fn withdraw(&self) -> bool {
        // Pairs with the locked exchange of the code on the page: one of them takes the offer.
        OFFER.swap(0, Ordering::SeqCst) != 0
    }
}
