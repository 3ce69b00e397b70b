//! The instructions of exits and flushes are within their budgets.

use crate::bench::{all, limits};
use crate::test::prelude::*;

pub(super) const ROWS: [Case; 3] = [
    act("exits_are_within_their_budgets", |room| are_within("exits", room))
        .about("each operation of `bench exits` takes at most the instructions that it may"),
    act("u66_exits_are_within_their_budgets_on_arm", |room| are_within("arm-exits", room))
        .about("the same on Arm"),
    act("flushes_are_within_their_budgets", |room| are_within("flush-254", room))
        .about("the same for the flush hypercalls of `bench flush` whose targets do not run"),
];

fn are_within(case: &str, room: &Room<'_>) -> Result<()> {
    let limits = all::budgets(&[case], room.signals)?;
    ensure!(!limits.is_empty(), "{case} has no budgets");
    ensure!(limits::all_met(&limits), "a budget is exceeded:\n{}", limits::table(&limits));
    Ok(())
}
