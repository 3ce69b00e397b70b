//! Tests of the walker, by what they catch.

mod arena;
mod concurrent;
mod edit;
mod gather;
mod guest;
mod install;
mod model;
mod span;

use crate::{FlushReceipt, NeverWalked, Stamp};

/// The receipt for tables that only tests walk.
fn never_walked() -> NeverWalked {
    // SAFETY: no processor is given the root of a test's table.
    unsafe { NeverWalked::new() }
}

/// A receipt as a flush engine's glue makes it: for a flush that was issued at a stamp.
struct IssuedAt(Stamp);

// SAFETY: no processor is given the root of a test's table.
unsafe impl FlushReceipt for IssuedAt {
    fn covers(&self, stamp: Stamp) -> bool {
        self.0.covers(stamp)
    }
}
