//! The trace of each CPU's work, in an image with the feature `trace`. Other images have empty
//! types in its place: tracing costs them no instruction.
//!
//! `hostlink::trace` defines the records.

use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use hostlink::trace::{Event, NO_VCPU};

use super::arch::Cpus;
use super::percpu::PerCpu;
use crate::sched::{CpuIndex, VcpuIndex};

#[cfg(not(feature = "trace"))]
mod none;
#[cfg(feature = "trace")]
mod rings;

#[cfg(not(feature = "trace"))]
pub use none::{CpuTrace, Rings};
#[cfg(feature = "trace")]
pub use rings::{CpuTrace, Rings};

/// The vCPU of events that belong to none.
pub const NOBODY: VcpuIndex = VcpuIndex(NO_VCPU as u32);

impl<A: Cpus> PerCpu<A> {
    /// Records an event of this CPU and a vCPU.
    #[inline(always)]
    pub fn trace(&self, event: Event, vcpu: VcpuIndex) {
        self.trace_with(event, vcpu, 0, [0; 2]);
    }

    /// The same, with details.
    #[inline(always)]
    pub fn trace_with(&self, event: Event, vcpu: VcpuIndex, detail: u32, words: [u64; 2]) {
        self.trace.note(A::now, event, vcpu.0 as u16, detail, words);
    }

    /// Records an exit, with its counter.
    #[inline(always)]
    pub fn trace_exit(&self, vcpu: VcpuIndex, counter: Counter) {
        self.trace_with(Event::Exit, vcpu, counter as u32, [0; 2]);
    }

    /// Records an event without a vCPU.
    #[inline(always)]
    pub fn trace_idle(&self, event: Event) {
        self.trace(event, NOBODY);
    }
}

/// Records an event of the calling CPU, where its data is not at hand.
#[inline(always)]
pub fn here<A: Cpus>(event: Event, vcpu: VcpuIndex, detail: u32, words: [u64; 2]) {
    if cfg!(feature = "trace") {
        A::this_cpu().trace_with(event, vcpu, detail, words);
    }
}

/// Records that the calling CPU kicks another one.
#[inline(always)]
pub fn kick<A: Cpus>(cpu: CpuIndex) {
    if cfg!(feature = "trace") {
        let me = A::this_cpu();
        let vcpu = VcpuIndex(me.current_vcpu.load(Ordering::Relaxed).wrapping_sub(1));
        me.trace_with(Event::Kick, vcpu, cpu.0, [0; 2]);
    }
}
