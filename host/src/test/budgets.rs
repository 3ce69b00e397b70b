//! The instructions of exits and flushes are within their budgets.

use super::arm::MAX;
use super::cases::{Case, act};
use crate::arch::Platform;
use crate::bench::counts;
use crate::machine::signals::Signals;
use crate::results::Samples;
use anyhow::{Result, ensure};
use std::time::Duration;

/// Timeout of a machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// The rows.
pub(super) const ROWS: [Case; 3] = [
    act(
        "exits_are_within_their_budgets",
        "each operation of `bench exits` takes at most the instructions that it may",
        |_| exits_are_within(Platform::X86_64),
    ),
    act("u66_exits_are_within_their_budgets_on_arm", "the same on Arm", |_| exits_are_within(MAX)),
    act(
        "flushes_are_within_their_budgets",
        "the same for the flush hypercalls of `bench flush` whose targets do not run",
        |_| is_within(counts::count_flushes(TIMEOUT, &Signals::default(), &mut Samples::default())?),
    ),
];

fn exits_are_within(platform: Platform) -> Result<()> {
    is_within(counts::count(platform, TIMEOUT, &Signals::default(), &mut Samples::default())?)
}

fn is_within((status, table): (u8, String)) -> Result<()> {
    ensure!(status == 0, "a budget is exceeded:\n{table}");
    Ok(())
}
