//! Interrupts must each be delivered once.
//!
//! QEMU delivers the event in EVENTINJ, and keeps it noted until the next exit or exception. If its
//! loop over translated code ends for another reason before that, it delivers the interrupt again
//! (`docs/qemu.md`). Where time is counted in instructions that reason is a timer: so one fires at
//! a random place in a handler that exits late.

use super::prelude::*;
use crate::hypercall::call_that_only_returns;
use crate::interrupts::{SLOW_INSTRUCTIONS, VECTOR_SLOW, VECTOR_TICK};

/// Number of interrupts, unless the command line sets it.
static INTERRUPTS: AtomicU32 = AtomicU32::new(20_000);

/// Number of interrupts for each timer that fires: each takes the emulator milliseconds.
const TIMER_EVERY: u32 = 50;

/// Number of exits after which an interrupt in flight has arrived.
const EXITS_MAX: u32 = 1000;

pub(super) fn set_count(count: u32) {
    INTERRUPTS.store(count, Ordering::Relaxed);
}

/// Each interrupt arrives once, whether it is sent with interrupts on, off, or before a HLT.
pub(super) fn interrupts_once() -> Verdict {
    hypercall::enable()?;
    apic::write(apic::LVT_TIMER, LVT_TSC_DEADLINE | u64::from(VECTOR_TICK));
    let verdict = send_and_count();
    interrupts::disable();
    apic::write(apic::LVT_TIMER, LVT_MASKED);
    verdict
}

fn send_and_count() -> Verdict {
    let before = count(VECTOR_SLOW);
    let taken = || count(VECTOR_SLOW).wrapping_sub(before);
    let total = INTERRUPTS.load(Ordering::Relaxed);
    let mut random = Random::new(0x0ce);
    for number in 1..=total {
        interrupts::disable();
        if number % TIMER_EVERY == 0 {
            let end = clock::now() + random.below(4 * u64::from(SLOW_INSTRUCTIONS));
            apic::write(apic::TSC_DEADLINE, end);
        }
        if number % 3 == 0 {
            interrupts::enable();
        }
        apic::write(apic::SELF_IPI, u64::from(VECTOR_SLOW));
        match number % 3 {
            1 => interrupts::enable_and_hlt(),
            _ => interrupts::enable(),
        }
        let mut exits = 0;
        while taken() < number && exits < EXITS_MAX {
            call_that_only_returns();
            exits += 1;
        }
        ensure!(taken() == number, "of {number} interrupts that were sent {} have come", taken());
    }
    // A duplicate may arrive later.
    for _ in 0..EXITS_MAX {
        call_that_only_returns();
    }
    ensure!(taken() == total, "in the end {} interrupts of {total} have come", taken());
    Ok(())
}
