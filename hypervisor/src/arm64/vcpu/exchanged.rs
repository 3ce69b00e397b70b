//! The guest's registers that stay in the processor while its vCPU is on the CPU: every EL1 and EL0
//! register that a guest can write without a trap, and the registers that the guest sees in place
//! of such ones.
//!
//! The rest of a vCPU's state is handled separately: the general registers, floating point, and the
//! debug registers, which are in the processor only while they are in use.
//! [`system`](super::system) saves and loads the groups.

/// Groups of registers: the processor's name of each, and its value after reset (Arm DDI 0487,
/// D24.2). Registers without a group are written one by one.
macro_rules! for_each_register {
    ($callback:ident) => {
        $callback! {
            /// Registers that every processor has.
            Common COMMON {
                Sctlr sctlr "sctlr_el1" 0x30d0_0800,
                Cpacr cpacr "cpacr_el1" 0,
                Ttbr0 ttbr0 "ttbr0_el1" 0,
                Ttbr1 ttbr1 "ttbr1_el1" 0,
                Esr esr "esr_el1" 0,
                Afsr0 afsr0 "afsr0_el1" 0,
                Afsr1 afsr1 "afsr1_el1" 0,
                Far far "far_el1" 0,
                Mair mair "mair_el1" 0,
                Amair amair "amair_el1" 0,
                Vbar vbar "vbar_el1" 0,
                Contextidr contextidr "contextidr_el1" 0,
                Tpidr tpidr "tpidr_el1" 0,
                TpidrEl0 tpidr_el0 "tpidr_el0" 0,
                Tpidrro tpidrro "tpidrro_el0" 0,
                SpEl0 sp_el0 "sp_el0" 0,
                SpEl1 sp_el1 "sp_el1" 0,
                Elr elr "elr_el1" 0,
                Spsr spsr "spsr_el1" 0,
                Cntkctl cntkctl "cntkctl_el1" 0,
                Par par "par_el1" 0,
                Csselr csselr "csselr_el1" 0,
            }
            /// Keys of pointer authentication (FEAT_PAuth).
            Keys KEYS {
                IaLow ia_low "s3_0_c2_c1_0" 0,
                IaHigh ia_high "s3_0_c2_c1_1" 0,
                IbLow ib_low "s3_0_c2_c1_2" 0,
                IbHigh ib_high "s3_0_c2_c1_3" 0,
                DaLow da_low "s3_0_c2_c2_0" 0,
                DaHigh da_high "s3_0_c2_c2_1" 0,
                DbLow db_low "s3_0_c2_c2_2" 0,
                DbHigh db_high "s3_0_c2_c2_3" 0,
                GaLow ga_low "s3_0_c2_c3_0" 0,
                GaHigh ga_high "s3_0_c2_c3_1" 0,
            }
            /// State of a deferred virtual SError (FEAT_RAS): at EL1 it is DISR_EL1.
            Deferred DEFERRED {
                Vdisr vdisr "s3_4_c12_c1_1" 0,
            }
            /// A register that exists where the processor has SME and no fine-grained traps that
            /// would hide it.
            Matrix MATRIX {
                Tpidr2 tpidr2 "s3_3_c13_c0_5" 0,
            }
            /// Both timers, the compare values first: a timer is enabled when its control has been
            /// written.
            Timers TIMERS {
                VirtualValue virtual_value "cntv_cval_el0" 0,
                VirtualControl virtual_control "cntv_ctl_el0" 0,
                PhysicalValue physical_value "cntp_cval_el0" 0,
                PhysicalControl physical_control "cntp_ctl_el0" 0,
            }
            /// The virtual CPU interface (IHI 0069H, section 12.4): everything masked, no group
            /// enabled, binary points at their lowest.
            Interface INTERFACE {
                IchVmcr vmcr "ich_vmcr_el2" 0,
                IchAp0r0 ap0r0 "ich_ap0r0_el2" 0,
                IchAp1r0 ap1r0 "ich_ap1r0_el2" 0,
            }
            /// Active priorities where six or more bits decide about preemption.
            Priorities6 PRIORITIES6 {
                IchAp0r1 ap0r1 "ich_ap0r1_el2" 0,
                IchAp1r1 ap1r1 "ich_ap1r1_el2" 0,
            }
            /// The same for seven bits.
            Priorities7 PRIORITIES7 {
                IchAp0r2 ap0r2 "ich_ap0r2_el2" 0,
                IchAp1r2 ap1r2 "ich_ap1r2_el2" 0,
                IchAp0r3 ap0r3 "ich_ap0r3_el2" 0,
                IchAp1r3 ap1r3 "ich_ap1r3_el2" 0,
            }
            {
                Tcr "tcr_el1",
                Vmpidr "vmpidr_el2",
            }
        }
    };
}

macro_rules! declare {
    (
        $(
            $(#[$doc:meta])*
            $group:ident $list:ident { $($variant:ident $field:ident $name:literal $reset:expr,)* }
        )*
        { $($alone:ident $alone_name:literal,)* }
    ) => {
        /// A register of the guest. EL2 uses none of them, so writes to them affect the guest
        /// alone.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the architecture's names are beside them")]
        pub enum Register {
            $($($variant,)*)*
            $($alone,)*
        }

        impl Register {
            /// All of them.
            pub const ALL: &[Self] = &[$($(Self::$variant,)*)* $(Self::$alone,)*];

            /// Its architectural name, or encoding.
            pub const fn name(self) -> &'static str {
                match self {
                    $($(Self::$variant => $name,)*)*
                    $(Self::$alone => $alone_name,)*
                }
            }

            /// Its value after reset.
            #[cfg(any(test, feature = "audit"))]
            pub const fn at_reset(self) -> u64 {
                match self {
                    $($(Self::$variant => $reset,)*)*
                    $(Self::$alone => 0,)*
                }
            }
        }

        $(
            $(#[$doc])*
            pub const $list: &[Register] = &[$(Register::$variant,)*];
        )*
    };
}

for_each_register!(declare);
