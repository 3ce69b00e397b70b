//! The emulation of trapped system registers and system instructions. Those that are not listed are
//! undefined.
//!
//! `docs/arm-registers.md` has the whole table: trapped registers, registers that are switched with
//! the vCPU, and registers that belong to the guest anyway.

use super::debug::Register;
use super::system::PhysicalTimer;

/// A register's or instruction's encoding: op0, op1, CRn, CRm, op2.
pub type Name = (u32, u32, u32, u32, u32);

/// The effect of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Treatment {
    /// It is undefined.
    Undefined,
    /// An ID register S3_0_C0_C`crm`_`op2`.
    Identification {
        /// Between 1 and 7.
        crm: u32,
        /// Between 0 and 7.
        op2: u32,
    },
    /// REVIDR_EL1: the processor's, like MIDR_EL1, because both identify errata.
    Revision,
    /// Reads as this value; writes are ignored.
    Constant(u64),
    /// ACTLR_EL1 reads as the processor's; writes are ignored.
    Auxiliary,
    /// An SGI of group 1.
    SendGroup1,
    /// An SGI of group 0.
    SendGroup0,
    /// The end of an interrupt (ICC_DIR_EL1).
    Deactivate,
    /// A debug register.
    Debug(Register),
    /// The physical counter, of a guest whose counter has a base.
    Counter,
    /// Its physical timer.
    Timer(PhysicalTimer),
    /// Data cache maintenance by set and way: a no-op, because it is meant for a processor's own
    /// power-down, and stage 2 keeps memory coherent (HCR_EL2.TSW).
    SetWay,
}

impl Treatment {
    /// The treatment of a read (MRS), or of a write or system instruction. For traps from EL0 see
    /// `at_el0`.
    pub const fn of(name: Name, is_read: bool) -> Self {
        match (name, is_read) {
            ((3, 0, 0, crm @ 1..=7, op2 @ 0..=7), true) => Self::Identification { crm, op2 },
            ((3, 0, 0, 0, 6), true) => Self::Revision,
            // AIDR_EL1: implementation-defined.
            ((3, 1, 0, 0, 7), true) => Self::Constant(0),
            ((3, 0, 1, 0, 1), _) => Self::Auxiliary,
            ((3, 0, 12, 12, 5), _) => Self::Constant(crate::arm64::controls::ICC_SRE_EL1),
            ((3, 0, 12, 11, 5 | 6), false) => Self::SendGroup1,
            ((3, 0, 12, 11, 7), false) => Self::SendGroup0,
            ((3, 0, 12, 11, 1), false) => Self::Deactivate,
            ((1, 0, 7, 6 | 10 | 14, 2), false) => Self::SetWay,
            // With and without its synchronization.
            ((3, 3, 14, 0, 1 | 5), true) => Self::Counter,
            ((3, 3, 14, 2, 0), _) => Self::Timer(PhysicalTimer::Left),
            ((3, 3, 14, 2, 1), _) => Self::Timer(PhysicalTimer::Control),
            ((3, 3, 14, 2, 2), _) => Self::Timer(PhysicalTimer::Value),
            ((2, ..), _) => match Register::named(name) {
                Some(register) => Self::Debug(register),
                None => Self::Undefined,
            },
            _ => Self::Undefined,
        }
    }

    /// The same for an access from EL0, which may use only the debug channel, and only if the guest
    /// opens it; and counter and timer, which trap here only if the guest has opened them.
    pub const fn at_el0(self, opens_channel: bool) -> Self {
        match self {
            Self::Debug(Register::Channel) if opens_channel => self,
            Self::Counter | Self::Timer(_) => self,
            _ => Self::Undefined,
        }
    }
}

#[cfg(test)]
mod tests;
