//! Descriptor tables: the gates that have their own stacks, and the locations of these.

use baremetal::x86_64::{interrupts, tables};
use x86_64::VirtAddr;

use crate::arch::PerCpu;
use crate::image::blocks::FAULT_STACK_TOP;

/// Number in the TSS of the stack for double faults and machine checks, counted from 1.
const FAULT_IST: u16 = 1;
/// Number of the stack for NMIs.
const NMI_IST: u16 = 2;

/// Offset in a CPU's block of the top of the stack for NMIs.
const NMI_STACK_TOP: u64 = 0x6000;

/// Fills in the IDT.
///
/// # Safety
///
/// Only the boot CPU runs.
pub(crate) unsafe fn build_idt() {
    // External interrupts take no IST: a stack switch reads the TSS, and right after a #VMEXIT the
    // task register is still the guest's. Only exceptions that may find the stack unusable have
    // one.
    let stack = |vector| match vector {
        2 => NMI_IST,
        8 | 18 => FAULT_IST,
        _ => 0,
    };
    // SAFETY: the caller guarantees that only the boot CPU runs; `load` installs the stacks before
    // it loads the table.
    unsafe { interrupts::build(stack) };
}

/// Loads GDT, TSS and IDT of the calling CPU.
///
/// # Safety
///
/// The IDT is built. Called once on each CPU.
pub(crate) unsafe fn load(cpu: &'static PerCpu) {
    // SAFETY: the tables belong to this CPU, which loads them once; they live as long as it does.
    let tables: &'static mut tables::Tables = unsafe { &mut *cpu.arch.tables.get() };
    for (number, top) in [(FAULT_IST, FAULT_STACK_TOP), (NMI_IST, NMI_STACK_TOP)] {
        tables.tss.interrupt_stack_table[usize::from(number) - 1] = VirtAddr::new(cpu.block() + top);
    }
    // SAFETY: the caller's guarantee.
    unsafe { tables.load() };
}
