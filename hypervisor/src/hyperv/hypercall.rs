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
    /// EFER.LMA and CS.L: 64-bit code. Anything else passes its parameters in pairs of 32-bit registers.
    pub long_mode_64: bool,
}

impl Caller {
    /// Whether hypercalls are allowed in this mode. TLFS, "Legal Hypercall Environments".
    pub const fn may_call(&self) -> bool {
        self.cpl == 0 && self.protected_mode && !self.virtual_8086
    }
}

/// The general registers that hypercalls use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "registers by name")]
pub struct Gprs {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub r8: u64,
}

impl Gprs {
    /// The parameters as `caller` passes them. TLFS, "Hypercall Inputs".
    pub const fn parameters(&self, caller: &Caller) -> CallRegisters {
        if caller.long_mode_64 {
            CallRegisters { control: self.rcx, input: self.rdx, output: self.r8 }
        } else {
            CallRegisters {
                control: pair(self.rdx, self.rax),
                input: pair(self.rbx, self.rcx),
                output: pair(self.rdi, self.rsi),
            }
        }
    }

    /// Writes a control word back to where `caller` passed it.
    pub const fn set_control(&mut self, caller: &Caller, control: u64) {
        if caller.long_mode_64 {
            self.rcx = control;
        } else {
            self.rdx = control >> 32;
            self.rax = control & 0xffff_ffff;
        }
    }

    /// Writes the result where `caller` looks for it; 32-bit writes clear the upper half, as they always
    /// do. TLFS, "Hypercall Outputs".
    pub const fn set_result(&mut self, caller: &Caller, result: HvResult) {
        let result = result.into_bits();
        if caller.long_mode_64 {
            self.rax = result;
        } else {
            self.rdx = result >> 32;
            self.rax = result & 0xffff_ffff;
        }
    }
}

/// Two 32-bit registers as one number.
const fn pair(high: u64, low: u64) -> u64 {
    high << 32 | low & 0xffff_ffff
}

/// Who does what calls ask for. VP indices that the partition does not have are ignored.
pub trait Services {
    /// Flushes, and returns when all effects of the flush have occurred on all targets; of those the
    /// caller is one if it is named. To flush more than was asked is correct.
    ///
    /// Returns how many elements of the list are done, counted from element 0 and so with those that earlier
    /// steps did. It is at least one more than before; if it is less than all, the guest goes on with the
    /// rest after it has had a chance to take interrupts. For a call without a list it means nothing.
    fn flush(&mut self, call: &FlushCall<'_>) -> u16;

    /// Sends a fixed, edge-triggered interrupt to each target.
    fn interrupt(&mut self, ipi: &ClusterIpi<'_>);
}

/// How a hypercall ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Outcome {
    /// Write the result ([`Gprs::set_result`]) and go on after the instruction.
    Complete(HvResult),
    /// The same, and let another vCPU have the CPU: the caller waits for one that is not running. It is
    /// a hint; it comes back in its turn, and learns nothing from how long that took.
    Yield(HvResult),
    /// A part of a list is done: the control word of this value goes back to the guest
    /// ([`Gprs::set_control`]), which stays at the instruction and takes interrupts before it executes it
    /// again. TLFS, "Hypercall Continuation".
    Continue(u64),
    /// #UD at the instruction: the guest may not call in this mode, or not in this way, or has not
    /// enabled hypercalls.
    UndefinedOpcode,
    /// #GP(0) at the instruction: there is no readable memory where the input should be. On Hyper-V the
    /// parent partition would decide; there is none, and no status is defined for it.
    GeneralProtection,
}

/// Performs the hypercall in `registers`, for which `page` is room to copy its input.
///
/// The guest must have identified itself and enabled the hypercall page; before that the instruction is
/// undefined. From where it is executed does not matter.
pub fn handle(
    caller: &Caller,
    registers: &Gprs,
    partition: &Partition,
    memory: &impl InputSource,
    services: &mut impl Services,
    page: &mut InputPage,
) -> Outcome {
    if !caller.may_call() || !partition.hypercalls_enabled() {
        return Outcome::UndefinedOpcode;
    }
    let parameters = registers.parameters(caller);
    let call = match tlfs::decode(parameters, memory, page, &PROFILE) {
        Ok(call) => call,
        Err(Reject::Failed(result)) => return Outcome::Complete(result),
        Err(Reject::UndefinedOpcode) => return Outcome::UndefinedOpcode,
        Err(Reject::InputNotMemory { .. }) => return Outcome::GeneralProtection,
    };
    match &call {
        Call::Flush(flush) => {
            let done = services.flush(flush);
            if done < flush.rep_count {
                return Outcome::Continue(parameters.resumed_at(done).control);
            }
        }
        Call::ClusterIpi(ipi) => services.interrupt(ipi),
        Call::LongSpinWait { .. } => return Outcome::Yield(call.completed()),
    }
    Outcome::Complete(call.completed())
}

#[cfg(test)]
mod tests;
