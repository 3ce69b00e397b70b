//! Hypercalls.

use super::{Exit, Then};
use crate::svm::processor::Amd64;
use crate::vm::{Context, Next};
use crate::x86::guest::flush::CallServices;
#[cfg(feature = "defects")]
use crate::x86::hyperv::defects;
use crate::x86::hyperv::{CallOutcome, Caller, hypercall};
use crate::x86::{CR0_PE, RFLAGS_VM};

/// VMMCALL: a hypercall. Its instruction may have to be executed again.
#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_hypercall<A: Amd64>(context: &mut Context<'_, A>, _: Exit) -> Then {
    let vmcb = &context.state.vmcb;
    let caller = Caller {
        cpl: vmcb.cpl,
        protected_mode: vmcb.cr0 & CR0_PE != 0,
        virtual_8086: vmcb.rflags & RFLAGS_VM != 0,
        long_mode_64: vmcb.is_64bit(),
    };
    let parameters = caller.parameters(&context.state.registers.0);
    let (partition, memory) = (&context.vm.guest.partition, context.vm.memory_source());
    let (row, scratch) = (context.vcpu.row, &mut context.workspace.scratch);
    let mut services = CallServices::new(context.vm, row, context.counters, scratch);
    let page = &mut context.workspace.page;
    #[cfg(not(feature = "defects"))]
    let outcome = hypercall::handle(&caller, parameters, partition, &memory, &mut services, page);
    #[cfg(feature = "defects")]
    let outcome = match crate::vm::files::defect() {
        Some(defect) => defects::handle(defect, &caller, parameters, partition, &memory, &mut services, page),
        None => hypercall::handle(&caller, parameters, partition, &memory, &mut services, page),
    };
    let (result, next) = match outcome {
        CallOutcome::Complete(result) => (result, Next::Resume),
        CallOutcome::Yield(result) => (result, Next::Yield),
        CallOutcome::Continue(control) => {
            caller.set_control(&mut context.state.registers.0, control);
            // If the previous instruction holds interrupts off, it does so for the first part only.
            context.state.vmcb.interrupt_shadow &= !1;
            return Then::Stay(Next::Resume);
        }
        CallOutcome::UndefinedOpcode => {
            context.state.raise_undefined();
            return Then::Stay(Next::Resume);
        }
        CallOutcome::GeneralProtection => return Then::protection(context),
    };
    caller.set_result(&mut context.state.registers.0, result);
    Then::Behind(next)
}
