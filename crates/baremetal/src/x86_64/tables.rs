//! Descriptor tables: each processor's GDT and TSS, and the one IDT.
//!
//! An image that keeps its processors' data by itself has [`Tables`] there and loads them; the
//! others find the processor's number by GS.

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

use super::processors::MAX_PROCESSORS;

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
/// The stack of [`set_gate_apart`], as gates name it: counted from 1.
const GATE_STACK: u16 = 1;

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// A processor's GDT and TSS.
pub struct Tables {
    gdt: MaybeUninit<GlobalDescriptorTable>,
    /// The task state segment; its stacks are put there before it is loaded.
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

    /// Fills in the GDT, and has the calling processor use both and the IDT. FS and GS are left as
    /// they are.
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
        // SAFETY: table and segments were just made and never change; the IDT is complete, says the
        // caller.
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

/// What each processor of a program has.
struct Processor {
    /// The processor's number, which GS leads to.
    number: u64,
    tables: Tables,
    /// For exceptions from ring 3, and for [gates apart](set_gate_apart).
    ring0_stack: Stack,
}

const EMPTY: Processor = Processor { number: 0, tables: Tables::new(), ring0_stack: Stack([0; STACK_SIZE]) };

/// Each processor touches its own only, and changes it only in [`load`].
static mut PROCESSORS: [Processor; MAX_PROCESSORS] = [EMPTY; MAX_PROCESSORS];
/// Filled in by the first processor before another one starts.
static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];
/// Ring 3 runs on one processor at a time.
static mut USER_STACK: Stack = Stack([0; STACK_SIZE]);

/// Where the stack of ring 3 begins.
pub fn user_stack_top() -> u64 {
    (&raw const USER_STACK).addr() as u64 + STACK_SIZE as u64
}

/// Has the processors go to the code at `handler` on `vector`.
///
/// # Safety
///
/// The code is an interrupt handler; no other processor runs, or runs into it.
pub unsafe fn set_gate(vector: u8, handler: u64) {
    // SAFETY: the caller's.
    unsafe { set_gate_on_stack(vector, handler, 0) };
}

/// The same, on a stack of the task state segment's, by its number counted from 1; 0 for that of
/// the code that is interrupted. An interrupt gate of ring 0: APM volume 2, section 4.8.4.
///
/// # Safety
///
/// As [`set_gate`].
pub unsafe fn set_gate_on_stack(vector: u8, handler: u64, stack: u16) {
    let low = (handler & 0xffff)
        | u64::from(KERNEL_CODE) << 16
        | u64::from(stack) << 32
        | 0x8e << 40
        | (handler >> 16 & 0xffff) << 48;
    // SAFETY: one entry is exchanged, which no processor looks at now, says the caller.
    unsafe { IDT[usize::from(vector)] = [low, handler >> 32] };
}

/// The same, on a stack that nothing is on but what an exception from ring 3 has left.
///
/// # Safety
///
/// As [`set_gate`]; nothing of ring 3 is to go on.
pub unsafe fn set_gate_apart(vector: u8, handler: u64) {
    // SAFETY: the caller's.
    unsafe { set_gate_on_stack(vector, handler, GATE_STACK) };
}

/// Loads the tables of processor `number`.
///
/// # Safety
///
/// Once on each processor after its reset, with its own number.
pub(super) unsafe fn load(number: usize) {
    // SAFETY: they are this processor's, and whatever it did before its reset has ended.
    let Processor { number: own, tables, ring0_stack } = unsafe { &mut (*addr_of_mut!(PROCESSORS))[number] };
    *own = number as u64;
    let stack = VirtAddr::from_ptr(&raw const *ring0_stack);
    tables.tss.privilege_stack_table[0] = stack + STACK_SIZE as u64;
    tables.tss.interrupt_stack_table[usize::from(GATE_STACK) - 1] = stack + STACK_SIZE as u64;
    // SAFETY: the first processor has filled in the IDT before; the tables are not touched again
    // before a reset.
    unsafe { tables.load() };
    // SAFETY: nothing is found by FS, and by GS nothing but the number. Loading GS clears its base
    // on some processors, so the base is set afterwards.
    unsafe {
        FS::set_reg(SegmentSelector(0));
        GS::set_reg(SegmentSelector(0));
        Msr::new(GS_BASE).write((&raw const *own).addr() as u64);
    }
}

/// The calling processor's number.
pub fn number() -> usize {
    let number: u64;
    // SAFETY: GS leads to the number since `load`, and ring 3 cannot change it.
    unsafe { asm!("mov {}, gs:[0]", out(reg) number, options(nostack, preserves_flags, readonly)) };
    number as usize
}

/// Shuts the processor down: with an IDT that has no gate, an exception is a double fault is a
/// triple fault.
pub fn triple_fault() -> ! {
    // SAFETY: there is no way on from here, which is what is wanted.
    unsafe {
        load_idt(0);
        asm!("ud2", options(noreturn));
    }
}

/// # Safety
///
/// The IDT is complete up to `limit`, or nothing else is to happen.
unsafe fn load_idt(limit: u16) {
    // SAFETY: the caller's.
    unsafe { lidt(&DescriptorTablePointer { limit, base: VirtAddr::from_ptr(&raw const IDT) }) };
}
