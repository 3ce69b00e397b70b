//! Instructions that access memory which the processor itself cannot access: device registers, and
//! stores to read-only memory.
//!
//! The instructions that drivers use on device registers are emulated. Every other instruction is
//! refused, and becomes #UD in the guest:
//!
//! | kind | instructions |
//! |---|---|
//! | moves | MOV, MOVZX, MOVSX, MOVSXD, MOVBE between memory and general registers, or from a constant |
//! | arithmetic | ADD, SUB, AND, OR, XOR, with memory on either side |
//! | comparison | CMP and TEST with memory on either side, BT |
//! | exchange | XCHG, CMPXCHG |
//! | strings | MOVS, STOS, LODS, repeated or not |
//!
//! An access goes to a device as a whole if all of its bytes are in one page. One that crosses into
//! another page becomes two accesses, each with the bytes of its page, and one of them may go to
//! memory. A read-modify-write instruction is executed only if its operand is within a page: it
//! could not be atomic otherwise. All addresses of an element are translated before anything is
//! read or written, so that a fault leaves nothing half done.
//!
//! On a device a read-modify-write is a read and a write, regardless of LOCK: no bus locks a
//! device's registers.

mod arithmetic;
mod operand;
mod operation;
mod place;
mod string;
#[cfg(test)]
mod tests;

use iced_x86::{Instruction, Register};
use paging::Gpa;

pub use operand::{Operand, mask};
pub use string::{add_masked, string_address_size};

use operation::{Action, Operation};
use place::AccessBytes;
use string::StringOperation;

/// General registers in the processor's numbering.
pub type Gprs = [u64; 16];

const RAX: usize = 0;
const RCX: usize = 1;
const RSI: usize = 6;
const RDI: usize = 7;

/// Bits of RFLAGS: the trap flag, and the direction of string instructions.
const TF: u64 = 1 << 8;
const DF: u64 = 1 << 10;

/// Bases of the segments.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentBases {
    /// Of ES, CS, SS and DS, which have no base in 64-bit code.
    pub legacy: [u64; 4],
    /// Of FS and GS.
    pub extra: [u64; 2],
}

/// The processor state that an instruction uses.
#[derive(Debug)]
pub struct Cpu<'a> {
    /// The general registers.
    pub registers: &'a mut Gprs,
    /// RFLAGS.
    pub flags: &'a mut u64,
    /// The segments' bases.
    pub bases: SegmentBases,
    /// Whether it runs 64-bit code.
    pub is_64bit: bool,
}

impl Cpu<'_> {
    /// Base of a segment: in 64-bit code only FS and GS have one.
    fn base(&self, segment: Register) -> u64 {
        let [es, cs, ss, ds] = self.bases.legacy;
        match segment {
            Register::FS => self.bases.extra[0],
            Register::GS => self.bases.extra[1],
            _ if self.is_64bit => 0,
            Register::ES => es,
            Register::CS => cs,
            Register::SS => ss,
            _ => ds,
        }
    }

    /// A linear address, cut to the width of this mode.
    const fn linear(&self, address: u64) -> u64 {
        if self.is_64bit { address } else { address & 0xffff_ffff }
    }

    fn operand_address(&self, instruction: &Instruction, index: u32) -> Option<u64> {
        let address = instruction.virtual_address(index, 0, |register, _, _| {
            if register.is_segment_register() {
                return Some(self.base(register));
            }
            let number = register.is_gpr().then(|| register.full_register().number())?;
            Some(self.registers[number] & mask(register.size() as u32))
        })?;
        Some(self.linear(address))
    }
}

/// The guest's memory and devices.
pub trait Memory {
    /// Why an address cannot be accessed: a fault of the guest.
    type Error;

    /// The guest physical address of the byte at a linear address, for a load, or for a store if
    /// `is_write`.
    ///
    /// # Errors
    ///
    /// The fault that the access raises.
    fn translate(&mut self, linear: u64, is_write: bool) -> Result<Gpa, Self::Error>;

