//! PSCI 1.1 for the guest (DEN 0022F) with the related part of the SMC calling convention (DEN
//! 0028F) and of paravirtualised time (DEN 0057A): calls as values, and the power states of vCPUs.

mod power;
#[cfg(test)]
mod tests;

pub use power::{AffinityState, CpuOnError, Power, Start};

use super::gic::Affinity;

/// The result of a call in X0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub enum Status {
    /// Done.
    Success = 0,
    /// No such function.
    NotSupported = -1,
    /// An argument is wrong: no such vCPU, or an undefined power state.
    InvalidParameters = -2,
    /// Not allowed now.
    Denied = -3,
    /// The vCPU runs.
    AlreadyOn = -4,
    /// The vCPU is being started already.
    OnPending = -5,
}

impl Status {
    /// X0.
    pub const fn to_x0(self) -> u64 {
        self as i64 as u64
    }
}

/// Function identifiers. Bit 30 marks a call with 64-bit arguments.
mod function {
    pub(super) const SMCCC_VERSION: u32 = 0x8000_0000;
    pub(super) const SMCCC_ARCH_FEATURES: u32 = 0x8000_0001;
    pub(super) const VERSION: u32 = 0x8400_0000;
    pub(super) const CPU_SUSPEND_32: u32 = 0x8400_0001;
    pub(super) const CPU_SUSPEND_64: u32 = 0xc400_0001;
    pub(super) const CPU_OFF: u32 = 0x8400_0002;
    pub(super) const CPU_ON_32: u32 = 0x8400_0003;
    pub(super) const CPU_ON_64: u32 = 0xc400_0003;
    pub(super) const AFFINITY_INFO_32: u32 = 0x8400_0004;
    pub(super) const AFFINITY_INFO_64: u32 = 0xc400_0004;
    pub(super) const MIGRATE_INFO_TYPE: u32 = 0x8400_0006;
    pub(super) const SYSTEM_OFF: u32 = 0x8400_0008;
    pub(super) const SYSTEM_RESET: u32 = 0x8400_0009;
    pub(super) const FEATURES: u32 = 0x8400_000a;
    pub(super) const SYSTEM_RESET2_32: u32 = 0x8400_0012;
    pub(super) const SYSTEM_RESET2_64: u32 = 0xc400_0012;
    pub(super) const PV_TIME_FEATURES: u32 = 0xc500_0020;
    pub(super) const PV_TIME_ST: u32 = 0xc500_0021;
}

/// PSCI_VERSION: 1.1.
const VERSION: u64 = 1 << 16 | 1;
/// SMCCC_VERSION: 1.1.
const SMCCC_VERSION: u64 = 1 << 16 | 1;
/// MIGRATE_INFO_TYPE: there is no trusted OS that would need migration.
const NO_TRUSTED_OS: u64 = 2;
/// SYSTEM_RESET2 types from here on are vendor-specific; below, only 0 (warm reset) is defined.
const RESET_VENDOR: u32 = 1 << 31;

/// The action that a call requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Call {
    /// Only return this value in X0.
    Return(u64),
    /// Start a vCPU: [`Power::turn_on`], whose result is the call's.
    CpuOn {
        /// The vCPU; it may be the caller.
        vcpu: u8,
        /// The entry point and its argument.
        start: Start,
    },
    /// Turn the caller off: [`Power::turn_off`]. It does not return.
    CpuOff,
    /// Wait as WFI does, then return [`Status::Success`]; no state is lost.
    Standby,
    /// Return [`Power::affinity`] of this vCPU.
    AffinityInfo {
        /// The vCPU.
        vcpu: u8,
    },
    /// Return the address of the caller's stolen time:
    /// [`map::stolen_time`](super::map::stolen_time).
    StolenTime,
    /// Turn the VM off.
    SystemOff,
    /// Restart the VM.
    SystemReset,
}

