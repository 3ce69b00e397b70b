//! Tests of x86-64.

pub(super) mod crossing;
pub(super) mod operation;
mod walk;

use super::crossing::crossing;
use super::{Test, test};
use crate::tests::prelude::*;

pub(super) const OWN: &[Test] = &[
    test("msrs", 1, walk::msrs),
    test("ports", 1, walk::ports),
    test("cpuid", 1, walk::cpuid),
    test("walk", 2, walk),
];

/// All tests that look for state left accessible.
fn walk(orders: &Orders<'_>) -> Verdict {
    walk::msrs(orders)?;
    walk::ports(orders)?;
    walk::cpuid(orders)?;
    crossing(orders)
}
