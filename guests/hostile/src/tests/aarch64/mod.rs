//! Tests of Arm64.

pub(super) mod code;
mod controller;
mod debug;
mod device;
mod exits;
pub(super) mod operation;
mod timer;
mod walk;

use super::{Test, test};
use crate::tests::prelude::*;

pub(super) const OWN: &[Test] = &[
    test("u1_compare_values", 1, timer::compare_values),
    test("u4_maintenance", 1, controller::maintenance),
    test("u9_stopped_timer", 1, timer::stopped_timer),
    test("u26_physical_timer", 1, timer::physical_timer),
    test("u26_debug_registers", 2, debug::debug_registers),
    test("u26_device_accesses", 1, device::device_accesses),
    test("exits", 2, exits::exits),
    test("registers", 1, walk::registers),
    test("instructions", 1, walk::instructions),
    test("crossing", 2, walk::crossing),
    test("walk", 2, walk),
];

/// All tests that look for state left accessible.
fn walk(orders: &Orders<'_>) -> Verdict {
    walk::registers(orders)?;
    walk::instructions(orders)?;
    walk::crossing(orders)
}
