//! Hypercalls.

use tlfs::{Call, CallRegisters, Profile, Reject};

use super::Then;
use crate::vm::{Context, Next};
use crate::x86::guest::flush::CallServices;
#[cfg(feature = "defects")]
use crate::x86::hyperv::defects;
use crate::x86::hyperv::hypercall::{NESTED_PROFILE, PROFILE};
use crate::x86::hyperv::{CallOutcome, Caller, hypercall};
use crate::x86::processor::X86;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr0, Rflags};
use crate::x86::{CR0_PE, RFLAGS_VM};

/// Who makes a hypercall.
#[inline(always)]
pub(crate) fn caller_of(block: &impl ControlBlock) -> Caller {
    let long_mode_64 = block.is_64bit();
    Caller {
        cpl: block.cpl(),
        // In 64-bit mode there is no need to look.
        protected_mode: long_mode_64 || block.read(Cr0) & CR0_PE != 0,
        virtual_8086: !long_mode_64 && block.read(Rflags) & RFLAGS_VM != 0,
        long_mode_64,
    }
}

/// VMMCALL, VMCALL: a hypercall. Its instruction may have to be executed again.
#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_hypercall<A: X86>(context: &mut Context<'_, A>) -> Then {
    let caller = caller_of(&*context.state.block);
    let parameters = caller.parameters(&context.state.registers.0);
    let (partition, memory) = (&context.vm.guest.partition, context.vm.memory_source());
    let (row, scratch) = (context.vcpu.row, &mut context.workspace.scratch);
    let mut services = CallServices::new(context.vm, row, context.counters, scratch);
    let page = &mut context.workspace.page;
    #[cfg(not(feature = "defects"))]
    let outcome = hypercall::handle(&caller, parameters, partition, &memory, &mut services, page);
    #[cfg(feature = "defects")]
    let outcome = match crate::vm::defects::defect() {
        Some(defect) => defects::handle(defect, &caller, parameters, partition, &memory, &mut services, page),
        None => hypercall::handle(&caller, parameters, partition, &memory, &mut services, page),
    };
    let (result, next) = match outcome {
        CallOutcome::Complete(result) => (result, Next::Resume),
        CallOutcome::Yield(result) => (result, Next::Yield),
        CallOutcome::Continue(control) => {
            caller.set_control(&mut context.state.registers.0, control);
            // If the previous instruction holds interrupts off, it does so for the first part only.
            context.state.block.end_shadow();
            return Then::Stay(Next::Resume);
        }
        CallOutcome::NotOffered => return on_other(context),
        CallOutcome::UndefinedOpcode => {
            context.state.raise_undefined();
            return Then::Stay(Next::Resume);
        }
        CallOutcome::GeneralProtection => return Then::protection(context),
    };
    caller.set_result(&mut context.state.registers.0, result);
    Then::Behind(next)
}

/// A call that guests without guests are not offered.
#[cold]
#[inline(never)]
fn on_other<A: X86>(context: &mut Context<'_, A>) -> Then {
    let parameters = caller_of(&*context.state.block).parameters(&context.state.registers.0);
    let may_nest = context.vm.guest.partition.platform().may_nest;
    serve_rare(context, parameters, if may_nest { &NESTED_PROFILE } else { &PROFILE })
}

/// Serves a call that is rare: of a guest that has guests, or of such a guest for all of its kind.
/// Both flush more than they name.
#[cold]
#[inline(never)]
pub(crate) fn serve_rare<A: X86>(
    context: &mut Context<'_, A>,
    parameters: CallRegisters,
    profile: &Profile,
) -> Then {
    let memory = context.vm.memory_source();
    let decoded = tlfs::decode(parameters, &memory, &mut context.workspace.page, profile);
    let (row, scratch) = (context.vcpu.row, &mut context.workspace.scratch);
    let services = CallServices::new(context.vm, row, context.counters, scratch);
    let result = match decoded {
        Ok(call @ Call::GuestPhysical { .. }) => {
            services.flush_guest_physical();
            call.completed()
        }
        Ok(call @ Call::Flush(_)) => {
            services.flush_all();
            call.completed()
        }
        Err(Reject::Failed(result)) => result,
        Err(Reject::InputNotMemory { .. }) => return Then::protection(context),
        Ok(_) | Err(Reject::UndefinedOpcode) => {
            context.state.raise_undefined();
            return Then::Stay(Next::Resume);
        }
    };
    caller_of(&*context.state.block).set_result(&mut context.state.registers.0, result);
    Then::RESUME
}
