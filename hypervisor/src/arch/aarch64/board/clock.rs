//! Time: the generic timer's physical count, and EL2's physical timer as the one-shot timer.
//!
//! Source: Arm DDI 0487, D12 "The Generic Timer".

use core::sync::atomic::{AtomicU64, Ordering};

use crate::arch::aarch64::sysreg::{isb, read, write};

static HZ: AtomicU64 = AtomicU64::new(0);

/// The system counter. All CPUs see the same.
#[inline(always)]
pub(crate) fn now() -> u64 {
    // Not earlier than the preceding instructions.
    isb();
    read!("cntpct_el0")
}

pub(crate) fn hz() -> u64 {
    HZ.load(Ordering::Relaxed)
}

pub(crate) fn init() -> Result<(), &'static str> {
    let hz = read!("cntfrq_el0") & 0xffff_ffff;
    if hz < 1_000_000 {
        return Err("the firmware says no frequency of the system counter (CNTFRQ_EL0)");
    }
    HZ.store(hz, Ordering::Relaxed);
    Ok(())
}

/// The time of the PL031 whose registers are at `base`, in seconds since the beginning of 1970 (Arm
/// DDI 0224C, section 3.3.1).
pub(crate) fn date(base: u64) -> u64 {
    // SAFETY: the base is that of a PL031 in the device tree, mapped as device memory; reading its
    // time changes nothing.
    u64::from(unsafe { (base as *const u32).read_volatile() })
}

/// Turns the calling CPU's timers off.
pub(crate) fn init_cpu() {
    // SAFETY: EL2's physical timer is the hypervisor's. The other two are guests', and no guest has
    // run on this CPU yet.
    unsafe {
        write!("cnthp_ctl_el2", 0);
        write!("cntv_ctl_el0", 2);
        write!("cntp_ctl_el0", 2);
    }
    isb();
}

/// Sets the calling CPU's timer to fire at `deadline`; `u64::MAX` stops it.
pub(crate) fn arm_timer(deadline: u64, _now: u64) {
    // SAFETY: EL2's physical timer is the hypervisor's.
    unsafe {
        if deadline == u64::MAX {
            write!("cnthp_ctl_el2", 0);
        } else {
            write!("cnthp_cval_el2", deadline);
            write!("cnthp_ctl_el2", 1);
        }
    }
}

/// The calling CPU's timer fired: turns it off, because its interrupt stays asserted until then.
pub(crate) fn quiet_timer() {
    // SAFETY: as above.
    unsafe { write!("cnthp_ctl_el2", 0) };
    isb();
}
