//! Descriptor tables: each processor's GDT and TSS, and the one IDT.

use core::arch::asm;
use core::mem::MaybeUninit;
use core::ptr::addr_of_mut;

use x86_64::VirtAddr;
use x86_64::instructions::segmentation::{CS, DS, ES, SS, Segment};
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::registers::segmentation::SegmentSelector;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;

use crate::interrupts;
use crate::processors::PROCESSORS;

/// Selectors, in the order in which [`load`] appends the descriptors.
pub(crate) const KERNEL_CODE: u16 = 0x08;
pub(crate) const KERNEL_DATA: u16 = 0x10;
pub(crate) const USER_DATA: u16 = 0x18 | 3;
pub(crate) const USER_CODE: u16 = 0x20 | 3;
pub(crate) const KERNEL_CODE_32: u16 = 0x28;

/// A code segment of 32 bits, all of the lower 4 GiB: APM volume 2, section 4.7.2.
const CODE_32: u64 = 0x00cf_9b00_0000_ffff;

const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
struct Stack([u8; STACK_SIZE]);

/// Each processor's own tables.
struct Tables {
    gdt: MaybeUninit<GlobalDescriptorTable>,
    tss: TaskStateSegment,
    /// For exceptions from ring 3.
    ring0_stack: Stack,
}

const EMPTY: Tables =
    Tables { gdt: MaybeUninit::uninit(), tss: TaskStateSegment::new(), ring0_stack: Stack([0; STACK_SIZE]) };

/// Each processor touches its own only, and only in [`load`].
static mut TABLES: [Tables; PROCESSORS] = [EMPTY; PROCESSORS];
/// Filled in by the first processor before another one starts.
static mut IDT: [[u64; 2]; 256] = [[0; 2]; 256];
/// Ring 3 runs on one processor at a time.
static mut USER_STACK: Stack = Stack([0; STACK_SIZE]);

/// Where the stack of ring 3 begins.
pub(crate) fn user_stack_top() -> u64 {
    (&raw const USER_STACK).addr() as u64 + STACK_SIZE as u64
}

/// An interrupt gate: APM volume 2, section 4.8.4.
fn gate(handler: u64) -> [u64; 2] {
    let low = (handler & 0xffff) | u64::from(KERNEL_CODE) << 16 | 0x8e << 40 | (handler >> 16 & 0xffff) << 48;
    [low, handler >> 32]
}

/// Fills in the IDT. Call on the first processor, once.
pub(crate) fn build_idt() {
    for vector in 0..=255u8 {
        // SAFETY: no other processor runs, and this one loads the table afterwards.
        unsafe { IDT[usize::from(vector)] = gate(interrupts::handler(vector)) };
    }
}

/// Loads the tables of processor `index`.
///
/// # Safety
///
/// Once on each processor after its reset, with its own index.
pub(crate) unsafe fn load(index: usize) {
    // SAFETY: the tables are this processor's, and whatever it did before its reset has ended.
    let tables = unsafe { &mut (*addr_of_mut!(TABLES))[index] };
    let stack = VirtAddr::from_ptr(&raw const tables.ring0_stack);
    tables.tss.privilege_stack_table[0] = stack + STACK_SIZE as u64;
    let gdt = tables.gdt.write(GlobalDescriptorTable::new());
    gdt.append(Descriptor::kernel_code_segment());
    gdt.append(Descriptor::kernel_data_segment());
    gdt.append(Descriptor::user_data_segment());
    gdt.append(Descriptor::user_code_segment());
    gdt.append(Descriptor::UserSegment(CODE_32));
    let tss = gdt.append(Descriptor::tss_segment(&tables.tss));
    // SAFETY: table and segments were just made and never change; the IDT is complete.
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

/// Shuts the processor down: with an IDT that has no gate, an exception is a double fault is a triple fault.
pub(crate) fn triple_fault() -> ! {
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
