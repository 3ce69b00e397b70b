//! The input's address, and concurrent changes of the input. TLFS, "Hypercall Inputs".

use baremetal::x86_64::boot;

use super::prelude::*;
use crate::arch::x86_64::hypercall::{call, input};

const OK: Result<HvResult, Fault> = Ok(HvResult::of(Status::SUCCESS, 0));
const MISPLACED: Result<HvResult, Fault> = Ok(HvResult::of(Status::INVALID_ALIGNMENT, 0));

fn space() -> Control {
    control(Kind::Space)
}

pub(super) fn misaligned() -> Verdict {
    machine::flushes()?;
    input().write(&[0, ALL_SPACES, 1, 0, 0]);
    for offset in 1..8 {
        let result = call(space(), input().address() + offset, 0);
        ensure!(result == MISPLACED, "input at an odd {offset}: {result:x?}");
    }
    Ok(())
}

/// Input must be within one page (H4).
pub(super) fn across_pages() -> Verdict {
    machine::flushes()?;
    let page = input().address();
    for before_end in [8, 16] {
        let result = call(space(), page + PAGE - before_end, 0);
        ensure!(result == MISPLACED, "24 bytes of input {before_end} before the page's end: {result:x?}");
    }
    input().write_at(509, &[0, ALL_SPACES, 1]);
    let result = call(space(), page + PAGE - 24, 0);
    ensure!(result == OK, "24 bytes of input at the page's end: {result:x?}");
    let result = call(list(510), page, 0);
    ensure!(result == MISPLACED, "513 words of input: {result:x?}");
    Ok(())
}

/// The last bytes of memory are valid input (H5).
pub(super) fn at_end_of_memory() -> Verdict {
    machine::flushes()?;
    let ram = machine::last_ram();
    needs!(ram.is_some(), "the loader tells of no memory");
    let Some(ram) = ram else { return Ok(()) };
    needs!(ram.end - PAGE >= boot::image_end(), "the image lies at the end of memory");
    let place = (ram.end & !7) - 24;
    for (index, word) in [0, ALL_SPACES, 1].into_iter().enumerate() {
        // SAFETY: the loader says that this is RAM, below 4 GiB; it is after the image: not in use.
        unsafe { ((place + 8 * index as u64) as *mut u64).write_volatile(word) };
    }
    let result = call(space(), place, 0);
    ensure!(result == OK, "input at {place:#x}, the end of memory: {result:x?}");
    let result = call(space(), place + 8, 0);
    ensure!(result != OK, "input that goes over the end of memory at {:#x} is taken", place + 8);
    Ok(())
}

/// An address without memory has no input: an error, or a fault.
pub(super) fn outside_memory() -> Verdict {
    machine::flushes()?;
    for gpa in [0xfec0_0000, 1 << 45, 1 << 52, u64::MAX - 7] {
        let result = call(space(), gpa, 0);
        let refused = result.map_or(true, |result| result.status() != Status::SUCCESS);
        ensure!(refused, "input at {gpa:#x} is taken: {result:x?}");
    }
    Ok(())
}

static ENDS: AtomicBool = AtomicBool::new(false);
static PLACE: AtomicU64 = AtomicU64::new(0);

/// Minimum number of calls of each kind, and minimum number of them whose input has changed since
/// the previous call: the other processor may not run for thousands of calls.
const RACED: u32 = 500;
const CHANGED: u32 = 20;

