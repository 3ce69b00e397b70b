//! The instructions of exits and flushes are within their budgets.

use super::arm::MAX;
use crate::bench::limits;
use crate::bench::{all, unmap};
use crate::test::prelude::*;

pub(super) const ROWS: [Case; 4] = [
    act("exits_are_within_their_budgets", |room| are_within("exits", room))
        .about("each operation of `bench exits` takes at most the instructions that it may"),
    act("u66_exits_are_within_their_budgets_on_arm", |room| are_within("arm-exits", room))
        .about("the same on Arm"),
    act("flushes_are_within_their_budgets", |room| are_within("flush-254", room))
        .about("the same for the flush hypercalls of `bench flush` whose targets do not run"),
    act("memory_is_removed_and_logged_within_its_budgets_on_arm", |room| met(unmap::budgets(room.signals)?))
        .on(MAX)
        .about("the same for what `bench unmap` counts of a GiB in pages of 4 KiB"),
];

fn are_within(case: &str, room: &Room<'_>) -> Result<()> {
    met(all::budgets(&[case], room.signals)?).with_context(|| format!("{case} on Quell"))
}

pub(super) fn met(limits: Vec<Limit>) -> Result<()> {
    ensure!(!limits.is_empty(), "there are no budgets");
    ensure!(limits::all_met(&limits), "a budget is exceeded:\n{}", limits::table(&limits));
    Ok(())
}
