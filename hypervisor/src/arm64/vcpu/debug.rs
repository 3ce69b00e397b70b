//! A vCPU's debug registers: breakpoints, watchpoints, single step.
//!
//! Accesses always trap, and the state here is authoritative. The processor holds it only while a
//! guest uses it ([`Debug::armed`]). So vCPUs that do not use it are switched at no cost, and no
//! vCPU ever sees another's registers.
//!
//! Source: Arm DDI 0487, D2 "AArch64 Self-hosted Debug", and D24.3 for the registers.

use migration::{Archive, Described, Flaw, described, fields};

use super::registers::Name;

/// Maximum number of breakpoints, and of watchpoints.
pub const EACH_MAX: usize = 16;

/// MDSCR_EL1: single step (SS), EL0's access to the debug channel (TDCC), kernel debugging (KDE),
/// and breakpoints and watchpoints (MDE).
const SINGLE_STEP: u64 = 1 << 0;
const CHANNEL_TRAP: u64 = 1 << 12;
const KERNEL: u64 = 1 << 13;
const MONITOR: u64 = 1 << 15;
const MDSCR_KEPT: u64 = SINGLE_STEP | CHANNEL_TRAP | KERNEL | MONITOR;
/// MDCCINT_EL1: RX and TX.
const MDCCINT_KEPT: u64 = 1 << 30 | 1 << 29;
/// DBGBCR: E, PMC, BAS, HMC, SSC, LBN, BT. HMC may name EL2, which does no harm: EL2 takes no debug
/// exceptions while the guest's are taken to EL1 (MDCR_EL2.TDE = 0; D2.8.4).
const BREAK_KEPT: u64 = 1 | 3 << 1 | 0xf << 5 | HIGHER_MODE | 3 << 14 | 0xf << 16 | 0xf << 20;
/// DBGWCR: E, PAC, LSC, BAS, HMC, SSC, LBN, WT, MASK.
const WATCH_KEPT: u64 =
    1 | 3 << 1 | 3 << 3 | 0xff << 5 | HIGHER_MODE | 3 << 14 | 0xf << 16 | 1 << 20 | 0x1f << 24;
const HIGHER_MODE: u64 = 1 << 13;
/// OSLSR_EL1: the OS lock is implemented (OSLM), and locked (OSLK).
const LOCK_IS_THERE: u64 = 1 << 3;
const LOCKED: u64 = 1 << 1;
/// DBGCLAIMSET_EL1: bits that can be claimed.
const CLAIMS: u64 = 0xff;

/// A debug register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Register {
    /// MDSCR_EL1.
    Control,
    /// MDCCINT_EL1.
    ChannelInterrupts,
    /// DBGBVR&lt;n&gt;_EL1.
    BreakValue(u8),
    /// DBGBCR&lt;n&gt;_EL1.
    BreakControl(u8),
    /// DBGWVR&lt;n&gt;_EL1.
    WatchValue(u8),
    /// DBGWCR&lt;n&gt;_EL1.
    WatchControl(u8),
    /// OSLAR_EL1, write-only.
    Lock,
    /// OSLSR_EL1, read-only.
    LockStatus,
    /// DBGCLAIMSET_EL1.
    ClaimSet,
    /// DBGCLAIMCLR_EL1.
    ClaimClear,
    /// The channel to a debugger at EL0 (MDCCSR_EL0, DBGDTR_EL0, DBGDTRRX_EL0 and its writable
    /// twin): there is no debugger.
    Channel,
    /// Registers that exist and have no effect: OSDTRRX_EL1, OSDTRTX_EL1, OSECCR_EL1, OSDLR_EL1,
    /// DBGPRCR_EL1.
    Ignored,
    /// Registers that read as 0 and cannot be written: MDRAR_EL1, DBGAUTHSTATUS_EL1.
    Zero,
}

impl Register {
    /// The register of this name.
    pub const fn named(name: Name) -> Option<Self> {
        let (2, op1, crn, crm, op2) = name else { return None };
        Some(match (op1, crn, crm, op2) {
            (0, 0, 2, 2) => Self::Control,
            (0, 0, 2, 0) => Self::ChannelInterrupts,
            (0, 0, 0 | 3 | 6, 2) => Self::Ignored,
            (0, 0, n, 4) => Self::BreakValue(n as u8),
            (0, 0, n, 5) => Self::BreakControl(n as u8),
            (0, 0, n, 6) => Self::WatchValue(n as u8),
            (0, 0, n, 7) => Self::WatchControl(n as u8),
            (0, 1, 0, 0) | (0, 7, 14, 6) => Self::Zero,
            (0, 1, 0, 4) => Self::Lock,
            (0, 1, 1, 4) => Self::LockStatus,
            (0, 1, 3 | 4, 4) => Self::Ignored,
            (0, 7, 8, 6) => Self::ClaimSet,
            (0, 7, 9, 6) => Self::ClaimClear,
            (3, 0, 1 | 4 | 5, 0) => Self::Channel,
            _ => return None,
        })
    }
}