static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Stores valid and invalid values into every word of the input all the time.
fn change(_: usize) {
    let mut random = Random::new(0x7ace);
    let place = PLACE.load(Ordering::Acquire) as *const AtomicU64;
    // SAFETY: the first processor's input page, which exists forever and consists of atomic words.
    let words = unsafe { core::slice::from_raw_parts(place, 512) };
    while !ENDS.load(Ordering::Acquire) {
        // Flags: none, all processors, all address spaces, and a reserved one.
        words[1].store(random.one_of([0, 1, 2, 1 << 10]), Ordering::Relaxed);
        // A mask, or the format of a set; 2 is invalid.
        words[2].store(random.one_of([0, 1, 2, u64::MAX]), Ordering::Relaxed);
        // The valid banks, or an element.
        words[3].store(random.one_of([0, 1, 3, 1 << 63]), Ordering::Relaxed);
        words[4].store(random.word(), Ordering::Relaxed);
        words[0].store(random.word(), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call whose input is changed meanwhile ends as with one of the inputs that existed (H7).
pub(super) fn changing() -> Verdict {
    machine::flushes()?;
    let processor = machine::second()?;
    ENDS.store(false, Ordering::Relaxed);
    PLACE.store(input().address(), Ordering::Release);
    machine::give(processor, change)?;
    let verdict = call_meanwhile();
    ENDS.store(true, Ordering::Release);
    machine::join(processor)?;
    verdict
}

fn call_meanwhile() -> Verdict {
    let controls = [
        (Kind::Space, control(Kind::Space)),
        (Kind::List, list(2)),
        (Kind::SpaceEx, control(Kind::SpaceEx).with_variable_header_words(1)),
        (Kind::ListEx, control(Kind::ListEx).with_variable_header_words(1).with_rep_count(3)),
    ];
    for (kind, control) in controls {
        if offers(kind, Via::Memory).is_err() {
            continue;
        }
        let success = HvResult::of(Status::SUCCESS, control.rep_count());
        let refusals = [Status::INVALID_PARAMETER, Status::INVALID_HYPERCALL_INPUT];
        let (mut calls, mut changed, mut last) = (0, 0, 0);
        // The time limit is reached only if the other processor has stopped for good.
        let end = clock::now() + clock::ticks(1000 * PATIENCE_MS);
        while calls < RACED || changed < CHANGED {
            ensure!(clock::now() < end, "the input of {changed} calls of {calls} has changed");
            let changes = CHANGES.load(Ordering::Relaxed);
            changed += u32::from(core::mem::replace(&mut last, changes) != changes);
            calls += 1;
            let result = call(control, input().address(), 0);
            let is_refused = refusals.iter().any(|status| result == Ok(HvResult::of(*status, 0)));
            ensure!(is_refused || result == Ok(success), "{kind:?} with changing input: {result:x?}");
        }
    }
    Ok(())
}

/// Number of calls that are compared, and of words that registers hold.
const COMPARED: u32 = 1500;
const FAST_WORDS: usize = 14;

/// The same input in memory and in registers has the same result (H16).
pub(super) fn xmm_differs() -> Verdict {
    offers(Kind::Space, Via::Xmm)?;
    let mut random = Random::new(0xfa57);
    let mut succeeded = 0;
    for number in 0..COMPARED {
        let code = random.one_of([2, 3, 0x13, 0x14]);
        let is_list = matches!(code, 3 | 0x14);
        let control = Control::new()
            .with_call_code(code as u16)
            .with_variable_header_words(
                if code >= 0x13 { random.below(4) } else { random.below(16) / 15 } as u16
            )
            .with_rep_count(if is_list { random.below(7) } else { random.below(16) / 15 } as u16)
            .with_rep_start((random.below(16) / 12) as u16);
        let mut words = [0; FAST_WORDS];
        words.iter_mut().for_each(|word| *word = random.word() & random.word());
        // Nearly valid, otherwise the calls would all fail.
        words[1] = random.below(20);
        if code >= 0x13 {
            words[2..4].copy_from_slice(&[random.one_of([0, 0, 0, 1, 2]), random.one_of([0, 1, 3, 7])]);
        }
        let slow = call_with(control, &words);
        let fast = call_with(control.with_fast(true), &words);
        let word = control.into_bits();
        ensure!(slow == fast, "call {number}, {word:#x}: {slow:x?} by memory, {fast:x?} by registers");
        succeeded += u32::from(slow.is_ok_and(|result| result.status() == Status::SUCCESS));
    }
    ensure!(succeeded > COMPARED / 20, "only {succeeded} of {COMPARED} calls went through");
    Ok(())
}
