//! The guest's system registers, which stay in the processor while its vCPU is on the CPU.
//!
//! Source: Arm DDI 0487, D24.2 (their values after reset), D1.2.

use super::features::Features;
use super::sysreg::{isb, read, write};

/// Declares the registers, with what they are after reset.
macro_rules! registers {
    ($(#[$doc:meta])* $name:ident { $($field:ident = $register:literal: $reset:expr,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug)]
        struct $name { $($field: u64,)* }

        impl $name {
            const RESET: Self = Self { $($field: $reset,)* };

            #[inline(always)]
            fn save(&mut self) {
                $(self.$field = read!($register);)*
            }

            #[inline(always)]
            fn load(&self) {
                // SAFETY: registers of EL1 and EL0 alone, which the hypervisor does not use.
                $(unsafe { write!($register, self.$field) };)*
            }
        }
    };
}

registers! {
    /// Those that every processor has. TCR_EL1 comes last: see [`SystemRegisters::load`].
    Common {
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
        actlr = "actlr_el1": 0,
    }
}

registers! {
    /// Keys of pointer authentication (FEAT_PAuth).
    Keys {
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

/// A vCPU's system registers when it is off the CPU.
#[derive(Clone, Debug)]
pub(crate) struct SystemRegisters {
    common: Common,
    keys: Keys,
    tcr: u64,
    timer_control: u64,
    timer_value: u64,
}

impl SystemRegisters {
    /// After power-on.
    pub(crate) fn reset() -> Self {
        let common = Common { actlr: read!("actlr_el1"), ..Common::RESET };
        Self { common, keys: Keys::RESET, tcr: 0, timer_control: 0, timer_value: 0 }
    }

    /// From the processor into memory. The timer is off then.
    pub(crate) fn save(&mut self) {
        self.common.save();
        self.tcr = read!("tcr_el1");
        if Features::get().contains(Features::POINTER_KEYS) {
            self.keys.save();
        }
        self.timer_control = read!("cntv_ctl_el0");
        self.timer_value = read!("cntv_cval_el0");
        // SAFETY: the guest's timer, whose state is saved.
        unsafe { write!("cntv_ctl_el0", 0) };
        isb();
    }

    /// From memory into the processor.
    ///
    /// TCR_EL1 comes last, after VTTBR_EL2 has been loaded: on some processors an address translation made ahead may use
    /// what is there of the former guest's and of this one's (`coherence::tlbi::Errata::speculative_at`).
    pub(crate) fn load(&self) {
        self.common.load();
        if Features::get().contains(Features::POINTER_KEYS) {
            self.keys.load();
        }
        // SAFETY: the guest's timer and translation control.
        unsafe {
            write!("cntv_cval_el0", self.timer_value);
            write!("cntv_ctl_el0", self.timer_control);
            isb();
            write!("tcr_el1", self.tcr);
        }
    }
}
