//! Exits of L2: L1's, if it has asked for them, else served as L1's own; and #VMEXIT (section
//! 15.6).

use core::mem;
use memslots::{Gpa, GuestMemory};

use super::block::{HIDDEN, STATE, copy, write};
use super::shadows::{self, Served};
use super::{Nested, Now, direct, maps};
use crate::svm::intercepts::misc1;
use crate::svm::processor::Amd64;
use crate::svm::step;
use crate::svm::table::{Event, Exit, INNER, INVALID, Row};
use crate::svm::vmcb::{Vmcb, clean, vintr};
use crate::vm::{Context, Next};
use crate::x86::exits::with_translation;
use crate::x86::vcpu::block::{ControlBlock, Inner};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, RCX};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{CR0_PE, RFLAGS_VM};
use hostlink::counters::Counter;

/// DR7 with all breakpoints off.
const DR7_OFF: u64 = 0x400;

/// The exit of a physical interrupt, an NMI, INIT.
pub(super) const INTERRUPT: u64 = 0x60;
pub(super) const NMI: u64 = 0x61;
pub(super) const INIT: u64 = 0x63;
/// The exit of exception 0; the others follow.
pub(super) const EXCEPTION: u64 = 0x40;
/// A broken part of the machine is no guest's to deal with.
const MACHINE_CHECK: u64 = EXCEPTION + 18;
const WINDOW: u64 = 0x64;
const HALT: u64 = 0x78;
const PORT: u64 = 0x7b;
const MSR: u64 = 0x7c;
const SHUTDOWN: u64 = 0x7f;
const HYPERCALL: u64 = 0x81;
pub(super) const NESTED_FAULT: u64 = 0x400;

/// What refuses VMCB12 writes: the exit, and EVENTINJ, which is not valid any more.
const REFUSED: [core::ops::Range<usize>; 2] = [0x70..0x90, 0xa8..0xb0];

/// L2 has exited. The block then has the exit that is to be handled: this one, if L1's would be
/// served in the same way.
pub(super) fn take_exit<A: Amd64>(context: &mut Context<'_, A>) {
    if let Some(code) = become_of(context) {
        context.state.block.exit_code = code;
    }
}

/// Deals with the exit, unless it is served as one of L1's would be. Returns the code of what is
/// left to handle.
fn become_of<A: Amd64>(context: &mut Context<'_, A>) -> Option<u64> {
    let exit = Exit::of(&context.state.block);
    // The part of the IRET's own #DB that L2 must see has been raised.
    if step::end(context.state) && Row::of(&exit) == Row::Event(Event::Debug) {
        return Some(INNER);
    }
    let was_window = end_window(context.state);
    let exit = if was_window { exit } else { settle_virtual(context, exit) };
    let is_injected = still_injected(context, exit.event);
    let priority = (context.state.block.interrupt_control & vintr::TPR_MASK) as u8;
    if !context.state.own.has_priority() && priority != context.state.lapic.tpr() >> 4 {
        context.state.lapic.set_tpr(priority << 4);
    }
    let exit = match shadows::serve(context, exit) {
        Served::Theirs(exit) => return Some(leave(context, exit)),
        Served::Ours(exit) => exit,
    };
    if matches!(Row::of(&exit), Row::Event(Event::Invalid)) {
        return Some(leave(context, Exit { code: INVALID, info_1: 0, info_2: 0, event: 0 }));
    }
    if exit.code == HYPERCALL && direct::is_meant(context) {
        return Some(direct::serve(context));
    }
    let is_machines = matches!(exit.code, INTERRUPT..=INIT | MACHINE_CHECK | NESTED_FAULT | INNER)
        || exit.code == WINDOW && was_window;
    if !is_machines && is_wanted(context, &exit) {
        return Some(leave(context, exit));
    }
    if exit.event & event::VALID != 0 {
        // What was being delivered is delivered again. An INT n of L2's own is executed again, one
        // that L1 injects is not at its instruction.
        let is_own = exit.event & event::TYPE_MASK == event::TYPE_SOFTWARE && !is_injected;
        if !is_own {
            context.state.block.set_event(exit.event);
        }
    }
    match exit.code {
        // L1's hypercall is L1's alone.
        HYPERCALL => {
            context.state.raise_undefined();
            Some(INNER)
        }
        // A halted vCPU takes no requests that are about other spaces than its own, which is L2's:
        // L1's translations are dropped.
        HALT => {
            context.state.own.asid.owe_flush();
            None
        }
        WINDOW | INNER => Some(INNER),
        _ => None,
    }
}

