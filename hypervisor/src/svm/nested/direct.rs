//! Direct flush: L2's flushes by hypercall reach the engine without L1 (TLFS, "Direct Virtual
//! Flush").
//!
//! L1 names its guest, and the virtual processor, in VMCB12. They are not looked at: all that any
//! vCPU of L1 has of L2s is dropped, which names every target (N25). A vCPU that does not run is
//! not waited for, as with each flush.

use memslots::{Gpa, Pattern};
use paging::guest::Access;
use stay::in_section;
use tlfs::Control;

use super::exit::leave;
use crate::svm::processor::Amd64;
use crate::svm::table::{Exit, INNER};
use crate::vm::{Context, Next};
use crate::x86::exits::hypercall::{caller_of, serve_rare};
use crate::x86::exits::{Then, measured};
use crate::x86::hyperv::PROFILE;
use crate::x86::vcpu::block::Inner;
use crate::x86::vcpu::checks::Instruction;
use crate::x86::vcpu::instruction::nested_translate;

/// The exit that tells L1 of a flush while it holds the lock: HV_SVM_EXITCODE_ENL, and its reason.
const ENLIGHTENED: u64 = 0xf000_0000;
const AFTER_FLUSH: u64 = 1;

/// In the assist page of L1's vCPU: where the features are of which it makes use, and this one.
const FEATURES: u64 = 32;
const DIRECT_HYPERCALL: u32 = 1 << 0;

/// Whether L2's hypercall is a flush that L1 leaves to us.
pub(super) fn is_meant<A: Amd64>(context: &Context<'_, A>) -> bool {
    let state = &*context.state;
    let vmcb12 = state.own.nested.as_deref().map(|nested| &nested.vmcb12);
    if !vmcb12.is_some_and(|vmcb12| vmcb12.has_tables() && vmcb12.assist_page().is_some()) {
        return false;
    }
    let caller = caller_of(&*state.block);
    let code = Control::from_bits(caller.parameters(&state.registers.0).control).code();
    let Some(page) = state.hyperv.assist_page().filter(|_| caller.may_call() && code.is_flush()) else {
        return false;
    };
    let features = context.vm.space.slots().memory().read_u32(Gpa(page + FEATURES));
    features.is_ok_and(|features| features & DIRECT_HYPERCALL != 0)
}

/// Serves it. Returns the code of what is left to handle.
pub(super) fn serve<A: Amd64>(context: &mut Context<'_, A>) -> u64 {
    let usual = Pattern::new(&[0x0f, 0x01, 0xd9]);
    let mut is_done = false;
    let _resume = measured(context, &usual, Instruction::Anybodys, |context, length| {
        if flush(context) == Then::RESUME {
            context.state.skip(length);
            is_done = true;
        }
        Next::Resume
    });
    let nested = context.state.own.nested.as_deref();
    let page = nested.and_then(|nested| nested.vmcb12.assist_page()).filter(|_| is_done);
    let memory = context.vm.space.slots().memory();
    // Its first word counts the holders of the lock.
    let is_locked = page.is_some_and(|page| memory.read_u32(page).unwrap_or(0) != 0);
    drop(memory);
    match is_locked {
        true => leave(context, Exit { code: ENLIGHTENED, info_1: AFTER_FLUSH, info_2: 0, event: 0 }),
        false => INNER,
    }
}

fn flush<A: Amd64>(context: &mut Context<'_, A>) -> Then {
    let caller = caller_of(&*context.state.block);
    let mut parameters = caller.parameters(&context.state.registers.0);
    let control = Control::from_bits(parameters.control);
    if control.check(&PROFILE).is_ok() && !control.fast() {
        let input = Gpa(parameters.input);
        let walked = in_section(context, |state, vm| {
            nested_translate::<A>(&state.block, &vm.space.slots().memory(), input, Access::empty())
        });
        match walked {
            Ok(found) => parameters.input = found.gpa.0,
            Err(refused) => {
                // L2 makes the call again once L1 has mapped it.
                let own = &mut context.state.own;
                refused.into_iter().for_each(|code| own.raise_nested(input, code, false));
                return Then::Stay(Next::Resume);
            }
        }
    }
    serve_rare(context, parameters, &PROFILE)
}
