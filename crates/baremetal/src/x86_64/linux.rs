//! Entry by the Linux boot protocol: a bzImage's first sectors, and the code that moves the image
//! to its place.
//!
//! An ELF loader loads neither part: they are in sections of their own, of which the host tool
//! makes a bzImage. `.linux.setup` comes first, in whole sectors; then `.linux.high`, which is
//! loaded at 1 MiB; then the flat image.
//!
//! Loaders enter in real mode (QEMU's `-kernel`) or in 32-bit protected mode (GRUB). There is no
//! 64-bit entry.
//!
//! Source: the kernel's Documentation/arch/x86/boot.rst, version 2.15 of the protocol: "The
//! Real-Mode Kernel Header", "Running the Kernel", "32-bit Boot Protocol"; zero-page.rst for the
//! parameters.
//!
//! The constants are public only for the macro.

/// Bytes of a sector, and sectors of the setup after the first one.
pub const SECTOR: u32 = 512;
pub const SETUP_SECTORS: u32 = 3;
/// Start and end of the protocol's header in the setup.
pub const HEADER: u32 = 0x1f1;
pub const HEADER_END: u32 = 0x26c;
/// Start of the header's jump over itself, and the base of its operand.
pub const JUMP: u32 = 0x200;
pub const JUMP_FROM: u32 = JUMP + 2;
/// Offset of the pointer to the descriptor table, which is at the beginning of the setup.
pub const GDT_POINTER: u32 = 4 * 8;
/// Load address of the protected-mode part, and the size of `.linux.high` in it.
pub const LOAD_ADDRESS: u32 = 0x10_0000;
pub const HIGH_SIZE: u32 = 0x100;
/// The most bytes of the command line that are kept.
pub(super) const COMMAND_LINE: usize = 2048;
/// Longest command line, without the zero at its end.
pub const COMMAND_LINE_MAX: usize = COMMAND_LINE - 1;
/// Offset of the parameters that the setup creates, and of the top of its stack, in its own
/// segment.
pub const PARAMS: u32 = 0x4000;
pub const STACK: u32 = 0x8000;

/// Offsets in the parameters: the number of entries in the memory map, and the map.
pub const E820_COUNT: u32 = 0x1e8;
pub const E820_TABLE: u32 = 0x2d0;
/// Bytes of an entry, and the most entries that fit.
pub const E820_ENTRY: u32 = 20;
pub const E820_MAX: u32 = 128;

// The assembler does not accept differences between labels as operands: each referenced item has a
// fixed place, which `.org` ensures. It also refuses code that is longer than its place.

