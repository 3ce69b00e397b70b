//! Reads and writes of the registers.

use super::base::Interface;
use super::icr::{Command, Icr};
use super::timer::Mode;
use super::{ESR_SEND_ILLEGAL_VECTOR, Effect, LVT_COUNT, LVT_MASKED, Lapic, TIMER, msr, timer_mode};
use crate::devices::GeneralProtection;
use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::message::{Destination, Message, MessageKind, Trigger, logical_id};

/// Integrated APIC 0x14, six LVT entries, no directed EOI.
const VERSION: u64 = 0x14 | (LVT_COUNT as u64 - 1) << 16;

/// Vector, enable and focus checking; the rest is reserved.
pub(super) const SVR_WRITABLE: u64 = 0x3ff;

/// Per LVT entry, from the timer's to the error's: writable bits, and read-only bits (delivery
/// status, remote IRR), whose written value is ignored. Every other bit is reserved.
pub(super) const LVT_BITS: [(u32, u32); LVT_COUNT] = [
    (0x7_00ff, 0x1000),
    (0x1_07ff, 0x1000),
    (0x1_07ff, 0x1000),
    (0x1_a7ff, 0x5000),
    (0x1_a7ff, 0x5000),
    (0x1_00ff, 0x1000),
];

/// The value if it has no bit outside `allowed`.
const fn only(value: u64, allowed: u64) -> Result<u64, GeneralProtection> {
    if value & !allowed == 0 { Ok(value) } else { Err(GeneralProtection) }
}

impl Lapic {
    /// RDMSR of [`msr::APIC_BASE`], [`msr::TSC_DEADLINE`] or 0x800–0x8ff.
    ///
    /// # Errors
    /// #GP for registers that do not exist in x2APIC mode or are write-only, and for all but the
    /// first two in another mode.
    pub fn read_msr(&self, msr: u32, now_tsc: u64) -> Result<u64, GeneralProtection> {
        match msr {
            msr::APIC_BASE => Ok(self.base.bits()),
            msr::TSC_DEADLINE => Ok(self.timer.deadline(now_tsc)),
            _ if self.is_x2apic() => self.read_register(msr, now_tsc),
            _ => Err(GeneralProtection),
        }
    }

    pub(super) fn read_register(&self, msr: u32, now_tsc: u64) -> Result<u64, GeneralProtection> {
        let value = match msr {
            msr::VERSION => return Ok(VERSION),
            msr::ICR => return Ok(self.icr.into_bits()),
            msr::ID => self.id.0,
            msr::TPR => u32::from(self.tpr),
            msr::PPR => u32::from(self.ppr()),
            msr::LDR => logical_id(self.id),
            msr::SVR => self.svr,
            msr::ISR0..=msr::ISR7 => self.isr.register((msr - msr::ISR0) as usize),
            msr::TMR0..=msr::TMR7 => self.tmr.register((msr - msr::TMR0) as usize),
            msr::IRR0..=msr::IRR7 => self.irr.register((msr - msr::IRR0) as usize),
            msr::ESR => self.esr,
            msr::LVT_TIMER..=msr::LVT_ERROR => self.lvt[(msr - msr::LVT_TIMER) as usize],
            msr::INITIAL_COUNT => self.timer.initial_count(),
            msr::CURRENT_COUNT => self.timer.current_count(timer_mode(self.lvt[TIMER]), now_tsc),
            msr::DIVIDE => self.timer.divide(),
            _ => return Err(GeneralProtection),
        };
        Ok(u64::from(value))
    }

    /// The last interrupt command written, in x2APIC format.
    pub const fn icr(&self) -> u64 {
        let icr = if self.is_x2apic() { self.icr } else { self.icr.widened() };
        icr.into_bits()
    }

    /// Writes an interrupt command in any mode, for Hyper-V's register.
    ///
    /// # Errors
    /// #GP for reserved bits, and for a local APIC that is off.
    pub fn write_icr(&mut self, value: u64) -> Result<Effect, GeneralProtection> {
        let icr = Icr::checked(value)?;
        self.icr = match self.base.interface() {
            Interface::Off => return Err(GeneralProtection),
            Interface::XApic => icr.narrowed(),
            Interface::X2Apic => icr,
        };
        Ok(self.send_command())
    }

    /// The common write to [`msr::ICR`]: a fixed, edge-triggered interrupt to one local APIC by its
    /// id. Returns vector and id. Returns `None` without effect for every other form, which
    /// [`write_msr`](Self::write_msr) handles. This register exists only [in x2APIC
    /// mode](Self::is_x2apic).
    #[inline]
    pub fn write_plain_icr(&mut self, value: u64) -> Option<(u8, ApicId)> {
        let (vector, id) = Icr::from_bits(value).plain()?;
        self.icr = Icr::from_bits(value);
        Some((vector, id))
    }

