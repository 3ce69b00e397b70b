//! What keeps a hypervisor busy for ever. Nothing here comes back: the host asks the hypervisor meanwhile.

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use tlfs::msr::{self, StimerConfig};

use crate::apic::{self, LVT_PERIODIC};
use crate::guarded::wrmsr;
use crate::interrupts::VECTOR_TEST;
use crate::report::{self, Verdict, ensure};
use crate::{clock, hypercall, processors};

/// Within this time all processors have begun.
const PATIENCE_MS: u64 = 10_000;

/// Processors that halt with interrupts off.
static HALTED: AtomicU32 = AtomicU32::new(0);

/// All processors halt with interrupts off, their timers expired and about to expire again: each is woken for nothing.
pub(super) fn halted_timers() -> Verdict {
    hypercall::enable()?;
    let others = processors::count() - 1;
    for id in 1..=others {
        processors::start(id)?;
    }
    (1..=others).for_each(|id| processors::give(id, halt_for_ever));
    clock::wait_until(PATIENCE_MS, || HALTED.load(Ordering::Relaxed) == others);
    ensure!(HALTED.load(Ordering::Relaxed) == others, "not all processors have begun");
    report::event("ready");
    halt_for_ever();
    Ok(())
}

fn halt_for_ever() {
    /// 50 µs in units of 100 ns.
    const PERIOD: u64 = 500;
    const TIMERS: u32 = 4;
    apic::write(apic::LVT_TIMER, LVT_PERIODIC | u64::from(VECTOR_TEST));
    apic::write(apic::DIVIDE, 0b1011);
    apic::write(apic::INITIAL_COUNT, 1);
    let config = StimerConfig::new().with_enable(true).with_periodic(true).with_direct_mode(true);
    let config = config.with_apic_vector(VECTOR_TEST + 1).into_bits();
    for timer in 0..TIMERS {
        // SAFETY: the vector has a handler, and interrupts are off for ever.
        let _ = unsafe {
            wrmsr(msr::STIMER0_COUNT + 2 * timer, PERIOD)
                .and_then(|()| wrmsr(msr::STIMER0_CONFIG + 2 * timer, config))
        };
    }
    HALTED.fetch_add(1, Ordering::Relaxed);
    loop {
        // SAFETY: waits for what never comes.
        unsafe { asm!("cli", "hlt", options(nomem, nostack)) };
    }
}
