//! Descriptor tables: each CPU's GDT and TSS, and the one IDT.

use core::mem::MaybeUninit;
use core::ptr::addr_of_mut;
use core::sync::atomic::{AtomicBool, Ordering};

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::load_tss;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use super::interrupts::stub_address;
use crate::arch::PerCpu;
use crate::image::blocks::FAULT_STACK_TOP;

/// Index in the TSS of the stack for double faults and machine checks.
const FAULT_IST: u16 = 0;
/// Index in the TSS of the stack for NMIs.
const NMI_IST: u16 = 1;

/// The tables that each CPU has for itself.
pub(crate) struct CpuTables {
    gdt: MaybeUninit<GlobalDescriptorTable>,
    tss: TaskStateSegment,
}

impl CpuTables {
    /// Tables that are not loaded yet.
    pub(crate) const fn new() -> Self {
        Self { gdt: MaybeUninit::uninit(), tss: TaskStateSegment::new() }
    }
}

/// Offset in a CPU's block of the top of the stack for NMIs.
const NMI_STACK_TOP: u64 = 0x6000;

/// A gate of the IDT: AMD64 APM volume 2, section 4.8.4 "Interrupt-gate and trap-gate descriptors".
#[derive(Clone, Copy)]
#[repr(C, align(16))]
struct Gate {
    low: u64,
    high: u64,
}

impl Gate {
    const EMPTY: Self = Self { low: 0, high: 0 };

    /// An interrupt gate, present, for privilege level 0. `ist` is 1-based, 0 for none.
    fn interrupt(handler: u64, selector: u16, ist: u16) -> Self {
        let low = (handler & 0xffff)
            | u64::from(selector) << 16
            | u64::from(ist) << 32
            | 0x8e << 40
            | (handler >> 16 & 0xffff) << 48;
        Self { low, high: handler >> 32 }
    }
}

/// The IDT; the boot CPU fills it in before any other CPU runs, then it is only read.
static mut IDT: [Gate; 256] = [Gate::EMPTY; 256];
static IDT_READY: AtomicBool = AtomicBool::new(false);

/// Fills in the IDT. Call on the boot CPU, once.
pub(crate) fn build_idt() {
    let selector = CS::get_reg().0;
    for vector in 0..256usize {
        // Interrupts from outside take no IST: a stack switch reads the TSS, and right after a
        // #VMEXIT the task register is still the guest's. Only what may find the stack unusable has one.
        let ist = match vector {
            2 => NMI_IST + 1,
            8 | 18 => FAULT_IST + 1,
            _ => 0,
        };
        // SAFETY: only the boot CPU runs, and it loads the table afterwards.
        unsafe { IDT[vector] = Gate::interrupt(stub_address(vector), selector, ist) };
    }
    // Pairs with `load`.
    IDT_READY.store(true, Ordering::Release);
}

/// Loads GDT, TSS and IDT of the calling CPU.
pub(crate) fn load(cpu: &'static PerCpu) {
    // Pairs with the store above, on the boot CPU.
    assert!(IDT_READY.load(Ordering::Acquire), "the IDT is built first");
    // SAFETY: the tables belong to this CPU, which loads them once; they live as long as it does.
    let tables = unsafe { &mut *cpu.arch.tables.get() };
    tables.tss.interrupt_stack_table[FAULT_IST as usize] = VirtAddr::new(cpu.block() + FAULT_STACK_TOP);
    tables.tss.interrupt_stack_table[NMI_IST as usize] = VirtAddr::new(cpu.block() + NMI_STACK_TOP);
    let gdt = tables.gdt.write(GlobalDescriptorTable::new());
    let code = gdt.append(Descriptor::kernel_code_segment());
    let data = gdt.append(Descriptor::kernel_data_segment());
    let tss = gdt.append(Descriptor::tss_segment(&tables.tss));
    // SAFETY: the descriptors were just made, in a table that is never changed again; the IDT is
    // complete.
    unsafe {
        gdt.load_unsafe();
        CS::set_reg(code);
        SS::set_reg(data);
        DS::set_reg(data);
        ES::set_reg(data);
        load_tss(tss);
        x86_64::instructions::tables::lidt(&DescriptorTablePointer {
            limit: (size_of::<[Gate; 256]>() - 1) as u16,
            base: VirtAddr::from_ptr(addr_of_mut!(IDT)),
        });
    }
}