/// Decodes a call from X0 to X3. 64-bit calls use all of X1 to X3, 32-bit ones their low halves.
/// X0's high half is ignored (the identifier is W0). There are `vcpu_count` vCPUs.
pub fn decode(x: [u64; 4], vcpu_count: u8) -> Call {
    let id = x[0] as u32;
    let arguments =
        if id & 1 << 30 != 0 { [x[1], x[2], x[3]] } else { [x[1], x[2], x[3]].map(|x| x & 0xffff_ffff) };
    let [first, second, third] = arguments;
    match id {
        function::SMCCC_VERSION => Call::Return(SMCCC_VERSION),
        function::SMCCC_ARCH_FEATURES => arch_features(first as u32),
        function::VERSION => Call::Return(VERSION),
        function::FEATURES => features(first as u32),
        function::CPU_SUSPEND_32 | function::CPU_SUSPEND_64 => suspend(first),
        function::CPU_OFF => Call::CpuOff,
        function::CPU_ON_32 | function::CPU_ON_64 => match vcpu(first, vcpu_count) {
            Some(vcpu) => Call::CpuOn { vcpu, start: Start { entry: second, context: third } },
            None => fail(Status::InvalidParameters),
        },
        function::AFFINITY_INFO_32 | function::AFFINITY_INFO_64 => match vcpu(first, vcpu_count) {
            // Since PSCI 1.0 only level 0, a CPU, must be supported.
            Some(vcpu) if second == 0 => Call::AffinityInfo { vcpu },
            _ => fail(Status::InvalidParameters),
        },
        function::MIGRATE_INFO_TYPE => Call::Return(NO_TRUSTED_OS),
        function::SYSTEM_OFF => Call::SystemOff,
        function::SYSTEM_RESET => Call::SystemReset,
        function::SYSTEM_RESET2_32 | function::SYSTEM_RESET2_64 => match first as u32 {
            // Memory does not survive this reset, and the specification does not require it to.
            0 => Call::SystemReset,
            1..RESET_VENDOR => fail(Status::InvalidParameters),
            _ => fail(Status::NotSupported),
        },
        function::PV_TIME_FEATURES => pv_time_features(first as u32),
        function::PV_TIME_ST => Call::StolenTime,
        _ => fail(Status::NotSupported),
    }
}

const fn fail(status: Status) -> Call {
    Call::Return(status.to_x0())
}

/// The vCPU of a target: Aff3 in bits 39:32, Aff2 to Aff0 in bits 23:0, the rest 0.
const fn vcpu(target: u64, vcpu_count: u8) -> Option<u8> {
    if target & !0xff_00ff_ffff != 0 {
        return None;
    }
    Affinity::from_mpidr(target).vcpu(vcpu_count)
}

/// Power states in the original format (DEN 0022F section 5.4.2). There is no power-down state,
/// which would lose the vCPU's context without any benefit. There is one standby state, number 0.
const fn suspend(state: u64) -> Call {
    if state as u32 == 0 { Call::Standby } else { fail(Status::InvalidParameters) }
}

fn features(id: u32) -> Call {
    match id {
        function::SMCCC_VERSION
        | function::VERSION
        | function::FEATURES
        | function::CPU_OFF
        | function::CPU_ON_32
        | function::CPU_ON_64
        | function::AFFINITY_INFO_32
        | function::AFFINITY_INFO_64
        | function::MIGRATE_INFO_TYPE
        | function::SYSTEM_OFF
        | function::SYSTEM_RESET
        | function::SYSTEM_RESET2_32
        | function::SYSTEM_RESET2_64
        // Flags 0: original format of the power state, no OS-initiated mode.
        | function::CPU_SUSPEND_32
        | function::CPU_SUSPEND_64 => fail(Status::Success),
        _ => fail(Status::NotSupported),
    }
}

/// No workaround call is offered: the guest can tell from the identification registers which CPUs
/// are affected.
fn arch_features(id: u32) -> Call {
    match id {
        // By this a guest finds out whether there is paravirtualised time.
        function::SMCCC_VERSION | function::SMCCC_ARCH_FEATURES | function::PV_TIME_FEATURES => {
            fail(Status::Success)
        }
        _ => fail(Status::NotSupported),
    }
}

/// The calls about time (DEN 0057A). There is no "live physical time", which would help a guest
/// that moves between machines.
fn pv_time_features(id: u32) -> Call {
    match id {
        function::PV_TIME_FEATURES | function::PV_TIME_ST => fail(Status::Success),
        _ => fail(Status::NotSupported),
    }
}
