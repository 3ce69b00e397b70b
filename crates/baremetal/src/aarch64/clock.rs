//! Time by the virtual counter, and its timer. DDI 0487 M.b, D12 "The Generic Timer".

use core::arch::asm;
use core::sync::atomic::{AtomicU32, Ordering};

use arm_sysregs::el0::accessors::{read_cntfrq_el0, write_cntv_ctl_el0, write_cntv_cval_el0};
use arm_sysregs::el0::registers::{CntvCtlEl0, CntvCvalEl0};

pub use crate::clock::{delay, nanoseconds, ticks, wait_until};

/// Written before there are interrupts.
static VIRTUAL_TIMER: AtomicU32 = AtomicU32::new(crate::devicetree::VIRTUAL_TIMER);

/// INTID of the virtual timer.
pub fn virtual_timer() -> u32 {
    VIRTUAL_TIMER.load(Ordering::Relaxed)
}

/// Sets it.
pub(super) fn set_virtual_timer(id: u32) {
    VIRTUAL_TIMER.store(id, Ordering::Relaxed);
}

/// Ticks since an arbitrary start. Waits until all earlier instructions are done.
#[inline(always)]
pub fn now() -> u64 {
    let ticks;
    // SAFETY: reading the counter changes nothing.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Ticks per second.
pub fn hz() -> u64 {
    (read_cntfrq_el0().bits() & 0xffff_ffff).max(1_000_000)
}

/// Hints that the processor waits for another one: an emulator that runs one at a time switches to
/// the next.
#[inline(always)]
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
}

/// Makes the calling processor's virtual timer raise its interrupt in `us` microseconds, until it
/// is set again or stopped.
pub fn set_timer(us: u64) {
    write_cntv_cval_el0(CntvCvalEl0::from_bits_retain(now().wrapping_add(ticks(us))));
    write_cntv_ctl_el0(CntvCtlEl0::ENABLE);
}

/// Stops the calling processor's virtual timer.
pub fn stop_timer() {
    write_cntv_ctl_el0(CntvCtlEl0::empty());
}