    /// Whether the processor itself can access the page of `gpa`.
    fn is_direct(&mut self, gpa: Gpa, is_write: bool) -> bool;
    /// Reads bytes of one page.
    fn read(&mut self, gpa: Gpa, bytes: &mut [u8]);
    /// Writes bytes of one page.
    fn write(&mut self, gpa: Gpa, bytes: &[u8]);
}

/// The outcome of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum EmulationOutcome {
    /// It is done: the guest continues after it.
    Done,
    /// A repeated instruction has more elements than one call processes: the guest executes it
    /// again, and takes interrupts before that.
    Unfinished,
    /// The processor itself can execute all of it, because memory has changed in the meantime: the
    /// guest retries it.
    Retry,
}

/// Why an instruction was not emulated, or not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// An address cannot be accessed. Elements of a repeated instruction before the failing one are
    /// done.
    Memory(E),
    /// The instruction is not emulated. Nothing has changed.
    Unsupported,
}

/// Executes `instruction`, except for the change of RIP.
///
/// # Errors
///
/// See [`Failure`].
pub fn execute<M: Memory>(
    instruction: &Instruction,
    cpu: &mut Cpu<'_>,
    memory: &mut M,
) -> Result<EmulationOutcome, Failure<M::Error>> {
    if let Some(string) = StringOperation::of(instruction) {
        return string.execute(cpu, memory).map_err(Failure::Memory);
    }
    let operation = Operation::of(instruction, cpu).ok_or(Failure::Unsupported)?;
    let is_write = operation.action.writes();
    let place =
        AccessBytes::locate(memory, operation.linear, operation.size, is_write).map_err(Failure::Memory)?;
    if place.is_direct(memory, is_write) {
        return Ok(EmulationOutcome::Retry);
    }
    if is_write && operation.action.reads() && place.crosses_pages() {
        return Err(Failure::Unsupported);
    }
    operation.perform(cpu, memory, &place);
    Ok(EmulationOutcome::Done)
}

impl Operation {
    fn perform(&self, cpu: &mut Cpu<'_>, memory: &mut impl Memory, place: &AccessBytes) {
        let old = if self.action.reads() { place.read(memory) } else { 0 };
        let size = self.size;
        match self.action {
            Action::Load { to, signed } => {
                let value = if signed { operand::sign_extend(old, size) } else { old };
                to.write(cpu.registers, value);
            }
            Action::Store { from } => place.write(memory, from.read(cpu.registers)),
            Action::SwapLoad { to } => to.write(cpu.registers, operand::swap(old, size)),
            Action::SwapStore { from } => place.write(memory, operand::swap(from.read(cpu.registers), size)),
            Action::Modify { arithmetic, from } => {
                let (new, flags) = arithmetic.of(old, from.read(cpu.registers), size);
                place.write(memory, new);
                flags.set_in(cpu.flags);
            }
            Action::Combine { arithmetic, to } => {
                let (new, flags) = arithmetic.of(to.read(cpu.registers), old, size);
                to.write(cpu.registers, new);
                flags.set_in(cpu.flags);
            }
            Action::Compare { arithmetic, with, memory_first } => {
                let with = with.read(cpu.registers);
                let (first, second) = if memory_first { (old, with) } else { (with, old) };
                arithmetic.of(first, second, size).1.set_in(cpu.flags);
            }
            Action::BitTest { bit } => arithmetic::set_carry(cpu.flags, old >> bit & 1 != 0),
            Action::Exchange { with } => {
                place.write(memory, with.read(cpu.registers));
                with.write(cpu.registers, old);
            }
            Action::CompareExchange { accumulator, with } => {
                let expected = accumulator.read(cpu.registers);
                let (_, flags) = arithmetic::Arithmetic::Sub.of(expected, old, size);
                // The processor always writes.
                place.write(memory, if expected == old { with.read(cpu.registers) } else { old });
                if expected != old {
                    accumulator.write(cpu.registers, old);
                }
                flags.set_in(cpu.flags);
            }
        }
    }
}
