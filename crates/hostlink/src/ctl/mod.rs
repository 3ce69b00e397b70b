//! Requests of the host tool to the running hypervisor and their answers: lines of text over a
//! serial port.
//!
//! A request is `NUMBER COMMAND ARGUMENTS`; [`Request`] lists them. With several guests the command
//! may follow `@GUEST`, the name of the guest that it is about; otherwise it is the first one. The
//! answer is any number of records `NUMBER : FIELDS`, and then either `NUMBER ok` or `NUMBER error
//! MESSAGE`. [`record`] lists the fields of each kind of record. Numbers in arguments and fields
//! are decimal, or hexadecimal after `0x`.
//!
//! Several requests are served at a time, so answers come in any order; requests about one guest
//! are served one after the other. The requester chooses the numbers, and no two of the same time
//! are equal. For each record it sends `+NUMBER`, a [`Reply`], and then gets the next line of that
//! answer: a serial line connected to a socket buffers few bytes, and further bytes are lost.

mod input;
pub mod record;
pub mod request;

pub use input::Input;
pub use request::{Request, RequestError};

use crate::guests::GuestState;
use crate::name::Name;
use crate::words::words;
use core::fmt;
use core::num::ParseIntError;

/// Longest line in either direction in bytes, without its end.
pub const LINE_MAX: usize = 200;
/// Begins a reply that requests the line after a record.
pub const NEXT: u8 = b'+';
/// Begins a reply that says that nobody waits for the answer any more.
pub const GONE: u8 = b'-';

/// What a requester sends about a request that is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It has the record of the answer to the request of this number, and wants the next line.
    Next(u64),
    /// It does not wait for the answer any more. The request is served all the same.
    Gone(u64),
}

impl Reply {
    /// Reads a line; `None` if it is not one.
    pub fn parse(line: &str) -> Option<Self> {
        let number = |digits: &str| digits.parse().ok().filter(|_| !digits.starts_with('+'));
        match line.split_at_checked(1)? {
            ("+", digits) => number(digits).map(Self::Next),
            ("-", digits) => number(digits).map(Self::Gone),
            _ => None,
        }
    }
}

impl fmt::Display for Reply {
    /// Writes it as [`Reply::parse`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, number) = match self {
            Self::Next(number) => (NEXT, number),
            Self::Gone(number) => (GONE, number),
        };
        write!(f, "{}{number}", char::from(sign))
    }
}

/// A word or number in a request or a record. [`Display`](core::fmt::Display) writes it.
pub trait Word: Sized {
    /// Reads it; `None` if it is not one.
    fn read(text: &str) -> Option<Self>;
}

/// Implements [`Word`] for unsigned integers.
macro_rules! numbers {
    ($($Number:ty),+) => {$(
        impl Word for $Number {
            fn read(text: &str) -> Option<Self> {
                parse_number(text).ok().and_then(|number| number.try_into().ok())
            }
        }
    )+};
}
numbers!(u8, u16, u32, u64);

impl Word for u128 {
    /// All of its bits matter: it is always hexadecimal.
    fn read(text: &str) -> Option<Self> {
        Self::from_str_radix(text.strip_prefix("0x")?, 16).ok()
    }
}

words! {
    /// How the hypervisor detects which pages are written.
    LogWay {
        /// By the dirty bits of the nested page tables: no exits.
        DirtyBits = "dirty-bits",
        /// By removing write access: an exit for the first store to each page.
        WriteProtection = "write-protection",
    }

    /// Whether a guest runs while it is sent.
    SendWay {
        /// It runs, and what it writes is sent again.
        Live = "live",
        /// It stands still.
        Still = "still",
    }

    /// The guest's access to memory.
    Access {
        /// Read and write.
        ReadWrite = "rw",
        /// Read only.
        ReadOnly = "ro",
    }

    /// Whether stores to a slot are logged.
    Log {
        /// Stores are not logged.
        Off = "off",
        /// Stores are logged.
        On = "on",
    }
}

/// Implements [`Word`] for enumerations of `words!`.
macro_rules! read_by_name {
    ($($Name:ty),+) => {$(
        impl Word for $Name {
            fn read(text: &str) -> Option<Self> {
                Self::named(text)
            }
        }
    )+};
}
read_by_name!(LogWay, SendWay, Access, Log, GuestState);

