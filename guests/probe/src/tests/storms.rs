//! Activities that keep a hypervisor busy. A test that does not return announces itself first: the
//! host sends requests to the hypervisor meanwhile.

use core::arch::asm;

use tlfs::msr::StimerConfig;

use super::prelude::*;
use crate::apic::LVT_PERIODIC;
use crate::report;

static HALTED: AtomicU32 = AtomicU32::new(0);

/// All halt with interrupts off, timers expired and about to again: each is woken for nothing.
pub(super) fn halted_timers() -> Verdict {
    hypercall::enable()?;
    let others = processors::count() - 1;
    (1..=others).try_for_each(processors::start)?;
    (1..=others).for_each(|id| processors::give(id, halt_for_ever));
    let begun = clock::wait_until(PATIENCE_MS, || HALTED.load(Ordering::Relaxed) as usize == others);
    ensure!(begun, "not all processors have begun");
    report::event("ready");
    halt_for_ever(0);
    Ok(())
}

fn halt_for_ever(_: usize) {
    /// 50 µs in units of 100 ns.
    const PERIOD: u64 = 500;
    const TIMERS: u32 = 4;
    apic::write(apic::LVT_TIMER, LVT_PERIODIC | u64::from(VECTOR_TEST));
    apic::write(apic::DIVIDE, 0b1011);
    apic::write(apic::INITIAL_COUNT, 1);
    let config = StimerConfig::new().with_enable(true).with_periodic(true).with_direct_mode(true);
    let config = config.with_apic_vector(VECTOR_TEST + 1).into_bits();
    for timer in 0..TIMERS {
        // SAFETY: the vector has a handler, and interrupts are off forever.
        let _ = unsafe {
            wrmsr(msr::STIMER0_COUNT + 2 * timer, PERIOD)
                .and_then(|()| wrmsr(msr::STIMER0_CONFIG + 2 * timer, config))
        };
    }
    HALTED.fetch_add(1, Ordering::Relaxed);
    loop {
        // SAFETY: waits for an interrupt that never arrives.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}

pub(super) fn reset_storm() -> Verdict {
    report::event("ready");
    baremetal::x86_64::power::reset();
    Err(report::failure(format_args!("there was no reset")))
}

/// A text of many short lines, each byte of which takes four bytes to print.
static TEXT: [[u8; 2]; 2048] = [[1, b'\n']; 2048];

/// Continual crash reports do no harm; the host checks the size of the log.
pub(super) fn crash_reports() -> Verdict {
    const REPORTS: u32 = 200;
    hypercall::enable()?;
    let text =
        [(msr::CRASH_P0 + 3, (&raw const TEXT).addr() as u64), (msr::CRASH_P4, size_of_val(&TEXT) as u64)];
    for _ in 0..REPORTS {
        for (number, value) in text.into_iter().chain([(msr::CRASH_CTL, 3 << 62)]) {
            // SAFETY: the text is only read.
            let written = unsafe { wrmsr(number, value) };
            ensure!(written.is_ok(), "{number:#x} cannot be written: {written:?}");
        }
    }
    Ok(())
}
