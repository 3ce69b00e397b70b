//! The registers in xAPIC mode: 32 bits each, every 16 bytes in a page of memory (APM vol. 2
//! section 16.3.2 and table 16-2). They are the same as the MSRs except for four, and no write
//! faults: reserved registers and bits are ignored.

use super::icr::Icr;
use super::registers::{LVT_BITS, SVR_WRITABLE};
use super::{ESR_ILLEGAL_REGISTER, Effect, LVT_TIMER_MODE, Lapic, TIMER, msr};
use crate::devices::pc::message::Logical;
use migration::described;

/// Registers that x2APIC mode lacks, by the MSR numbers that they would have.
const ARBITRATION: u32 = 0x809;
const REMOTE_READ: u32 = 0x80c;
const DFR: u32 = 0x80e;
const ICR_HIGH: u32 = 0x831;

const DFR_READ_ONLY: u32 = 0x0fff_ffff;
const DFR_FLAT: u32 = 0xf;
const DFR_CLUSTER: u32 = 0;

/// State that only these registers have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PageRegisters {
    /// Logical destination: bits 31:24.
    ldr: u32,
    /// Destination format: bits 31:28.
    dfr: u32,
}

impl PageRegisters {
    pub(super) const RESET: Self = Self { ldr: 0, dfr: u32::MAX };

    pub(super) const fn logical(self) -> Logical {
        let id = (self.ldr >> 24) as u8;
        match self.dfr >> 28 {
            DFR_FLAT => Logical::Flat(id),
            DFR_CLUSTER => Logical::Cluster(id),
            // Reserved: only broadcasts match.
            _ => Logical::Flat(0),
        }
    }
}

described!(PageRegisters: ldr & 0xff00_0000, dfr [|dfr| dfr | DFR_READ_ONLY]);

impl Lapic {
    /// Whether a guest physical address is in the page of the registers.
    pub const fn has_page(&self, gpa: u64) -> bool {
        self.base.has_page(gpa)
    }

    /// Whether there is a register at this address of the page; accesses have 32 bits. Accesses to
    /// other addresses are undefined.
    pub const fn is_register(gpa: u64) -> bool {
        gpa.is_multiple_of(16)
    }

    /// A read of the register at `gpa` in its page.
    pub fn read_page(&mut self, gpa: u64, now_tsc: u64) -> u32 {
        match number(gpa) {
            msr::ID => self.id.0 << 24,
            msr::LDR => self.page.ldr,
            DFR => self.page.dfr,
            msr::ICR => self.icr.into_bits() as u32,
            ICR_HIGH => self.icr.destination() << 24,
            // No arbitration among APICs, no remote reads; and the write-only register.
            ARBITRATION | REMOTE_READ | msr::EOI => 0,
            msr::SELF_IPI => self.illegal_register(),
            number => match self.read_register(number, now_tsc) {
                Ok(value) => value as u32,
                Err(_) => self.illegal_register(),
            },
        }
    }

    /// A write to the register at `gpa` in its page.
    pub fn write_page(&mut self, gpa: u64, value: u32, now_tsc: u64) -> Effect {
        let number = number(gpa);
        let writable = match number {
            msr::LDR => {
                self.page.ldr = value & 0xff00_0000;
                return Effect::Readdressed;
            }
            DFR => {
                self.page.dfr = value | DFR_READ_ONLY;
                return Effect::Readdressed;
            }
            ICR_HIGH => {
                self.icr.set_destination(value >> 24);
                return Effect::None;
            }
            msr::ICR => {
                let high = u64::from(self.icr.destination()) << 32;
                self.icr = Icr::from_bits(u64::from(value) & Icr::DEFINED | high);
                return self.send_command();
            }
            // Read-only.
            msr::ID
            | msr::VERSION
            | ARBITRATION
            | msr::PPR
            | REMOTE_READ
            | msr::ISR0..=msr::IRR7
            | msr::CURRENT_COUNT => return Effect::None,
            msr::EOI | msr::ESR => 0,
            msr::TPR => 0xff,
            msr::SVR => SVR_WRITABLE,
            // The reserved mode is ignored.
            msr::LVT_TIMER if value & LVT_TIMER_MODE == LVT_TIMER_MODE => {
                (LVT_BITS[TIMER].0 & !LVT_TIMER_MODE).into()
            }
            msr::LVT_TIMER..=msr::LVT_ERROR => LVT_BITS[(number - msr::LVT_TIMER) as usize].0.into(),
            msr::INITIAL_COUNT => 0xffff_ffff,
            msr::DIVIDE => 0b1011,
            _ => {
                self.illegal_register();
                return Effect::None;
            }
        };
        // The value has only bits that the register has, so nothing is refused.
        self.write_register(number, u64::from(value) & writable, now_tsc).unwrap_or(Effect::None)
    }

    fn illegal_register(&mut self) -> u32 {
        self.raise_error(ESR_ILLEGAL_REGISTER);
        0
    }
}

/// The MSR number that corresponds to the register at this address of the page.
const fn number(gpa: u64) -> u32 {
    0x800 + (gpa as u32 >> 4 & 0xff)
}
