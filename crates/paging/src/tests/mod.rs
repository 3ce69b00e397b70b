//! Tests of the walker, grouped by the errors that they catch.

mod arena;
mod arm64;
mod bbm;
mod concurrent;
mod detach;
mod edit;
mod ept;
mod frames;
mod gather;
mod guest;
mod install;
mod interleaved;
mod levels;
mod marks;
mod model;
mod observer;
mod policy;
mod programs;
mod span;
mod steps;
mod sweep;

use std::sync::atomic::Ordering::Relaxed;

use crate::format::Entry;
use crate::sync::AtomicU64;
use crate::{FlushReceipt, Format, Level, NeverWalked, PageTable, Permissions, Stamp, TableMemory};

const G: u64 = 1 << 30;
const M2: u64 = 2 << 20;
const R: Permissions = Permissions::R;
const RW: Permissions = Permissions::RW;
const RX: Permissions = Permissions::RX;
const RWX: Permissions = Permissions::RWX;

/// The receipt for tables that only tests walk.
fn never_walked() -> NeverWalked {
    // SAFETY: no processor is given the root of a test's table.
    unsafe { NeverWalked::new() }
}

/// A receipt as a flush engine's glue code creates it: for a flush that was issued at a stamp.
struct IssuedAt(Stamp);

// SAFETY: no processor is given the root of a test's table.
unsafe impl FlushReceipt for IssuedAt {
    fn covers(&self, stamp: Stamp) -> bool {
        self.0.covers(stamp)
    }
}

/// The entry at which the walk of `address` ends, and its level.
fn last_entry<F: Format, M: TableMemory>(table: &PageTable<F, M>, address: u64) -> (&AtomicU64, Level) {
    let offset = crate::span::offset::<F>(address).unwrap();
    let (mut at, mut level) = (table.root(), F::ROOT);
    loop {
        let cell = table.cell(at, level, offset);
        match Entry::decode::<F>(cell.load(Relaxed), level) {
            Entry::Table(next) => (at, level) = (next, level.below().unwrap()),
            _ => return (cell, level),
        }
    }
}

/// The leaf that maps `address`.
fn leaf_of<F: Format, M: TableMemory>(table: &PageTable<F, M>, address: u64) -> Option<(&AtomicU64, Level)> {
    let (cell, level) = last_entry(table, address);
    F::is_present(cell.load(Relaxed)).then_some((cell, level))
}

/// Whether there is a table below the entry of `level` for `address`.
fn has_table<F: Format, M: TableMemory>(table: &PageTable<F, M>, address: u64, level: Level) -> bool {
    last_entry(table, address).1 < level
}