/// L2's virtual interrupt, if that is what was being delivered: it has been taken. QEMU reports it
/// as an exception, and still requests it.
fn settle_virtual<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> Exit {
    let block = &mut *context.state.block;
    let vector = block.interrupt_control >> vintr::VECTOR_SHIFT & 0xff;
    // No exception has such a vector.
    let is_it = vector >= 32 && exit.event == event::VALID | event::TYPE_EXCEPTION | vector;
    if !is_it || block.interrupt_control & vintr::IRQ == 0 {
        return exit;
    }
    block.interrupt_control &= !vintr::IRQ;
    block.mark_dirty(clean::TPR);
    Exit { event: event::VALID | event::TYPE_INTERRUPT | vector, ..exit }
}

/// Whether this is the event that the last VMRUN of L1 has injected. Once it is not what an exit
/// has cut short, it has been delivered.
fn still_injected<A: Amd64>(context: &mut Context<'_, A>, event: u64) -> bool {
    let Some(nested) = context.state.own.nested.as_deref_mut() else { return false };
    let injected = &mut nested.vmcb12.get_mut().event_injection;
    if *injected != event {
        *injected &= !event::VALID;
    }
    *injected & event::VALID != 0
}

/// Whether L1 has asked for this exit.
fn is_wanted<A: Amd64>(context: &mut Context<'_, A>, exit: &Exit) -> bool {
    let Some(nested) = &context.state.own.nested else { return false };
    let theirs = nested.vmcb12.get();
    let words = [
        theirs.intercept_cr,
        theirs.intercept_dr,
        theirs.intercept_exceptions,
        theirs.intercept_misc1,
        theirs.intercept_misc2,
        theirs.intercept_misc3,
    ];
    let word = words.get((exit.code / 32) as usize).copied().unwrap_or(0);
    if word >> (exit.code % 32) & 1 == 0 {
        return false;
    }
    let (ports, msrs) = (theirs.iopm_base, theirs.msrpm_base);
    let number = context.state.registers.low(RCX);
    match exit.code {
        PORT => {
            let access = exit.port();
            with_translation(context, |_, memory| maps::has_port(memory, ports, access.port, access.size))
        }
        MSR => {
            with_translation(context, |_, memory| maps::has_msr(memory, msrs, number, exit.info_1 & 1 != 0))
        }
        _ => true,
    }
}

/// Ends the request for an exit as soon as L2 takes interrupts: it has its own interrupt control
/// again. Returns whether there was one.
pub(super) fn end_window(state: &mut VcpuState<Vmcb>) -> bool {
    let Some(nested) = state.own.nested.as_deref_mut() else { return false };
    let Some(own) = nested.inside.as_mut().and_then(|inside| inside.window.take()) else { return false };
    let block = &mut *state.block;
    block.interrupt_control = own;
    block.mark_dirty(clean::TPR | clean::INTERCEPTS);
    if !nested.wants(misc1::VINTR) {
        block.intercept_misc1 &= !misc1::VINTR;
    }
    true
}

