//! What ends a stay in L2 before it begins: an exception that L1 intercepts, an NMI, an interrupt.

use hostlink::counters::Counter;
use stay::tagged;

use super::Now;
use super::exit::{EXCEPTION, INIT, INTERRUPT, NESTED_FAULT, NMI, end_window, leave, take_exit};
use super::shadows::count_emptied;
use crate::svm::intercepts::misc1;
use crate::svm::loaded::Loaded;
use crate::svm::processor::Amd64;
use crate::svm::step::{self, await_iret};
use crate::svm::table::{Exit, FAULT_IN_ACCESS, FAULT_IN_WALK, INNER};
use crate::svm::vmcb::{Vmcb, clean, vintr};
use crate::vm::Context;
use crate::x86::enter::take_flush;
use crate::x86::vcpu::block::{ControlBlock, Inner};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{RFLAGS_IF, RFLAGS_RF};

/// Enters L2 with the event that is due, and returns whether it has run; or leaves it with an exit.
#[cold]
pub(crate) fn enter_inner<A: Amd64>(context: &mut Context<'_, A>) -> Option<bool> {
    // There may be both from an entry that was not carried out.
    step::end(context.state);
    end_window(context.state);
    if context.state.release_init(&context.vcpu.inbox) {
        context.vm.readdressed();
        // It waits for start-up: that is looked at next.
        let _own = context.vcpu.target.post_event();
        return Some(false);
    }
    if !context.state.own.is_inside() {
        return None;
    }
    if let Some(code) = give_event(context) {
        // An exit that came before the entry. If L1 does not go on by it, it is handled like
        // others.
        context.state.block.exit_code = code;
        return (code != INNER).then_some(true);
    }
    if !context.state.own.has_priority() {
        let priority = context.state.lapic.tpr() >> 4;
        context.state.block.set_priority(priority);
    }
    if context.state.nmi.contains(Nmi::AT_IRET) {
        step::prepare_iret::<A>(context.state, false);
    }
    let nested = context.state.own.nested.as_deref_mut()?;
    if let Some(inside) = nested.inside.as_ref().filter(|_| nested.vmcb12.has_tables()) {
        nested.empty_void(nested.contexts.shadow(inside.context));
    }
    nested.add_intercepts(&mut context.state.block);
    count_emptied(context);
    let has_entered = {
        let (mut processor, slot) = Loaded::of_inner(context.vm, context.cpu, context.state)?;
        #[cfg(feature = "defects")]
        let mut processor = tagged::Mistaken::new(&mut processor);
        tagged::enter(&mut processor, &mut context.owner, &mut context.workspace.asids, slot)
    };
    if has_entered {
        take_exit(context);
    } else {
        take_flush(context);
    }
    Some(has_entered)
}

/// What L2 was about to get, or 0.
fn injected(block: &Vmcb) -> u64 {
    let event = block.event();
    if event & event::VALID != 0 { event } else { 0 }
}

/// What L2 has raised itself: the exit that it ends in, if L1 asks for it. Else L2 gets it at its
/// next entry.
fn raised(state: &mut VcpuState<Vmcb>) -> Option<Exit> {
    let nested = state.own.nested.as_deref_mut()?;
    let event = injected(&state.block);
    if let Some((gpa, code, in_walk)) = nested.inside.as_mut().and_then(|inside| inside.fault.take()) {
        let from = if in_walk { FAULT_IN_WALK } else { FAULT_IN_ACCESS };
        let info_1 = u64::from(code.bits()) | from;
        return Some(Exit { code: NESTED_FAULT, info_1, info_2: gpa.0, event });
    }
    let exception = state.exception.take()?;
    let vector = exception & 0xff;
    if nested.vmcb12.get().intercept_exceptions >> vector & 1 != 0 {
        let info_2 = if vector == event::VECTOR_PF { state.block.cr2 } else { 0 };
        return Some(Exit { code: EXCEPTION + vector, info_1: exception >> 32, info_2, event });
    }
    state.block.set_event(exception);
    if event::pushes_resume_flag(exception) {
        state.block.rflags |= RFLAGS_RF;
    }
    None
}

/// The exit with this code, or the one that what L2 has raised ends in. What was about to be
/// delivered is in EXITINTINFO.
pub(super) fn exit_now(state: &mut VcpuState<Vmcb>, code: u64) -> Exit {
    let due = raised(state);
    due.unwrap_or(Exit { code, info_1: 0, info_2: 0, event: injected(&state.block) })
}

/// Gives L2 the event that is due, or leaves it by an exit, whose code is returned. INIT comes
/// first, then exceptions, NMIs, interrupts.
fn give_event<A: Amd64>(context: &mut Context<'_, A>) -> Option<u64> {
    if context.state.own.now.contains(Now::INIT) {
        let exit = exit_now(context.state, INIT);
        return Some(leave(context, exit));
    }
    if let Some(exit) = raised(context.state) {
        return Some(leave(context, exit));
    }
    let state = &mut *context.state;
    let is_busy = injected(&state.block) != 0;
    let nested = state.own.nested.as_deref()?;
    let (misc, masks) = (nested.vmcb12.get().intercept_misc1, nested.masks());
    let exit = |code| Exit { code, info_1: 0, info_2: 0, event: 0 };
    if state.own.holds_events() {
        return None;
    }
    let vector = state.lapic.pending();
    let is_nmi = state.nmi.is_deliverable();
    let is_interrupt = vector.is_some() && state.own.takes_interrupts(state.block.rflags);
    if (is_nmi || is_interrupt) && is_busy {
        // It is next: the kick is taken once the event is delivered.
        A::kick(A::this_cpu());
        return None;
    }
    // An exit to L1 does not wait for the end of an interrupt shadow, which VMCB12 has then.
    if is_nmi && misc & misc1::NMI != 0 {
        return Some(leave(context, exit(NMI)));
    }
    let ends = is_interrupt && misc & misc1::INTR != 0;
    if ends && !is_nmi {
        return Some(leave(context, exit(INTERRUPT)));
    }
    let is_held = state.block.has_shadow() && state.block.rflags & RFLAGS_IF != 0;
    if is_nmi {
        state.nmi.take();
        await_iret(state);
        state.block.set_event(event::VALID | event::TYPE_NMI | 2);
        if ends {
            // The exit is next, as above.
            A::kick(A::this_cpu());
        }
    } else if let Some(vector) = vector.filter(|_| is_interrupt && !is_held) {
        state.lapic.begin_service(vector);
        state.block.set_event(event::VALID | event::TYPE_INTERRUPT | u64::from(vector));
        context.count(Counter::IrqInjected);
    } else if vector.is_some() && (is_interrupt || !masks) {
        await_interrupts(context);
    }
    None
}

/// L2's flags decide about L1's interrupts, and hold one off: an exit follows as soon as they do
/// not.
fn await_interrupts<A: Amd64>(context: &mut Context<'_, A>) {
    let Some(nested) = context.state.own.nested.as_deref_mut() else { return };
    let Some(inside) = &mut nested.inside else { return };
    let block = &mut *context.state.block;
    inside.window = Some(block.interrupt_control);
    block.interrupt_control |= vintr::IRQ | vintr::IGNORE_TPR | 0xf << vintr::PRIORITY_SHIFT;
    block.intercept_misc1 |= misc1::VINTR;
    block.mark_dirty(clean::TPR | clean::INTERCEPTS);
}
