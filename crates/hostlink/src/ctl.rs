//! What the host tool asks of the running hypervisor and what comes back: lines of text over a serial port.
//!
//! A request is `NUMBER COMMAND ARGUMENTS`. The answer is any number of records `NUMBER : FIELDS`, and then either
//! `NUMBER ok` or `NUMBER error MESSAGE`. The number is the asker's, so that what is left of somebody else's answer is told
//! apart. For each record the asker sends [`NEXT`], upon which the next line comes: a serial line that leads into a socket has room for few bytes,
//! and what does not fit is lost. An asker that sends anything else instead is taken for another one. Numbers in arguments and fields are decimal, or hexadecimal behind `0x`.
//!
//! | request | what it does | records |
//! |---|---|---|
//! | `vms` | names the virtual machines | `vm=`, `vcpus=`, `memory=`, `generation=` |
//! | `slots` | names the memory slots | [`SlotRecord`] |
//! | `add GPA SIZE rw\|ro` | adds zeroed memory; the guest is not told | `slot=` |
//! | `delete SLOT` | takes it away again | `visited=` (entries of the nested page table), `tables=` (freed), `flushes=`, `steps=`; in ticks of the clock `ticks=` and `longest=` (step) |
//! | `log-start SLOT dirty-bits\|write-protection` | begins to log which pages are written | |
//! | `log-fetch SLOT` | pages written since the last fetch, which are forgotten | `dirty=FIRST+COUNT,…`, pages from the slot's first |
//! | `log-stop SLOT` | ends the log | |
//! | `migrate SLOT dirty-bits\|write-protection ROUNDS` | a migration that is cancelled: logs stores, copies all pages and then for some rounds those that were written, and undoes it | for each round `round=`, `pages=`, `steps=`, `ticks=`, `longest=` (step), the record of the last one before anything is undone; at the end `undone=1`, the same of undoing it, `longest_before=`, and `hz=` (ticks of a second) |
//! | `stats` | the counters, added up over the vCPUs | `NAME=VALUE` |

use core::fmt;
use core::num::ParseIntError;
use core::str::SplitAsciiWhitespace;

/// Longest line of either side in bytes, without its end.
pub const LINE_MAX: usize = 200;
/// Asks for what comes after a record.
pub const NEXT: u8 = b'+';
/// Runs of dirty pages in one record.
pub const RUNS_MAX: usize = 8;

/// How the hypervisor finds out which pages are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogWay {
    /// By the dirty bits of the nested page tables: no exits.
    DirtyBits,
    /// By taking write access away: an exit for the first store to each page.
    WriteProtection,
}

impl LogWay {
    /// As it is written in a request.
    pub const fn name(self) -> &'static str {
        match self {
            Self::DirtyBits => "dirty-bits",
            Self::WriteProtection => "write-protection",
        }
    }
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// `vms`.
    Vms,
    /// `slots`.
    Slots,
    /// `add`.
    Add {
        /// First guest physical address.
        gpa: u64,
        /// Bytes.
        size: u64,
        /// Whether the guest may only read.
        read_only: bool,
    },
    /// `delete`.
    Delete {
        /// Number of the slot.
        slot: u16,
    },
    /// `log-start`.
    LogStart {
        /// Number of the slot.
        slot: u16,
        /// How.
        way: LogWay,
    },
    /// `log-fetch`.
    LogFetch {
        /// Number of the slot.
        slot: u16,
    },
    /// `log-stop`.
    LogStop {
        /// Number of the slot.
        slot: u16,
    },
    /// `migrate`.
    Migrate {
        /// Number of the slot.
        slot: u16,
        /// How its stores are logged.
        way: LogWay,
        /// How often what was written is copied again.
        rounds: u16,
    },
    /// `stats`.
    Stats,
}

/// Why a line is no request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It does not begin with a number.
    NoNumber,
    /// There is no such command.
    UnknownCommand,
    /// The command needs this argument.
    Missing(&'static str),
    /// This argument is not what it should be.
    Bad(&'static str),
    /// There are more arguments than the command has.
    TooMany,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNumber => f.write_str("a request begins with a number"),
            Self::UnknownCommand => f.write_str("no such request"),
            Self::Missing(what) => write!(f, "{what} is missing"),
            Self::Bad(what) => write!(f, "expected {what}"),
            Self::TooMany => f.write_str("too many arguments"),
        }
    }
}

impl core::error::Error for RequestError {}

