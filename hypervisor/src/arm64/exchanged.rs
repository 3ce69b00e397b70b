//! The registers of EL1 and EL0 that a vCPU takes along: everything that a guest can write without a trap.
//!
//! What else it takes along is not in this list because it is handled apart: TCR_EL1, both timers, the virtual CPU
//! interface, floating point, and the debug registers, which are in the processor while they are in use only.

/// Those that every processor has, with what they are after reset (Arm DDI 0487, D24.2).
macro_rules! common_registers {
    ($callback:ident, $(#[$doc:meta])* $name:ident) => {
        $callback! {
            $(#[$doc])*
            $name {
                sctlr = "sctlr_el1": 0x30d0_0800,
                cpacr = "cpacr_el1": 0,
                ttbr0 = "ttbr0_el1": 0,
                ttbr1 = "ttbr1_el1": 0,
                esr = "esr_el1": 0,
                afsr0 = "afsr0_el1": 0,
                afsr1 = "afsr1_el1": 0,
                far = "far_el1": 0,
                mair = "mair_el1": 0,
                amair = "amair_el1": 0,
                vbar = "vbar_el1": 0,
                contextidr = "contextidr_el1": 0,
                tpidr = "tpidr_el1": 0,
                tpidr_el0 = "tpidr_el0": 0,
                tpidrro = "tpidrro_el0": 0,
                sp_el0 = "sp_el0": 0,
                sp_el1 = "sp_el1": 0,
                elr = "elr_el1": 0,
                spsr = "spsr_el1": 0,
                cntkctl = "cntkctl_el1": 0,
                par = "par_el1": 0,
                csselr = "csselr_el1": 0,
            }
        }
    };
}

/// Keys of pointer authentication (FEAT_PAuth).
macro_rules! key_registers {
    ($callback:ident, $(#[$doc:meta])* $name:ident) => {
        $callback! {
            $(#[$doc])*
            $name {
                ia_low = "s3_0_c2_c1_0": 0,
                ia_high = "s3_0_c2_c1_1": 0,
                ib_low = "s3_0_c2_c1_2": 0,
                ib_high = "s3_0_c2_c1_3": 0,
                da_low = "s3_0_c2_c2_0": 0,
                da_high = "s3_0_c2_c2_1": 0,
                db_low = "s3_0_c2_c2_2": 0,
                db_high = "s3_0_c2_c2_3": 0,
                ga_low = "s3_0_c2_c3_0": 0,
                ga_high = "s3_0_c2_c3_1": 0,
            }
        }
    };
}

/// What a virtual SError that was deferred left (FEAT_RAS): at EL1 it is DISR_EL1.
macro_rules! deferred_registers {
    ($callback:ident, $(#[$doc:meta])* $name:ident) => {
        $callback! {
            $(#[$doc])*
            $name {
                vdisr = "s3_4_c12_c1_1": 0,
            }
        }
    };
}

/// What is there where the processor has SME and no fine-grained traps that would hide it.
macro_rules! matrix_registers {
    ($callback:ident, $(#[$doc:meta])* $name:ident) => {
        $callback! {
            $(#[$doc])*
            $name {
                tpidr2 = "s3_3_c13_c0_5": 0,
            }
        }
    };
}

macro_rules! names {
    ($(#[$doc:meta])* $list:ident { $($field:ident = $register:literal: $reset:expr,)* }) => {
        $(#[$doc])*
        pub const $list: &[&str] = &[$($register,)*];
    };
}

common_registers!(names, /** Of every processor. */ COMMON);
key_registers!(names, /** Of those with pointer authentication. */ KEYS);
deferred_registers!(names, /** Of those with FEAT_RAS. */ DEFERRED);
matrix_registers!(names, /** Of those with FEAT_SME. */ MATRIX);
