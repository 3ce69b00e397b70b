//! From a VMMCALL to its outcome.

use tlfs::{
    Call, CallRegisters, ClusterIpi, FlushCall, HvResult, InputPage, InputSource, Profile, Reject, Status,
};

use super::partition::Partition;

/// The hypercalls that partitions are offered; [`cpuid`](super::cpuid) announces them.
pub const PROFILE: Profile = Profile::FULL;

/// The same for a partition that may have guests of its own.
pub const NESTED_PROFILE: Profile = Profile::NESTED;

/// The mode of the calling processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Current privilege level.
    pub cpl: u8,
    /// CR0.PE.
    pub protected_mode: bool,
    /// RFLAGS.VM.
    pub virtual_8086: bool,
    /// EFER.LMA and CS.L: 64-bit code. Other code passes its parameters in pairs of 32-bit
    /// registers.
    pub long_mode_64: bool,
}

/// The general registers in the processor's numbering.
pub type Gprs = [u64; 16];

const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
const RSI: usize = 6;
const RDI: usize = 7;
const R8: usize = 8;

impl Caller {
    /// Whether hypercalls are allowed in this mode. TLFS, "Legal Hypercall Environments".
    pub const fn may_call(&self) -> bool {
        self.cpl == 0 && self.protected_mode && !self.virtual_8086
    }

    /// The parameters as the caller passes them. TLFS, "Hypercall Inputs".
    pub const fn parameters(&self, gprs: &Gprs) -> CallRegisters {
        if self.long_mode_64 {
            CallRegisters { control: gprs[RCX], input: gprs[RDX], output: gprs[R8] }
        } else {
            CallRegisters {
                control: pair(gprs[RDX], gprs[RAX]),
                input: pair(gprs[RBX], gprs[RCX]),
                output: pair(gprs[RDI], gprs[RSI]),
            }
        }
    }

    /// Writes a control word back to the caller's registers; 32-bit writes clear the upper half, as
    /// usual.
    pub const fn set_control(&self, gprs: &mut Gprs, control: u64) {
        if self.long_mode_64 {
            gprs[RCX] = control;
        } else {
            self.set_pair(gprs, control);
        }
    }

    /// Writes the result to the caller's registers. TLFS, "Hypercall Outputs".
    pub const fn set_result(&self, gprs: &mut Gprs, result: HvResult) {
        if self.long_mode_64 {
            gprs[RAX] = result.into_bits();
        } else {
            self.set_pair(gprs, result.into_bits());
        }
    }

    const fn set_pair(&self, gprs: &mut Gprs, value: u64) {
        gprs[RDX] = value >> 32;
        gprs[RAX] = value & 0xffff_ffff;
    }
}

/// Two 32-bit registers as one number.
const fn pair(high: u64, low: u64) -> u64 {
    high << 32 | low & 0xffff_ffff
}

/// Carries out calls. VP indices that the partition does not have are ignored.
pub trait Services {
    /// Flushes, and returns when all effects of the flush have occurred on all targets. The caller
    /// is one of them if it is named. Flushing more than requested is correct.
    ///
    /// Returns the number of list elements that are done, counted from element 0, so including
    /// those of earlier steps. It is at least one more than before. If it is less than all, the
    /// guest continues with the rest after it has had a chance to take interrupts. For a call
    /// without a list it is meaningless.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16;

    /// Sends a fixed, edge-triggered interrupt to each target.
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>);
}

/// The outcome of a hypercall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallOutcome {
    /// Write the result ([`Caller::set_result`]) and continue after the instruction.
    Complete(HvResult),
    /// The same, and let another vCPU have the CPU: the caller waits for one that is not running.
    /// This is a hint: the caller runs again in its turn, and learns nothing from how long that
    /// took.
    Yield(HvResult),
    /// A part of a list is done: write this value of the control word back to the guest
    /// ([`Caller::set_control`]), which stays at the instruction and takes interrupts before it
    /// executes it again. TLFS, "Hypercall Continuation".
    Continue(u64),
    /// The call is none of [`PROFILE`]'s.
    NotOffered,
    /// #UD at the instruction: the guest may not make calls in this mode, or not in this form, or
    /// has not enabled hypercalls.
    UndefinedOpcode,
    /// #GP(0) at the instruction: there is no readable memory at the input's address. On Hyper-V
    /// the parent partition would decide; there is none, and no status is defined for it.
    GeneralProtection,
}

/// Performs the hypercall with these [parameters](Caller::parameters); `page` is a buffer for its
/// input.
///
/// The guest must have identified itself and enabled the hypercall page; before that the
/// instruction is undefined. The address of the instruction does not matter.
pub fn handle(
    caller: &Caller,
    parameters: CallRegisters,
    partition: &Partition,
    memory: &impl InputSource,
    services: &mut impl Services,
    page: &mut InputPage,
) -> CallOutcome {
    if !caller.may_call() || !partition.hypercalls_enabled() {
        return CallOutcome::UndefinedOpcode;
    }
    // Matched by reference: a call is large to move.
    match &tlfs::decode(parameters, memory, page, &PROFILE) {
        Ok(Call::Flush(flush)) => match services.flush(flush) {
            done if done < flush.rep_count => CallOutcome::Continue(parameters.resumed_at(done).control),
            _ => CallOutcome::Complete(flush.completed()),
        },
        Ok(call @ Call::ClusterIpi(ipi)) => {
            services.interrupt(ipi);
            CallOutcome::Complete(call.completed())
        }
        Ok(call @ Call::LongSpinWait { .. }) => CallOutcome::Yield(call.completed()),
        Ok(Call::GuestPhysical { .. }) => CallOutcome::NotOffered,
        Err(Reject::Failed(result)) if result.status() == Status::INVALID_HYPERCALL_CODE => {
            CallOutcome::NotOffered
        }
        Err(Reject::Failed(result)) => CallOutcome::Complete(*result),
        Err(Reject::UndefinedOpcode) => CallOutcome::UndefinedOpcode,
        Err(Reject::InputNotMemory { .. }) => CallOutcome::GeneralProtection,
    }
}

#[cfg(test)]
pub(super) mod tests;
