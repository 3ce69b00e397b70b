//! Entry code: header of an arm64 Image, entries of the first processor and of the others, from EL2
//! down to EL1.
//!
//! Sources: Linux, Documentation/arch/arm64/booting.rst (header, state at the entry); DDI 0487 M.b,
//! D24.2 (registers); ELF for the Arm 64-bit Architecture (AAELF64), "Relocation".

use super::info::{self, BootInfo};
use super::interrupts;

unsafe extern "Rust" {
    /// The image's main function, see [`entry!`](crate::entry).
    fn baremetal_image_main(info: BootInfo) -> !;
}

unsafe extern "C" {
    static __image_start: u8;
    static __image_end: u8;
    /// Entry of a processor that PSCI starts; the context is its number.
    fn other_entry() -> !;
}

/// Names the image's main function: a `fn(BootInfo) -> !`.
#[macro_export]
macro_rules! entry {
    ($main:path) => {
        #[unsafe(no_mangle)]
        fn baremetal_image_main(info: $crate::aarch64::info::BootInfo) -> ! {
            let main: fn($crate::aarch64::info::BootInfo) -> ! = $main;
            main(info)
        }

        $crate::aarch64_entry_code!();
        $crate::exception_vectors!();
    };
}

#[doc(hidden)]
pub const STACK_SIZE: usize = 64 << 10;
/// AAELF64: the word at the offset is the image's displacement and the addend.
#[doc(hidden)]
pub const R_AARCH64_RELATIVE: u32 = 1027;

/// The assembly of the header of an arm64 Image, which begins with a branch to `$entry`. The linker
/// script defines `__image_size`.
#[macro_export]
macro_rules! image_header {
    ($entry:literal, $flags:literal) => {
        concat!(
            "b ",
            $entry,
            "\n.long 0\n.quad 0\n.quad __image_size\n.quad ",
            $flags,
            "\n.quad 0, 0, 0\n.ascii \"ARM\\x64\"\n.long 0\n",
        )
    };
}

/// The assembly that turns on MMU and caches at an exception level, given by its suffix. The
/// assembly's operands `$mair`, `$tcr` and `$sctlr` are constants. TCR's size of physical
/// addresses, of 48 bits at most, is inserted from bit `$size` on. TTBR0 is the table at `$root`.
/// `$more` may change TCR in X10, depending on the features in X11. X10 to X13 are clobbered.
#[macro_export]
macro_rules! enable_mmu {
    ($level:literal, $tlbi:literal, $size:literal, $mair:literal, $tcr:literal, $sctlr:literal, $root:literal, $more:literal) => {
        concat!(
            "ldr x10, =",
            $mair,
            "\nmsr mair_",
            $level,
            ", x10\nldr x10, =",
            $tcr,
            "\nmrs x11, id_aa64mmfr0_el1\nand x12, x11, #0xf\nmov x13, #5\ncmp x12, x13\n",
            "csel x12, x12, x13, lo\norr x10, x10, x12, lsl #",
            $size,
            "\n",
            $more,
            "\nmsr tcr_",
            $level,
            ", x10\nadrp x11, ",
            $root,
            "\nadd x11, x11, :lo12:",
            $root,
            "\nmsr ttbr0_",
            $level,
            ", x11\nisb\ntlbi ",
            $tlbi,
            "\nic iallu\ndsb nsh\nisb\n",
            "ldr x10, =",
            $sctlr,
            "\nmsr sctlr_",
            $level,
            ", x10\nisb\n",
        )
    };
}

