//! What a change of the slots cost.

use hostlink::ctl::record;
use memslots::space::Report;

use super::Answer;
use crate::vm::arch::Arch;

/// How long a change took, in ticks of the clock, without the time between its steps.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepTimes {
    pub steps: u32,
    pub ticks: u64,
    pub longest: u64,
}

impl StepTimes {
    pub(super) fn add(&mut self, ticks: u64) {
        self.steps += 1;
        self.ticks += ticks;
        self.longest = self.longest.max(ticks);
    }
}

/// The record that is sent when a change is done.
#[derive(Clone, Copy)]
pub(super) enum ChangeRecord {
    Nothing,
    /// The slot's number.
    Added(u16),
    Cost,
}

impl ChangeRecord {
    pub(super) fn send<A: Arch>(self, report: &Report, times: StepTimes, answer: &mut Answer) {
        match self {
            Self::Nothing => {}
            Self::Added(slot) => answer.record::<A>(&record::Added { slot }),
            Self::Cost => {
                let StepTimes { steps, ticks, longest } = times;
                let Report { visited, tables, flushes, .. } = *report;
                answer.record::<A>(&record::Deleted { visited, tables, flushes, steps, ticks, longest });
            }
        }
    }
}
