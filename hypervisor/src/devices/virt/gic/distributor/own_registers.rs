//! The distributor's frame (IHI 0069H sections 12.8 and 12.9).

use super::{Bits, Distributor, Effect, Groups, ROUTER_MASK};
use crate::devices::virt::gic::identity::{Frame, IIDR, identification};
use crate::devices::virt::gic::redistributor::half;
use crate::devices::virt::gic::registers::{Bank, Register, decode};

const CTLR: u32 = 0x0;
const TYPER: u32 = 0x4;
const GICD_IIDR: u32 = 0x8;
/// GICD_IROUTER0 would be here; the first existing one is that of INTID 32.
const ROUTERS: u32 = 0x6000;
const ROUTERS_END: u32 = 0x6800;

/// Affinity routing is on, and there is one security state: neither can be changed.
const CTLR_FIXED: u32 = 1 << 6 | 1 << 4;
/// Ten bits of INTID; no LPIs, no message-based SPIs, no extended ones, one security state. Bit 25
/// is 0: GICD_IROUTER can name any vCPU. Bit 26 is 0: SGIs reach Aff0 up to 15.
const TYPER_FIXED: u32 = 9 << 19;

impl Distributor {
    /// Reads `size` bytes at `offset`. Registers that do not exist read as 0.
    pub fn read(&self, offset: u32, size: u8) -> (u64, Effect) {
        let mut posts = Bits::EMPTY;
        let value = match (offset, size) {
            (CTLR, 4) => CTLR_FIXED | u32::from(self.groups.bits()),
            (TYPER, 4) => TYPER_FIXED | (u32::from(self.intid_count) / 32 - 1),
            (GICD_IIDR, 4) => IIDR,
            (ROUTERS..ROUTERS_END, 4 | 8) => return (self.read_router(offset, size), Effect::default()),
            (0xffd0..0x1_0000, 4) => identification(Frame::Distributor, offset),
            _ => match decode(offset, size) {
                Some(Register::Bank(bank, word)) if is_state(bank) => {
                    let of = Bits::from_word(word, u32::MAX).and(self.spis);
                    posts = self.held.and(of);
                    self.state(bank).and(of).word(word)
                }
                Some(register) => self.setup.read(register, self.spis),
                None => 0,
            },
        };
        (u64::from(value), Effect { posts, ..Effect::default() })
    }

    /// Writes `size` bytes at `offset`. Writes to registers that do not exist are ignored.
    pub fn write(&mut self, offset: u32, size: u8, value: u64) -> Effect {
        match (offset, size) {
            (CTLR, 4) => self.write_groups(Groups::from_bits(value as u8)),
            (ROUTERS..ROUTERS_END, 4 | 8) => self.write_router(offset, size, value),
            _ => decode(offset, size).map_or_else(Effect::default, |register| {
                let changed = self.setup.write(register, value as u32, self.spis);
                if let Register::Bank(bank, _) = register {
                    match bank {
                        Bank::SetPending => self.set_pending(changed),
                        Bank::ClearPending => self.clear_pending(changed),
                        Bank::SetActive | Bank::ClearActive => {
                            self.set_active(changed, bank == Bank::SetActive);
                        }
                        Bank::Group | Bank::SetEnable | Bank::ClearEnable => {}
                    }
                }
                self.offer(changed)
            }),
        }
    }

    fn write_groups(&mut self, groups: Groups) -> Effect {
        if groups == self.groups {
            return Effect::default();
        }
        self.groups = groups;
        Effect { groups: Some(groups), ..self.offer(self.spis) }
    }

    const fn state(&self, bank: Bank) -> Bits {
        match bank {
            Bank::SetPending | Bank::ClearPending => self.pending(),
            _ => self.active_noted.read(self.active),
        }
    }

    fn read_router(&self, offset: u32, size: u8) -> u64 {
        let intid = ((offset - ROUTERS) / 8) as u8;
        if self.spis.has(intid) { half(self.router[usize::from(intid)], offset, size) } else { 0 }
    }

    fn write_router(&mut self, offset: u32, size: u8, value: u64) -> Effect {
        let intid = ((offset - ROUTERS) / 8) as u8;
        if !self.spis.has(intid) {
            return Effect::default();
        }
        let old = self.router[usize::from(intid)];
        let new = match (size, offset % 8) {
            (8, 0) => value,
            (4, 0) => old & !0xffff_ffff | value & 0xffff_ffff,
            (4, 4) => old & 0xffff_ffff | value << 32,
            _ => return Effect::default(),
        };
        self.router[usize::from(intid)] = new & ROUTER_MASK;
        self.offer(Bits::one(intid))
    }
}

const fn is_state(bank: Bank) -> bool {
    matches!(bank, Bank::SetPending | Bank::ClearPending | Bank::SetActive | Bank::ClearActive)
}
