//! Tests of Arm64.

pub(super) mod code;
mod controller;
pub(super) mod crossing;
mod debug;
mod device;
mod exits;
pub(super) mod operation;
mod timer;
mod walk;

use super::crossing::crossing;
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
    test("walk", 2, walk),
];

/// A call of firmware or hypervisor, by this instruction and with these values in X0 to X3. It must
/// not end the guest.
macro_rules! call {
    ($text:literal, $arguments:expr) => {{
        let [function, first, second, third]: [u64; 4] = $arguments;
        // SAFETY: no call that is made ends the guest; registers that it may change are named.
        _ = unsafe {
            guarded_asm!($text; inout("x0") function => _, inout("x1") first => _, inout("x2") second => _,
                inout("x3") third => _, out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _,
                out("x9") _, out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _,
                out("x15") _,)
        };
    }};
}
pub(super) use call;

/// All tests that look for state left accessible.
fn walk(orders: &Orders<'_>) -> Verdict {
    walk::registers(orders)?;
    walk::instructions(orders)?;
    crossing(orders)
}
