//! The effect of an instruction with one memory operand.

use super::Cpu;
use super::arithmetic::Arithmetic;
use super::operand::{Operand, mask, sign_extend};
use iced_x86::{Instruction, Mnemonic, OpKind};

/// The operation on the memory operand and its old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Copied to a register that may be wider, sign-extended if `signed`.
    Load { to: Operand, signed: bool },
    /// Replaced by a value.
    Store { from: Operand },
    /// Copied to a register, with its bytes reversed.
    SwapLoad { to: Operand },
    /// Replaced by a value with its bytes reversed.
    SwapStore { from: Operand },
    /// Replaced by the result of an operation with another value.
    Modify { arithmetic: Arithmetic, from: Operand },
    /// Used as an operand that changes a register.
    Combine { arithmetic: Arithmetic, to: Operand },
    /// Sets flags, as first or second operand.
    Compare { arithmetic: Arithmetic, with: Operand, memory_first: bool },
    /// One of its bits is copied to the carry flag.
    BitTest { bit: u32 },
    /// Exchanged with a register.
    Exchange { with: Operand },
    /// Replaced if it equals the accumulator, otherwise copied to the accumulator.
    CompareExchange { accumulator: Operand, with: Operand },
}

impl Action {
    pub(super) const fn reads(self) -> bool {
        !matches!(self, Self::Store { .. } | Self::SwapStore { .. })
    }

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
    pub(super) linear: u64,
    /// Size of the memory operand in bytes: 1, 2, 4 or 8.
    pub(super) size: u32,
}

impl Operation {
    /// The operation of the instruction in the state of `cpu`; `None` if it is not emulated.
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

/// The operand that is not in memory: a general register, or a constant in the operation's size.
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

/// The location of BT's bit: the offset from the operand's address, and the bit within `size` bytes
/// there. A register counts bits from the operand on, in both directions; of a constant only the
/// part within the operand counts.
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
