//! What an instruction with one memory operand does with it.

use super::Cpu;
use super::arithmetic::Arithmetic;
use super::operand::{Operand, mask, sign_extend};
use iced_x86::{Instruction, Mnemonic, OpKind};

/// What is done with what is at the memory operand, the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// To a register that may be wider, with its sign if `signed`.
    Load { to: Operand, signed: bool },
    /// Replaced.
    Store { from: Operand },
    /// To a register, the bytes the other way round.
    SwapLoad { to: Operand },
    /// Replaced, by bytes the other way round.
    SwapStore { from: Operand },
    /// Replaced by what comes of it and another value.
    Modify { arithmetic: Arithmetic, from: Operand },
    /// Changes a register.
    Combine { arithmetic: Arithmetic, to: Operand },
    /// Sets flags, being first or second.
    Compare { arithmetic: Arithmetic, with: Operand, memory_first: bool },
    /// One of its bits becomes the carry.
    BitTest { bit: u32 },
    /// Changes place with a register.
    Exchange { with: Operand },
    /// Replaced if it equals the accumulator, which gets it otherwise.
    CompareExchange { accumulator: Operand, with: Operand },
}

impl Action {
    /// Whether the old value matters.
    pub(super) const fn reads(self) -> bool {
        !matches!(self, Self::Store { .. } | Self::SwapStore { .. })
    }

    /// Whether memory is written to.
    pub(super) const fn writes(self) -> bool {
        matches!(
            self,
            Self::Store { .. }
                | Self::SwapStore { .. }
                | Self::Modify { .. }
                | Self::Exchange { .. }
                | Self::CompareExchange { .. }
        )
    }
}

/// An instruction with one memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) action: Action,
    /// Linear address of the memory operand.
    pub(super) linear: u64,
    /// Bytes of the memory operand: 1, 2, 4 or 8.
    pub(super) size: u32,
}

impl Operation {
    /// What the instruction does in the state that `cpu` is in; `None` if it is not emulated.
    pub(super) fn of(instruction: &Instruction, cpu: &Cpu<'_>) -> Option<Self> {
        let index = (0..instruction.op_count()).find(|&op| instruction.op_kind(op) == OpKind::Memory)?;
        let size = instruction.memory_size().size() as u32;
        if instruction.op_count() != 2 || !matches!(size, 1 | 2 | 4 | 8) {
            return None;
        }
        let linear = cpu.operand_address(instruction, index)?;
        let other = other_operand(instruction, 1 - index, size)?;
        let memory_first = index == 0;
        if instruction.mnemonic() == Mnemonic::Bt {
            let (offset, bit) = bit_place(other, size, cpu);
            let linear = cpu.linear(linear.wrapping_add(offset));
            return Some(Self { action: Action::BitTest { bit }, linear, size });
        }
        let action = action(instruction.mnemonic(), other, memory_first, size)?;
        Some(Self { action, linear, size })
    }
}

/// The operand that is not memory: a general register, or a constant as the operation has it.
fn other_operand(instruction: &Instruction, index: u32, size: u32) -> Option<Operand> {
    match instruction.op_kind(index) {
        OpKind::Register => Operand::of(instruction.op_register(index)),
        _ => instruction.try_immediate(index).ok().map(|value| Operand::Immediate(value & mask(size))),
    }
}

fn action(mnemonic: Mnemonic, other: Operand, memory_first: bool, size: u32) -> Option<Action> {
    let arithmetic = match mnemonic {
        Mnemonic::Add => Arithmetic::Add,
        Mnemonic::Sub => Arithmetic::Sub,
        Mnemonic::And => Arithmetic::And,
        Mnemonic::Or => Arithmetic::Or,
        Mnemonic::Xor => Arithmetic::Xor,
        Mnemonic::Cmp => {
            return Some(Action::Compare { arithmetic: Arithmetic::Sub, with: other, memory_first });
        }
        Mnemonic::Test => {
            return Some(Action::Compare { arithmetic: Arithmetic::And, with: other, memory_first });
        }
        Mnemonic::Xchg => return Some(Action::Exchange { with: other }),
        Mnemonic::Cmpxchg => {
            return Some(Action::CompareExchange { accumulator: Operand::accumulator(size), with: other });
        }
        Mnemonic::Mov if memory_first => return Some(Action::Store { from: other }),
        Mnemonic::Mov | Mnemonic::Movzx => return Some(Action::Load { to: other, signed: false }),
        Mnemonic::Movsx | Mnemonic::Movsxd => return Some(Action::Load { to: other, signed: true }),
        Mnemonic::Movbe if memory_first => return Some(Action::SwapStore { from: other }),
        Mnemonic::Movbe => return Some(Action::SwapLoad { to: other }),
        _ => return None,
    };
    Some(if memory_first {
        Action::Modify { arithmetic, from: other }
    } else {
        Action::Combine { arithmetic, to: other }
    })
}

/// Where BT finds its bit: how far from the operand's address, and which bit of `size` bytes there.
/// A register counts bits from the operand on, up and down; of a constant only the part within the
/// operand matters.
fn bit_place(index: Operand, size: u32, cpu: &Cpu<'_>) -> (u64, u32) {
    let bits = 8 * size;
    let value = index.read(cpu.registers);
    let bit = value as u32 & (bits - 1);
    let offset = match index {
        Operand::Immediate(_) => 0,
        Operand::Register { .. } => {
            let units = sign_extend(value, size).cast_signed() >> bits.trailing_zeros();
            units.cast_unsigned().wrapping_mul(size.into())
        }
    };
    (offset, bit)
}
