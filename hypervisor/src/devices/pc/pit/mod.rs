//! The interval timer of the PC, an 8254, and the port that controls its third counter (Intel 8254
//! datasheet; the port is the PC's "system control port B").
//!
//! Software uses it to measure the rate of other clocks: it starts counter 2, whose gate is a bit
//! of port 0x61, and waits until its output, another bit of that port, changes. The counters are
//! computed from the time that is passed to each access. There are no interrupts: no pin of the I/O
//! APIC is wired to counter 0, and the ACPI tables name no such interrupt. A count that is written
//! while its counter counts is used at once, even in the modes in which an 8254 ends the period
//! first.

#[cfg(test)]
mod tests;

use migration::{Archive, Described, Flaw, described};

/// The first of the ports of the three counters.
pub const COUNTERS: u16 = 0x40;
/// The port of the control words.
pub const CONTROL: u16 = 0x43;
/// The port with counter 2's gate and output.
pub const SYSTEM: u16 = 0x61;
/// The counters' rate, in Hz.
pub const HZ: u64 = 1_193_182;

const NS_PER_S: u128 = 1_000_000_000;
/// Bits of the system port that software sets: counter 2's gate, the speaker, two error checks.
const SYSTEM_WRITABLE: u8 = 0xf;
const SYSTEM_GATE: u8 = 1 << 0;
/// Toggles at the rate of memory refresh.
const SYSTEM_REFRESH: u8 = 1 << 4;
const SYSTEM_OUTPUT: u8 = 1 << 5;
const REFRESH_NS: u64 = 15_085;

/// The bytes of a count that are accessed, as in control words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bytes {
    Low = 1,
    High = 2,
    Both = 3,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    Waiting,
    /// It has counted since this time, in nanoseconds.
    Since(u64),
    /// The gate holds it after this many ticks.
    Held(u64),
}

#[derive(Clone, Copy, Debug)]
struct Counter {
    /// 0 to 5.
    mode: u8,
    is_decimal: bool,
    bytes: Bytes,
    /// From 1 to 65536, or 10000 if it is decimal.
    period: u64,
    run: Run,
    gate: bool,
    /// The low byte of a two-byte count, which has been written.
    written: Option<u8>,
    /// The remaining bytes of a latched count.
    latched: Option<u16>,
    status: Option<u8>,
    /// The next byte to be read is the high one of two.
    is_high_next: bool,
}

described!(Bytes: [Self::Low, Self::High, Self::Both]);

/// By the guest's date, which goes on.
impl Described for Run {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let out = |run: &Self| match *run {
            Self::Waiting => (0_u8, 0_u64),
            Self::Since(start) => (1, start),
            Self::Held(ticks) => (2, ticks),
        };
        archive.through(self, out, |form| match form {
            (0, _) => Some(Self::Waiting),
            (1, start) => Some(Self::Since(start)),
            (2, ticks) => Some(Self::Held(ticks)),
            _ => None,
        })
    }
}

described! { Counter:
    mode [|mode| mode % 6], is_decimal, bytes, period [|period| period.wrapping_sub(1) % 0x1_0000 + 1], run,
    gate, written, latched, status, is_high_next
}

impl Counter {
    /// As firmware leaves it: with the largest divisor.
    const fn new(gate: bool) -> Self {
        Self {
            mode: 3,
            is_decimal: false,
            bytes: Bytes::Both,
            period: 0x1_0000,
            run: if gate { Run::Since(0) } else { Run::Waiting },
            gate,
            written: None,
            latched: None,
            status: None,
            is_high_next: false,
        }
    }

    /// One more than the highest number.
    const fn modulus(&self) -> u64 {
        if self.is_decimal { 10_000 } else { 0x1_0000 }
    }

    /// A control word restarts everything.
    fn set_mode(&mut self, word: u8, bytes: Bytes) {
        let mode = match word >> 1 & 7 {
            // The high bit is not decoded for these two.
            mode @ 6..=7 => mode - 4,
            mode => mode,
        };
        *self = Self { mode, is_decimal: word & 1 != 0, bytes, run: Run::Waiting, ..Self::new(self.gate) };
    }

    fn ticks(&self, now: u64) -> Option<u64> {
        match self.run {
            Run::Waiting => None,
            Run::Held(ticks) => Some(ticks),
            Run::Since(start) => {
                let ns = u128::from(now.saturating_sub(start));
                // Less than 2^64 ns are fewer ticks than that.
                Some((ns * u128::from(HZ) / NS_PER_S) as u64)
            }
        }
    }

    fn write(&mut self, value: u8, now: u64) {
        let count = match (self.bytes, self.written.take()) {
            (Bytes::Low, _) => u16::from(value),
            (Bytes::High, _) => u16::from(value) << 8,
            (Bytes::Both, Some(low)) => u16::from_le_bytes([low, value]),
            (Bytes::Both, None) => {
                self.written = Some(value);
                return;
            }
        };
        let number = if self.is_decimal { from_decimal(count) } else { u64::from(count) };
        self.period = if number == 0 { self.modulus() } else { number };
        self.run = match self.mode {
            // These modes wait for their gate to rise.
            1 | 5 => return,
            0 | 4 if !self.gate => Run::Held(0),
            2 | 3 if !self.gate => Run::Waiting,
            _ => Run::Since(now),
        };
    }

