//! Physical memory that a change has unmapped.

use core::fmt;

use crate::PhysAddr;

/// Physically contiguous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameRun {
    /// First address.
    pub pa: PhysAddr,
    /// Length in bytes.
    pub len: u64,
}

impl FrameRun {
    fn ends_at(&self, pa: PhysAddr) -> bool {
        self.pa.checked_add(self.len) == Some(pa)
    }
}

/// The most runs of frames that a gather holds.
pub const FRAME_RUNS_MAX: usize = 32;

/// Whether a change records the memory that it unmaps: [`NoFrames`] or [`FrameRuns`].
pub trait Frames: Copy + fmt::Debug + sealed::Sealed {
    /// Whether frames are recorded.
    const ARE_KEPT: bool;
    /// No frames.
    const NONE: Self;

    /// Whether memory that begins at `pa` can be added.
    fn has_room(&self, pa: PhysAddr) -> bool;

    /// Adds memory, if there is room for it.
    fn push(&mut self, pa: PhysAddr, len: u64);
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::NoFrames {}
    impl Sealed for super::FrameRuns {}
}

/// No record: the memory's owner tracks it as a whole.
#[derive(Clone, Copy, Debug)]
pub struct NoFrames;

impl Frames for NoFrames {
    const ARE_KEPT: bool = false;
    const NONE: Self = Self;

    fn has_room(&self, _: PhysAddr) -> bool {
        true
    }

    fn push(&mut self, _: PhysAddr, _: u64) {}
}

/// A list of runs, in the order in which they were unmapped.
#[derive(Clone, Copy, Debug)]
pub struct FrameRuns {
    runs: [FrameRun; FRAME_RUNS_MAX],
    count: usize,
}

impl FrameRuns {
    /// The runs.
    pub fn as_slice(&self) -> &[FrameRun] {
        &self.runs[..self.count]
    }
}

impl Frames for FrameRuns {
    const ARE_KEPT: bool = true;
    const NONE: Self = Self { runs: [FrameRun { pa: PhysAddr(0), len: 0 }; FRAME_RUNS_MAX], count: 0 };

    fn has_room(&self, pa: PhysAddr) -> bool {
        self.count < FRAME_RUNS_MAX || self.as_slice().last().is_some_and(|last| last.ends_at(pa))
    }

    fn push(&mut self, pa: PhysAddr, len: u64) {
        if let Some(last) = self.runs[..self.count].last_mut()
            && last.ends_at(pa)
        {
            last.len += len;
        } else if let Some(free) = self.runs.get_mut(self.count) {
            *free = FrameRun { pa, len };
            self.count += 1;
        }
    }
}
