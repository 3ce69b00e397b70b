//! Errors of accesses to guest memory.

use core::fmt;

use paging::Gpa;

/// Why an access to guest memory was refused. Nothing was copied then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AccessError {
    /// No slot has the address.
    Unmapped {
        /// The first such address of the access.
        gpa: Gpa,
    },
    /// The slot is read-only.
    ReadOnly {
        /// The first such address of the access.
        gpa: Gpa,
    },
    /// An atomic access that is not naturally aligned.
    Unaligned {
        /// Its address.
        gpa: Gpa,
    },
}

impl AccessError {
    /// The address at fault.
    pub fn gpa(&self) -> Gpa {
        match *self {
            Self::Unmapped { gpa } | Self::ReadOnly { gpa } | Self::Unaligned { gpa } => gpa,
        }
    }
}

impl fmt::Display for AccessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unmapped { gpa } => write!(f, "no guest memory at {gpa}"),
            Self::ReadOnly { gpa } => write!(f, "guest memory at {gpa} is read-only"),
            Self::Unaligned { gpa } => write!(f, "atomic access to guest memory at {gpa} is not aligned"),
        }
    }
}

impl core::error::Error for AccessError {}
