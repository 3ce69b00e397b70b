//! What is not as it should be.

use core::fmt;

use super::prelude::*;

/// Number of findings that are reported one by one.
const TOLD: u32 = 400;

#[derive(Default)]
pub(super) struct Findings(u32);

impl Findings {
    pub(super) fn tell(&mut self, what: fmt::Arguments<'_>) {
        self.0 += 1;
        if self.0 <= TOLD {
            say(what);
        }
    }

    /// Succeeds if there are no findings, and of items, which `found` counts, more than `least`.
    pub(super) fn verdict(self, found: u32, least: u32) -> Verdict {
        say(format_args!("{found} are there; {} things are not as they should be", self.0));
        ensure!(self.0 == 0, "{} things are not as they should be, see the console", self.0);
        ensure!(found > least, "only {found} are there");
        Ok(())
    }
}
