//! The MSRs that belong to a vCPU.

use core::fmt;

use baremetal::x86_64::guarded::{rdmsr, wrmsr};

use crate::tests::crossing::OWN_MAX;
use crate::tests::prelude::*;
use hostile::allowed::msrs;

#[derive(Clone, Copy)]
pub(in crate::tests) struct Name(u32);

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MSR {:#x}", self.0)
    }
}

/// MSRs that belong to a vCPU, and the bits that may be changed.
pub(in crate::tests) fn registers() -> impl Iterator<Item = (Name, u64)> {
    let rows = msrs::ROWS.iter().filter_map(|row| match row.what {
        Kind::Own(mask) if mask != 0 => Some((row, mask)),
        _ => None,
    });
    rows.flat_map(|(row, mask)| (row.first..=row.last).map(move |number| (Name(number), mask))).take(OWN_MAX)
}

pub(in crate::tests) const fn prepare() {}

pub(in crate::tests) fn read_all(mut each: impl FnMut(usize, u64)) {
    registers().enumerate().for_each(|(index, (name, _))| each(index, read(name).unwrap_or(0)));
}

pub(in crate::tests) fn read(Name(number): Name) -> Option<u64> {
    rdmsr(number).ok()
}

/// Returns whether it was possible.
pub(in crate::tests) fn write(Name(number): Name, value: u64) -> bool {
    // SAFETY: rows say which writes the program can cope with.
    unsafe { wrmsr(number, value) }.is_ok()
}
