//! Synthetic timers in direct mode: on expiration they interrupt their own virtual processor.
//!
//! TLFS, "Synthetic Timers". There is no synthetic interrupt controller, so a timer that would send
//! a message cannot be enabled: its enable bit reads back as 0, as it does for source 0 on Hyper-V.
//! The same holds for a timer with an invalid vector.

use migration::{Archive, Described, Flaw, described, fields};
use tlfs::msr::StimerConfig;

use super::msrs::GpFault;
use super::time::ReferenceClock;

/// The bits of a configuration that are not reserved.
const DEFINED: u64 = 0xf_1fff;
/// The lowest valid interrupt vector.
const VECTOR_MIN: u8 = 16;

/// Expirations of a periodic timer that are due sooner than this after the previous one are
/// skipped: the guest could not use them, and each takes an exit. 50 us in units of 100 ns.
pub const PERIOD_MIN: u64 = 500;

/// One synthetic timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Stimer {
    config: StimerConfig,
    count: u64,
    /// Its next expiration, if it is running and there is one.
    due: Option<Due>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Due {
    /// Reference time.
    time: u64,
    /// The partition's TSC at that time.
    tsc: u64,
}

/// By the partition's times, which go on.
impl Described for Stimer {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let by_bits = |config: &mut StimerConfig, archive: &mut Archive<'_>| {
            let mut bits = config.into_bits();
            archive.fixed(&mut bits, |bits| {
                let config = StimerConfig::from_bits(bits & DEFINED);
                config.with_enable(config.enable() && can_signal(config)).into_bits()
            })?;
            *config = StimerConfig::from_bits(bits);
            Ok(())
        };
        fields!(self, archive: config (by_bits), count, due)
    }
}

described!(Due: time, tsc);

/// Whether a timer can interrupt.
const fn can_signal(config: StimerConfig) -> bool {
    config.direct_mode() && config.apic_vector() >= VECTOR_MIN
}

impl Stimer {
    /// The configuration register.
    pub fn config(&self) -> u64 {
        self.config.into_bits()
    }

    /// The count register.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Writes the configuration register. A running timer is restarted.
    ///
    /// # Errors
    ///
    /// [`GpFault`] if a reserved bit is set.
    pub fn set_config(&mut self, value: u64, clock: &ReferenceClock, now: u64) -> Result<(), GpFault> {
        let config = StimerConfig::from_bits(value);
        if config.has_reserved() {
            return Err(GpFault);
        }
        self.config = config.with_enable(config.enable() && can_signal(config));
        self.start(clock, now);
        Ok(())
    }

    /// Writes the count register: 0 disables the timer, any other count enables it if the
    /// configuration requests that.
    pub fn set_count(&mut self, count: u64, clock: &ReferenceClock, now: u64) {
        self.count = count;
        if count == 0 {
            self.config.set_enable(false);
        } else if self.config.auto_enable() {
            self.config.set_enable(can_signal(self.config));
        }
        self.start(clock, now);
    }

    /// The partition's TSC at the next expiration, which may be in the past.
    pub fn deadline_tsc(&self) -> Option<u64> {
        self.due.map(|due| due.tsc)
    }

    /// The vector to interrupt with if the timer has expired by `now`. A one-shot timer is then
    /// disabled. A periodic one keeps its rhythm: missed expirations are skipped.
    pub fn expire(&mut self, clock: &ReferenceClock, now: u64) -> Option<u8> {
        let due = self.due.filter(|due| due.tsc <= now)?;
        if self.config.periodic() {
            let period = self.period();
            let missed = clock.time_at(now).saturating_sub(due.time) / period;
            let time = missed.checked_add(1).and_then(|n| n.checked_mul(period)?.checked_add(due.time));
            self.due = time.and_then(|time| Due::at(time, clock));
        } else {
            self.config.set_enable(false);
            self.due = None;
        }
        Some(self.config.apic_vector())
    }

    /// Starts the timer at `now` if it is enabled and has a count; stops it otherwise.
    fn start(&mut self, clock: &ReferenceClock, now: u64) {
        let time = match (self.config.enable() && self.count != 0, self.config.periodic()) {
            (false, _) => None,
            (true, false) => Some(self.count),
            (true, true) => clock.time_at(now).checked_add(self.period()),
        };
        self.due = time.and_then(|time| Due::at(time, clock));
    }

    /// The period; a short one is multiplied until it is long enough. Never 0.
    fn period(&self) -> u64 {
        match self.count {
            0 => PERIOD_MIN,
            count if count < PERIOD_MIN => PERIOD_MIN.div_ceil(count) * count,
            count => count,
        }
    }
}

impl Due {
    fn at(time: u64, clock: &ReferenceClock) -> Option<Self> {
        Some(Self { time, tsc: clock.tsc_at(time)? })
    }
}

#[cfg(test)]
mod tests;
