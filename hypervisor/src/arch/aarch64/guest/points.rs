//! Breakpoints and watchpoints in the processor: loaded only while a guest uses them.

use crate::arch::aarch64::sysreg::{isb, write};
use crate::arm64::vcpu::debug::{Counts, Debug};

macro_rules! write_points {
    ($points:expr, $count:expr, $value:literal, $control:literal, $($n:literal)*) => {
        $(
            if $n < $count {
                // SAFETY: the ID register says that it exists. It belongs to the guest: EL2 takes
                // no debug exceptions, because the guest's are taken to EL1 (MDCR_EL2.TDE = 0).
                unsafe {
                    write!(concat!("dbg", $value, stringify!($n), "_el1"), $points[$n].value);
                    write!(concat!("dbg", $control, stringify!($n), "_el1"), $points[$n].control);
                }
            }
        )*
    };
}

#[cold]
pub(in crate::arch::aarch64) fn load(debug: &Debug, counts: Counts, control: u64) {
    write_points!(debug.breakpoints, counts.breakpoints, "bvr", "bcr", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    write_points!(debug.watchpoints, counts.watchpoints, "wvr", "wcr", 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    // SAFETY: the register controls debug exceptions of the guest, and EL2 takes none (above).
    unsafe { write!("mdscr_el1", control) };
    isb();
}

/// Disables all of them: the vCPU leaves the CPU.
#[cold]
pub(in crate::arch::aarch64) fn switch_off() {
    // SAFETY: as in `load`.
    unsafe { write!("mdscr_el1", 0) };
    isb();
}
