//! The guest's system registers, which stay in the processor while its vCPU is on the CPU.
//!
//! Source: Arm DDI 0487, D24.2 (their values after reset), D1.2.

use super::features::Features;
use super::sysreg::{isb, read, write};
use crate::devices::virt_map::{PHYSICAL_TIMER_INTID, VIRTUAL_TIMER_INTID};

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
                // SAFETY: registers of EL1 and EL0, or what a guest finds in their place; the hypervisor uses none.
                $(unsafe { write!($register, self.$field) };)*
            }
        }
    };
}

common_registers!(
    registers,
    /// Those that every processor has. TCR_EL1 comes last: see [`SystemRegisters::load`].
    Common
);
key_registers!(
    registers,
    /// Keys of pointer authentication (FEAT_PAuth).
    Keys
);
deferred_registers!(
    registers,
    /// What the guest reads as DISR_EL1 (FEAT_RAS).
    Deferred
);

matrix_registers!(
    registers,
    /// What is left of SME (FEAT_SME).
    Matrix
);

/// A vCPU's system registers when it is off the CPU.
#[derive(Clone, Debug)]
pub(crate) struct SystemRegisters {
    common: Common,
    keys: Keys,
    deferred: Deferred,
    matrix: Matrix,
    tcr: u64,
    timers: Timers,
}

/// One of the guest's timers, which are the processor's own. Both count from the same zero as the machine's counter
/// (CNTVOFF_EL2 is 0), so that a compare value is a time of the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Timer {
    /// CNTV.
    Virtual,
    /// CNTP.
    Physical,
}

impl Timer {
    const ENABLED: u64 = 1;
    const MASKED: u64 = 2;
    const DUE: u64 = 4;

    /// Its private interrupt, the guest's as well as the machine's.
    pub(crate) const fn intid(self) -> u8 {
        match self {
            Self::Virtual => VIRTUAL_TIMER_INTID,
            Self::Physical => PHYSICAL_TIMER_INTID,
        }
    }

    fn control(self) -> u64 {
        match self {
            Self::Virtual => read!("cntv_ctl_el0"),
            Self::Physical => read!("cntp_ctl_el0"),
        }
    }

    /// When it interrupts, as a count of the machine's; `u64::MAX` for never.
    pub(crate) fn deadline(self) -> u64 {
        if self.control() & (Self::ENABLED | Self::MASKED) != Self::ENABLED {
            return u64::MAX;
        }
        match self {
            Self::Virtual => read!("cntv_cval_el0"),
            Self::Physical => read!("cntp_cval_el0"),
        }
    }

    /// Whether it asserts its interrupt.
    pub(crate) fn is_due(self) -> bool {
        let all = Self::ENABLED | Self::MASKED | Self::DUE;
        self.control() & all == Self::ENABLED | Self::DUE
    }
}

/// Both timers when the vCPU is off the CPU.
#[derive(Clone, Debug, Default)]
struct Timers {
    virtual_control: u64,
    virtual_value: u64,
    physical_control: u64,
    physical_value: u64,
}

impl Timers {
    /// They are off afterwards.
    #[inline(always)]
    fn save(&mut self) {
        self.virtual_control = read!("cntv_ctl_el0");
        self.virtual_value = read!("cntv_cval_el0");
        self.physical_control = read!("cntp_ctl_el0");
        self.physical_value = read!("cntp_cval_el0");
        // SAFETY: the guest's timers, whose state is saved.
        unsafe {
            write!("cntv_ctl_el0", 0);
            write!("cntp_ctl_el0", 0);
        }
    }

    #[inline(always)]
    fn load(&self) {
        // SAFETY: the guest's timers.
        unsafe {
            write!("cntv_cval_el0", self.virtual_value);
            write!("cntv_ctl_el0", self.virtual_control);
            write!("cntp_cval_el0", self.physical_value);
            write!("cntp_ctl_el0", self.physical_control);
        }
    }
}

impl SystemRegisters {
    /// After power-on.
    pub(crate) fn reset() -> Self {
        Self {
            common: Common::RESET,
            keys: Keys::RESET,
            deferred: Deferred::RESET,
            matrix: Matrix::RESET,
            tcr: 0,
            timers: Timers::default(),
        }
    }

    /// From the processor into memory. The timers are off then.
    pub(crate) fn save(&mut self) {
        self.common.save();
        self.tcr = read!("tcr_el1");
        if Features::get().contains(Features::POINTER_KEYS) {
            self.keys.save();
        }
        if Features::get().contains(Features::ERRORS) {
            self.deferred.save();
        }
        if Features::get().contains(Features::MATRICES) {
            self.matrix.save();
        }
        self.timers.save();
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
        if Features::get().contains(Features::ERRORS) {
            self.deferred.load();
        }
        if Features::get().contains(Features::MATRICES) {
            self.matrix.load();
        }
        self.timers.load();
        // SAFETY: the guest's translation control.
        unsafe {
            isb();
            // Mostly it is the same for all vCPUs of a guest; under emulation a write drops all translations, EL2's and those
            // of stage 2 included.
            if read!("tcr_el1") != self.tcr {
                write!("tcr_el1", self.tcr);
            }
        }
    }
}
