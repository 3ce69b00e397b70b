//! The handlers of interrupts, by number: a vector, or an INTID.

use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use crate::arch::interrupts::Frame;

const NUMBERS: usize = 256;

/// Number of interrupts of each number. A waiter runs on the same processor as the handlers, or
/// sees the count eventually.
static COUNTS: [AtomicU32; NUMBERS] = [const { AtomicU32::new(0) }; NUMBERS];

/// The handler of each: the address of a `fn(&Frame)`, or 0.
static HANDLERS: [AtomicUsize; NUMBERS] = [const { AtomicUsize::new(0) }; NUMBERS];

/// The handler of exceptions without another handler: the address of a `fn(&mut Frame) -> bool`, or
/// 0.
static CATCHER: AtomicUsize = AtomicUsize::new(0);

/// How often an interrupt of this number has been taken, by all processors.
pub fn count(number: usize) -> u32 {
    // Pairs with `tally`.
    COUNTS.get(number).map_or(0, |count| count.load(Ordering::Acquire))
}

/// Sets or removes the handler of an interrupt.
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

/// Calls the handler of an interrupt, if there is one.
pub(crate) fn run(number: usize, frame: &Frame) {
    // Pairs with `handle`.
    let handler = HANDLERS.get(number).map_or(0, |handler| handler.load(Ordering::Acquire));
    if handler != 0 {
        // SAFETY: `handle` stored it, and nothing else does.
        unsafe { core::mem::transmute::<usize, fn(&Frame)>(handler)(frame) };
    }
}

/// Sets the handler of exceptions without another handler. It returns whether the program can
/// continue where the frame says.
pub fn catch(catcher: fn(&mut Frame) -> bool) {
    // Pairs with `catches`.
    CATCHER.store(catcher as usize, Ordering::Release);
}

/// Whether there is a handler that has handled it.
pub(crate) fn catches(frame: &mut Frame) -> bool {
    // Pairs with `catch`.
    match CATCHER.load(Ordering::Acquire) {
        0 => false,
        // SAFETY: `catch` stored it, and nothing else does.
        address => unsafe { core::mem::transmute::<usize, fn(&mut Frame) -> bool>(address)(frame) },
    }
}
