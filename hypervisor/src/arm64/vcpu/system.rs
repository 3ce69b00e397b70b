//! The vCPU's registers that are in memory while it is off the CPU.
//!
//! Source: Arm DDI 0487, D1.2; Arm IHI 0069H, section 12.4.

use migration::{Archive, Described, Flaw, described};

use super::exchanged::Register;
#[cfg(doc)]
use crate::arm64::controls;
use crate::arm64::processor::{Features, Processor};
use crate::devices::virt::gic::{View, running_priority};
use crate::devices::virt::map::{PHYSICAL_TIMER_INTID, VIRTUAL_TIMER_INTID};

/// Declares the storage of each group of registers.
macro_rules! groups {
    (
        $(
            $(#[$doc:meta])*
            $group:ident $list:ident { $($variant:ident $field:ident $name:literal $reset:expr,)* }
        )*
        { $($alone:ident $alone_name:literal,)* }
    ) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug)]
            struct $group { $($field: u64,)* }

            impl Described for $group {
                fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
                    let Self { $($field,)* } = self;
                    $(archive.within($field, has(Register::$variant)).map_err(|flaw| flaw.named($name))?;)*
                    Ok(())
                }
            }

            impl $group {
                const RESET: Self = Self { $($field: $reset,)* };

                #[inline(always)]
                fn save<P: Processor>(&mut self) {
                    $(self.$field = P::read(Register::$variant);)*
                }

                #[inline(always)]
                fn load<P: Processor>(&self) {
                    $(P::write(Register::$variant, self.$field);)*
                }
            }
        )*
    };
}

for_each_register!(groups);

/// The bits that a register can have, where they are the hypervisor's to write: a guest can write
/// the others itself, all of them.
const fn has(register: Register) -> u64 {
    use Register as R;
    /// ICH_VMCR_EL2 (IHI 0069H, section 12.4.8): the mask, both binary points, EOImode, CBPR,
    /// FIQEn, AckCtl, and both groups.
    const VMCR: u64 = 0xff << 24 | 7 << 21 | 7 << 18 | 1 << 9 | 0x1f;
    match register {
        R::IchVmcr => VMCR,
        R::IchAp0r0 | R::IchAp1r0 | R::IchAp0r1 | R::IchAp1r1 => 0xffff_ffff,
        R::IchAp0r2 | R::IchAp1r2 | R::IchAp0r3 | R::IchAp1r3 => 0xffff_ffff,
        R::VirtualControl | R::PhysicalControl => Timer::ENABLED | Timer::MASKED | Timer::DUE,
        _ => u64::MAX,
    }
}

#[derive(Clone, Debug)]
pub(super) struct SystemRegisters {
    common: Common,
    keys: Keys,
    deferred: Deferred,
    matrix: Matrix,
    tcr: u64,
    timers: Timers,
}

/// One of the guest's timers, which are the processor's own.
///
/// A guest that has been moved is by a base ahead of the machine's counter. CNTVOFF_EL2 lets its
/// virtual counter be so. The physical one has no such offset: there the compare value in the
/// processor is a time of the machine, and the guest's accesses trap ([`controls::counter`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timer {
    /// CNTV.
    Virtual,
    /// CNTP.
    Physical,
}

impl Timer {
    const ENABLED: u64 = 1;
    const MASKED: u64 = 2;
    const DUE: u64 = 4;

    /// Its private interrupt, for both the guest and the machine.
    pub(super) const fn intid(self) -> u8 {
        match self {
            Self::Virtual => VIRTUAL_TIMER_INTID,
            Self::Physical => PHYSICAL_TIMER_INTID,
        }
    }

    #[inline]
    fn control<P: Processor>(self) -> u64 {
        P::read(match self {
            Self::Virtual => Register::VirtualControl,
            Self::Physical => Register::PhysicalControl,
        })
    }

    /// When it interrupts, as a value of the machine's counter, which the guest's is ahead of by
    /// `base`; `u64::MAX` for never.
    #[inline]
    pub(super) fn deadline<P: Processor>(self, base: u64) -> u64 {
        if self.control::<P>() & (Self::ENABLED | Self::MASKED) != Self::ENABLED {
            return u64::MAX;
        }
        match self {
            Self::Virtual => machine_time(P::read(Register::VirtualValue), base),
            Self::Physical => P::read(Register::PhysicalValue),
        }
    }

    /// Whether it asserts its interrupt.
    #[inline]
    pub(super) fn is_due<P: Processor>(self) -> bool {
        let all = Self::ENABLED | Self::MASKED | Self::DUE;
        self.control::<P>() & all == Self::ENABLED | Self::DUE
    }
}

/// What the machine's counter reads at this time of a guest that is by `base` ticks ahead of it. A
/// time before the machine's first is its first, and one that never comes stays so.
const fn machine_time(guest: u64, base: u64) -> u64 {
    guest.saturating_add_signed((base as i64).wrapping_neg())
}

/// A register of the physical timer of a guest whose counter has a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PhysicalTimer {
    /// CNTP_TVAL_EL0: the compare value minus the counter.
    Left,
    /// CNTP_CTL_EL0.
    Control,
    /// CNTP_CVAL_EL0.
    Value,
}

impl SystemRegisters {
    /// The guest reads a register of its physical timer when its counter, by `base` ahead of the
    /// machine's, is at `now`.
    pub(super) fn read_physical<P: Processor>(&self, register: PhysicalTimer, now: u64) -> u64 {
        match register {
            PhysicalTimer::Left => self.timers.physical_value.wrapping_sub(now) & 0xffff_ffff,
            PhysicalTimer::Control => P::read(Register::PhysicalControl),
            PhysicalTimer::Value => self.timers.physical_value,
        }
    }

