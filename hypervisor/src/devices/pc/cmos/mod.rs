//! The PC's clock: Motorola's MC146818A behind ports 0x70 (index) and 0x71 (data), with the CMOS
//! memory beside it.
//!
//! It tells the time and can be set, and it interrupts: when an alarm is due, each second, and
//! periodically. Hours are in 24-hour format, numbers in BCD, as firmware leaves them.
//! [`Fields::unix`] reads the same formats from the machine's own clock.
//!
//! Source: Motorola, MC146818A data sheet, "Register A" to "Register D", "Interrupts" and "Update
//! cycle"; for the century ACPI 6.5, FADT.

#[cfg(test)]
mod tests;

use crate::devices::wall_clock::NS;
use migration::described;
use time::{Date, Month, OffsetDateTime, Time};

/// The port that selects a byte; its bit 7 masks NMIs on a PC, and has no effect here.
pub const INDEX: u16 = 0x70;
/// The port of the selected byte.
pub const DATA: u16 = 0x71;
/// Pin of its interrupt on the I/O APIC.
pub const PIN: u8 = 8;
/// The byte with the century.
pub const CENTURY: u8 = 0x32;

const SECONDS: u8 = 0;
const MINUTES: u8 = 2;
const HOURS: u8 = 4;
const WEEKDAY: u8 = 6;
const DAY: u8 = 7;
const MONTH: u8 = 8;
const YEAR: u8 = 9;
const STATUS_A: u8 = 0xa;
const STATUS_B: u8 = 0xb;
const STATUS_C: u8 = 0xc;
const STATUS_D: u8 = 0xd;

/// Each is followed by that of the alarm, which matches any time if both upper bits are set.
const ALARMED: [u8; 3] = [SECONDS, MINUTES, HOURS];
const ANY: u8 = 0xc0;

/// Register A: an update is about to occur, so the values read now may be inconsistent; the divider
/// of a clock with the usual crystal; the rate of periodic interrupts, and the usual one.
const UPDATE_IN_PROGRESS: u8 = 1 << 7;
const DIVIDER: u8 = 0x20;
const RATE: u8 = 0xf;
const RATE_1024_HZ: u8 = 6;
/// Register B: the time is being set; below numbers are binary; hours are in 24-hour format.
const SET: u8 = 1 << 7;
/// Events: enables in register B, flags in register C.
const PERIODIC: u8 = 1 << 6;
const ALARM: u8 = 1 << 5;
const UPDATE: u8 = 1 << 4;
const EVENTS: [u8; 3] = [PERIODIC, ALARM, UPDATE];
const WRITABLE_B: u8 = SET | PERIODIC | ALARM | UPDATE | BINARY | HOURS_24;
/// Register C: the interrupt is asserted.
const INTERRUPT: u8 = 1 << 7;
const BINARY: u8 = 1 << 2;
const HOURS_24: u8 = 1 << 1;
/// Register D: the battery is good.
const VALID: u8 = 1 << 7;
/// In 12-hour format this bit marks the afternoon.
const PM: u8 = 1 << 7;
/// Minimum time before an update for which its bit is set.
const UPDATE_NS: u64 = 244_000;
const SIZE: usize = 128;

/// The bytes of the time, unconverted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fields {
    second: u8,
    minute: u8,
    hour: u8,
    day: u8,
    month: u8,
    year: u8,
    /// `None` if there is no such byte.
    century: Option<u8>,
}

impl Fields {
    /// Reads them from a clock through `read`, which reads a byte; `century` is the index of the
    /// century byte, if there is one. Two equal readings are consistent; `None` if there are none,
    /// as without a clock.
    pub fn read(mut read: impl FnMut(u8) -> u8, century: Option<u8>) -> Option<(Self, u8)> {
        /// An update takes at most 2 ms, and reading a byte a microsecond.
        const TRIES: u32 = 1 << 16;
        let mut last = None;
        for _ in 0..TRIES {
            if read(STATUS_A) & UPDATE_IN_PROGRESS != 0 {
                continue;
            }
            let now = Self {
                second: read(SECONDS),
                minute: read(MINUTES),
                hour: read(HOURS),
                day: read(DAY),
                month: read(MONTH),
                year: read(YEAR),
                century: century.map(&mut read),
            };
            if last == Some(now) {
                return Some((now, read(STATUS_B)));
            }
            last = Some(now);
        }
        None
    }

