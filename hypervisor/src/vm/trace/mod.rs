//! The trace of what each CPU does, in an image that has one (feature `trace`); in the others all
//! of this is nothing, and costs nothing.
//!
//! `hostlink::trace` says what the records mean.

use core::sync::atomic::Ordering;

use hostlink::counters::Counter;
use hostlink::trace::{Event, NO_VCPU};

use super::arch::{Arch, Cpus};
use super::machine::Vm;
use super::percpu::PerCpu;

#[cfg(not(feature = "trace"))]
mod none;
#[cfg(feature = "trace")]
mod rings;

#[cfg(not(feature = "trace"))]
pub use none::{CpuTrace, Rings};
#[cfg(feature = "trace")]
pub use rings::{CpuTrace, Rings};

impl<A: Cpus> PerCpu<A> {
    /// Notes what this CPU does for a vCPU.
    #[inline(always)]
    pub fn trace(&self, event: Event, vcpu: u32) {
        self.trace_with(event, vcpu, 0, [0; 2]);
    }

    /// The same, with more to say.
    #[inline(always)]
    pub fn trace_with(&self, event: Event, vcpu: u32, detail: u32, words: [u64; 2]) {
        self.trace.note(A::now, event, vcpu as u16, detail, words);
    }

    /// Notes an exit by what it is counted as.
    #[inline(always)]
    pub fn trace_exit(&self, vcpu: u32, counter: Counter) {
        self.trace_with(Event::Exit, vcpu, counter as u32, [0; 2]);
    }

    /// Notes what this CPU does for no vCPU.
    #[inline(always)]
    pub fn trace_idle(&self, event: Event) {
        self.trace(event, NO_VCPU.into());
    }
}

/// Notes what the calling CPU does for a vCPU, where that CPU's data is not at hand.
#[inline(always)]
pub fn here<A: Cpus>(event: Event, vcpu: u32, detail: u32, words: [u64; 2]) {
    if cfg!(feature = "trace") {
        A::this_cpu().trace_with(event, vcpu, detail, words);
    }
}

/// Notes that the calling CPU kicks another one.
#[inline(always)]
pub fn kick<A: Cpus>(cpu: u32) {
    if cfg!(feature = "trace") {
        let me = A::this_cpu();
        let vcpu = me.current_vcpu.load(Ordering::Relaxed).wrapping_sub(1);
        me.trace_with(Event::Kick, vcpu, cpu, [0; 2]);
    }
}

impl<A: Arch> Vm<A> {
    /// Lets the calling CPU write its ring from here on.
    pub(super) fn attach_trace(&self, cpu: &PerCpu<A>) {
        cpu.trace.attach(&self.trace, cpu.index);
    }
}
