//! From a VMMCALL to its outcome.

use tlfs::{Call, CallRegisters, ClusterIpi, FlushCall, HvResult, InputPage, InputSource, Profile, Reject};

use super::partition::Partition;

/// What hypercalls partitions are offered; [`cpuid`](super::cpuid) announces it.
pub const PROFILE: Profile = Profile::FULL;

/// The mode of the processor that calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Current privilege level.
    pub cpl: u8,
    /// CR0.PE.
    pub protected_mode: bool,
    /// RFLAGS.VM.
    pub virtual_8086: bool,
    /// EFER.LMA and CS.L: 64-bit code. Anything else passes its parameters in pairs of 32-bit
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

    /// Writes a control word back to where the caller passed it; 32-bit writes clear the upper
    /// half, as they always do.
    pub const fn set_control(&self, gprs: &mut Gprs, control: u64) {
        if self.long_mode_64 {
            gprs[RCX] = control;
        } else {
            self.set_pair(gprs, control);
        }
    }

    /// Writes the result where the caller looks for it. TLFS, "Hypercall Outputs".
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

/// Does what calls ask for. VP indices that the partition does not have are ignored.
pub trait Services {
    /// Flushes, and returns when all effects of the flush have occurred on all targets; of those
    /// the caller is one if it is named. To flush more than was asked is correct.
    ///
    /// Returns how many elements of the list are done, counted from element 0 and so with those
    /// that earlier steps did. It is at least one more than before; if it is less than all, the
    /// guest goes on with the rest after it has had a chance to take interrupts. For a call without
    /// a list it means nothing.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16;

    /// Sends a fixed, edge-triggered interrupt to each target.
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>);
}

/// How a hypercall ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum CallOutcome {
    /// Write the result ([`Caller::set_result`]) and go on after the instruction.
    Complete(HvResult),
    /// The same, and let another vCPU have the CPU: the caller waits for one that is not running.
    /// It is a hint; it comes back in its turn, and learns nothing from how long that took.
    Yield(HvResult),
    /// A part of a list is done: the control word of this value goes back to the guest
    /// ([`Caller::set_control`]), which stays at the instruction and takes interrupts before it
    /// executes it again. TLFS, "Hypercall Continuation".
    Continue(u64),
    /// #UD at the instruction: the guest may not call in this mode, or not in this way, or has not
    /// enabled hypercalls.
    UndefinedOpcode,
    /// #GP(0) at the instruction: there is no readable memory where the input should be. On Hyper-V
    /// the parent partition would decide; there is none, and no status is defined for it.
    GeneralProtection,
}

/// Performs the hypercall with these [parameters](Caller::parameters), for which `page` is room to
/// copy its input.
///
/// The guest must have identified itself and enabled the hypercall page; before that the
/// instruction is undefined. From where it is executed does not matter.
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
    // Looked at where it is: a call is large to move.
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
        Err(Reject::Failed(result)) => CallOutcome::Complete(*result),
        Err(Reject::UndefinedOpcode) => CallOutcome::UndefinedOpcode,
        Err(Reject::InputNotMemory { .. }) => CallOutcome::GeneralProtection,
    }
}

#[cfg(test)]
mod tests;
