//! Registers of the guest that a VMCS does not have. The hypervisor uses none of them, so the
//! guest's values stay in the processor while the vCPU is on the CPU.

use core::cell::Cell;

use super::vmcs::Read;
use crate::x86::vcpu::msr;

/// Such a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names are the manual's")]
pub enum Register {
    Cr2,
    Dr6,
    Star,
    Lstar,
    Cstar,
    Sfmask,
    KernelGs,
}

impl Register {
    /// Its MSR; of the others there is none.
    pub const fn msr(self) -> Option<u32> {
        Some(match self {
            Self::Cr2 | Self::Dr6 => return None,
            Self::Star => msr::STAR,
            Self::Lstar => msr::LSTAR,
            Self::Cstar => msr::CSTAR,
            Self::Sfmask => msr::SFMASK,
            Self::KernelGs => msr::KERNEL_GS_BASE,
        })
    }
}

const ALL: [Register; 7] = {
    use Register::{Cr2, Cstar, Dr6, KernelGs, Lstar, Sfmask, Star};
    [Cr2, Dr6, Star, Lstar, Cstar, Sfmask, KernelGs]
};

/// Those that the guest changes without an exit.
const CHANGED_BY_GUESTS: [Register; 3] = [Register::Cr2, Register::Dr6, Register::KernelGs];

/// What a CPU has in the others, 0 at first. The vCPUs of a guest mostly have the same in them.
#[derive(Debug, Default)]
pub struct LoadedValues([Cell<u64>; ALL.len()]);

impl LoadedValues {
    /// Whether a register that is to have this value must be written.
    #[inline(always)]
    fn lacks(&self, register: Register, value: u64) -> bool {
        CHANGED_BY_GUESTS.contains(&register) || self.0[register as usize].replace(value) != value
    }
}

/// The values.
#[derive(Clone, Copy, Debug)]
pub struct SoftState {
    values: [u64; ALL.len()],
    /// Reads a register of the processor.
    pub(super) from_processor: Read<Register>,
    /// The registers whose values the processor has: all others are here.
    loaded: u8,
}

impl SoftState {
    /// Before the first entry.
    pub(super) const fn new() -> Self {
        let from_processor = |_| unreachable!("a register is read of no processor");
        Self { values: [0; ALL.len()], from_processor, loaded: 0 }
    }

    /// A register's value.
    pub fn read(&self, register: Register) -> u64 {
        if CHANGED_BY_GUESTS.contains(&register) && self.loaded & 1 << register as u8 != 0 {
            (self.from_processor)(register)
        } else {
            self.values[register as usize]
        }
    }

    /// Changes a register at the next entry.
    #[inline(always)]
    pub const fn write(&mut self, register: Register, value: u64) {
        self.values[register as usize] = value;
        self.loaded &= !(1 << register as u8);
    }

    /// Loads what the processor does not have.
    #[inline(always)]
    pub fn load(&mut self, held: &LoadedValues, write: impl FnMut(Register, u64)) {
        if self.loaded != (1 << ALL.len()) - 1 {
            self.load_some(held, write);
        }
    }

    #[inline(never)]
    fn load_some(&mut self, held: &LoadedValues, mut write: impl FnMut(Register, u64)) {
        for register in ALL {
            let value = self.values[register as usize];
            if self.loaded & 1 << register as u8 == 0 && held.lacks(register, value) {
                write(register, value);
            }
        }
        self.loaded = (1 << ALL.len()) - 1;
    }

    /// Saves what the processor has: it is another vCPU's turn.
    pub fn save(&mut self, mut read: impl FnMut(Register) -> u64) {
        for register in CHANGED_BY_GUESTS {
            if self.loaded & 1 << register as u8 != 0 {
                self.values[register as usize] = read(register);
            }
        }
        self.loaded = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// What the processor of `held` gets written.
    fn written(soft: &mut SoftState, held: &LoadedValues) -> Vec<(Register, u64)> {
        let mut written = Vec::new();
        soft.load(held, |register, value| written.push((register, value)));
        written
    }

    #[test]
    fn what_is_written_here_is_loaded_and_never_overwritten() {
        let (mut soft, held) = (SoftState::new(), LoadedValues::default());
        soft.write(Register::Lstar, 5);
        let guests = [(Register::Cr2, 0), (Register::Dr6, 0), (Register::KernelGs, 0)];
        assert_eq!(written(&mut soft, &held), [guests[0], guests[1], (Register::Lstar, 5), guests[2]]);
        soft.write(Register::Cr2, 7);
        assert_eq!(written(&mut soft, &held), [(Register::Cr2, 7)]);
        soft.write(Register::Dr6, 9);
        soft.save(|_| 1);
        assert_eq!(
            [Register::Dr6, Register::Cr2, Register::KernelGs, Register::Lstar]
                .map(|register| soft.read(register)),
            [9, 1, 1, 5]
        );
        assert_eq!(written(&mut soft, &held).len(), guests.len(), "another vCPU had them");
    }

    #[test]
    fn another_vcpus_value_is_replaced() {
        let ([mut first, mut second], held) = ([SoftState::new(); 2], LoadedValues::default());
        first.write(Register::Star, 1);
        second.write(Register::Star, 2);
        for _ in 0..2 {
            for (soft, value) in [(&mut first, 1), (&mut second, 2)] {
                assert!(written(soft, &held).contains(&(Register::Star, value)));
                soft.save(|_| 0);
            }
        }
    }
}
