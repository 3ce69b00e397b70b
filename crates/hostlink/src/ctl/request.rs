//! Requests, one row each.

use super::{Access, Input, LogWay, SendWay, Word, parse_number};
use crate::name::Name;
use core::fmt;
use core::str::SplitAsciiWhitespace;

/// Why a line is not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It does not begin with a number.
    #[error("a request begins with a number")]
    NoNumber,
    /// There is no such command.
    #[error("no such request")]
    UnknownCommand,
    /// The command needs this argument.
    #[error("{0} is missing")]
    Missing(&'static str),
    /// This argument is not as expected.
    #[error("expected {0}")]
    Bad(&'static str),
    /// There are more arguments than the command has.
    #[error("too many arguments")]
    TooMany,
}

/// The expected value for a slot.
const SLOT: &str = "the number of a slot";

/// The next argument.
fn argument<W: Word>(words: &mut SplitAsciiWhitespace<'_>, what: &'static str) -> Result<W, RequestError> {
    W::read(words.next().ok_or(RequestError::Missing(what))?).ok_or(RequestError::Bad(what))
}

/// The requests. A row has the command, the variant, and the guest that it is about, or for each
/// argument its name, its type, its format and the expected value.
macro_rules! requests {
    ($(
        $(#[$about:meta])*
        $command:literal $Variant:ident $(of $guest:ident)? $({
            $($(#[$argument_about:meta])* $argument:ident: $Type:ty = $format:literal $what:expr,)+
        })?
    )+) => {
        /// A request.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Request {
            $(
                $(#[$about])*
                $Variant $({
                    /// The guest.
                    $guest: Name,
                })? $({ $($(#[$argument_about])* $argument: $Type,)+ })?,
            )+
        }

        impl Request {
            fn parse_command(words: &mut SplitAsciiWhitespace<'_>) -> Result<Self, RequestError> {
                Ok(match words.next().ok_or(RequestError::Missing("the request"))? {
                    $($command => Self::$Variant
                        $({ $guest: argument(words, Name::EXPECTED)? })?
                        $({ $($argument: argument(words, $what)?,)+ })?,)+
                    _ => return Err(RequestError::UnknownCommand),
                })
            }
        }

        impl fmt::Display for Request {
            /// Writes the command and its arguments, as [`Request::parse`] reads them after the
            /// number.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$Variant $({ $guest })? $({ $($argument,)+ })? => {
                        f.write_str($command)?;
                        $(write!(f, " {}", $guest)?;)?
                        $($(write!(f, concat!(" ", $format), $argument)?;)+)?
                    })+
                }
                Ok(())
            }
        }
    };
}

requests! {
    /// `vms`: the virtual machines, each as a [`record::Vm`](super::record::Vm).
    "vms" Vms
    /// `slots`: the memory slots, each as a [`record::Slot`](super::record::Slot).
    "slots" Slots
    /// `add GPA SIZE rw|ro`: adds zeroed memory, without notifying the guest. Its number is
    /// returned as a [`record::Added`](super::record::Added).
    "add" Add {
        /// First guest physical address.
        gpa: u64 = "{:#x}" "a guest physical address",
        /// Bytes.
        size: u64 = "{:#x}" "a size in bytes",
        /// The guest's access.
        access: Access = "{}" Access::EXPECTED,
    }
    /// `delete SLOT`: removes added memory. The cost is returned as a
    /// [`record::Deleted`](super::record::Deleted).
    "delete" Delete {
        /// Number of the slot.
        slot: u16 = "{}" SLOT,
    }
    /// `log-start SLOT dirty-bits|write-protection`: starts to log which pages are written.
    "log-start" LogStart {
        /// Number of the slot.
        slot: u16 = "{}" SLOT,
        /// How.
        way: LogWay = "{}" LogWay::EXPECTED,
    }
    /// `log-fetch SLOT`: returns the pages written since the last fetch, and clears them, as
    /// [`record::Dirty`](super::record::Dirty), starting with the slot's first page.
    "log-fetch" LogFetch {
        /// Number of the slot.
        slot: u16 = "{}" SLOT,
    }
    /// `log-stop SLOT`: stops the log.
    "log-stop" LogStop {
        /// Number of the slot.
        slot: u16 = "{}" SLOT,
    }
    /// `input GUEST PORT BYTES-IN-HEX`: types on a console of a guest. How many of the bytes its
    /// serial port had room for is returned as a [`record::Taken`](super::record::Taken); the
    /// requester sends the others again.
    "input" Input {
        /// The guest.
        guest: Name = "{}" Name::EXPECTED,
        /// Number of its serial port, from 0.
        port: u16 = "{}" "the number of a serial port",
        /// What is typed.
        bytes: Input = "{}" Input::EXPECTED,
    }
    /// `guests`: the guests that the machine's bundle describes, whether or not they exist, each as
    /// a [`record::Guest`](super::record::Guest).
    "guests" Guests
    /// `guest-create GUEST`: creates a guest and loads its kernel; no vCPU runs.
    "guest-create" Create of guest
    /// `guest-start GUEST`: lets a guest run that has been created, or that has ended; the latter
    /// is loaded again before.
    "guest-start" Start of guest
    /// `guest-pause GUEST`: stops all vCPUs of a guest.
    "guest-pause" Pause of guest
    /// `guest-resume GUEST`: lets a guest go on that was paused.
    "guest-resume" Resume of guest
    /// `guest-wake GUEST`: wakes a guest that sleeps, as its sleep button would.
    "guest-wake" Wake of guest
    /// `guest-reset GUEST`: restarts a guest that runs, as its own reset does.
    "guest-reset" Reset of guest
    /// `guest-destroy GUEST`: ends a guest, whatever it does, and frees all that it has.
    "guest-destroy" Destroy of guest
    /// `guest-send GUEST SESSION live|still`: sends a guest through a
    /// [channel](super::record::Channel), which is the first record; the last one is a
    /// [`record::Sent`](super::record::Sent). The guest runs on meanwhile, but for the last round,
    /// or stands still.
    "guest-send" Send {
        /// The guest.
        guest: Name = "{}" Name::EXPECTED,
        /// A number by which both sides know this hand-over.
        session: u64 = "{:#x}" "a number",
        /// Whether the guest runs meanwhile.
        way: SendWay = "{}" SendWay::EXPECTED,
    }
    /// `guest-receive GUEST GENERATION`: creates a guest, and receives it through a
    /// [channel](super::record::Channel), which is the first record; the last one is a
    /// [`record::Received`](super::record::Received).
    "guest-receive" Receive {
        /// The guest.
        guest: Name = "{}" Name::EXPECTED,
        /// Its generation id here: 128 bits that nobody can guess.
        generation: u128 = "{:#x}" "128 bits as 0x and digits",
    }
    /// `memory`: how much is free, as a [`record::Memory`](super::record::Memory).
    "memory" Memory
    /// `stats`: the counters, summed over the vCPUs, each as `NAME=VALUE`.
    "stats" Stats
}

/// The requester's number, the guest if one is named, and the request.
pub type Numbered = (u64, Option<Name>, Request);

impl Request {
    /// Reads a line: the requester's number, the guest if one is named, and the request.
    ///
    /// # Errors
    ///
    /// See [`RequestError`]. The number is included if there is one.
    pub fn parse(line: &str) -> Result<Numbered, (Option<u64>, RequestError)> {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|word| parse_number(word).ok());
        let number = number.ok_or((None, RequestError::NoNumber))?;
        let failed = |error| (Some(number), error);
        let mut peeked = words.clone();
        let guest = match peeked.next().and_then(|word| word.strip_prefix('@')) {
            Some(name) => {
                words = peeked;
                Some(Name::parse(name).ok_or(RequestError::Bad(Name::EXPECTED)).map_err(failed)?)
            }
            None => None,
        };
        let request = Self::parse_command(&mut words).map_err(failed)?;
        match words.next() {
            None => Ok((number, guest, request)),
            Some(_) => Err((Some(number), RequestError::TooMany)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ctl::LINE_MAX;
    use std::format;

    /// What is typed on a guest's first serial port.
    fn input(bytes: &[u8]) -> Request {
        let bytes = Input::new(bytes).expect("fits");
        Request::Input { guest: Name::GUEST, port: 0, bytes }
    }

    const REQUESTS: [Request; 22] = [
        Request::Vms,
        Request::Slots,
        Request::Add { gpa: 1 << 40, size: 2 << 20, access: Access::ReadOnly },
        Request::Add { gpa: 0, size: u64::MAX, access: Access::ReadWrite },
        Request::Delete { slot: 65535 },
        Request::LogStart { slot: 2, way: LogWay::DirtyBits },
        Request::LogStart { slot: 3, way: LogWay::WriteProtection },
        Request::LogFetch { slot: 0 },
        Request::Stats,
        Request::Guests,
        Request::Memory,
        Request::Create { guest: Name::GUEST },
        Request::Start { guest: Name::GUEST },
        Request::Pause { guest: Name::GUEST },
        Request::Resume { guest: Name::GUEST },
        Request::Wake { guest: Name::GUEST },
        Request::Reset { guest: Name::GUEST },
        Request::Destroy { guest: Name::GUEST },
        Request::Send { guest: Name::GUEST, session: u64::MAX, way: SendWay::Live },
        Request::Send { guest: Name::GUEST, session: 0, way: SendWay::Still },
        Request::Receive { guest: Name::GUEST, generation: u128::MAX },
        Request::Receive { guest: Name::GUEST, generation: 0 },
    ];

    #[test]
    fn what_is_written_is_read_back() {
        let longest = input(&[0xff; Input::BYTES_MAX]);
        for request in REQUESTS.into_iter().chain([input(b"\x01a\n"), longest]) {
            let line = format!("17 {request}");
            assert_eq!(Request::parse(&line), Ok((17, None, request)), "{line}");
            let (line, web) = (format!("17 @web {request}"), Name::parse("web"));
            assert_eq!(Request::parse(&line), Ok((17, web, request)), "{line}");
        }
    }

    #[test]
    fn the_longest_input_fits_into_a_line() {
        let bytes = Input::new(&[0xff; Input::BYTES_MAX]).expect("fits");
        let guest = Name::parse(&"x".repeat(31)).expect("is one");
        let line = format!("{} {}", u64::MAX, Request::Input { guest, port: u16::MAX, bytes });
        assert!(line.len() <= LINE_MAX, "{}", line.len());
        assert_eq!(Input::new(&[0; Input::BYTES_MAX + 1]), None);
        assert_eq!(format!("{}", input(b"\x01a\n")), "input guest 0 01610a");
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
            ("1 @web", Some(1), Missing("the request")),
            ("1 @Web vms", Some(1), Bad(Name::EXPECTED)),
            ("1 guest-create", Some(1), Missing(Name::EXPECTED)),
            ("1 guest-create a b", Some(1), TooMany),
            ("2 add", Some(2), Missing("a guest physical address")),
            ("2 add x", Some(2), Bad("a guest physical address")),
            ("2 add 0x1000 0x10000000000000000 rw", Some(2), Bad("a size in bytes")),
            ("2 add 0x1000 4096", Some(2), Missing("rw or ro")),
            ("2 add 0x1000 4096 wx", Some(2), Bad("rw or ro")),
            ("3 delete 65536", Some(3), Bad("the number of a slot")),
            ("3 log-start 1 magic", Some(3), Bad("dirty-bits or write-protection")),
            ("4 guest-send", Some(4), Missing(Name::EXPECTED)),
            ("4 guest-send a", Some(4), Missing("a number")),
            ("4 guest-send a x live", Some(4), Bad("a number")),
            ("4 guest-send a -1 live", Some(4), Bad("a number")),
            ("4 guest-send a 1", Some(4), Missing("live or still")),
            ("4 guest-send a 1 3", Some(4), Bad("live or still")),
            ("4 guest-send a 1 live 4", Some(4), TooMany),
            ("4 guest-receive a", Some(4), Missing("128 bits as 0x and digits")),
            ("4 guest-receive a 17", Some(4), Bad("128 bits as 0x and digits")),
            ("5 input Web 0 61", Some(5), Bad(Name::EXPECTED)),
            ("5 input web x 61", Some(5), Bad("the number of a serial port")),
            ("5 input web 0", Some(5), Missing(Input::EXPECTED)),
            ("5 input web 0 6", Some(5), Bad(Input::EXPECTED)),
            ("5 input web 0 6g", Some(5), Bad(Input::EXPECTED)),
            ("5 input web 0 +6", Some(5), Bad(Input::EXPECTED)),
        ] {
            assert_eq!(Request::parse(line), Err((number, expected)), "{line}");
        }
    }
}