/// A number as it is written in requests and records.
///
/// # Errors
///
/// It is none, or does not fit.
pub fn parse_number(text: &str) -> Result<u64, ParseIntError> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    }
}

struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self, what: &'static str) -> Result<&'a str, RequestError> {
        self.0.next().ok_or(RequestError::Missing(what))
    }

    fn number(&mut self, what: &'static str) -> Result<u64, RequestError> {
        parse_number(self.next(what)?).map_err(|_| RequestError::Bad(what))
    }

    fn slot(&mut self) -> Result<u16, RequestError> {
        const WHAT: &str = "the number of a slot";
        u16::try_from(self.number(WHAT)?).map_err(|_| RequestError::Bad(WHAT))
    }

    fn way(&mut self) -> Result<LogWay, RequestError> {
        const WAYS: &str = "dirty-bits or write-protection";
        let name = self.next(WAYS)?;
        let way = [LogWay::DirtyBits, LogWay::WriteProtection].into_iter().find(|way| way.name() == name);
        way.ok_or(RequestError::Bad(WAYS))
    }

    fn rounds(&mut self) -> Result<u16, RequestError> {
        const WHAT: &str = "a number of rounds";
        u16::try_from(self.number(WHAT)?).map_err(|_| RequestError::Bad(WHAT))
    }
}

impl Request {
    /// Reads a line: the asker's number, and what is asked.
    ///
    /// # Errors
    ///
    /// See [`RequestError`]. The number comes with it if there is one.
    pub fn parse(line: &str) -> Result<(u64, Self), (Option<u64>, RequestError)> {
        let mut words = Words(line.split_ascii_whitespace());
        let number = words.number("a number").map_err(|_| (None, RequestError::NoNumber))?;
        let request = Self::parse_command(&mut words).map_err(|error| (Some(number), error))?;
        match words.0.next() {
            None => Ok((number, request)),
            Some(_) => Err((Some(number), RequestError::TooMany)),
        }
    }

    fn parse_command(words: &mut Words<'_>) -> Result<Self, RequestError> {
        Ok(match words.next("the request")? {
            "vms" => Self::Vms,
            "slots" => Self::Slots,
            "add" => Self::Add {
                gpa: words.number("a guest physical address")?,
                size: words.number("a size in bytes")?,
                read_only: match words.next("rw or ro")? {
                    "rw" => false,
                    "ro" => true,
                    _ => return Err(RequestError::Bad("rw or ro")),
                },
            },
            "delete" => Self::Delete { slot: words.slot()? },
            "log-start" => Self::LogStart { slot: words.slot()?, way: words.way()? },
            "log-fetch" => Self::LogFetch { slot: words.slot()? },
            "log-stop" => Self::LogStop { slot: words.slot()? },
            "migrate" => Self::Migrate { slot: words.slot()?, way: words.way()?, rounds: words.rounds()? },
            "stats" => Self::Stats,
            _ => return Err(RequestError::UnknownCommand),
        })
    }
}

impl fmt::Display for Request {
    /// Writes the command and its arguments, as [`Request::parse`] reads them behind the number.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Vms => f.write_str("vms"),
            Self::Slots => f.write_str("slots"),
            Self::Add { gpa, size, read_only } => {
                write!(f, "add {gpa:#x} {size:#x} {}", if read_only { "ro" } else { "rw" })
            }
            Self::Delete { slot } => write!(f, "delete {slot}"),
            Self::LogStart { slot, way } => write!(f, "log-start {slot} {}", way.name()),
            Self::LogFetch { slot } => write!(f, "log-fetch {slot}"),
            Self::LogStop { slot } => write!(f, "log-stop {slot}"),
            Self::Migrate { slot, way, rounds } => write!(f, "migrate {slot} {} {rounds}", way.name()),
            Self::Stats => f.write_str("stats"),
        }
    }
}

/// A memory slot in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotRecord {
    /// Its number.
    pub slot: u16,
    /// First guest physical address.
    pub gpa: u64,
    /// Bytes.
    pub size: u64,
    /// Physical address of the memory behind it.
    pub host: u64,
    /// Whether the guest may only read.
    pub read_only: bool,
    /// Whether stores to it are logged.
    pub logged: bool,
}

impl fmt::Display for SlotRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { slot, gpa, size, host, read_only, logged } = self;
        let access = if *read_only { "ro" } else { "rw" };
        let log = if *logged { "on" } else { "off" };
        write!(f, "slot={slot} gpa={gpa:#x} size={size:#x} host={host:#x} access={access} log={log}")
    }
}

