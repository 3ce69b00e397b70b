//! Registers (D51397, 11.4), by their offset from the address that ACPI's DMAR gives. Those of 32
//! bits are named so.

use super::interrupt::LocalApics;

/// The version, of 32 bits.
pub const VERSION: u64 = 0x00;
/// What there is: [`Capabilities`](super::Capabilities).
pub const CAPABILITY: u64 = 0x08;
/// More of that.
pub const EXTENDED_CAPABILITY: u64 = 0x10;
/// What is enabled, of 32 bits. One bit changes at a time.
pub const GLOBAL_COMMAND: u64 = 0x18;
/// What is in effect, of 32 bits, at the places of the command's bits.
pub const GLOBAL_STATUS: u64 = 0x1c;
/// Address of the root table, a page.
pub const ROOT_TABLE: u64 = 0x20;
/// What has happened, of 32 bits; bits are cleared by writing 1.
pub const FAULT_STATUS: u64 = 0x34;
/// Whether faults interrupt, of 32 bits: [`MASKED`].
pub const FAULT_CONTROL: u64 = 0x38;
/// The message by which they do, of 32 bits: its data, then its address in two halves.
pub const FAULT_DATA: u64 = 0x3c;
/// The lower half.
pub const FAULT_ADDRESS: u64 = 0x40;
/// The upper half.
pub const FAULT_UPPER_ADDRESS: u64 = 0x44;
/// Memory that firmware has protected from all DMA, of 32 bits.
pub const PROTECTED_MEMORY: u64 = 0x64;
/// Offset, in bytes, of the descriptor that is read next.
pub const QUEUE_HEAD: u64 = 0x80;
/// Offset behind the last descriptor.
pub const QUEUE_TAIL: u64 = 0x88;
/// Address of the queue. With the lower bits clear it is a page of descriptors of 16 bytes.
pub const QUEUE_ADDRESS: u64 = 0x90;
/// Address and size of the interrupt remapping table: [`interrupt_table`].
pub const INTERRUPT_TABLE: u64 = 0xb8;

/// GLOBAL_COMMAND: DMA is translated.
pub const TRANSLATION: u32 = 1 << 31;
/// GLOBAL_COMMAND: go by the root table that is named now.
pub const SET_ROOT_TABLE: u32 = 1 << 30;
/// GLOBAL_COMMAND: the queue is in use.
pub const QUEUE: u32 = 1 << 26;
/// GLOBAL_COMMAND: interrupts are remapped.
pub const REMAPPING: u32 = 1 << 25;
/// GLOBAL_COMMAND: go by the interrupt remapping table that is named now.
pub const SET_INTERRUPT_TABLE: u32 = 1 << 24;
/// GLOBAL_COMMAND: interrupts in the format without remapping pass.
pub const COMPATIBILITY: u32 = 1 << 23;

/// FAULT_STATUS: faults were lost, the registers were full.
pub const FAULT_OVERFLOW: u32 = 1 << 0;
/// FAULT_STATUS: a register holds a fault.
pub const FAULT_PENDING: u32 = 1 << 1;
/// FAULT_CONTROL: faults do not interrupt.
pub const MASKED: u32 = 1 << 31;
/// PROTECTED_MEMORY: there is some.
pub const PROTECTED: u32 = 1 << 31;

/// The value for [`INTERRUPT_TABLE`]: `2^order` entries, 2 to 65,536, at a physical address that is
/// a multiple of 4096, for local APICs of this kind. `None` if they do not fit.
#[must_use]
pub const fn interrupt_table(address: u64, order: u32, apics: LocalApics) -> Option<u64> {
    if address & !super::table::ADDRESS != 0 || order == 0 || order > 16 {
        return None;
    }
    let extended = if matches!(apics, LocalApics::X2apic) { 1 << 11 } else { 0 };
    Some(address | extended | (order as u64 - 1))
}
