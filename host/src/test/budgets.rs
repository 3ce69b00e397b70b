//! The instructions of exits and flushes are within their budgets.

use crate::bench::{all, limits, unmap};
use crate::test::prelude::*;

pub(super) const ACTS: &[Named] = &[
    ("exits_are_within_their_budgets", |room| are_within("exits", room)),
    ("u66_exits_are_within_their_budgets_on_arm", |room| are_within("arm-exits", room)),
    ("flushes_are_within_their_budgets", |room| are_within("flush-254", room)),
    ("memory_is_removed_and_logged_within_its_budgets_on_arm", |room| met(unmap::budgets(room.signals)?)),
];

fn are_within(case: &str, room: &Room<'_>) -> Result<()> {
    met(all::budgets(&[case], room.signals)?).with_context(|| format!("{case} on Quell"))
}

pub(super) fn met(limits: Vec<Limit>) -> Result<()> {
    ensure!(!limits.is_empty(), "there are no budgets");
    ensure!(limits::all_met(&limits), "a budget is exceeded:\n{}", limits::table(&limits));
    Ok(())
}
