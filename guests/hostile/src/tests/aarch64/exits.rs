//! Operations that exit, each many times in its own phase, whose instructions QEMU's plugin counts.

use core::sync::atomic::AtomicBool;

use baremetal::aarch64::{gic, interrupts, power};
use hostlink::phase::HINT_FIRST;

use super::controller;
use crate::tests::prelude::*;

/// Repetitions unless the orders say otherwise, and uncounted ones before them.
const REPETITIONS: u64 = 1000;
const WARM_UP: u64 = 100;

/// PSCI_VERSION (DEN 0022F, section 5.1): a call without effect.
const VERSION: u32 = 0x8400_0000;
/// GICD_TYPER (IHI 0069H, section 12.9.38), which no access changes.
const TYPER: u64 = 0x0004;

/// The SGI that the first processor takes, and the one to which the second answers with it.
const TICK: u8 = interrupts::FREE;
const ECHO: u8 = interrupts::FREE + 1;
const SECOND: usize = 1;

/// The virtual timer's interrupt, and how far ahead it is set: until the processor waits.
const TIMER: u32 = 27;
const AHEAD_US: u64 = 100;

/// Begins a phase; phase 0 is everything that is not counted.
#[inline(always)]
fn begin<const PHASE: u32>() {
    // SAFETY: a hint without meaning.
    unsafe { asm!("hint #{}", const HINT_FIRST + PHASE, options(nomem, nostack, preserves_flags)) };
}

/// Performs `operation` often, and `count` times in phase `PHASE`.
#[inline(always)]
fn case<const PHASE: u32>(count: u64, mut operation: impl FnMut()) {
    (0..WARM_UP).for_each(|_| operation());
    begin::<PHASE>();
    (0..count).for_each(|_| operation());
    begin::<0>();
}

/// The phases, by number:
///
/// 1. a hypercall without effect,
/// 2. a read of an identification register,
/// 3. a read of the distributor,
/// 4. an SGI to itself, taken,
/// 5. a timer that expires at once, taken,
/// 6. a wait for an interrupt that a timer ends,
/// 7. an SGI to the other processor, which waits and answers; both wait in WFI.
pub(super) fn exits(orders: &Orders<'_>) -> Verdict {
    let count = orders.count.unwrap_or(REPETITIONS);
    case::<1>(count, || {
        core::hint::black_box(power::call(VERSION, [0; 3]));
    });
    case::<2>(count, || {
        let value: u64;
        // SAFETY: reading changes nothing.
        unsafe { asm!("mrs {}, id_aa64pfr0_el1", out(reg) value, options(nostack, preserves_flags)) };
        core::hint::black_box(value);
    });
    case::<3>(count, || {
        core::hint::black_box(controller::read(TYPER));
    });
    own_interrupts(count)?;
    round_trip(count);
    Ok(())
}

fn own_interrupts(count: u64) -> Verdict {
    let (own, tick) = (gic::affinity(), u32::from(TICK));
    let before = [tick, TIMER].map(interrupts::count);
    interrupts::enable();
    case::<4>(count, || gic::send(own, TICK));
    case::<5>(count, || clock::set_timer(0));
    interrupts::disable();
    let taken = [tick, TIMER].map(interrupts::count);
    let taken = [0, 1].map(|which| u64::from(taken[which].wrapping_sub(before[which])));
    let all = WARM_UP + count;
    ensure!(taken == [all; 2], "{taken:?} SGIs and timers instead of {all} each");
    case::<6>(count, || {
        let before = interrupts::count(TIMER);
        clock::set_timer(AHEAD_US);
        while interrupts::count(TIMER) == before {
            interrupts::wait();
        }
    });
    Ok(())
}

static ECHO_ENDS: AtomicBool = AtomicBool::new(false);

fn on_echo(_: &interrupts::Frame) {
    gic::send(processors::id(0), TICK);
}

fn round_trip(count: u64) {
    interrupts::handle(u32::from(ECHO), Some(on_echo));
    processors::give(SECOND, |_| {
        // Pairs with the store below.
        while !ECHO_ENDS.load(Ordering::Acquire) {
            interrupts::wait();
        }
    });
    let second = processors::id(SECOND);
    case::<7>(count, || {
        let before = interrupts::count(u32::from(TICK));
        gic::send(second, ECHO);
        while interrupts::count(u32::from(TICK)) == before {
            interrupts::wait();
        }
    });
    // Pairs with the load above. One more interrupt ends its wait.
    ECHO_ENDS.store(true, Ordering::Release);
    processors::wake(SECOND);
    machine::await_end(SECOND);
}