// Only registers are written before the image has been moved to where it runs. Memory that is
// written while the caches are off goes to RAM; cached lines of it are older, and are invalidated
// before the MMU is on.
#[doc(hidden)]
#[macro_export]
macro_rules! aarch64_entry_code {
    () => {
        core::arch::global_asm!(
            r#"
.section .text.header, "ax"
"#,
            // Little-endian, pages of 4 KiB, any 2 MiB of memory.
            $crate::image_header!("image_entry", "0xa"),
            r#"
.section .bss.boot, "aw", @nobits
.balign 16
.skip {stack_size}
boot_stack_top:

.section .text.boot, "ax"
.global image_entry
image_entry:
    msr daifset, #0xf
    mov x19, x0                 // the device tree
    bl drop_to_el1
    // x9: distance of the image from its link address
    adrp x9, __image_start
    movz x10, #:abs_g1:__link_base
    sub x9, x9, x10
    adrp x11, __relocations_start
    add x11, x11, #:lo12:__relocations_start
    adrp x12, __relocations_end
    add x12, x12, #:lo12:__relocations_end
2:  cmp x11, x12
    b.hs 3f
    ldp x13, x14, [x11], #16    // offset, type
    ldr x15, [x11], #8          // addend
    mov w16, #{relative}
    cmp w14, w16
    b.ne 2b
    add x15, x15, x9
    str x15, [x13, x9]
    b 2b
3:  adrp x11, __bss_start       // whole pages
    adrp x12, __bss_end
4:  cmp x11, x12
    b.hs 5f
    stp xzr, xzr, [x11], #16
    b 4b
5:  adrp x11, boot_stack_top
    add x11, x11, #:lo12:boot_stack_top
    mov sp, x11
    adrp x0, __image_start
    mov x1, x19
    bl {map_first}
    dsb sy
    mrs x10, ctr_el0            // words in the smallest line of data caches, as a power of two
    ubfx x10, x10, #16, #4
    mov x11, #4
    lsl x10, x11, x10
    adrp x11, __image_start
    adrp x12, __uninitialised_start
6:  dc ivac, x11
    add x11, x11, x10
    cmp x11, x12
    b.lo 6b
    adrp x11, __bss_start
    adrp x12, __bss_end
7:  dc ivac, x11
    add x11, x11, x10
    cmp x11, x12
    b.lo 7b
    dsb sy
    bl enable_mmu
    mov x29, xzr
    mov x30, xzr
    mov x0, x19
    bl {first}
    brk #0

.global other_entry
other_entry:
    msr daifset, #0xf
    mov x19, x0                 // its number
    bl drop_to_el1
    adrp x11, {stacks}
    add x11, x11, #:lo12:{stacks}
    mov x12, #{other_stack_size}
    madd x11, x19, x12, x11
    add sp, x11, x12
    bl enable_mmu
    mov x29, xzr
    mov x30, xzr
    mov x0, x19
    bl {other}
    brk #0

enable_mmu:
"#,
            // 16 bits of ASIDs, if supported.
            $crate::enable_mmu!(
                "el1", "vmalle1", "32", "{mair}", "{tcr}", "{sctlr}", "{root}",
                "ubfx x11, x11, #4, #4\ncmp x11, #2\ncset x11, hs\norr x10, x10, x11, lsl #36"
            ),
            r#"
    ret
.ltorg

// Leaves EL2, if it is there, so that nothing of EL1 is trapped. x10 and x11 are clobbered.
drop_to_el1:
    movz x10, #0x0800
    movk x10, #0x30d0, lsl #16
    msr sctlr_el1, x10          // MMU and caches off
    isb
    mrs x10, CurrentEL
    cmp x10, #8
    b.eq 2f
    msr spsel, #1
    isb
    ret
2:  mov x10, #1
    lsl x10, x10, #31           // RW: EL1 is AArch64
    msr hcr_el2, x10
    isb
    mov x10, #3                 // EL1 may read the physical counter and use its timer
    msr cnthctl_el2, x10
    msr cntvoff_el2, xzr
    movz x10, #0x33ff           // no traps of floating point
    msr cptr_el2, x10
    msr hstr_el2, xzr
    msr vttbr_el2, xzr
    mrs x10, midr_el1
    msr vpidr_el2, x10
    mrs x10, mpidr_el1
    msr vmpidr_el2, x10
    mrs x10, mdcr_el2
    and x10, x10, #0x1f         // HPMN alone: no traps of debug and PMU
    msr mdcr_el2, x10
    mrs x10, id_aa64pfr0_el1
    ubfx x10, x10, #24, #4      // GIC
    cbz x10, 3f
    mrs x10, s3_4_c12_c9_5      // ICC_SRE_EL2
    orr x10, x10, #0xf          // EL1 uses registers too
    msr s3_4_c12_c9_5, x10
    isb
    msr s3_4_c12_c11_0, xzr     // ICH_HCR_EL2
3:  mrs x10, id_aa64mmfr0_el1
    ubfx x10, x10, #56, #4      // FGT
    cbz x10, 4f
    msr s3_4_c1_c1_4, xzr       // HFGRTR_EL2, HFGWTR_EL2, HFGITR_EL2, HDFGRTR_EL2, HDFGWTR_EL2
    msr s3_4_c1_c1_5, xzr
    msr s3_4_c1_c1_6, xzr
    msr s3_4_c3_c1_4, xzr
    msr s3_4_c3_c1_5, xzr
4:  movz x10, #0x3c5            // EL1 with its own stack, all masked
    msr spsr_el2, x10
    msr elr_el2, x30
    eret
"#,
            stack_size = const $crate::aarch64::boot::STACK_SIZE,
            relative = const $crate::aarch64::boot::R_AARCH64_RELATIVE,
            other_stack_size = const $crate::aarch64::processors::STACK_SIZE,
            stacks = sym $crate::aarch64::processors::STACKS,
            root = sym $crate::aarch64::tables::ROOT,
            map_first = sym $crate::aarch64::tables::map_first,
            first = sym $crate::aarch64::boot::first,
            other = sym $crate::aarch64::processors::other,
            mair = const $crate::encodings::MAIR,
            tcr = const $crate::encodings::TCR_EL1,
            sctlr = const $crate::encodings::SCTLR_EL1,
        );
    };
}

/// Entry of the first processor, once.
#[doc(hidden)]
pub extern "C" fn first(device_tree: u64) -> ! {
    // SAFETY: this is the first processor, which runs this once; the table of vectors is complete.
    unsafe { interrupts::load(0) };
    // SAFETY: the entry passes on the loader's value, which `map_first` has mapped.
    let info = unsafe { info::read(device_tree) };
    // SAFETY: `entry!` defines the function with this signature.
    unsafe { baremetal_image_main(info) }
}

/// The image's first address, and the first one after it including all zeroed memory.
pub fn image() -> (u64, u64) {
    ((&raw const __image_start).addr() as u64, (&raw const __image_end).addr() as u64)
}

/// Entry address of the other processors.
pub(super) fn other_entry_address() -> u64 {
    other_entry as *const () as u64
}
