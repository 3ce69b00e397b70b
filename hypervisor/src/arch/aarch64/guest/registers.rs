//! The guest's registers in the processor, by name.

use crate::arch::aarch64::sysreg::{isb, read, write};
use crate::arm64::vcpu::exchanged::Register;

macro_rules! access {
    (
        $(
            $(#[$doc:meta])*
            $group:ident $list:ident { $($variant:ident $field:ident $name:literal $reset:expr,)* }
        )*
        { $($alone:ident $alone_name:literal,)* }
    ) => {
        /// Reads a register: one instruction, if `register` is a constant.
        #[inline(always)]
        pub(in crate::arch::aarch64) fn get(register: Register) -> u64 {
            match register {
                $($(Register::$variant => read!($name),)*)*
                $(Register::$alone => read!($alone_name),)*
            }
        }

        /// Writes a register: one instruction, if `register` is a constant.
        #[inline(always)]
        pub(in crate::arch::aarch64) fn set(register: Register, value: u64) {
            // SAFETY: registers of EL1 and EL0, or their virtual counterparts for the guest; the
            // hypervisor uses none. Optional registers are written where the ID registers say that
            // they exist.
            unsafe {
                match register {
                    $($(Register::$variant => write!($name, value),)*)*
                    $(Register::$alone => write!($alone_name, value),)*
                }
            }
        }
    };
}

for_each_register!(access);

/// Translates by the guest's stage 1, for a read at EL1 or EL0: PAR_EL1.
pub(in crate::arch::aarch64) fn translate(address: u64, at_el0: bool) -> u64 {
    let saved = read!("par_el1");
    // SAFETY: AT changes PAR_EL1 alone, which is restored. It translates by the guest's registers,
    // which EL2 does not use.
    unsafe {
        if at_el0 {
            core::arch::asm!("at s1e0r, {}", in(reg) address, options(nostack, preserves_flags));
        } else {
            core::arch::asm!("at s1e1r, {}", in(reg) address, options(nostack, preserves_flags));
        }
        isb();
        let result = read!("par_el1");
        write!("par_el1", saved);
        result
    }
}

/// The processor's ID register S3_0_C0_C`crm`_`op2`. Registers that do not exist read as 0.
#[inline(always)] // Into the exit's handler.
pub(in crate::arch::aarch64) fn identification(crm: u32, op2: u32) -> u64 {
    macro_rules! table {
        ($($crm:literal $row:literal,)*) => {
            match (crm, op2) {
                $(
                    ($crm, 0) => read!($row "0"),
                    ($crm, 1) => read!($row "1"),
                    ($crm, 2) => read!($row "2"),
                    ($crm, 3) => read!($row "3"),
                    ($crm, 4) => read!($row "4"),
                    ($crm, 5) => read!($row "5"),
                    ($crm, 6) => read!($row "6"),
                    ($crm, 7) => read!($row "7"),
                )*
                (0, 6) => read!("revidr_el1"),
                _ => 0,
            }
        };
    }
    table! {
        1 "s3_0_c0_c1_",
        2 "s3_0_c0_c2_",
        3 "s3_0_c0_c3_",
        4 "s3_0_c0_c4_",
        5 "s3_0_c0_c5_",
        6 "s3_0_c0_c6_",
        7 "s3_0_c0_c7_",
    }
}
