//! WFI and WFE, and the word in memory that a guest waits for, found from its code.

use hostlink::counters::Counter;
use memslots::Gpa;

use super::abort::gpa_of;
use super::{Syndrome, inject, skip, step};
use crate::arm64::processor::Arm64;
use crate::arm64::vcpu::state::Activity;
use crate::arm64::vcpu::wait_loop::{self, WINDOW};
use crate::vm::awaited::Word;
use crate::vm::{Context, Next};

const PAGE: u64 = 4096;

pub(super) fn counter(syndrome: &Syndrome) -> Counter {
    if syndrome.is_event() { Counter::ExitPause } else { Counter::ExitWait }
}

/// WFI blocks the vCPU until there is an interrupt, WFE lets other vCPUs run.
pub(super) fn handle<A: Arm64>(context: &mut Context<'_, A>, syndrome: Syndrome) -> Next {
    let happens = step::condition_holds(context.state.registers.pstate, syndrome.0);
    let is_event = syndrome.is_event();
    // A wait for memory stays at its instruction, which is executed again when the memory may have
    // changed.
    if !(happens && is_event && awaited_word(context).is_some()) {
        skip(context, syndrome);
    }
    if !happens {
        return Next::Resume;
    }
    if is_event {
        return Next::Yield;
    }
    context.state.spin.forget();
    context.state.activity = Activity::Halted;
    Next::Halt
}

/// The word in memory that the guest waits for, if only a store to it would let the guest go on.
///
/// This is a hint. The translations may be older than a flush that is being requested at this
/// moment, so no section is used. If the word is wrong, the vCPU is skipped for a while.
pub fn awaited_word<A: Arm64>(context: &Context<'_, A>) -> Option<Word> {
    let registers = &context.state.registers;
    let pc = registers.pc;
    if registers.pstate & inject::AARCH32 != 0 || !pc.is_multiple_of(4) {
        return None;
    }
    let start = pc.checked_sub(4 * wait_loop::AT as u64)?;
    let length = 4 * WINDOW as u64;
    if start % PAGE > PAGE - length {
        // The window crosses a page: the wait is found at another time.
        return None;
    }
    let at_el0 = inject::is_from_el0(registers);
    let code = gpa_of::<A>(start, at_el0)?;
    let memory = context.vm.space.slots().memory();
    let (mut window, mut bytes) = ([0; WINDOW], [0; 4 * WINDOW]);
    memory.read(Gpa(code), &mut bytes).ok()?;
    for (word, bytes) in window.iter_mut().zip(bytes.as_chunks().0) {
        *word = u32::from_le_bytes(*bytes);
    }
    let wait = wait_loop::find(&window)?;
    let x = &context.state.registers.x;
    let address = *x.get(wait.address)?;
    let value = x.get(wait.value).copied().unwrap_or(0);
    if !address.is_multiple_of(wait.bytes as u64) {
        return None;
    }
    // The comparison is of 32 or 64 bits.
    let value = if wait.bytes == 8 { value } else { value & 0xffff_ffff };
    let word = Word { gpa: Gpa(gpa_of::<A>(address, at_el0)?), bytes: wait.bytes as u8, value };
    (!word.has_changed(&memory)).then_some(word)
}
