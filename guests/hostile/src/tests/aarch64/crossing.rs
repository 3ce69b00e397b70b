//! The system registers that belong to a vCPU.

use hostile::allowed::sysregs::ROWS;

use super::code::{self, Name, SLOTS};
use super::walk;
use crate::tests::crossing::OWN_MAX;
use crate::tests::prelude::*;

const _: () = assert!(OWN_MAX == SLOTS, "all are read by one page of code");

/// Encodings of registers that belong to a vCPU, and the bits that may be changed.
pub(in crate::tests) fn registers() -> impl Iterator<Item = (Name, u64)> + Clone {
    let rows = ROWS.iter().filter_map(|row| match row.kind {
        Kind::Own(mask) if mask != 0 => Some((row, mask)),
        _ => None,
    });
    rows.flat_map(|(row, mask)| row.encodings().map(move |name| (Name(name), mask))).take(OWN_MAX)
}

pub(in crate::tests) fn prepare() {
    walk::open_floating_point();
}

pub(in crate::tests) fn read_all(mut each: impl FnMut(usize, u64)) {
    prepare();
    code::put(registers().map(|(name, _)| code::read(name)));
    for (slot, _) in registers().enumerate() {
        // SAFETY: reading these has no effect.
        each(slot, unsafe { code::execute(slot, 0) }.unwrap_or(0));
    }
}

pub(in crate::tests) fn read(name: Name) -> Option<u64> {
    code::put([code::read(name)].into_iter());
    // SAFETY: reading these has no effect.
    unsafe { code::execute(0, 0) }.ok()
}

/// Returns whether it was possible.
pub(in crate::tests) fn write(name: Name, value: u64) -> bool {
    code::put([code::write(name)].into_iter());
    // SAFETY: rows say which writes the program can cope with.
    unsafe { code::execute(0, value) }.is_ok()
}
