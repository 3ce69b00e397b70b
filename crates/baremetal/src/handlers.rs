//! What is done on each interrupt beyond ending it, by its number: a vector, or an INTID.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arch::interrupts::Frame;

const NUMBERS: usize = 256;

/// How many interrupts of each number there were. Handlers and those who wait run on one processor,
/// or the waiting one sees the count some time.
static COUNTS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// What is done on each beyond counting: the address of a `fn(&Frame)`, or 0.
static HANDLERS: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];

/// What is asked about exceptions that nothing else is for: the address of a `fn(&mut Frame) ->
/// bool`, or 0.
static CATCHER: AtomicUsize = AtomicUsize::new(0);

/// How often an interrupt of this number has been taken, by all processors.
pub fn count(number: usize) -> u32 {
    // Pairs with `tally`.
    COUNTS.get(number).map_or(0, |count| count.load(Ordering::Acquire))
}

/// Has `handler` called on an interrupt of this number, or nothing any more.
pub fn handle(number: usize, handler: Option<fn(&Frame)>) {
    if let Some(slot) = HANDLERS.get(number) {
        // Pairs with `run`.
        slot.store(handler.map_or(0, |handler| handler as usize), Ordering::Release);
    }
}

/// Counts an interrupt of this number.
pub(crate) fn tally(number: usize) {
    if let Some(count) = COUNTS.get(number) {
        // Pairs with `count`.
        count.fetch_add(1, Ordering::AcqRel);
    }
}

/// Calls what is to be called on an interrupt of this number.
pub(crate) fn run(number: usize, frame: &Frame) {
    // Pairs with `handle`.
    let handler = HANDLERS.get(number).map_or(0, |handler| handler.load(Ordering::Acquire));
    if handler != 0 {
        // SAFETY: `handle` stored it, and nothing else does.
        unsafe { core::mem::transmute::<usize, fn(&Frame)>(handler)(frame) };
    }
}

/// Has `catcher` called on exceptions that nothing else is for. It says whether the program can go
/// on where the frame says.
pub fn catch(catcher: fn(&mut Frame) -> bool) {
    // Pairs with `catches`.
    CATCHER.store(catcher as usize, Ordering::Release);
}

/// Whether somebody knows what to do about it, and has done it.
pub(crate) fn catches(frame: &mut Frame) -> bool {
    // Pairs with `catch`.
    match CATCHER.load(Ordering::Acquire) {
        0 => false,
        // SAFETY: `catch` stored it, and nothing else does.
        address => unsafe { core::mem::transmute::<usize, fn(&mut Frame) -> bool>(address)(frame) },
    }
}
