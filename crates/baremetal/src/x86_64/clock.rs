//! Time by the TSC.

use core::arch::x86_64::{__cpuid, _rdtsc};
use core::sync::atomic::{AtomicU64, Ordering};

use x86_64::instructions::port::Port;

use crate::pm_timer;

pub use crate::clock::{delay, nanoseconds, ticks, wait_until};

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
    let read = || unsafe { timer.read() };
    let [hz] = pm_timer::measure(read, || [now()])?.hz();
    Some(hz)
}

/// Hints that the processor waits for another one.
#[inline(always)]
pub fn relax() {
    core::hint::spin_loop();
}
