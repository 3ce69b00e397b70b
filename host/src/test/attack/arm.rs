//! Attacks on Arm64 machines.

use crate::arch::{ArmCpu, Platform};
use crate::test::cases::{Case, typed};

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[typed(
    "u6_reset_without_forced_write_back",
    "a guest comes up again whose memory is cleaned out of the caches in pieces",
    &["reboot\n", "poweroff\n"],
)
.on(Platform::Aarch64(ArmCpu::CortexA72))];
