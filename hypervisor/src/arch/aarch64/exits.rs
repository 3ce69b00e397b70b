//! What each exit means. Handlers change the vCPU's state and say how it goes on; nothing here blocks.
//!
//! Source: Arm DDI 0487, D24.2.40 "ESR_EL2".

use hostlink::counters::Counter;

use super::entry::vector;
use super::features::Features;
use super::inject;
use super::state::Activity;
use super::sysreg::read;
use crate::arch::Context;
use crate::arm64::serror::{self, Outcome};
use crate::arm64::step;
use crate::devices::psci::{self, Call, Status};
use crate::vm::GUEST;
use crate::vm::Next;

/// Exception classes.
mod class {
    pub(super) const UNKNOWN: u64 = 0x00;
    pub(super) const WFX: u64 = 0x01;
    pub(super) const FLOAT: u64 = 0x07;
    pub(super) const ILLEGAL_STATE: u64 = 0x0e;
    pub(super) const HVC: u64 = 0x16;
    pub(super) const SMC: u64 = 0x17;
    pub(super) const SYSTEM_REGISTER: u64 = 0x18;
    pub(super) const INSTRUCTION_ABORT: u64 = 0x20;
    pub(super) const DATA_ABORT: u64 = 0x24;
    /// Of AArch32 at EL0: WFI and WFE have the same class.
    pub(super) const SVE: u64 = 0x19;
}

/// Of a trapped WFI or WFE: which. 0 is WFI, 1 WFE; the forms with a timeout are not shown to guests.
const WAIT_FOR_EVENT: u64 = 1;

/// SMCCC's "vendor-specific hypervisor service, call UID" (Arm DEN 0028F, section 6.2), and what it returns: the
/// letters of "quell hypervisor".
const VENDOR_UID: u32 = 0x8600_ff01;
const IDENTITY: [u64; 4] = {
    const fn word(letters: &[u8; 4]) -> u64 {
        u32::from_le_bytes(*letters) as u64
    }
    [word(b"quel"), word(b"l hy"), word(b"perv"), word(b"isor")]
};

impl Context<'_> {
    /// Handles the exit.
    pub(crate) fn handle_exit(&mut self) -> Next {
        match self.state.exit {
            vector::SYNCHRONOUS => self.on_exception(),
            vector::SERROR => self.on_serror(),
            // Taken already.
            _ => {
                self.count(Counter::ExitIntr);
                // What came with it is looked at in any case: the timer's goes to the guest without an event.
                Next::Resume
            }
        }
    }

    /// An asynchronous abort came while the guest ran: it is the guest's. The hypervisor takes none itself, they are masked at
    /// EL2; one of its own would be reported here as well.
    #[cold]
    fn on_serror(&mut self) -> Next {
        self.count(Counter::ExitOther);
        let syndrome = read!("esr_el2");
        let vcpu = self.vcpu.index;
        log::warn!(target: GUEST, "asynchronous abort (SError) while vCPU {vcpu} ran, syndrome {syndrome:#x}");
        match serror::outcome(syndrome, Features::get().contains(Features::ERRORS)) {
            Outcome::Harmless => {}
            Outcome::Virtual => self.state.raise_serror(),
        }
        Next::Resume
    }

    fn on_exception(&mut self) -> Next {
        let syndrome = read!("esr_el2");
        match syndrome >> 26 & 0x3f {
            class::DATA_ABORT | class::INSTRUCTION_ABORT => {
                self.count(Counter::ExitNpf);
                return self.on_abort(syndrome);
            }
            class::WFX => return self.on_wait(syndrome),
            class::SYSTEM_REGISTER => {
                self.count(if syndrome & 1 != 0 { Counter::ExitRdmsr } else { Counter::ExitWrmsr });
                return self.on_system_register(syndrome);
            }
            class::HVC => {
                self.count(Counter::ExitHypercall);
                return self.on_call();
            }
            class::SMC => {
                // There is no firmware for the guest. HVC is what the device tree names.
                self.count(Counter::ExitOther);
                self.state.registers.x[0] = Status::NotSupported.to_x0();
                self.skip(syndrome);
                return Next::Resume;
            }
            class::UNKNOWN | class::FLOAT | class::SVE | class::ILLEGAL_STATE => {}
            other => log::debug!("vCPU {}: exception class {other:#x} is not emulated", self.vcpu.index),
        }
        self.count(Counter::ExitOther);
        if step::condition_holds(self.state.registers.pstate, syndrome) {
            inject::undefined(&mut self.state.registers);
        } else {
            self.skip(syndrome);
        }
        Next::Resume
    }

    /// Goes on behind the instruction.
    pub(crate) fn skip(&mut self, syndrome: u64) {
        let registers = &mut self.state.registers;
        (registers.pc, registers.pstate) = step::behind(registers.pc, registers.pstate, syndrome);
    }

    fn on_wait(&mut self, syndrome: u64) -> Next {
        let happens = step::condition_holds(self.state.registers.pstate, syndrome);
        let is_event = syndrome & WAIT_FOR_EVENT != 0;
        // A wait for memory goes on where it is: the instruction is executed again when that may have changed.
        if !(happens && is_event && self.awaited_word().is_some()) {
            self.skip(syndrome);
        }
        if !happens {
            return Next::Resume;
        }
        if is_event {
            self.count(Counter::ExitPause);
            return Next::Yield;
        }
        self.count(Counter::ExitHlt);
        self.state.spin.forget();
        self.state.activity = Activity::Halted;
        Next::Halt
    }

    /// HVC: PSCI, and nothing else. The PC is behind the instruction already.
    fn on_call(&mut self) -> Next {
        let x = &mut self.state.registers.x;
        if x[0] as u32 == VENDOR_UID {
            x[..4].copy_from_slice(&IDENTITY);
            return Next::Resume;
        }
        let call = psci::decode([x[0], x[1], x[2], x[3]], self.vm.vcpu_count() as u8);
        let result = match call {
            Call::Return(value) => value,
            Call::CpuOn { vcpu, start } => match self.vm.vcpus.get(usize::from(vcpu)) {
                None => Status::InvalidParameters.to_x0(),
                Some(target) => match target.inbox.power.turn_on(start) {
                    Ok(()) => {
                        self.vm.notify(target);
                        Status::Success.to_x0()
                    }
                    Err(error) => Status::from(error).to_x0(),
                },
            },
            Call::AffinityInfo { vcpu } => match self.vm.vcpus.get(usize::from(vcpu)) {
                None => Status::InvalidParameters.to_x0(),
                Some(target) => target.inbox.power.affinity() as u64,
            },
            Call::CpuOff => return self.turn_off(),
            Call::Standby => {
                self.state.registers.x[0] = Status::Success.to_x0();
                self.state.activity = Activity::Halted;
                return Next::Halt;
            }
            Call::SystemOff => return Next::PowerOff,
            Call::SystemReset => return Next::Reset,
        };
        self.state.registers.x[0] = result;
        Next::Resume
    }

    fn turn_off(&mut self) -> Next {
        {
            let mut distributor = self.vm.guest.distributor.lock();
            let effect = self.state.gic.release(&mut distributor);
            self.vm.perform(effect, &distributor);
        }
        self.state.activity = Activity::Off;
        self.vcpu.inbox.power.turn_off();
        // Whoever tells it to start from here on posts an event; blocking is refused then.
        Next::Timers
    }
}
