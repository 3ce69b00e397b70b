//! Attacks on AMD64 machines.

use crate::size::MIB;
use crate::test::cases::{Body, Case, ProbeEnd, case, probe};
use crate::test::siege::Siege;

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    case(
        "u2_halted_timers",
        "vCPUs that halt with interrupts off, their timers expired, do not keep interrupts from the CPU",
        Body::Siege(Siege { test: "u2_halted_timers", vcpus: 8, cpus: 1, memory: 64 * MIB }),
    ),
    probe(
        "u5_crash_reports",
        "a guest that reports crashes all the time does not flood the log",
        "u5_crash_reports",
        ProbeEnd::Passed,
    ),
];