/// The code of the Linux boot protocol, which continues in that of
/// [`x86_64_entry_code`](crate::x86_64_entry_code).
#[macro_export]
macro_rules! linux_entry_code {
    () => {
        core::arch::global_asm!(
            r#"
.section .linux.setup, "", @progbits
.code16
    // An unused boot sector has room for the descriptor table.
    .quad 0, 0
    .quad 0x00cf9b000000ffff    // 0x10: code, 32 bit
    .quad 0x00cf93000000ffff    // 0x18: data
    .org {gdt_pointer}
    .word 4 * 8 - 1
    .long 0                     // the table's address, once it is known
    .org {header}
    .byte {sectors}
    .word 0
    .long 0                     // syssize: the host tool knows it
    .word 0, 0xffff, 0, 0xaa55
    .org {jump}
    .byte 0xeb, {header_end} - {jump_from}
    .ascii "HdrS"
    .word 0x020f
    .long 0                     // realmode_swtch
    .word 0, 0                  // start_sys_seg, kernel_version
    .byte 0, 1                  // type_of_loader, loadflags: LOADED_HIGH
    .word 0x8000                // setup_move_size
    .long {load}                // code32_start
    .long 0, 0, 0               // ramdisk_image, ramdisk_size, bootsect_kludge
    .word 0, 0                  // heap_end_ptr, ext_loader_ver, ext_loader_type
    .long 0                     // cmd_line_ptr
    .long 0x7fffffff            // initrd_addr_max
    .long {load}                // kernel_alignment
    .byte 0, 0                  // relocatable_kernel, min_alignment
    .word 0                     // xloadflags
    .long {command_line_max}
    .long 0                     // hardware_subarch
    .quad 0                     // hardware_subarch_data
    .long 0, 0                  // payload_offset, payload_length
    .quad 0                     // setup_data
    .quad {load}                // pref_address
    .long __image_end - {load}  // init_size
    .long 0                     // handover_offset
    .long 0                     // kernel_info_offset
    .org {header_end}

    // Real mode. DS is the setup's segment, CS 0x20 more: no jump below needs to know.
    cli
    cld
    mov ax, ds
    mov es, ax
    mov ss, ax
    mov sp, {stack}
    xor eax, eax
    mov di, {params}
    mov cx, 1024
    rep stosd
    mov si, {header}
    mov di, {params} + {header}
    mov cx, {header_end} - {header}
    rep movsb
    // The memory map.
    xor ebx, ebx
    mov di, {params} + {e820_table}
2:  mov eax, 0xe820
    mov ecx, {e820_entry}
    mov edx, 0x534d4150         // SMAP
    int 0x15
    jc 3f
    cmp eax, 0x534d4150
    jne 3f
    inc byte ptr [{params} + {e820_count}]
    add di, {e820_entry}
    test ebx, ebx
    jz 3f
    cmp byte ptr [{params} + {e820_count}], {e820_max}
    jb 2b
3:  cli
    in al, 0x92                 // A20
    or al, 2
    and al, 0xfe
    out 0x92, al
    xor eax, eax
    mov ax, ds
    shl eax, 4
    mov dword ptr [{gdt_pointer} + 2], eax
    lea esi, [eax + {params}]
    .byte 0x66, 0x0f, 0x01, 0x16    // lgdt with a 32-bit base
    .word {gdt_pointer}
    mov eax, cr0
    or eax, 1
    mov cr0, eax
    .byte 0x66, 0xea            // ljmp to a 32-bit offset
    .long {load}
    .word 0x10
    .org ({sectors} + 1) * {sector}

// Protected mode without paging, at 1 MiB; ESI is the parameters' address. Loaders that have
// created them enter here.
.section .linux.high, "", @progbits
.code32
    cli
    cld
    mov eax, 0x18
    mov ds, eax
    mov es, eax
    mov ss, eax
    mov ebx, esi
    mov esi, {load} + {high_size}
    mov edi, offset __image_start
    mov ecx, offset __image_load_size
    rep movsb
    mov ecx, offset __image_end
    sub ecx, edi
    xor eax, eax
    rep stosb
    mov eax, offset linux_entry
    jmp eax
    .org {high_size}

.section .text.boot, "ax"
linux_entry:
    mov ebp, {linux}
    jmp common_entry
.text
.code64
"#,
            gdt_pointer = const $crate::x86_64::linux::GDT_POINTER,
            header = const $crate::x86_64::linux::HEADER,
            header_end = const $crate::x86_64::linux::HEADER_END,
            jump = const $crate::x86_64::linux::JUMP,
            jump_from = const $crate::x86_64::linux::JUMP_FROM,
            sector = const $crate::x86_64::linux::SECTOR,
            sectors = const $crate::x86_64::linux::SETUP_SECTORS,
            high_size = const $crate::x86_64::linux::HIGH_SIZE,
            load = const $crate::x86_64::linux::LOAD_ADDRESS,
            command_line_max = const $crate::x86_64::linux::COMMAND_LINE_MAX,
            params = const $crate::x86_64::linux::PARAMS,
            stack = const $crate::x86_64::linux::STACK,
            e820_count = const $crate::x86_64::linux::E820_COUNT,
            e820_table = const $crate::x86_64::linux::E820_TABLE,
            e820_entry = const $crate::x86_64::linux::E820_ENTRY,
            e820_max = const $crate::x86_64::linux::E820_MAX,
            linux = const $crate::x86_64::info::PROTOCOL_LINUX,
        );
    };
}
