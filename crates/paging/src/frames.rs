//! Physical memory that a change has unmapped.

use crate::PhysAddr;

/// Physically contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// First address.
    pub pa: PhysAddr,
    /// Length in bytes.
    pub len: u64,
}

/// Most runs of frames that a gather holds.
pub const FRAME_RUNS_MAX: usize = 32;

/// A list of runs, in the order in which they were unmapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRuns {
    runs: [FrameRun; FRAME_RUNS_MAX],
    count: usize,
}

impl FrameRuns {
    pub(crate) const EMPTY: Self =
        Self { runs: [FrameRun { pa: PhysAddr(0), len: 0 }; FRAME_RUNS_MAX], count: 0 };

    pub(crate) fn as_slice(&self) -> &[FrameRun] {
        &self.runs[..self.count]
    }

    /// Adds memory, unless there is no room for it.
    #[must_use]
    pub(crate) fn push(&mut self, pa: PhysAddr, len: u64) -> bool {
        if let Some(last) = self.runs[..self.count].last_mut()
            && last.pa.checked_add(last.len) == Some(pa)
        {
            last.len += len;
        } else if let Some(free) = self.runs.get_mut(self.count) {
            *free = FrameRun { pa, len };
            self.count += 1;
        } else {
            return false;
        }
        true
    }

    /// Takes back what was pushed last.
    pub(crate) fn unpush(&mut self, len: u64) {
        let Some(last) = self.runs[..self.count].last_mut() else { return };
        last.len -= len;
        if last.len == 0 {
            self.count -= 1;
        }
    }
}