/// A line of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// A record: its fields.
    Record(&'a str),
    /// The request is done.
    Ok,
    /// It is refused, and nothing has changed.
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

/// Puts the bytes of a serial line together.
#[derive(Clone, Debug)]
pub struct LineBuffer {
    bytes: [u8; LINE_MAX],
    len: usize,
    /// The line is longer than there is room: the rest of it is dropped.
    overlong: bool,
}

impl Default for LineBuffer {
    fn default() -> Self {
        Self::new()
    }
}

impl LineBuffer {
    /// Nothing yet.
    pub const fn new() -> Self {
        Self { bytes: [0; LINE_MAX], len: 0, overlong: false }
    }

    /// Takes a byte. When it ends a line, calls `act` with the line, without its end; lines that are too long or are not
    /// UTF-8 come as empty ones.
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
    use std::format;
    use std::string::String;
    use std::vec::Vec;

    const REQUESTS: [Request; 11] = [
        Request::Vms,
        Request::Slots,
        Request::Add { gpa: 1 << 40, size: 2 << 20, read_only: true },
        Request::Add { gpa: 0, size: u64::MAX, read_only: false },
        Request::Delete { slot: 65535 },
        Request::LogStart { slot: 2, way: LogWay::DirtyBits },
        Request::LogStart { slot: 3, way: LogWay::WriteProtection },
        Request::LogFetch { slot: 0 },
        Request::Migrate { slot: 1, way: LogWay::DirtyBits, rounds: 0 },
        Request::Migrate { slot: 65535, way: LogWay::WriteProtection, rounds: 65535 },
        Request::Stats,
    ];

    #[test]
    fn what_is_written_is_read_back() {
        for request in REQUESTS {
            let line = format!("17 {request}");
            assert_eq!(Request::parse(&line), Ok((17, request)), "{line}");
        }
    }

    #[test]
    fn wrong_requests_are_told_apart() {
        use RequestError::{Bad, Missing, NoNumber, TooMany, UnknownCommand};
        for (line, number, expected) in [
            ("", None, NoNumber),
            ("vms", None, NoNumber),
            ("-1 vms", None, NoNumber),
            ("1", Some(1), Missing("the request")),
            ("1 dance", Some(1), UnknownCommand),
            ("1 vms now", Some(1), TooMany),
            ("2 add", Some(2), Missing("a guest physical address")),
            ("2 add x", Some(2), Bad("a guest physical address")),
            ("2 add 0x1000 0x10000000000000000 rw", Some(2), Bad("a size in bytes")),
            ("2 add 0x1000 4096", Some(2), Missing("rw or ro")),
            ("2 add 0x1000 4096 wx", Some(2), Bad("rw or ro")),
            ("3 delete 65536", Some(3), Bad("the number of a slot")),
            ("3 log-start 1 magic", Some(3), Bad("dirty-bits or write-protection")),
            ("4 migrate", Some(4), Missing("the number of a slot")),
            ("4 migrate 1", Some(4), Missing("dirty-bits or write-protection")),
            ("4 migrate 1 3", Some(4), Bad("dirty-bits or write-protection")),
            ("4 migrate 1 dirty-bits", Some(4), Missing("a number of rounds")),
            ("4 migrate 1 dirty-bits 65536", Some(4), Bad("a number of rounds")),
            ("4 migrate 1 dirty-bits -1", Some(4), Bad("a number of rounds")),
            ("4 migrate 1 dirty-bits 3 4", Some(4), TooMany),
        ] {
            assert_eq!(Request::parse(line), Err((number, expected)), "{line}");
        }
    }

    #[test]
    fn answers_are_those_of_their_request() {
        let record =
            SlotRecord { slot: 1, gpa: 0, size: 0x1000, host: 0x3000, read_only: true, logged: false };
        let line = format!("5 : {record}");
        assert_eq!(
            Answer::parse(&line, 5),
            Some(Answer::Record("slot=1 gpa=0x0 size=0x1000 host=0x3000 access=ro log=off"))
        );
        assert_eq!(Answer::parse("5 ok\r", 5), Some(Answer::Ok));
        assert_eq!(Answer::parse("5 error it is gone", 5), Some(Answer::Error("it is gone")));
        for line in ["4 ok", "5 fine", "ok", "", "5 : ", "five ok"] {
            assert_eq!(Answer::parse(line, 5), None, "{line}");
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