/// VMRUN does not take VMCB12: nothing of L2 has been loaded.
#[cold]
pub(super) fn refuse<A: Amd64>(context: &mut Context<'_, A>, at: Gpa) -> Next {
    let is_written = with_translation(context, |state, memory| {
        let Some(nested) = state.own.nested.as_deref_mut() else { return false };
        nested.msr_map_of = None;
        state.own.now = Now::HELD | state.own.now & Now::INIT;
        let theirs = nested.vmcb12.get_mut();
        [theirs.exit_code, theirs.exit_info_1, theirs.exit_info_2] = [INVALID, 0, 0];
        theirs.exit_interrupt_info = 0;
        theirs.event_injection &= !event::VALID;
        let written = write(memory, at, theirs, &REFUSED);
        close(&mut state.block);
        written
    });
    if is_written { Next::Resume } else { Next::Shutdown }
}

/// #VMEXIT to L1. If VMCB12 is no memory any more, L1 shuts down (N22). Returns the code of what is
/// left to handle.
pub(super) fn leave<A: Amd64>(context: &mut Context<'_, A>, exit: Exit) -> u64 {
    context.count(Counter::InnerExits);
    let is_written = with_translation(context, |state, memory| give_back::<A>(state, memory, exit));
    if is_written { INNER } else { SHUTDOWN }
}

/// L1 runs again, behind its VMRUN. Returns whether VMCB12 is written.
pub(super) fn give_back<A: Amd64>(state: &mut VcpuState<Vmcb>, memory: &GuestMemory<'_>, exit: Exit) -> bool {
    let Some(nested) = state.own.nested.as_deref_mut() else { return false };
    let Some(inside) = nested.inside.take() else { return false };
    nested.report(&state.block, exit, state.registers.0[RAX], A::features().next_rip());
    let is_written = nested.vmcb12.write_back(memory, inside.at);
    nested.exchange(&mut state.block, &mut state.code);
    state.own.now = Now::HELD | state.own.now & Now::INIT;
    let (block, left) = (&mut *state.block, &*nested.other);
    copy(left, block, &HIDDEN);
    // Neither VMRUN nor an exit saves them for L1.
    block.cr2 = left.cr2;
    if !nested.vmcb12.has_tables() && block.pat != left.pat {
        // L2 has written it: L1's own translations are of the former one.
        block.pat = left.pat;
        state.own.asid.owe_flush();
    }
    // L2 may have written the TSC itself.
    block.tsc_offset = left.tsc_offset.wrapping_sub(mem::take(&mut state.own.tsc_shift));
    close(block);
    block.intercept_debug(!state.debug.are_loaded());
    state.registers.0[RAX] = inside.rax;
    state.exception = inside.trap;
    if state.nmi.contains(Nmi::BLOCKED) {
        step::await_iret(state);
    }
    is_written
}

/// What an exit changes of L1's state besides giving it back.
fn close(block: &mut Vmcb) {
    block.dr7 = DR7_OFF;
    block.cpl = 0;
    block.cr0 |= CR0_PE;
    block.rflags &= !RFLAGS_VM;
    block.clean_bits = 0;
}

impl Nested {
    /// Puts what L2 has left, and why, into the copy of VMCB12.
    fn report(&mut self, block: &Vmcb, exit: Exit, rax: u64, has_next_rip: bool) {
        let theirs = self.vmcb12.get_mut();
        let kept = theirs.interrupt_control & !(0xff | vintr::IRQ);
        theirs.interrupt_control = kept | block.interrupt_control & (0xff | vintr::IRQ);
        theirs.interrupt_shadow = theirs.interrupt_shadow & !1 | block.interrupt_shadow & 1;
        let Exit { code, info_1, info_2, event } = exit;
        [theirs.exit_code, theirs.exit_info_1, theirs.exit_info_2] = [code, info_1, info_2];
        theirs.exit_interrupt_info = event;
        theirs.event_injection &= !event::VALID;
        theirs.next_rip = if has_next_rip { block.next_rip } else { 0 };
        (theirs.fetched_count, theirs.fetched_bytes) = (0, [0; 15]);
        copy(block, theirs, &STATE);
        // Written with nested paging alone.
        theirs.pat = block.pat;
        theirs.rax = rax;
    }
}