impl Word for Name {
    fn read(text: &str) -> Option<Self> {
        Self::parse(text)
    }
}

impl Access {
    /// Read only or read-write.
    pub const fn read_only(is_read_only: bool) -> Self {
        if is_read_only { Self::ReadOnly } else { Self::ReadWrite }
    }
}

/// A number as it is written in requests and records.
///
/// # Errors
///
/// The text is not a number, or the number does not fit.
pub fn parse_number(text: &str) -> Result<u64, ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

/// A line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A record: its fields.
    Record(&'a str),
    /// The request is done.
    Ok,
    /// The request is refused, and nothing has changed.
    Error(&'a str),
}

impl<'a> Answer<'a> {
    /// Reads a line of the answer to request `number`; `None` if it is not one.
    pub fn parse(line: &'a str, number: u64) -> Option<Self> {
        let (head, rest) = line.trim_end().split_once(' ')?;
        if parse_number(head) != Ok(number) {
            return None;
        }
        match rest.split_once(' ') {
            Some((":", fields)) => Some(Self::Record(fields)),
            Some(("error", message)) => Some(Self::Error(message)),
            None if rest == "ok" => Some(Self::Ok),
            _ => None,
        }
    }
}

/// Assembles lines from the bytes of a serial line.
#[derive(Clone, Debug)]
pub struct LineBuffer {
    bytes: [u8; LINE_MAX],
    len: usize,
    /// The line is too long: the rest of it is dropped.
    overlong: bool,
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl LineBuffer {
    /// An empty buffer.
    pub const fn new() -> Self {
        Self { bytes: [0; LINE_MAX], len: 0, overlong: false }
    }

    /// Takes a byte. When it ends a line, calls `act` with the line, without its end; a line that
    /// is too long or not UTF-8 is passed as an empty one.
    pub fn push<R>(&mut self, byte: u8, act: impl FnOnce(&str) -> R) -> Option<R> {
        if byte != b'\n' {
            match self.bytes.get_mut(self.len) {
                Some(place) => {
                    *place = byte;
                    self.len += 1;
                }
                None => self.overlong = true,
            }
            return None;
        }
        let line = if self.overlong { &[][..] } else { &self.bytes[..self.len] };
        let result = act(core::str::from_utf8(line).unwrap_or_default());
        self.len = 0;
        self.overlong = false;
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    #[test]
    fn answers_are_those_of_their_request() {
        assert_eq!(Answer::parse("5 : slot=1 log=off", 5), Some(Answer::Record("slot=1 log=off")));
        assert_eq!(Answer::parse("5 ok\r", 5), Some(Answer::Ok));
        assert_eq!(Answer::parse("5 error it is gone", 5), Some(Answer::Error("it is gone")));
        for line in ["4 ok", "5 fine", "ok", "", "5 : ", "five ok"] {
            assert_eq!(Answer::parse(line, 5), None, "{line}");
        }
    }

    #[test]
    fn replies_are_read_back_and_nothing_else_is_one() {
        for reply in [Reply::Next(0), Reply::Next(u64::MAX), Reply::Gone(7)] {
            assert_eq!(Reply::parse(&std::format!("{reply}")), Some(reply));
        }
        for line in ["", "+", "-", "7", "+x", "+ 7", "++7", "+7 vms", "é7"] {
            assert_eq!(Reply::parse(line), None, "{line}");
        }
    }

    #[test]
    fn lines_are_put_together_and_overlong_ones_do_no_harm() {
        let mut buffer = LineBuffer::new();
        let text = [&b"1 vms\n"[..], &[b'x'; LINE_MAX + 1], b"\n\xff\n2 slots\n"].concat();
        let lines: Vec<String> =
            text.iter().filter_map(|&byte| buffer.push(byte, |line| line.into())).collect();
        assert_eq!(lines, ["1 vms", "", "", "2 slots"]);
        let full: Vec<String> = [&[b'y'; LINE_MAX][..], b"\n"]
            .concat()
            .iter()
            .filter_map(|&byte| buffer.push(byte, |line| line.into()))
            .collect();
        assert_eq!(full[0].len(), LINE_MAX);
    }
}
