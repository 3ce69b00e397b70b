//! The tests of hostile guests, foreign kernels and careless operators: section "Under attack" of
//! `docs/pitfalls.md`, by its ids.

pub(super) mod isolation;
pub(super) mod operator;

use super::cases::REBOOTS;
use super::siege::Siege;
use crate::test::prelude::*;

const HALTED: Siege = Siege { test: "u2_halted_timers", vcpus: 8, cpus: 1, memory: 64 * MIB, least: &[] };
const RESETS: Siege = Siege {
    test: "u6_reset_storm",
    vcpus: 1,
    cpus: 1,
    memory: 512 * MIB,
    least: &[(Counter::Resets, 1), (Counter::ResetRequests, 20)],
};
pub(super) const ACTS: &[Named] = &[
    ("u2_halted_timers", |room| room.lab.siege(room.case, &HALTED)),
    ("u6_requests_during_resets", |room| room.lab.siege(room.case, &RESETS)),
    ("u6_reset_without_forced_write_back", REBOOTS),
];
