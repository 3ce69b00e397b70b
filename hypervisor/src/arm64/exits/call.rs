//! HVC and SMC: PSCI, paravirtualised time, and the hypervisor's identity.

use super::{Syndrome, skip};
use crate::arm64::guest::devices;
use crate::arm64::processor::Arm64;
use crate::arm64::vcpu::state::Activity;
use crate::devices::virt::map;
use crate::devices::virt::psci::{self, Call, Status};
use crate::vm::{Context, Next};

/// SMCCC's "vendor-specific hypervisor service, call UID" (Arm DEN 0028F, section 6.2), and its
/// result: the letters of "quell hypervisor".
const VENDOR_UID: u32 = 0x8600_ff01;
const IDENTITY: [u64; 4] = {
    const fn word(letters: &[u8; 4]) -> u64 {
        u32::from_le_bytes(*letters) as u64
    }
    [word(b"quel"), word(b"l hy"), word(b"perv"), word(b"isor")]
};

/// SMC: there is no firmware for the guest. The device tree names HVC.
pub(super) fn refuse<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    answer(context, Status::NotSupported.to_x0());
    skip(context, syndrome);
    Next::Resume
}

/// HVC: the calls that the guest is offered. The PC is after the instruction already.
pub(super) fn handle<A: Arm64>(context: &mut Context<'_, A>, _: Syndrome) -> Next {
    let [x0, x1, x2, x3, ..] = &mut context.state.registers.x;
    if *x0 as u32 == VENDOR_UID {
        [*x0, *x1, *x2, *x3] = IDENTITY;
        return Next::Resume;
    }
    let call = psci::decode([*x0, *x1, *x2, *x3], context.vm.vcpu_count() as u8);
    let result = match call {
        Call::Return(value) => value,
        Call::CpuOn { vcpu, start } => match context.vm.vcpus.get(usize::from(vcpu)) {
            None => Status::InvalidParameters.to_x0(),
            Some(target) => match target.inbox.power.turn_on(start) {
                Ok(posted) => {
                    context.vm.notify(target, posted);
                    Status::Success.to_x0()
                }
                Err(error) => Status::from(error).to_x0(),
            },
        },
        Call::AffinityInfo { vcpu } => match context.vm.vcpus.get(usize::from(vcpu)) {
            None => Status::InvalidParameters.to_x0(),
            Some(target) => target.inbox.power.affinity() as u64,
        },
        Call::StolenTime => map::stolen_time(context.vcpu.index),
        Call::CpuOff => return turn_off(context),
        Call::Standby => {
            answer(context, Status::Success.to_x0());
            context.state.activity = Activity::Halted;
            return Next::Halt;
        }
        Call::SystemOff => return Next::PowerOff,
        Call::SystemReset => return Next::Reset,
    };
    answer(context, result);
    Next::Resume
}

fn answer<A: Arm64>(context: &mut Context<'_, A>, value: u64) {
    let [x0, ..] = &mut context.state.registers.x;
    *x0 = value;
}

fn turn_off<A: Arm64>(context: &mut Context<'_, A>) -> Next {
    {
        let mut distributor = context.vm.guest.distributor.lock();
        let effect = context.state.gic.release(&mut distributor);
        devices::perform_returned(context.vm, effect, &distributor, &mut context.state.alarm);
    }
    context.state.activity = Activity::Off;
    context.vcpu.inbox.power.turn_off();
    // A CPU that starts it from here on posts an event, and blocking is then refused.
    Next::Timers
}