    /// It writes one.
    pub(super) fn write_physical<P: Processor>(
        &mut self,
        register: PhysicalTimer,
        value: u64,
        (now, base): (u64, u64),
    ) {
        self.timers.physical_value = match register {
            PhysicalTimer::Left => now.wrapping_add_signed((value as i32).into()),
            PhysicalTimer::Control => return P::write(Register::PhysicalControl, value & 3),
            PhysicalTimer::Value => value,
        };
        P::write(Register::PhysicalValue, machine_time(self.timers.physical_value, base));
    }
}

described!(SystemRegisters: common, keys, deferred, matrix, tcr, timers);

impl Timers {
    /// As the processor has them.
    #[cold]
    fn by_the_machine(&self, base: u64) -> Self {
        Self { physical_value: machine_time(self.physical_value, base), ..self.clone() }
    }
}

impl SystemRegisters {
    pub(super) fn reset() -> Self {
        Self {
            common: Common::RESET,
            keys: Keys::RESET,
            deferred: Deferred::RESET,
            matrix: Matrix::RESET,
            tcr: 0,
            timers: Timers::RESET,
        }
    }

    /// Saves the registers to memory. The timers are off afterwards, and their compare values by
    /// the guest's counter, which is by `base` ahead of the machine's.
    pub(super) fn save<P: Processor>(&mut self, base: u64) {
        self.common.save::<P>();
        self.tcr = P::read(Register::Tcr);
        let features = P::features();
        if features.contains(Features::POINTER_KEYS) {
            self.keys.save::<P>();
        }
        if features.contains(Features::ERRORS) {
            self.deferred.save::<P>();
        }
        if features.contains(Features::MATRICES) {
            self.matrix.save::<P>();
        }
        let physical = self.timers.physical_value;
        self.timers.save::<P>();
        if base != 0 {
            self.timers.physical_value = physical;
        }
        P::write(Register::VirtualControl, 0);
        P::write(Register::PhysicalControl, 0);
        P::synchronize();
    }

    /// Loads the registers into the processor.
    ///
    /// TCR_EL1 is loaded last, after VTTBR_EL2. On some processors a speculative address
    /// translation may use a mixture of the previous guest's registers and this one's
    /// (`coherence::tlbi::Errata::speculative_at`).
    ///
    /// The guest's counter is by `base` ahead of the machine's.
    pub(super) fn load<P: Processor>(&self, base: u64) {
        self.common.load::<P>();
        let features = P::features();
        if features.contains(Features::POINTER_KEYS) {
            self.keys.load::<P>();
        }
        if features.contains(Features::ERRORS) {
            self.deferred.load::<P>();
        }
        if features.contains(Features::MATRICES) {
            self.matrix.load::<P>();
        }
        if base == 0 {
            self.timers.load::<P>();
        } else {
            self.timers.by_the_machine(base).load::<P>();
        }
        P::synchronize();
        // Usually it is the same for all vCPUs of a guest; under emulation a write drops all
        // translations, including EL2's and those of stage 2.
        if P::read(Register::Tcr) != self.tcr {
            P::write(Register::Tcr, self.tcr);
        }
    }
}

/// A vCPU's part of the virtual CPU interface when it is off the CPU.
#[derive(Clone, Debug)]
pub(super) struct VirtualInterface {
    main: Interface,
    six: Priorities6,
    seven: Priorities7,
}

described!(VirtualInterface: main, six, seven);

impl VirtualInterface {
    pub(super) const fn reset() -> Self {
        Self { main: Interface::RESET, six: Priorities6::RESET, seven: Priorities7::RESET }
    }

    pub(super) fn save<P: Processor>(&mut self) {
        self.main.save::<P>();
        let bits = P::preemption_bits();
        if bits > 5 {
            self.six.save::<P>();
        }
        if bits > 6 {
            self.seven.save::<P>();
        }
    }

    pub(super) fn load<P: Processor>(&self) {
        self.main.load::<P>();
        let bits = P::preemption_bits();
        if bits > 5 {
            self.six.load::<P>();
        }
        if bits > 6 {
            self.seven.load::<P>();
        }
    }
}

/// The interrupts that the loaded interface admits.
pub(super) fn view<P: Processor>() -> View {
    let active = |first, second| (P::read(first) | P::read(second)) as u32;
    let mut priorities = [active(Register::IchAp0r0, Register::IchAp1r0), 0, 0, 0];
    let bits = P::preemption_bits();
    let [_, second, third, fourth] = &mut priorities;
    if bits > 5 {
        *second = active(Register::IchAp0r1, Register::IchAp1r1);
    }
    if bits > 6 {
        *third = active(Register::IchAp0r2, Register::IchAp1r2);
        *fourth = active(Register::IchAp0r3, Register::IchAp1r3);
    }
    View::new(P::read(Register::IchVmcr), running_priority(&priorities, bits))
}

/// The interrupts that the interface is configured for, regardless of the running priority.
#[inline(always)]
pub(super) fn idle_view<P: Processor>() -> View {
    View::new(P::read(Register::IchVmcr), 0xff)
}

/// Deactivates physical private interrupts; `intids` has a bit for each.
pub(crate) fn deactivate<P: Processor>(intids: u32) {
    let mut left = intids;
    while left != 0 {
        P::deactivate(left.trailing_zeros());
        left &= left - 1;
    }
}
