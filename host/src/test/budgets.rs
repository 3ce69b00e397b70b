//! The instructions of exits and flushes are within their budgets.

use crate::bench::counts;
use crate::bench::lab::Lab;
use crate::bench::limits::{self, Limit};
use crate::results::Samples;
use crate::test::prelude::*;

/// Timeout of a machine.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(super) const ROWS: [Case; 3] = [
    act("exits_are_within_their_budgets", |_| exits_are_within(Platform::X86_64))
        .about("each operation of `bench exits` takes at most the instructions that it may"),
    act("u66_exits_are_within_their_budgets_on_arm", |_| exits_are_within(MAX)).about("the same on Arm"),
    act("flushes_are_within_their_budgets", |_| are_within(counts::count_flushes))
        .about("the same for the flush hypercalls of `bench flush` whose targets do not run"),
];

fn exits_are_within(platform: Platform) -> Result<()> {
    are_within(|lab, samples| counts::count_exits(lab, platform, samples))
}

fn are_within(count: impl FnOnce(&Lab<'_>, &mut Samples) -> Result<Vec<Limit>>) -> Result<()> {
    let signals = Signals::default();
    let limits = count(&Lab::new(TIMEOUT, &signals)?, &mut Samples::default())?;
    ensure!(limits::all_met(&limits), "a budget is exceeded:\n{}", limits::table(&limits));
    Ok(())
}
