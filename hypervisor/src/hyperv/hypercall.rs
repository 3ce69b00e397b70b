//! From a VMMCALL to its outcome.

use tlfs::{Call, CallRegisters, FlushCall, HvResult, InputPage, InputSource, Profile, Reject, Status};

use super::partition::Partition;

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

/// Who flushes.
pub trait FlushEngine {
    /// Flushes, and returns when all effects of the flush have occurred on all targets; of those the
    /// caller is one if it is named. Indices that the partition does not have are ignored. To flush more
    /// than was asked is correct.
    fn flush(&mut self, call: &FlushCall<'_>);
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
    engine: &mut impl FlushEngine,
    page: &mut InputPage,
) -> Outcome {
    if !caller.may_call() || !partition.hypercalls_enabled() {
        return Outcome::UndefinedOpcode;
    }
    let call = match tlfs::decode(registers.parameters(caller), memory, page, &Profile::default()) {
        Ok(call) => call,
        Err(Reject::Failed(result)) => return Outcome::Complete(result),
        Err(Reject::UndefinedOpcode) => return Outcome::UndefinedOpcode,
        Err(Reject::InputNotMemory { .. }) => return Outcome::GeneralProtection,
    };
    match call {
        Call::Flush(flush) => {
            engine.flush(&flush);
            Outcome::Complete(flush.completed())
        }
        Call::LongSpinWait { .. } => Outcome::Yield(call.completed()),
        // The profile does not offer it.
        Call::ClusterIpi(_) => Outcome::Complete(HvResult::of(Status::INVALID_HYPERCALL_CODE, 0)),
    }
}

#[cfg(test)]
mod tests;