    fn set_gate(&mut self, gate: bool, now: u64) {
        let rises = gate && !self.gate;
        let falls = !gate && self.gate;
        self.gate = gate;
        self.run = match (self.mode, self.run) {
            (0 | 4, Run::Since(_)) if falls => Run::Held(self.ticks(now).unwrap_or(0)),
            (0 | 4, Run::Held(ticks)) if rises => {
                let ns = (u128::from(ticks) * NS_PER_S).div_ceil(u128::from(HZ));
                Run::Since(now.saturating_sub(ns as u64))
            }
            (2 | 3, _) if falls => Run::Waiting,
            (1 | 2 | 3 | 5, _) if rises => Run::Since(now),
            (_, run) => run,
        };
    }

    fn count(&self, now: u64) -> u16 {
        let ticks = self.ticks(now).unwrap_or(0);
        let number = match self.mode {
            2 => self.period - ticks % self.period,
            // Two at a time, twice in each period.
            3 => (self.period - ticks.wrapping_mul(2) % self.period) & !1,
            _ => self.period.wrapping_sub(ticks % self.modulus()),
        };
        let number = number.wrapping_add(self.modulus()) % self.modulus();
        if self.is_decimal { to_decimal(number) } else { number as u16 }
    }

    fn output(&self, now: u64) -> bool {
        let Some(ticks) = self.ticks(now) else { return self.mode != 0 };
        let in_period = ticks % self.period;
        match self.mode {
            0 | 1 => ticks >= self.period,
            2 => in_period != self.period - 1,
            3 => in_period < self.period.div_ceil(2),
            _ => ticks != self.period,
        }
    }

    fn latch(&mut self, now: u64) {
        // A latched count stays latched until it has been read.
        if self.latched.is_none() {
            self.latched = Some(self.count(now));
            self.is_high_next = false;
        }
    }

    fn latch_status(&mut self, now: u64) {
        let is_null = u8::from(self.run == Run::Waiting);
        let output = u8::from(self.output(now));
        let status =
            output << 7 | is_null << 6 | (self.bytes as u8) << 4 | self.mode << 1 | u8::from(self.is_decimal);
        self.status.get_or_insert(status);
    }

    fn read(&mut self, now: u64) -> u8 {
        if let Some(status) = self.status.take() {
            return status;
        }
        let [low, high] = self.latched.unwrap_or_else(|| self.count(now)).to_le_bytes();
        let is_high = match self.bytes {
            Bytes::Low => false,
            Bytes::High => true,
            Bytes::Both => {
                self.is_high_next = !self.is_high_next;
                !self.is_high_next
            }
        };
        if is_high || self.bytes == Bytes::Low {
            self.latched = None;
        }
        if is_high { high } else { low }
    }
}

/// A number of four decimal digits; nibbles that are not digits count by their value.
fn from_decimal(count: u16) -> u64 {
    let digit = |shift: u32| u64::from(count >> shift & 0xf);
    (digit(12) * 1000 + digit(8) * 100 + digit(4) * 10 + digit(0)) % 10_000
}

fn to_decimal(number: u64) -> u16 {
    [1000, 100, 10, 1].iter().fold(0, |digits, unit| digits << 4 | (number / unit % 10) as u16)
}

/// The timer.
#[derive(Clone, Debug)]
pub struct Pit {
    counters: [Counter; 3],
    system: u8,
}

impl Default for Pit {
    fn default() -> Self {
        Self { counters: [Counter::new(true), Counter::new(true), Counter::new(false)], system: 0 }
    }
}

described!(Pit: counters, system & SYSTEM_WRITABLE);

impl Pit {
    /// IN from one of its ports, `now` nanoseconds after any fixed point in time.
    pub fn read(&mut self, port: u16, now: u64) -> u8 {
        if port == SYSTEM {
            let refresh = if (now / REFRESH_NS).is_multiple_of(2) { 0 } else { SYSTEM_REFRESH };
            let output = if self.counters[2].output(now) { SYSTEM_OUTPUT } else { 0 };
            return self.system | refresh | output;
        }
        // The control port cannot be read.
        self.counter(port).map_or(0xff, |counter| counter.read(now))
    }

    /// OUT to one of its ports.
    pub fn write(&mut self, port: u16, value: u8, now: u64) {
        match port {
            SYSTEM => {
                self.system = value & SYSTEM_WRITABLE;
                self.counters[2].set_gate(value & SYSTEM_GATE != 0, now);
            }
            CONTROL => self.control(value, now),
            _ => _ = self.counter(port).map(|counter| counter.write(value, now)),
        }
    }

    fn counter(&mut self, port: u16) -> Option<&mut Counter> {
        self.counters.get_mut(usize::from(port.wrapping_sub(COUNTERS)))
    }

    fn control(&mut self, word: u8, now: u64) {
        let bytes = match word >> 4 & 3 {
            1 => Some(Bytes::Low),
            2 => Some(Bytes::High),
            3 => Some(Bytes::Both),
            _ => None,
        };
        match (self.counters.get_mut(usize::from(word >> 6)), bytes) {
            (Some(counter), Some(bytes)) => counter.set_mode(word, bytes),
            (Some(counter), None) => counter.latch(now),
            // Read-back: bits 1 to 3 name counters; bits 5 and 4 suppress a latch.
            (None, _) => {
                for (number, counter) in (1..).zip(&mut self.counters) {
                    if word >> number & 1 == 0 {
                        continue;
                    }
                    if word & 1 << 5 == 0 {
                        counter.latch(now);
                    }
                    if word & 1 << 4 == 0 {
                        counter.latch_status(now);
                    }
                }
            }
        }
    }
}
