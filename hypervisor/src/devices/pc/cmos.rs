//! The PC's clock: Motorola's MC146818A behind ports 0x70 (index) and 0x71 (data), with the CMOS
//! memory beside it.
//!
//! It tells the time and can be set. It has no interrupts, so its alarm and its periodic ticks
//! never occur. Hours are in 24-hour format, numbers in BCD, as firmware leaves them.
//! [`Fields::unix`] reads the same formats from the machine's own clock.
//!
//! Source: Motorola, MC146818A data sheet, "Register A" to "Register D" and "Update cycle"; for the
//! century ACPI 6.5, FADT.

use crate::devices::wall_clock::NS;
use time::{Date, Month, OffsetDateTime, Time};

/// The port that selects a byte; its bit 7 masks NMIs on a PC, and has no effect here.
pub const INDEX: u16 = 0x70;
/// The port of the selected byte.
pub const DATA: u16 = 0x71;
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

/// Register A: an update is about to occur, so the values read now may be inconsistent; and the
/// usual divider and rate.
const UPDATE_IN_PROGRESS: u8 = 1 << 7;
const DIVIDER: u8 = 0x26;
/// Register B: the time is being set; numbers are binary; hours are in 24-hour format.
const SET: u8 = 1 << 7;
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
    #[must_use]
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
}

