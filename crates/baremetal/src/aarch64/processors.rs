//! The processors: start them, give them jobs.

use core::mem::MaybeUninit;

use super::interrupts::{self, WAKE};
use super::{boot, clock, gic, power};
use crate::HardwareId;
use crate::processors::{self as all, PATIENCE_MS};
pub use crate::processors::{Job, MAX_PROCESSORS, give, id, is_busy, join, number_all, runs, set_id};

/// Bytes of each stack; `boot.rs` multiplies by it.
#[doc(hidden)]
pub const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
#[doc(hidden)]
pub struct Stack(MaybeUninit<[u8; STACK_SIZE]>);

/// By number; the first processor's is not used. The entry does not clear them: that would touch
/// all of this memory.
#[unsafe(link_section = ".bss.uninitialised")]
#[doc(hidden)]
pub static mut STACKS: [Stack; MAX_PROCESSORS] = [const { Stack(MaybeUninit::uninit()) }; MAX_PROCESSORS];

/// Lets the calling processor, the first one, take interrupts, and numbers the others in device
/// tree order; starts none. Returns how many there are.
///
/// # Panics
///
/// There is no interrupt controller that answers.
pub fn find(affinities: &[HardwareId]) -> usize {
    if let Err(why) = gic::enable_distributor().and_then(|()| gic::enable()) {
        panic!("{why}");
    }
    number_all(gic::affinity(), affinities.iter().copied())
}

/// Starts processor `number`, from 1 on, if it does not run already; returns whether it runs.
pub fn start(number: usize) -> bool {
    if runs(number) {
        return true;
    }
    // It begins with the MMU off, bypassing the caches: until the MMU is on, it needs only
    // registers and code.
    let started = power::cpu_on(id(number), boot::other_entry_address(), number as u64);
    started.is_ok() && clock::wait_until(PATIENCE_MS, || runs(number))
}

/// Wakes processor `number`, if it waits for an interrupt.
pub fn wake(number: usize) {
    gic::send(id(number), WAKE);
}

/// Entry of a processor other than the first one.
#[doc(hidden)]
pub extern "C" fn other(number: usize) -> ! {
    // SAFETY: this is the processor with that number, which runs this once.
    unsafe { interrupts::load(number) };
    if let Err(why) = gic::enable() {
        panic!("processor {number}: {why}");
    }
    // Interrupts are masked except while it waits.
    all::work(number, || {}, interrupts::wait)
}
