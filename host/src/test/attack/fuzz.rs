//! Guests that try everything: random values, and each register there is.

use crate::arch::{ArmCpu, Platform};
use crate::test::cases::{Case, hostile};

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    hostile("hostile_guest_is_alive", "the guest that tries everything runs on all vCPUs", "alive", (4, 2)),
    hostile("hostile_guest_is_alive_on_arm", "and on Arm64", "alive", (4, 2))
        .on(Platform::Aarch64(ArmCpu::Max)),
];