    /// The same time in seconds since the beginning of 1970, in the formats that register B
    /// selects; `None` if it is no valid date.
    pub fn unix(&self, status_b: u8) -> Option<u64> {
        let number = |byte: u8| match (status_b & BINARY != 0, byte >> 4, byte & 0xf) {
            (true, ..) => Some(byte),
            (false, tens @ 0..=9, ones @ 0..=9) => Some(tens * 10 + ones),
            _ => None,
        };
        let hour = if status_b & HOURS_24 != 0 {
            number(self.hour)?
        } else {
            number(self.hour & !PM)? % 12 + if self.hour & PM != 0 { 12 } else { 0 }
        };
        let century = match self.century.and_then(number) {
            Some(century @ 19..=25) => i32::from(century),
            // Without a century, years count from 1970.
            _ if number(self.year)? >= 70 => 19,
            _ => 20,
        };
        let year = century * 100 + i32::from(number(self.year)?);
        let month = Month::try_from(number(self.month)?).ok()?;
        let date = Date::from_calendar_date(year, month, number(self.day)?).ok()?;
        let time = Time::from_hms(hour, number(self.minute)?, number(self.second)?).ok()?;
        u64::try_from(date.with_time(time).assume_utc().unix_timestamp()).ok()
    }
}

/// A guest's clock, and its CMOS memory.
#[derive(Clone, Debug)]
pub struct Cmos {
    index: u8,
    bytes: [u8; SIZE],
    /// How far its time is ahead of the machine's, in nanoseconds: the guest has set it.
    ahead: i64,
    /// What there has been since register C was read.
    flags: u8,
    /// Until when `flags` tells it, in the machine's time; 0 before anybody has asked.
    passed_ns: u64,
}

impl Default for Cmos {
    fn default() -> Self {
        let mut bytes = [0; SIZE];
        bytes[usize::from(STATUS_A)] = RATE_1024_HZ;
        bytes[usize::from(STATUS_B)] = HOURS_24;
        Self { index: 0, bytes, ahead: 0, flags: 0, passed_ns: 0 }
    }
}

// By the guest's date, which goes on.
described! { Cmos:
    index & 0x7f, bytes [kept], ahead, flags & (PERIODIC | ALARM | UPDATE), passed_ns
}

/// Bytes as they can be.
fn kept(mut bytes: [u8; SIZE]) -> [u8; SIZE] {
    for (index, byte) in (0..).zip(&mut bytes) {
        *byte &= match index {
            STATUS_A => RATE,
            STATUS_B => WRITABLE_B,
            _ => u8::MAX,
        };
    }
    bytes
}

impl Cmos {
    /// IN from one of the two ports, when it is `wall_ns` nanoseconds after the beginning of 1970.
    pub fn read(&mut self, port: u16, wall_ns: u64) -> u8 {
        if port != DATA {
            // The index cannot be read.
            return 0xff;
        }
        match self.index {
            STATUS_A => {
                let left = NS - self.time(wall_ns) % NS;
                let coming = self.is_running() && left <= UPDATE_NS;
                let rate = self.bytes[usize::from(STATUS_A)];
                DIVIDER | rate | if coming { UPDATE_IN_PROGRESS } else { 0 }
            }
            STATUS_C => {
                self.pass(wall_ns);
                let interrupt = if self.irq_level() { INTERRUPT } else { 0 };
                core::mem::take(&mut self.flags) | interrupt
            }
            STATUS_D => VALID,
            index => {
                if self.is_running() {
                    self.update(wall_ns);
                }
                self.bytes[usize::from(index)]
            }
        }
    }

    /// OUT to one of the two ports.
    pub fn write(&mut self, port: u16, value: u8, wall_ns: u64) {
        if port == INDEX {
            self.index = value & 0x7f;
            return;
        }
        self.pass(wall_ns);
        let was_running = self.is_running();
        if was_running {
            self.update(wall_ns);
        }
        let byte = &mut self.bytes[usize::from(self.index)];
        match self.index {
            STATUS_C | STATUS_D => {}
            STATUS_A => *byte = value & RATE,
            STATUS_B => {
                *byte = value & WRITABLE_B;
                if value & SET != 0 {
                    // From here on the time is stopped, and may be changed.
                    *byte &= !UPDATE;
                } else if !was_running {
                    self.take_over(wall_ns);
                }
            }
            index => {
                *byte = value;
                if was_running && matches!(index, SECONDS | MINUTES | HOURS | DAY..=YEAR | CENTURY) {
                    self.take_over(wall_ns);
                }
            }
        }
    }

    /// Notes what there has been until now. Called before the line or the next time is asked for.
    pub fn pass(&mut self, wall_ns: u64) {
        if self.passed_ns != 0 {
            let is_over = |event: &u8| self.due(*event).is_some_and(|due| due <= wall_ns);
            self.flags |= EVENTS.into_iter().filter(is_over).sum::<u8>();
        }
        self.passed_ns = self.passed_ns.max(wall_ns);
    }

    /// The level of its interrupt.
    pub const fn irq_level(&self) -> bool {
        self.flags & self.bytes[STATUS_B as usize] & (PERIODIC | ALARM | UPDATE) != 0
    }

