//! Errors in a configuration.

use thiserror::Error;

/// An error in a configuration. Lines count from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ConfigError<'a> {
    /// The line has no `=`.
    #[error("config line {line}: expected key=value")]
    NoValue {
        /// Its number.
        line: usize,
    },
    /// No such key.
    #[error("config line {line}: unknown key '{key}'")]
    UnknownKey {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
    /// The value does not parse or is out of range.
    #[error("config line {line}: {key}={value}: expected {expected}")]
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
    #[error("config line {line}: {key} is for the whole machine, not for one guest")]
    OfMachine {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
    /// The configuration of a machine with several guests has a key of one guest.
    #[error("config line {line}: {key} is for one guest, not for the whole machine")]
    OfGuest {
        /// The line.
        line: usize,
        /// The key.
        key: &'a str,
    },
}
