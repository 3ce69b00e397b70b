//! Stepping over the IRET that ends an NMI handler.
//!
//! NMIs are unblocked once IRET has been executed, but its intercept occurs before that, and no
//! exit follows. So the guest executes the IRET with RFLAGS.TF set, and #DB is intercepted. The
//! IRET has replaced the trap flag by the one on the stack, and the next NMI is injected where the
//! processor would take it. The guest sees none of this: DR6 is restored, and an IRET that faults
//! exits too, so that the flags on its handler's stack are the guest's own. Such an IRET has not
//! been executed; NMIs wait for the handler's IRET.
//!
//! An IRET that returns to another task stores its flags with the task that ends, and there the
//! guest would see the trap flag. It is executed without it: if RIP or the task differs at the next
//! exit, the IRET has been executed. If an NMI waits for that, the timer forces an exit.
//!
//! APM volume 2, sections 8.2.3 (NMI), 13.1.4 (single step), 15.12 (exception intercepts).

use super::intercepts::{self, misc1};
use super::vmcb::{Vmcb, clean};
use crate::vm::arch::Cpus;
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::{self, Nmi};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{DR6_BREAKPOINTS, DR6_SINGLE_STEP, RFLAGS_TF};

/// Maximum time that an NMI waits for an exit after an IRET to another task.
const TASK_PATIENCE_US: u64 = 1000;

/// The values that the step replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    rip: u64,
    /// The task that the IRET ends, if any.
    task: Option<u16>,
    dr6: u64,
    trap_flag: u64,
}

/// The next exit is at the IRET.
pub(super) fn await_iret(state: &mut VcpuState<Vmcb>) {
    state.nmi.remove(Nmi::AT_IRET);
    state.block.intercept_misc1 |= misc1::IRET;
    state.block.mark_dirty(clean::INTERCEPTS);
}

/// The guest is at an intercepted IRET: it executes it unless an event comes first.
pub(super) fn prepare_iret<A: Cpus>(state: &mut VcpuState<Vmcb>, is_interrupted: bool) {
    let vmcb = &mut *state.block;
    if is_interrupted || vmcb.event_injection & event::VALID != 0 {
        return await_iret(state);
    }
    let task = nmi::iret_switches_tasks(vmcb.cr0, vmcb.efer, vmcb.rflags).then_some(vmcb.tr.selector);
    state.own.step = Step { rip: vmcb.rip, task, dr6: vmcb.dr6, trap_flag: vmcb.rflags & RFLAGS_TF };
    state.nmi.insert(Nmi::STEPPING);
    vmcb.intercept_misc1 &= !misc1::IRET;
    vmcb.intercept_exceptions |= intercepts::IRET_EXCEPTIONS;
    vmcb.mark_dirty(clean::ALL);
    if task.is_some() {
        return hasten_exit::<A>(state.nmi);
    }
    vmcb.rflags |= RFLAGS_TF;
    // Any bits that the processor then reports come from this instruction.
    vmcb.dr6 &= !(DR6_BREAKPOINTS | DR6_SINGLE_STEP);
}

/// Forces an exit after an IRET that causes none, if an NMI waits for it.
#[cold]
fn hasten_exit<A: Cpus>(nmi: Nmi) {
    if nmi.contains(Nmi::PENDING) {
        let now = A::now();
        A::this_cpu().set_timer(now + A::ticks_of_us(TASK_PATIENCE_US), now);
    }
}

/// See [`ControlBlock::end_step`](crate::x86::vcpu::block::ControlBlock::end_step). Returns whether
/// a #DB is its own.
#[inline]
pub(super) fn end(state: &mut VcpuState<Vmcb>) -> bool {
    state.nmi.contains(Nmi::STEPPING) && finish(state)
}

#[cold]
fn finish(state: &mut VcpuState<Vmcb>) -> bool {
    state.nmi.remove(Nmi::STEPPING);
    let step = state.own.step;
    let vmcb = &mut *state.block;
    vmcb.intercept_exceptions = intercepts::EXCEPTIONS;
    vmcb.mark_dirty(clean::ALL);
    if let Some(task) = step.task {
        // Neither flags nor debug registers have been changed.
        if vmcb.rip != step.rip || vmcb.tr.selector != task {
            state.nmi.remove(Nmi::BLOCKED | Nmi::AT_IRET);
        }
        return false;
    }
    let reported = vmcb.dr6;
    let executed = reported & DR6_SINGLE_STEP != 0 || vmcb.rip != step.rip;
    let mut debug = reported & DR6_BREAKPOINTS;
    if executed {
        state.nmi.remove(Nmi::BLOCKED | Nmi::AT_IRET);
        // A guest that was single-stepping itself gets the intercepted exception.
        debug |= if step.trap_flag != 0 { DR6_SINGLE_STEP } else { 0 };
    } else {
        vmcb.rflags = vmcb.rflags & !RFLAGS_TF | step.trap_flag;
    }
    vmcb.dr6 = step.dr6;
    if debug != 0 {
        // The part of the step's #DB that the guest must see.
        state.raise_debug(debug);
    }
    true
}