    /// When the interrupt is asserted next, if it is not.
    pub fn due_ns(&self) -> Option<u64> {
        let is_enabled = |event: &u8| self.bytes[usize::from(STATUS_B)] & event != 0;
        let due = EVENTS.into_iter().filter(is_enabled).filter_map(|event| self.due(event)).min();
        due.filter(|_| !self.irq_level())
    }

    /// When an event occurs next, after what has passed, in the machine's time.
    fn due(&self, event: u8) -> Option<u64> {
        let time = self.time(self.passed_ns);
        let due = match (event, self.bytes[usize::from(STATUS_A)]) {
            (PERIODIC, 0) => return None,
            (PERIODIC, rate) => {
                // Rates 1 and 2 are those of 8 and 9.
                let hz = 1 << (16 - if rate < 3 { rate + 7 } else { rate });
                let ticks = u128::from(time) * hz / u128::from(NS) + 1;
                (ticks * u128::from(NS)).div_ceil(hz) as u64
            }
            _ if !self.is_running() => return None,
            (ALARM, _) => self.next_alarm(time / NS)?.checked_mul(NS)?,
            _ => (time / NS + 1).checked_mul(NS)?,
        };
        Some(due.saturating_add_signed(self.ahead.saturating_neg()))
    }

    /// The first second after `time` that matches the alarm.
    fn next_alarm(&self, time: u64) -> Option<u64> {
        /// Hours, minutes and seconds are looked through one after the other.
        const TRIES: u32 = 25 + 60 + 60;
        let mut time = time + 1;
        for _ in 0..TRIES {
            let now = [time % 60, time / 60 % 60, time / 3600 % 24].map(|number| number as u8);
            let now = [self.number(now[0]), self.number(now[1]), self.hour(now[2])];
            let differs = |&at: &usize| {
                let alarm = self.bytes[usize::from(ALARMED[at]) + 1];
                alarm & ANY != ANY && alarm != now[at]
            };
            match (0..3).rev().find(differs) {
                None => return Some(time),
                Some(at) => {
                    let unit = 60_u64.pow(at as u32);
                    time = (time / unit + 1) * unit;
                }
            }
        }
        None
    }

    /// Resets to the state after power-on. The time continues, as on battery.
    pub fn reset(&mut self) {
        *self = Self { ahead: self.ahead, ..Self::default() };
    }

    fn is_running(&self) -> bool {
        self.bytes[usize::from(STATUS_B)] & SET == 0
    }

    fn time(&self, wall_ns: u64) -> u64 {
        wall_ns.saturating_add_signed(self.ahead)
    }

    /// A number in the format that register B selects.
    const fn number(&self, value: u8) -> u8 {
        match self.bytes[STATUS_B as usize] & BINARY {
            0 => ((value / 10) << 4) | (value % 10),
            _ => value,
        }
    }

    /// An hour of 0 to 23 likewise.
    const fn hour(&self, hour: u8) -> u8 {
        match self.bytes[STATUS_B as usize] & HOURS_24 {
            0 => self.number((hour + 11) % 12 + 1) | if hour >= 12 { PM } else { 0 },
            _ => self.number(hour),
        }
    }

    fn update(&mut self, wall_ns: u64) {
        let unix = (self.time(wall_ns) / NS) as i64;
        let Ok(time) = OffsetDateTime::from_unix_timestamp(unix) else { return };
        let number = |value| self.number(value);
        let year = time.year() as u32;
        for (index, value) in [
            (SECONDS, number(time.second())),
            (MINUTES, number(time.minute())),
            (HOURS, self.hour(time.hour())),
            (WEEKDAY, number(time.weekday().number_from_sunday())),
            (DAY, number(time.day())),
            (MONTH, number(time.month().into())),
            (YEAR, number((year % 100) as u8)),
            (CENTURY, number((year / 100) as u8)),
        ] {
            self.bytes[usize::from(index)] = value;
        }
    }

    /// Sets the time from the bytes, at the beginning of a second. An invalid date is ignored.
    fn take_over(&mut self, wall_ns: u64) {
        let byte = |index: u8| self.bytes[usize::from(index)];
        let fields = Fields {
            second: byte(SECONDS),
            minute: byte(MINUTES),
            hour: byte(HOURS),
            day: byte(DAY),
            month: byte(MONTH),
            year: byte(YEAR),
            century: Some(byte(CENTURY)),
        };
        let ns = fields.unix(byte(STATUS_B)).and_then(|unix| i64::try_from(unix.checked_mul(NS)?).ok());
        if let (Some(ns), Ok(wall)) = (ns, i64::try_from(wall_ns)) {
            self.ahead = ns - wall;
        }
    }
}
