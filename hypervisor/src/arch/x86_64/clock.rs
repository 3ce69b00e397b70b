//! Time: the TSC's and the APIC timer's frequencies, and the one-shot timer.

use baremetal::pm_timer;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use x86_64::instructions::port::Port;
use x86_64::registers::model_specific::Msr;

use super::apic;
use crate::arch::Local;
use crate::devices::pc::cmos::{self, Fields};
use crate::vm::arch::Clock;
use crate::x86::vectors;

const MSR_TSC_DEADLINE: u32 = 0x6e0;

static TSC_HZ: AtomicU64 = AtomicU64::new(0);
/// APIC timer ticks per 2^32 TSC ticks.
static APIC_PER_TSC: AtomicU64 = AtomicU64::new(0);
static TSC_DEADLINE: AtomicBool = AtomicBool::new(false);

/// The calling CPU's time stamp counter. All CPUs' counters are in step.
pub(crate) fn now() -> u64 {
    // SAFETY: reading the TSC has no side effect.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// TSC ticks per second.
pub(crate) fn hz() -> u64 {
    TSC_HZ.load(Ordering::Relaxed)
}

pub(crate) fn delay_us(us: u64) {
    let end = now() + Local::ticks_of_us(us);
    while now() < end {
        core::hint::spin_loop();
    }
}

/// Measures TSC and APIC timer against the power management timer at I/O port `port`.
pub(crate) fn calibrate(port: u16, has_tsc_deadline: bool) -> Result<(), &'static str> {
    let mut port = Port::<u32>::new(port);
    // SAFETY: ACPI says that this is the timer's port; reading it has no effect.
    let read = || unsafe { port.read() };
    apic::set_timer_ticks(u32::MAX);
    // The APIC's timer counts down.
    let measured = pm_timer::measure(read, || [now(), (u32::MAX - apic::timer_ticks()).into()]);
    apic::set_timer_ticks(0);
    let measured = measured.ok_or("the power management timer or the APIC timer does not count")?;
    let [tsc, apic] = measured.passed;
    let [tsc_hz, _] = measured.hz();
    TSC_HZ.store(tsc_hz, Ordering::Relaxed);
    APIC_PER_TSC.store((apic << 32) / tsc, Ordering::Relaxed);
    TSC_DEADLINE.store(has_tsc_deadline, Ordering::Relaxed);
    Ok(())
}

/// The time of the machine's clock, in seconds since the beginning of 1970.
pub(crate) fn date() -> Option<u64> {
    let (mut index, mut data) = (Port::<u8>::new(cmos::INDEX), Port::<u8>::new(cmos::DATA));
    let read = |byte| {
        // SAFETY: the ports are the clock's, or unused; reading bytes of the time changes nothing.
        // Bit 7 leaves NMIs as they are at reset.
        unsafe {
            index.write(byte);
            data.read()
        }
    };
    let (fields, status) = Fields::read(read, Some(cmos::CENTURY))?;
    fields.unix(status)
}

pub(crate) fn init_cpu() {
    apic::unmask_timer(vectors::TIMER, TSC_DEADLINE.load(Ordering::Relaxed));
}

/// Sets the calling CPU's timer to fire at `deadline`; `now` is the current time. `u64::MAX` stops
/// it.
pub(crate) fn arm_timer(deadline: u64, now: u64) {
    if TSC_DEADLINE.load(Ordering::Relaxed) {
        // SAFETY: CPUID says that the MSR exists.
        unsafe { Msr::new(MSR_TSC_DEADLINE).write(deadline.max(1)) };
        return;
    }
    let wait = deadline.saturating_sub(now);
    let ticks = (u128::from(wait) * u128::from(APIC_PER_TSC.load(Ordering::Relaxed))) >> 32;
    // Zero would stop the timer; a wait that exceeds its range ends early, and the timer is set
    // again.
    apic::set_timer_ticks(ticks.clamp(1, u128::from(u32::MAX)) as u32);
}
