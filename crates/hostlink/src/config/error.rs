//! Errors in a configuration.

use core::fmt;

/// An error in a configuration. Lines count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigError<'a> {
    /// The line has no `=`.
    NoValue {
        /// Its number.
        line: usize,
    },
    /// No such key.
    UnknownKey {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
    /// The value does not parse or is out of range.
    BadValue {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
        /// The given value.
        value: &'a str,
        /// The expected value.
        expected: &'static str,
    },
    /// A guest's configuration has a key of the whole machine.
    OfMachine {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
    /// The configuration of a machine with several guests has a key of one guest.
    OfGuest {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
}

impl fmt::Display for ConfigError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoValue { line } => write!(f, "config line {line}: expected key=value"),
            Self::UnknownKey { line, key } => write!(f, "config line {line}: unknown key '{key}'"),
            Self::BadValue { line, key, value, expected } => {
                write!(f, "config line {line}: {key}={value}: expected {expected}")
            }
            Self::OfMachine { line, key } => {
                write!(f, "config line {line}: {key} is for the whole machine, not for one guest")
            }
            Self::OfGuest { line, key } => {
                write!(f, "config line {line}: {key} is for one guest, not for the whole machine")
            }
        }
    }
}

impl core::error::Error for ConfigError<'_> {}
