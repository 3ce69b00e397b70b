//! Operands of instructions: their locations and sizes.

use super::Gprs;
use iced_x86::Register;

/// The source or destination of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A general register.
    Register {
        /// Its number.
        number: usize,
        /// Its size in bytes.
        size: u32,
        /// Whether it is bits 15:8 (AH to BH).
        high_byte: bool,
    },
    /// A constant.
    Immediate(u64),
}

impl Operand {
    /// The low `size` bytes of RAX.
    pub const fn accumulator(size: u32) -> Self {
        Self::Register { number: super::RAX, size, high_byte: false }
    }

    /// A general register; `None` for any other register.
    pub fn of(register: Register) -> Option<Self> {
        let high_byte = matches!(register, Register::AH | Register::CH | Register::DH | Register::BH);
        let number = register.is_gpr().then(|| register.full_register().number())?;
        Some(Self::Register { number, size: register.size() as u32, high_byte })
    }

    /// The value, cut to the operand's size.
    pub fn read(self, registers: &Gprs) -> u64 {
        match self {
            Self::Immediate(value) => value,
            Self::Register { number, high_byte: true, .. } => registers[number] >> 8 & 0xff,
            Self::Register { number, size, .. } => registers[number] & mask(size),
        }
    }

    /// Writes a register as the processor does: 32 bits clear the upper half, 8 and 16 bits
    /// preserve the rest.
    pub fn write(self, registers: &mut Gprs, value: u64) {
        let Self::Register { number, size, high_byte } = self else { return };
        let old = registers[number];
        registers[number] = match size {
            _ if high_byte => old & !0xff00 | (value & 0xff) << 8,
            4 | 8 => value & mask(size),
            _ => old & !mask(size) | value & mask(size),
        };
    }
}

/// All ones in the low `size` bytes.
pub const fn mask(size: u32) -> u64 {
    if size >= 8 { u64::MAX } else { (1 << (8 * size)) - 1 }
}

/// Sign-extends a number of `size` bytes, 1 to 8.
pub(super) const fn sign_extend(value: u64, size: u32) -> u64 {
    let shift = 64 - 8 * size;
    ((value << shift).cast_signed() >> shift).cast_unsigned()
}

/// Reverses the bytes of a number of `size` bytes, 1 to 8.
pub(super) const fn swap(value: u64, size: u32) -> u64 {
    value.swap_bytes() >> (64 - 8 * size)
}
