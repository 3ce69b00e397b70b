//! String instructions: MOVS, STOS and LODS, for one element or the number in RCX.

use super::operand::{Operand, mask};
use super::place::AccessBytes;
use super::{Cpu, DF, EmulationOutcome, Memory, RCX, RDI, RSI, TF};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

/// Number of elements that one call processes.
const ELEMENTS_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Move,
    Store,
    Load,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct StringOperation {
    kind: Kind,
    /// Size of an element in bytes.
    size: u32,
    /// The bits of RSI, RDI and RCX that are used.
    address_mask: u64,
    /// Segment of the source; the destination's is ES.
    segment: Register,
    is_repeated: bool,
}

impl StringOperation {
    /// `None` for any other instruction.
    pub(super) fn of(instruction: &Instruction) -> Option<Self> {
        let address_size = string_address_size(instruction)?;
        let kind = match instruction.mnemonic() {
            Mnemonic::Movsb | Mnemonic::Movsw | Mnemonic::Movsd | Mnemonic::Movsq => Kind::Move,
            Mnemonic::Stosb | Mnemonic::Stosw | Mnemonic::Stosd | Mnemonic::Stosq => Kind::Store,
            Mnemonic::Lodsb | Mnemonic::Lodsw | Mnemonic::Lodsd | Mnemonic::Lodsq => Kind::Load,
            _ => return None,
        };
        Some(Self {
            kind,
            size: instruction.memory_size().size() as u32,
            address_mask: mask(address_size),
            segment: instruction.memory_segment(),
            // Both prefixes repeat these.
            is_repeated: instruction.has_rep_prefix() || instruction.has_repne_prefix(),
        })
    }

    /// Processes the first element, and further ones as long as they are in the same pages as it
    /// and the processor itself cannot access them: only the processor can find out whether it can
    /// access a new page.
    pub(super) fn execute<M: Memory>(
        &self,
        cpu: &mut Cpu<'_>,
        memory: &mut M,
    ) -> Result<EmulationOutcome, M::Error> {
        let mask = self.address_mask;
        let count = if self.is_repeated { cpu.registers[RCX] & mask } else { 1 };
        // A trap follows each element.
        let limit = if *cpu.flags & TF != 0 { 1 } else { ELEMENTS_MAX };
        let first_pages = self.pages(cpu);
        let mut left = count;
        while left > 0 && count - left < limit && self.pages(cpu) == first_pages {
            if !self.element(cpu, memory)? {
                return Ok(if left == count {
                    EmulationOutcome::Retry
                } else {
                    EmulationOutcome::Unfinished
                });
            }
            left -= 1;
            self.advance(cpu);
        }
        Ok(if left == 0 { EmulationOutcome::Done } else { EmulationOutcome::Unfinished })
    }

    /// The pages in which the next element begins.
    fn pages(&self, cpu: &Cpu<'_>) -> (u64, u64) {
        (self.source(cpu) >> 12, self.destination(cpu) >> 12)
    }

    /// Linear address of the source; STOS has none.
    fn source(&self, cpu: &Cpu<'_>) -> u64 {
        match self.kind {
            Kind::Store => 0,
            _ => cpu.linear(cpu.base(self.segment).wrapping_add(cpu.registers[RSI] & self.address_mask)),
        }
    }

    /// Linear address of the destination; LODS has none.
    fn destination(&self, cpu: &Cpu<'_>) -> u64 {
        match self.kind {
            Kind::Load => 0,
            _ => cpu.linear(cpu.base(Register::ES).wrapping_add(cpu.registers[RDI] & self.address_mask)),
        }
    }

    /// Processes one element; false without effect if the processor itself can do it.
    fn element<M: Memory>(&self, cpu: &mut Cpu<'_>, memory: &mut M) -> Result<bool, M::Error> {
        let accumulator = Operand::accumulator(self.size);
        let source = match self.kind {
            Kind::Store => None,
            _ => Some(AccessBytes::locate(memory, self.source(cpu), self.size, false)?),
        };
        let destination = match self.kind {
            Kind::Load => None,
            _ => Some(AccessBytes::locate(memory, self.destination(cpu), self.size, true)?),
        };
        let is_direct = source.as_ref().is_none_or(|place| place.is_direct(memory, false))
            && destination.as_ref().is_none_or(|place| place.is_direct(memory, true));
        if is_direct {
            return Ok(false);
        }
        let value = match &source {
            Some(place) => place.read(memory),
            None => accumulator.read(cpu.registers),
        };
        match &destination {
            Some(place) => place.write(memory, value),
            None => accumulator.write(cpu.registers, value),
        }
        Ok(true)
    }

    fn advance(&self, cpu: &mut Cpu<'_>) {
        let size = u64::from(self.size);
        let step = if *cpu.flags & DF == 0 { size } else { size.wrapping_neg() };
        if self.kind != Kind::Store {
            add_masked(&mut cpu.registers[RSI], step, self.address_mask);
        }
        if self.kind != Kind::Load {
            add_masked(&mut cpu.registers[RDI], step, self.address_mask);
        }
        if self.is_repeated {
            add_masked(&mut cpu.registers[RCX], u64::MAX, self.address_mask);
        }
    }
}

/// Size in bytes of an address in a string instruction; `None` for other instructions.
pub fn string_address_size(instruction: &Instruction) -> Option<u32> {
    let kinds = [instruction.op0_kind(), instruction.op1_kind()];
    kinds.into_iter().find_map(|kind| match kind {
        OpKind::MemorySegSI | OpKind::MemoryESDI => Some(2),
        OpKind::MemorySegESI | OpKind::MemoryESEDI => Some(4),
        OpKind::MemorySegRSI | OpKind::MemoryESRDI => Some(8),
        _ => None,
    })
}

/// Adds to the part of a register that `mask` covers; a 32-bit address clears the rest, a 16-bit
/// one preserves it.
pub fn add_masked(register: &mut u64, step: u64, mask: u64) {
    let sum = register.wrapping_add(step) & mask;
    *register = if mask == 0xffff { *register & !mask | sum } else { sum };
}