impl Default for Cmos {
    fn default() -> Self {
        let mut bytes = [0; SIZE];
        bytes[usize::from(STATUS_B)] = HOURS_24;
        Self { index: 0, bytes, ahead: 0 }
    }
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
                DIVIDER | if coming { UPDATE_IN_PROGRESS } else { 0 }
            }
            STATUS_C => 0,
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
        match self.index {
            STATUS_A | STATUS_C | STATUS_D => {}
            STATUS_B => {
                if self.is_running() {
                    // From here on the time is stopped, and may be changed.
                    self.update(wall_ns);
                    self.bytes[usize::from(STATUS_B)] = value & (SET | BINARY | HOURS_24);
                } else {
                    self.bytes[usize::from(STATUS_B)] = value & (SET | BINARY | HOURS_24);
                    if self.is_running() {
                        self.take_over(wall_ns);
                    }
                }
            }
            index => {
                if self.is_running() {
                    self.update(wall_ns);
                }
                self.bytes[usize::from(index)] = value;
                if self.is_running() {
                    self.take_over(wall_ns);
                }
            }
        }
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

    /// Writes the time to its bytes.
    fn update(&mut self, wall_ns: u64) {
        let status = self.bytes[usize::from(STATUS_B)];
        let unix = (self.time(wall_ns) / NS) as i64;
        let Ok(time) = OffsetDateTime::from_unix_timestamp(unix) else { return };
        let number =
            |value: u8| if status & BINARY != 0 { value } else { ((value / 10) << 4) | (value % 10) };
        let hour = match time.hour() {
            hour if status & HOURS_24 != 0 => number(hour),
            hour => number((hour + 11) % 12 + 1) | if hour >= 12 { PM } else { 0 },
        };
        let year = time.year() as u32;
        for (index, value) in [
            (SECONDS, number(time.second())),
            (MINUTES, number(time.minute())),
            (HOURS, hour),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// 2026-11-22 21:43:56 UTC, a Sunday.
    const UNIX: u64 = 1_795_383_836;

    fn read(cmos: &mut Cmos, index: u8, wall_ns: u64) -> u8 {
        cmos.write(INDEX, index, wall_ns);
        cmos.read(DATA, wall_ns)
    }

    fn write(cmos: &mut Cmos, index: u8, value: u8, wall_ns: u64) {
        cmos.write(INDEX, index, wall_ns);
        cmos.write(DATA, value, wall_ns);
    }

    /// As software reads it.
    fn unix(cmos: &mut Cmos, wall_ns: u64) -> Option<u64> {
        let (fields, status) = Fields::read(|index| read(cmos, index, wall_ns), Some(CENTURY))?;
        fields.unix(status)
    }

    #[test]
    fn u25_a_pcs_clock_says_what_time_it_is() {
        let mut cmos = Cmos::default();
        let at = |index, cmos: &mut Cmos| read(cmos, index, UNIX * NS);
        let bytes = [0, 2, 4, 6, 7, 8, 9, CENTURY].map(|index| at(index, &mut cmos));
        assert_eq!(bytes, [0x56, 0x43, 0x21, 1, 0x22, 0x11, 0x26, 0x20]);
        assert_eq!([0xa, 0xb, 0xc, 0xd].map(|index| at(index, &mut cmos)), [0x26, 0x02, 0, 0x80]);
        // Leap days, turns of years and of the century, and 1970 itself.
        for unix_time in [0, 951_782_399, 951_782_400, 946_684_799, 946_684_800, 1_709_164_800, 4_102_444_800]
        {
            assert_eq!(unix(&mut cmos, unix_time * NS), Some(unix_time));
        }
    }

    #[test]
    fn every_format_is_read_and_written() {
        for status in [0, BINARY, HOURS_24, BINARY | HOURS_24] {
            let mut cmos = Cmos::default();
            write(&mut cmos, STATUS_B, status, 0);
            for hour in 0..24 {
                let unix_time = UNIX + hour * 3600;
                assert_eq!(unix(&mut cmos, unix_time * NS), Some(unix_time), "{status:#x}, {hour}");
            }
        }
    }

    #[test]
    fn what_a_guest_sets_goes_on_from_there_and_through_a_reset() {
        let mut cmos = Cmos::default();
        let now = UNIX * NS + NS / 3;
        write(&mut cmos, STATUS_B, SET | HOURS_24, now);
        for (index, value) in
            [(SECONDS, 0x59), (MINUTES, 0x59), (HOURS, 0x23), (DAY, 0x31), (MONTH, 0x12), (YEAR, 0x99)]
        {
            write(&mut cmos, index, value, now + 5 * NS);
        }
        write(&mut cmos, CENTURY, 0x19, now + 5 * NS);
        write(&mut cmos, STATUS_B, HOURS_24, now + 6 * NS);
        assert_eq!(unix(&mut cmos, now + 6 * NS), Some(946_684_799));
        cmos.reset();
        assert_eq!(unix(&mut cmos, now + 7 * NS), Some(946_684_800));
        write(&mut cmos, MONTH, 0x77, now + 7 * NS);
        assert_eq!(unix(&mut cmos, now + 8 * NS), Some(946_684_801), "no month");
    }

    #[test]
    fn an_update_is_announced_so_that_readings_fit_together() {
        let mut cmos = Cmos::default();
        let second = UNIX * NS;
        assert_eq!(read(&mut cmos, STATUS_A, second) & UPDATE_IN_PROGRESS, 0);
        assert_ne!(read(&mut cmos, STATUS_A, second - 1) & UPDATE_IN_PROGRESS, 0);
        assert_ne!(read(&mut cmos, STATUS_A, second - UPDATE_NS) & UPDATE_IN_PROGRESS, 0);
        assert_eq!(read(&mut cmos, STATUS_A, second - UPDATE_NS - 1) & UPDATE_IN_PROGRESS, 0);
    }

    #[test]
    fn a_clock_that_is_absent_or_broken_has_no_time() {
        assert_eq!(Fields::read(|_| 0xff, Some(CENTURY)), None, "an update that never ends");
        let mut count = 0_u8;
        let turning = |_| {
            count = count.wrapping_add(1);
            count & 0x7f
        };
        assert_eq!(Fields::read(turning, None), None, "no two readings are alike");
        let (fields, _) = Fields::read(|_| 0x7f, None).unwrap();
        assert_eq!(fields.unix(HOURS_24), None, "no digits");
        assert_eq!(fields.unix(BINARY | HOURS_24), None, "no date");
    }

    #[test]
    fn memory_is_memory_and_no_index_is_too_large() {
        let mut cmos = Cmos::default();
        for index in 0xe..=0xff_u8 {
            if index & 0x7f >= 0xe && index & 0x7f != CENTURY {
                write(&mut cmos, index, index ^ 0x55, 0);
                assert_eq!(read(&mut cmos, index, 0), index ^ 0x55);
            }
        }
        assert_eq!(cmos.read(INDEX, 0), 0xff);
        for (index, value) in (0..=0xff_u8).zip((0..=0xff).rev()) {
            write(&mut cmos, index, value, u64::MAX);
            let _ = read(&mut cmos, index, u64::MAX);
        }
    }
}
