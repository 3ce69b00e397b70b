//! The virtual timer, and EL1's physical timer.

use core::sync::atomic::AtomicU32;

use baremetal::aarch64::interrupts;

use super::controller;
use crate::tests::prelude::*;

const VIRTUAL: u32 = 27;
const PHYSICAL: u32 = 30;
/// Number of checks of a register before an interrupt is given up.
const LOOKS_MAX: u32 = 1_000_000;

/// Sets a timer's compare value, and enables it.
macro_rules! set {
    ($value:literal, $control:literal, $at:expr) => {
        // SAFETY: the program's own timer; its interrupt is handled or masked.
        unsafe {
            asm!(
                concat!("msr ", $value, ", {}"), concat!("msr ", $control, ", {}"), "isb",
                in(reg) $at, in(reg) 1_u64, options(nostack, preserves_flags),
            )
        }
    };
}

fn set_virtual(at: u64) {
    set!("cntv_cval_el0", "cntv_ctl_el0", at);
}

fn set_physical(at: u64) {
    set!("cntp_cval_el0", "cntp_ctl_el0", at);
}

fn stop_both() {
    // SAFETY: as above.
    unsafe {
        asm!("msr cntv_ctl_el0, xzr", "msr cntp_ctl_el0, xzr", "isb", options(nostack, preserves_flags))
    };
}

fn physical_now() -> u64 {
    let ticks;
    // SAFETY: reading the counter changes nothing.
    unsafe { asm!("isb", "mrs {}, cntpct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Compare values in the very distant future: a hypervisor that adds to them overflows. A machine
/// that hangs because of that reports nothing any more.
pub(super) fn compare_values(_: &Orders<'_>) -> Verdict {
    for _ in 0..20 {
        for at in [u64::MAX, u64::MAX - 1, 0_u64.wrapping_sub(clock::now()), i64::MAX as u64, 1 << 63] {
            set_virtual(at);
            set_physical(at);
            clock::delay(500);
        }
    }
    ensure!(!controller::is_pending(VIRTUAL), "the virtual timer has gone off");
    stop_both();
    Ok(())
}

/// Waits until its register shows that a timer's interrupt is pending.
fn await_pending(ppi: u32) -> bool {
    (0..LOOKS_MAX).any(|_| controller::is_pending(ppi))
}

/// A timer that is stopped before its interrupt is taken does not interrupt; a later one does.
pub(super) fn stopped_timer(_: &Orders<'_>) -> Verdict {
    controller::enable(PHYSICAL);
    for (ppi, set) in [(VIRTUAL, set_virtual as fn(u64)), (PHYSICAL, set_physical)] {
        for _ in 0..20 {
            let before = interrupts::count(ppi);
            set(0);
            ensure!(await_pending(ppi), "PPI {ppi} does not come");
            stop_both();
            ensure!(!controller::is_pending(ppi), "PPI {ppi} pends, and its timer is stopped");
            interrupts::enable();
            (0..100).for_each(|_| clock::relax());
            interrupts::disable();
            let taken = interrupts::count(ppi).wrapping_sub(before);
            ensure!(taken == 0, "PPI {ppi} was taken {taken} times, and its timer is stopped");
        }
    }
    Ok(())
}

static TAKEN: AtomicU32 = AtomicU32::new(0);

fn on_physical(_: &interrupts::Frame) {
    stop_both();
    TAKEN.fetch_add(1, Ordering::Relaxed);
}

/// The physical timer interrupts at its compare value, and wakes from WFI.
pub(super) fn physical_timer(_: &Orders<'_>) -> Verdict {
    controller::enable(PHYSICAL);
    interrupts::handle(PHYSICAL, Some(on_physical));
    for _ in 0..20 {
        let before = TAKEN.load(Ordering::Relaxed);
        let due = physical_now() + clock::ticks(2000);
        set_physical(due);
        while TAKEN.load(Ordering::Relaxed) == before {
            interrupts::wait();
        }
        let now = physical_now();
        ensure!(now >= due, "it came {} ticks early", due - now);
    }
    interrupts::handle(PHYSICAL, None);
    // Both counters are the same.
    let (first, second, third) = (physical_now(), clock::now(), physical_now());
    ensure!(first <= second && second <= third, "virtual {second:#x}, physical {first:#x} and {third:#x}");
    Ok(())
}
