//! System registers by their architectural names.

macro_rules! read {
    ($($name:literal)+) => {{
        let value: u64;
        // SAFETY: reading the registers that are named here changes nothing that the compiler knows
        // of. Not `pure`: some registers change on their own, and reading one acknowledges an
        // interrupt.
        #[allow(unused_unsafe, reason = "it may be used among unsafe operations")]
        unsafe {
            core::arch::asm!(concat!("mrs {}, ", $($name),+), out(reg) value, options(nostack, preserves_flags));
        }
        value
    }};
}

/// Writes a system register. The caller must argue any consequences beyond the register's value.
macro_rules! write {
    ($name:expr, $value:expr) => {{
        let value: u64 = $value;
        core::arch::asm!(concat!("msr ", $name, ", {}"), in(reg) value, options(nostack, preserves_flags));
    }};
}

pub(crate) use {read, write};

/// Makes earlier writes to system registers take effect before what follows.
#[inline(always)]
pub(crate) fn isb() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("isb", options(nostack, preserves_flags)) };
}

/// Earlier stores are complete, also for devices, before what follows.
pub(crate) fn dsb_st() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb st", options(nostack, preserves_flags)) };
}

/// Earlier loads are complete, also those of devices' registers, before what follows.
pub(crate) fn dsb_ld() {
    // SAFETY: a barrier.
    unsafe { core::arch::asm!("dsb ld", options(nostack, preserves_flags)) };
}