/// The numbers of breakpoints and watchpoints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Breakpoints.
    pub breakpoints: u8,
    /// Watchpoints.
    pub watchpoints: u8,
}

impl Counts {
    /// From ID_AA64DFR0_EL1.
    pub const fn of(dfr0: u64) -> Self {
        Self { breakpoints: (dfr0 >> 12 & 0xf) as u8 + 1, watchpoints: (dfr0 >> 20 & 0xf) as u8 + 1 }
    }
}

/// A breakpoint or watchpoint: address and control.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Point {
    /// DBGBVR or DBGWVR.
    pub value: u64,
    /// DBGBCR or DBGWCR.
    pub control: u64,
}

/// One vCPU's debug registers.
#[derive(Clone, Debug)]
pub struct Debug {
    control: u64,
    channel_interrupts: u64,
    is_locked: bool,
    claims: u64,
    /// Breakpoints.
    pub breakpoints: [Point; EACH_MAX],
    /// Watchpoints.
    pub watchpoints: [Point; EACH_MAX],
}

impl Default for Debug {
    /// After reset: everything is disabled, and the OS lock is locked.
    fn default() -> Self {
        let [breakpoints, watchpoints] = [[Point::default(); EACH_MAX]; 2];
        Self { control: 0, channel_interrupts: 0, is_locked: true, claims: 0, breakpoints, watchpoints }
    }
}

described!(Point: value, control);

impl Described for Debug {
    /// Of the bits that the processor gets, the guest may have written each.
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let points = |control: u64| {
            move |points: [Point; EACH_MAX]| {
                points.map(|point| Point { value: point.value & !3, control: point.control & control })
            }
        };
        fields!(self, archive: control & MDSCR_KEPT,
            channel_interrupts & MDCCINT_KEPT, is_locked,
            claims & CLAIMS, breakpoints [points(BREAK_KEPT)],
            watchpoints [points(WATCH_KEPT)])
    }
}

impl Debug {
    /// MDSCR_EL1 for the processor, if the guest uses any of this: then breakpoints and watchpoints
    /// must be loaded, too. The OS lock disables everything.
    #[inline]
    pub const fn armed(&self) -> Option<u64> {
        if self.is_locked || self.control & (SINGLE_STEP | MONITOR) == 0 { None } else { Some(self.control) }
    }

    /// Whether EL0 may use the debug channel.
    pub const fn opens_channel(&self) -> bool {
        self.control & CHANNEL_TRAP == 0
    }

    /// The value of a register; `None` if it does not exist, or cannot be read.
    pub fn read(&self, register: Register, counts: Counts) -> Option<u64> {
        match register {
            Register::Control => Some(self.control),
            Register::ChannelInterrupts => Some(self.channel_interrupts),
            Register::BreakValue(n) => {
                within(&self.breakpoints, n, counts.breakpoints).map(|point| point.value)
            }
            Register::BreakControl(n) => {
                within(&self.breakpoints, n, counts.breakpoints).map(|point| point.control)
            }
            Register::WatchValue(n) => {
                within(&self.watchpoints, n, counts.watchpoints).map(|point| point.value)
            }
            Register::WatchControl(n) => {
                within(&self.watchpoints, n, counts.watchpoints).map(|point| point.control)
            }
            Register::Lock => None,
            Register::LockStatus => Some(LOCK_IS_THERE | if self.is_locked { LOCKED } else { 0 }),
            Register::ClaimSet => Some(CLAIMS),
            Register::ClaimClear => Some(self.claims),
            Register::Channel | Register::Ignored | Register::Zero => Some(0),
        }
    }

    /// Writes a register; false if it does not exist, or cannot be written.
    #[must_use]
    pub fn write(&mut self, register: Register, counts: Counts, value: u64) -> bool {
        let (breaks, watches) = (counts.breakpoints, counts.watchpoints);
        match register {
            Register::Control => self.control = value & MDSCR_KEPT,
            Register::ChannelInterrupts => self.channel_interrupts = value & MDCCINT_KEPT,
            Register::BreakValue(n) => {
                return change(&mut self.breakpoints, n, breaks, |point| point.value = value & !3);
            }
            Register::BreakControl(n) => {
                return change(&mut self.breakpoints, n, breaks, |point| point.control = value & BREAK_KEPT);
            }
            Register::WatchValue(n) => {
                return change(&mut self.watchpoints, n, watches, |point| point.value = value & !3);
            }
            Register::WatchControl(n) => {
                return change(&mut self.watchpoints, n, watches, |point| point.control = value & WATCH_KEPT);
            }
            Register::Lock => self.is_locked = value & 1 != 0,
            Register::ClaimSet => self.claims |= value & CLAIMS,
            Register::ClaimClear => self.claims &= !value,
            Register::Channel | Register::Ignored => {}
            Register::LockStatus | Register::Zero => return false,
        }
        true
    }
}