    /// WRMSR of the same registers.
    ///
    /// # Errors
    /// #GP for registers that do not exist or are read-only, for reserved bits, and for invalid
    /// transitions between modes.
    pub fn write_msr(&mut self, msr: u32, value: u64, now_tsc: u64) -> Result<Effect, GeneralProtection> {
        match msr {
            msr::APIC_BASE => self.write_base(value),
            // An interrupt that was due before the change is requested first, as if it had been in
            // time.
            msr::TSC_DEADLINE => {
                self.expire(now_tsc);
                if timer_mode(self.lvt[TIMER]) == Mode::TscDeadline {
                    self.timer.set_deadline(value);
                }
                Ok(Effect::TimerChanged)
            }
            _ if self.is_x2apic() => self.write_register(msr, value, now_tsc),
            _ => Err(GeneralProtection),
        }
    }

    pub(super) fn write_register(
        &mut self,
        msr: u32,
        value: u64,
        now_tsc: u64,
    ) -> Result<Effect, GeneralProtection> {
        match msr {
            msr::EOI => only(value, 0).map(|_| self.eoi()),
            msr::ICR => {
                self.icr = Icr::checked(value)?;
                Ok(self.send_command())
            }
            msr::SELF_IPI => {
                let kind = MessageKind::Fixed(only(value, 0xff)? as u8);
                let destination = Destination::SelfOnly;
                Ok(self.send(match kind {
                    MessageKind::Fixed(0..16) => Command::IllegalVector,
                    _ => Command::Send(Message { kind, destination, trigger: Trigger::Edge }),
                }))
            }
            msr::TPR => {
                self.tpr = only(value, 0xff)? as u8;
                Ok(Effect::None)
            }
            msr::SVR => {
                let svr = only(value, SVR_WRITABLE)? as u32;
                self.expire(now_tsc);
                self.svr = svr;
                if !self.is_enabled() {
                    self.lvt.iter_mut().for_each(|entry| *entry |= LVT_MASKED);
                }
                Ok(Effect::TimerChanged)
            }
            msr::ESR => {
                only(value, 0)?;
                self.esr = core::mem::take(&mut self.errors);
                Ok(Effect::None)
            }
            msr::LVT_TIMER..=msr::LVT_ERROR => {
                self.write_lvt((msr - msr::LVT_TIMER) as usize, value, now_tsc)
            }
            msr::INITIAL_COUNT => {
                let count = only(value, 0xffff_ffff)? as u32;
                self.expire(now_tsc);
                let mode = timer_mode(self.lvt[TIMER]);
                if mode != Mode::TscDeadline {
                    self.timer.set_initial_count(count, mode, now_tsc);
                }
                Ok(Effect::TimerChanged)
            }
            msr::DIVIDE => {
                let divide = only(value, 0b1011)? as u32;
                self.expire(now_tsc);
                self.timer.set_divide(divide, timer_mode(self.lvt[TIMER]), now_tsc);
                Ok(Effect::TimerChanged)
            }
            _ => Err(GeneralProtection),
        }
    }

    /// Changes mode. Disabling it discards its state (SDM vol. 3 section 12.4.3).
    fn write_base(&mut self, value: u64) -> Result<Effect, GeneralProtection> {
        let before = self.base;
        self.base = before.written(value)?;
        if self.base == before {
            return Ok(Effect::None);
        }
        match self.base.interface() {
            Interface::Off => self.init(),
            // The destination was an 8-bit one.
            Interface::X2Apic if before.interface() == Interface::XApic => self.icr.set_destination(0),
            Interface::XApic | Interface::X2Apic => {}
        }
        Ok(Effect::Readdressed)
    }

    fn write_lvt(&mut self, entry: usize, value: u64, now_tsc: u64) -> Result<Effect, GeneralProtection> {
        let (writable, read_only) = LVT_BITS[entry];
        let mut lvt = only(value, u64::from(writable | read_only))? as u32 & writable;
        if !self.is_enabled() {
            lvt |= LVT_MASKED;
        }
        if entry != TIMER {
            self.lvt[entry] = lvt;
            return Ok(Effect::None);
        }
        let mode = Mode::of(lvt).ok_or(GeneralProtection)?;
        self.expire(now_tsc);
        let before = timer_mode(self.lvt[TIMER]);
        if (mode == Mode::TscDeadline) != (before == Mode::TscDeadline) {
            self.timer.disarm();
        }
        self.lvt[TIMER] = lvt;
        Ok(Effect::TimerChanged)
    }

    pub(super) fn send_command(&mut self) -> Effect {
        let icr = if self.is_x2apic() { self.icr } else { self.icr.widened() };
        self.send(icr.command())
    }

    fn send(&mut self, command: Command) -> Effect {
        match command {
            Command::Send(message) => Effect::Ipi(message),
            Command::Nothing => Effect::None,
            Command::IllegalVector => {
                self.raise_error(ESR_SEND_ILLEGAL_VECTOR);
                Effect::None
            }
        }
    }
}
