//! What errors say.

use core::error::Error;
use core::fmt;

use crate::encode::IpiError;
use crate::{BankCountError, ClusterIpi, InputError};

impl fmt::Display for InputError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OutsideGpaSpace => "the address is beyond the guest physical address space",
            Self::NotMemory => "there is no readable memory at the address",
        })
    }
}

impl fmt::Display for IpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vector => write!(f, "the vector is below {:#x}", ClusterIpi::VECTOR_MIN),
            Self::NeedsVpSets => f.write_str("the hypervisor offers no calls that take sets of processors"),
        }
    }
}

impl fmt::Display for BankCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is not one word for each bank of the set")
    }
}

impl Error for InputError {}
impl Error for IpiError {}
impl Error for BankCountError {}
