//! The vCPU's own redistributor (IHI 0069H sections 12.10 and 12.11): one without LPIs.

use super::{Bits, Deactivate, PRIVATE, Private, RegisterEffect};
use crate::devices::virt::gic::redistributor::{SGI_FRAME, WAKER, constant, half, waker};
use crate::devices::virt::gic::registers::{Bank, Register, decode};

impl Private {
    /// Reads `size` bytes at `offset` from this redistributor's start. Registers that do not exist
    /// read as 0.
    pub fn read(&self, offset: u32, size: u8) -> u64 {
        if offset < SGI_FRAME {
            if offset == WAKER && size == 4 {
                return waker(self.awake);
            }
            return constant(self.vcpu, self.is_last, offset, size);
        }
        match decode(offset - SGI_FRAME, size) {
            Some(Register::Bank(Bank::SetPending | Bank::ClearPending, 0)) => {
                u64::from(self.pending().word(0))
            }
            Some(Register::Bank(Bank::SetActive | Bank::ClearActive, 0)) => u64::from(self.active.word(0)),
            Some(register) => u64::from(self.setup.read(register, PRIVATE)),
            None => constant(self.vcpu, self.is_last, offset, size),
        }
    }

    /// Writes `size` bytes at `offset` from this redistributor's start. Writes to registers that do
    /// not exist are ignored.
    pub fn write(&mut self, offset: u32, size: u8, value: u64) -> RegisterEffect {
        let mut effect = RegisterEffect::default();
        let value = half(value, 0, 4) as u32;
        if offset < SGI_FRAME {
            if offset == WAKER && size == 4 {
                self.awake = value & 1 << 1 == 0;
                effect.awake = Some(self.awake);
            }
        } else if let Some(register) = decode(offset - SGI_FRAME, size) {
            let named = self.setup.write(register, value, PRIVATE);
            if let Register::Bank(bank, _) = register {
                effect.deactivate = self.change(bank, named);
            }
        }
        effect
    }

    fn change(&mut self, bank: Bank, named: Bits) -> Deactivate {
        match bank {
            Bank::SetPending => self.latch = self.latch.or(named),
            // A level-sensitive interrupt stays pending while its line is high.
            Bank::ClearPending => self.latch = self.latch.without(named),
            Bank::SetActive => self.active = self.active.or(named),
            Bank::ClearActive => {
                return Deactivate(named.iter().fold(0, |mask, intid| mask | self.deactivate_one(intid).0));
            }
            Bank::Group | Bank::SetEnable | Bank::ClearEnable => {}
        }
        Deactivate::default()
    }
}
