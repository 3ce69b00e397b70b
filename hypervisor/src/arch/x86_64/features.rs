//! Features of the processor, whatever virtualizes it.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::cx16;
use crate::arch::Local;
use crate::x86::cpuid;

static TSC_AUX: AtomicBool = AtomicBool::new(false);
/// Bits of CPUID leaf 1's ECX that this machine has but implements incorrectly.
static WRONG: AtomicU32 = AtomicU32::new(0);

/// CPUID leaf 1, ECX: CMPXCHG16B.
const CX16: u32 = 1 << 13;

pub(crate) fn has_tsc_aux() -> bool {
    TSC_AUX.load(Ordering::Relaxed)
}

/// Bits of CPUID leaf 1's ECX that guests are not shown because the machine implements the feature
/// incorrectly.
pub(crate) fn wrong() -> u32 {
    WRONG.load(Ordering::Relaxed)
}

/// Looks at the machine's features. Call on the boot CPU.
pub(crate) fn probe() {
    TSC_AUX.store(cpuid::host_has_rdtscp::<Local>(), Ordering::Relaxed);
    if __cpuid(1).ecx & CX16 != 0 && !cx16::leaves_flags() {
        log::info!("CMPXCHG16B damages the flags on this machine: guests are not shown it");
        WRONG.store(CX16, Ordering::Relaxed);
    }
}
