//! The empty types in an image without a trace.

use hostlink::counters::Beacon;
use hostlink::trace::Event;

use crate::sched::CpuIndex;
use crate::vm::memory::FreeMemory;

/// The rings of all CPUs: none.
#[derive(Debug)]
pub struct Rings;

/// The ring of one CPU: none.
#[derive(Debug, Default)]
pub struct CpuTrace {}

impl Rings {
    /// None.
    #[must_use]
    pub const fn take(_: &mut FreeMemory, _: u32) -> Option<Self> {
        Some(Self)
    }

    /// Does nothing.
    pub const fn publish(&self, _: &Beacon) {}
}

impl CpuTrace {
    /// Does nothing.
    pub const fn attach(&self, _: &Rings, _: CpuIndex) {}

    /// Does nothing.
    #[inline(always)]
    pub fn note(
        &self,
        _now: impl FnOnce() -> u64,
        _event: Event,
        _vcpu: u16,
        _detail: u32,
        _words: [u64; 2],
    ) {
    }
}