fn within(points: &[Point; EACH_MAX], n: u8, count: u8) -> Option<&Point> {
    if n < count { points.get(usize::from(n)) } else { None }
}

fn change(points: &mut [Point; EACH_MAX], n: u8, count: u8, action: impl FnOnce(&mut Point)) -> bool {
    let point = if n < count { points.get_mut(usize::from(n)) } else { None };
    point.map(action).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNTS: Counts = Counts { breakpoints: 6, watchpoints: 4 };
    /// Enabled at EL0 and EL1, for four bytes.
    const BREAK: u64 = 1 | 3 << 1 | 0xf << 5;

    #[test]
    fn u26_debug_registers_hold_what_is_written() {
        let mut debug = Debug::default();
        assert!(debug.write(Register::BreakValue(5), COUNTS, 0xffff_8000_0000_1003));
        assert!(debug.write(Register::BreakControl(5), COUNTS, u64::MAX));
        assert!(debug.write(Register::WatchValue(3), COUNTS, 0x1234));
        assert!(debug.write(Register::WatchControl(3), COUNTS, u64::MAX));
        assert_eq!(debug.read(Register::BreakValue(5), COUNTS), Some(0xffff_8000_0000_1000));
        assert_eq!(debug.read(Register::BreakControl(5), COUNTS), Some(BREAK_KEPT));
        assert_eq!(debug.read(Register::WatchValue(3), COUNTS), Some(0x1234));
        assert_eq!(debug.read(Register::WatchControl(3), COUNTS), Some(WATCH_KEPT));
        assert_eq!(debug.read(Register::WatchControl(2), COUNTS), Some(0));
        // Registers that do not exist are undefined.
        for n in 6..16 {
            assert_eq!(debug.read(Register::BreakValue(n), COUNTS), None);
            assert!(!debug.write(Register::BreakControl(n), COUNTS, 1));
        }
        assert!(!debug.write(Register::WatchValue(4), COUNTS, 1));
        assert!(!debug.write(Register::LockStatus, COUNTS, 1) && !debug.write(Register::Zero, COUNTS, 1));
        assert_eq!(debug.read(Register::Lock, COUNTS), None);
        assert!(debug.write(Register::ChannelInterrupts, COUNTS, u64::MAX));
        assert_eq!(debug.read(Register::ChannelInterrupts, COUNTS), Some(3 << 29));
        for (value, is_locked) in [(2, false), (3, true)] {
            assert!(debug.write(Register::Lock, COUNTS, value));
            assert_eq!(debug.read(Register::LockStatus, COUNTS), Some(8 | u64::from(is_locked) << 1));
        }
        assert_eq!(Counts::of(0x0010_305f), Counts { breakpoints: 4, watchpoints: 2 });
    }

    #[test]
    fn u26_nothing_is_loaded_before_it_is_in_use() {
        let mut debug = Debug::default();
        assert!(debug.write(Register::BreakControl(0), COUNTS, BREAK));
        assert!(debug.write(Register::Control, COUNTS, MONITOR | CHANNEL_TRAP));
        assert_eq!(debug.armed(), None, "the OS lock is locked");
        assert_eq!(debug.read(Register::LockStatus, COUNTS), Some(0b1010));
        assert!(debug.write(Register::Lock, COUNTS, 0));
        assert_eq!(debug.read(Register::LockStatus, COUNTS), Some(0b1000));
        assert_eq!(debug.armed(), Some(MONITOR | CHANNEL_TRAP));
        for (value, is_armed) in [(0, false), (KERNEL, false), (SINGLE_STEP, true), (KERNEL | MONITOR, true)]
        {
            assert!(debug.write(Register::Control, COUNTS, value));
            assert_eq!(debug.armed().is_some(), is_armed, "{value:#x}");
        }
        assert!(debug.write(Register::Control, COUNTS, u64::MAX));
        assert_eq!(debug.armed(), Some(MDSCR_KEPT), "nothing of an external debugger's");
    }

    #[test]
    fn u26_claims_are_set_and_cleared() {
        let mut debug = Debug::default();
        assert_eq!(debug.read(Register::ClaimSet, COUNTS), Some(0xff));
        assert!(debug.write(Register::ClaimSet, COUNTS, 0xfff5));
        assert!(debug.write(Register::ClaimClear, COUNTS, 0x0f));
        assert_eq!(debug.read(Register::ClaimClear, COUNTS), Some(0xf0));
        assert!(debug.opens_channel());
        assert!(debug.write(Register::Control, COUNTS, CHANNEL_TRAP) && !debug.opens_channel());
    }
}
