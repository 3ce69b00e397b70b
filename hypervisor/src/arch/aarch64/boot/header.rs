//! The entry code: the arm64 Image header for the first CPU, PSCI's entry for the others.
//!
//! Sources: Linux, Documentation/arch/arm64/booting (the header, and the state at entry: EL2, MMU
//! off, x0 = the device tree's address); Arm DEN 0022F, PSCI 1.3, section 6.4 (state of a CPU that
//! CPU_ON started: x0 is the context id); Arm DDI 0487, D24.2 for the registers.

use core::arch::global_asm;

use baremetal::encodings::{MAIR, SCTLR_EL1, SCTLR_EL2, TCR_EL2};
use baremetal::{enable_mmu, image_header};

// The boot tables use the same attributes as the later ones.
const _: () = assert!(MAIR == paging::Arm64Stage1::MAIR);

const BOOT_STACK_SIZE: usize = 64 << 10;

// The boot tables map the first GiB as devices and the next 511 as memory, with all rights. They
// serve until the real tables are built, and serve each further CPU for its first instructions.
// They are constants of the image, so no cache has to be cleaned for the walks of a CPU whose
// caches are off.
global_asm!(
    r#"
.section .data.boot, "aw"
.balign 4096
boot_root:
    .quad boot_level1 + 3
    .skip 4096 - 8
boot_level1:
    .quad 0x00000405                    // block: valid, attributes 1, accessed
    .set gigabyte, 1
    .rept 511
    .quad gigabyte * 0x40000000 + 0x701 // block: valid, attributes 0, inner shareable, accessed
    .set gigabyte, gigabyte + 1
    .endr

.section .bss.boot, "aw", @nobits
.balign 16
boot_stack: .skip {stack_size}
boot_stack_top:

.section .text.boot, "ax"
.global boot_image
boot_image:
"#,
    // Little-endian, 4 KiB pages, near the base of memory.
    image_header!("1f", "0b0010"),
    r#"
1:  mov x20, x0
    msr daifset, #0xf
    mrs x1, CurrentEL
    cmp x1, #8
    b.ne 3f
    bl boot_enable_mmu
    adrp x1, __bss_start
    add x1, x1, :lo12:__bss_start
    adrp x2, __bss_end
    add x2, x2, :lo12:__bss_end
2:  stp xzr, xzr, [x1], #16
    cmp x1, x2
    b.lo 2b
    adrp x1, boot_stack_top
    add x1, x1, :lo12:boot_stack_top
    mov sp, x1
    mov x29, xzr
    mov x30, xzr
    mov x0, x20
    bl {bsp_main}
    brk #0
3:                                      // not EL2: with the MMU off unaligned accesses fault
"#,
    enable_mmu!("el1", "vmalle1", "32", "{mair}", "{tcr}", "{sctlr_el1}", "boot_root", ""),
    r#"
    adrp x1, boot_stack_top
    add x1, x1, :lo12:boot_stack_top
    mov sp, x1
    mov x29, xzr
    mov x0, x20
    bl {not_el2}
    brk #0

boot_enable_mmu:
"#,
    enable_mmu!("el2", "alle2", "16", "{mair}", "{tcr}", "{sctlr}", "boot_root", ""),
    r#"
    ret

// x0: top of the CPU's main stack
.global boot_secondary
boot_secondary:
    msr daifset, #0xf
    bl boot_enable_mmu
    mov sp, x0
    mov x29, xzr
    mov x30, xzr
    bl {ap_main}
    brk #0
"#,
    stack_size = const BOOT_STACK_SIZE,
    mair = const MAIR,
    tcr = const TCR_EL2,
    sctlr = const SCTLR_EL2,
    sctlr_el1 = const SCTLR_EL1,
    bsp_main = sym super::start::bsp_main,
    not_el2 = sym super::start::not_el2,
    ap_main = sym super::start::ap_main,
);

unsafe extern "C" {
    /// The entry point of CPUs that PSCI starts.
    fn boot_secondary() -> !;
}

/// The address passed to PSCI's CPU_ON; the context id is the top of the new CPU's stack.
pub(crate) fn secondary_entry() -> u64 {
    boot_secondary as *const () as u64
}
