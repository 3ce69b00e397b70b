//! Time by the TSC.

use core::arch::x86_64::{__cpuid, _rdtsc};
use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::port::Port;

pub use crate::clock::{delay, nanoseconds, ticks, wait_until};

/// Frequency of ACPI's power management timer (ACPI 6.5, section 4.8.2.4), and the bits that every
/// such timer has.
const PM_TIMER_HZ: u64 = 3_579_545;
const PM_TIMER_MASK: u32 = 0xff_ffff;
/// Length of the measurement: 20 ms.
const MEASURED_TICKS: u32 = (PM_TIMER_HZ / 50) as u32;
/// Reads of the timer before it is declared dead.
const TRIES: u32 = 1 << 26;
/// The assumed rate of the TSC if nothing reports it.
const HZ_DEFAULT: u64 = 1_000_000_000;

static HZ: AtomicU64 = AtomicU64::new(HZ_DEFAULT);

/// Ticks since an arbitrary start. Waits until all earlier loads are done (LFENCE before RDTSC; APM
/// volume 3, "RDTSC").
#[inline(always)]
pub fn now() -> u64 {
    // SAFETY: every AMD64 processor has both, and CR4.TSD is clear.
    unsafe {
        core::arch::x86_64::_mm_lfence();
        _rdtsc()
    }
}

/// Ticks per second, as far as known.
pub fn hz() -> u64 {
    HZ.load(Ordering::Relaxed)
}

/// Sets the number of ticks per second.
pub fn set_hz(hz: u64) {
    HZ.store(hz.max(1_000_000), Ordering::Relaxed);
}

/// The TSC's frequency according to CPUID leaf 0x15 (Intel SDM volume 2A, CPUID), if reported.
pub fn hz_by_cpuid() -> Option<u64> {
    const LEAF: u32 = 0x15;
    if __cpuid(0).eax < LEAF {
        return None;
    }
    let leaf = __cpuid(LEAF);
    let hz = u64::from(leaf.ecx) * u64::from(leaf.ebx) / u64::from(leaf.eax.max(1));
    (hz != 0).then_some(hz)
}

/// Measures the TSC by the power management timer at I/O port `port`; `None` if the timer does not
/// count.
pub fn hz_by_pm_timer(port: u16) -> Option<u64> {
    let mut timer = Port::<u32>::new(port);
    // SAFETY: ACPI says that this is the timer's port; reading it has no effect.
    let mut read = || unsafe { timer.read() };
    let (start, begin) = (read(), now());
    for _ in 0..TRIES {
        let (ticks, end) = (read().wrapping_sub(start) & PM_TIMER_MASK, now());
        if ticks >= MEASURED_TICKS {
            return Some((u128::from(end - begin) * u128::from(PM_TIMER_HZ) / u128::from(ticks)) as u64);
        }
    }
    None
}

/// Hints that the processor waits for another one.
#[inline(always)]
pub fn relax() {
    core::hint::spin_loop();
}
