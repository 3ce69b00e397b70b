//! Tests of Arm64.

mod code;
mod walk;

use hostile::orders::Orders;

use super::{Test, test};
use crate::report::Verdict;

/// The tests.
pub(super) const OWN: &[Test] = &[
    test("registers", 1, walk::registers),
    test("instructions", 1, walk::instructions),
    test("crossing", 2, walk::crossing),
    test("walk", 2, walk),
];

/// All that looks for state that is left open.
fn walk(orders: &Orders<'_>) -> Verdict {
    walk::registers(orders)?;
    walk::instructions(orders)?;
    walk::crossing(orders)
}
