//! Descriptor tables: each processor's GDT and TSS, and the one IDT.
//!
//! An image that keeps its processors' data itself puts [`Tables`] there and loads them; other
//! images find the processor's number by GS.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::addr_of_mut;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, FS, GS, SS, Segment};
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::registers::model_specific::Msr;
use x86_64::registers::segmentation::SegmentSelector;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::encodings::gate;
use crate::pages::Page;
use crate::processors::MAX_PROCESSORS;

/// Selectors, in the order in which `load` appends the descriptors.
pub const KERNEL_CODE: u16 = 0x08;
/// Data of ring 0.
pub const KERNEL_DATA: u16 = 0x10;
/// Data of ring 3.
pub const USER_DATA: u16 = 0x18 | 3;
/// Code of ring 3.
pub const USER_CODE: u16 = 0x20 | 3;
/// Code of ring 0, of 32 bits.
pub const KERNEL_CODE_32: u16 = 0x28;

/// A code segment of 32 bits, all of the lower 4 GiB: APM volume 2, section 4.7.2.
const CODE_32: u64 = 0x00cf_9b00_0000_ffff;

const GS_BASE: u32 = 0xc000_0101;
const STACK_SIZE: usize = 8 << 10;
/// The stack of [`set_gate_apart`], as numbered in gates: from 1.
const GATE_STACK: u16 = 1;

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// A processor's GDT and TSS.
pub struct Tables {
    gdt: MaybeUninit<GlobalDescriptorTable>,
    /// The task state segment; set its stacks before it is loaded.
    pub tss: TaskStateSegment,
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

impl Tables {
    /// Tables that are not loaded yet.
    pub const fn new() -> Self {
        Self { gdt: MaybeUninit::uninit(), tss: TaskStateSegment::new() }
    }

    /// Fills in the GDT, and makes the calling processor use both and the IDT. FS and GS are
    /// unchanged.
    ///
    /// # Safety
    ///
    /// The IDT is complete. No processor uses these tables, and they stay unchanged from here on.
    pub unsafe fn load(&'static mut self) {
        let Self { gdt, tss } = self;
        let gdt = gdt.write(GlobalDescriptorTable::new());
        gdt.append(Descriptor::kernel_code_segment());
        gdt.append(Descriptor::kernel_data_segment());
        gdt.append(Descriptor::user_data_segment());
        gdt.append(Descriptor::user_code_segment());
        gdt.append(Descriptor::UserSegment(CODE_32));
        let tss = gdt.append(Descriptor::tss_segment(tss));
        // SAFETY: table and segments were just made and never change; the caller promises that the
        // IDT is complete.
        unsafe {
            gdt.load_unsafe();
            CS::set_reg(SegmentSelector(KERNEL_CODE));
            SS::set_reg(SegmentSelector(KERNEL_DATA));
            DS::set_reg(SegmentSelector(KERNEL_DATA));
            ES::set_reg(SegmentSelector(KERNEL_DATA));
            load_tss(tss);
            load_idt((size_of::<[[u64; 2]; 256]>() - 1) as u16);
        }
    }
}

unsafe extern "C" {
    static boot_pml4: Page;
}

/// The root of the page tables that all processors begin with.
pub fn root() -> &'static Page {
    // SAFETY: the table lives as long as the program and is changed by atomic stores only.
    unsafe { &boot_pml4 }
}

/// The entry that points to a table: present, writable, user.
pub fn entry_of(table: &Page) -> u64 {
    table.address() | 7
}

/// Stores to tables are seen in program order.
pub const fn complete() {}

/// The data of each processor of a program.
struct Processor {
    /// The processor's number, which GS points to.
    number: u64,
    tables: Tables,
    /// For exceptions from ring 3, and for [separate gates](set_gate_apart).
    ring0_stack: Stack,
}

const EMPTY: Processor = Processor { number: 0, tables: Tables::new(), ring0_stack: Stack([0; STACK_SIZE]) };

/// Each processor touches only its own, and changes it only in [`load`].
static mut PROCESSORS: [Processor; MAX_PROCESSORS] = [EMPTY; MAX_PROCESSORS];
/// Filled in by the first processor before any other starts.
static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];
/// Ring 3 runs on one processor at a time.
static mut USER_STACK: Stack = Stack([0; STACK_SIZE]);

/// The top of the stack of ring 3.
pub fn user_stack_top() -> u64 {
    (&raw const USER_STACK).addr() as u64 + STACK_SIZE as u64
}

/// Sets the handler of `vector` to the code at `handler`.
///
/// # Safety
///
/// The code is an interrupt handler; no other processor runs, or takes the vector.
pub unsafe fn set_gate(vector: u8, handler: u64) {
    // SAFETY: the caller's promise.
    unsafe { set_gate_on_stack(vector, handler, 0) };
}

/// The same, on a stack of the task state segment, by its number counted from 1; 0 for that of the
/// interrupted code.
///
/// # Safety
///
/// As [`set_gate`].
pub unsafe fn set_gate_on_stack(vector: u8, handler: u64, stack: u16) {
    // SAFETY: one entry is replaced, which the caller promises that no processor uses now.
    unsafe { IDT[usize::from(vector)] = gate(handler, KERNEL_CODE, stack) };
}

/// The same, on a stack that holds only the frame of an exception from ring 3.
///
/// # Safety
///
/// As for [`set_gate`]; ring 3 does not continue.
pub unsafe fn set_gate_apart(vector: u8, handler: u64) {
    // SAFETY: the caller's promise.
    unsafe { set_gate_on_stack(vector, handler, GATE_STACK) };
}

/// Loads the tables of processor `number`.
///
/// # Safety
///
/// Once on each processor after its reset, with its own number.
pub(super) unsafe fn load(number: usize) {
    // SAFETY: they belong to this processor, and everything it did before its reset has ended.
    let Processor { number: own, tables, ring0_stack } = unsafe { &mut (*addr_of_mut!(PROCESSORS))[number] };
    *own = number as u64;
    let stack = VirtAddr::from_ptr(&raw const *ring0_stack);
    tables.tss.privilege_stack_table[0] = stack + STACK_SIZE as u64;
    tables.tss.interrupt_stack_table[usize::from(GATE_STACK) - 1] = stack + STACK_SIZE as u64;
    // SAFETY: the first processor has filled in the IDT before; the tables are not changed again
    // before a reset.
    unsafe { tables.load() };
    // SAFETY: FS is not used, and GS only for the number. Loading GS clears its base on some
    // processors, so the base is set afterwards.
    unsafe {
        FS::set_reg(SegmentSelector(0));
        GS::set_reg(SegmentSelector(0));
        Msr::new(GS_BASE).write((&raw const *own).addr() as u64);
    }
}

/// The calling processor's number.
pub fn number() -> usize {
    let number: u64;
    // SAFETY: GS points to the number since `load`, and ring 3 cannot change it.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly)) };
    number as usize
}

/// Shuts the processor down: with an IDT without gates, an exception becomes a double fault and
/// then a triple fault.
pub fn triple_fault() -> ! {
    // SAFETY: execution ends here, as intended.
    unsafe {
        load_idt(0);
        asm!("ud2", options(noreturn));
    }
}

/// # Safety
///
/// The IDT is complete up to `limit`, or execution is about to end.
unsafe fn load_idt(limit: u16) {
    // SAFETY: the caller's promise.
    unsafe { lidt(&DescriptorTablePointer { limit, base: VirtAddr::from_ptr(&raw const IDT) }) };
}
