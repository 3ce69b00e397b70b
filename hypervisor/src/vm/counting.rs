//! The vCPUs' counters, which the host tool reads from memory.

use core::sync::atomic::{AtomicU64, Ordering};
use hostlink::counters::{BEACON_MAGIC, Beacon, Counter};

use super::arch::Arch;
use super::context::Context;
use super::host::Host;
use crate::sched::VcpuIndex;

/// The counters of one vCPU, as `hostlink::counters` lays them out.
pub type CounterRow = [AtomicU64; Counter::COUNT];

impl<A: Arch> Host<A> {
    /// Lets the host tool find the counters.
    pub fn publish_counters(&self, beacon: &Beacon) {
        beacon.counters.store(self.counters.as_ptr().addr() as u64, Ordering::Relaxed);
        beacon.tsc_hz.store(A::hz(), Ordering::Relaxed);
        beacon.vcpu_count.store(self.row_count(), Ordering::Relaxed);
        beacon.counter_count.store(Counter::COUNT as u32, Ordering::Relaxed);
        beacon.cpu_count.store(self.sched.cpu_count(), Ordering::Relaxed);
        beacon.guests.store(self.entries.as_ptr().addr() as u64, Ordering::Relaxed);
        if self.bundle.lists_guests() {
            beacon.guest_count.store(self.entries.len() as u32, Ordering::Relaxed);
        }
        self.trace.publish(beacon);
        // Pairs with the host tool, which reads the rest only after it has found this.
        beacon.magic.store(BEACON_MAGIC, Ordering::Release);
    }
}

impl<A: Arch> Context<'_, A> {
    /// Shows the host tool the time up to `now` that this vCPU has had, if it sees the guests.
    #[inline(always)] // A part of the switch from one vCPU to another.
    pub(super) fn publish_used(&self, now: u64) {
        if self.host.bundle.lists_guests() {
            let used = now.saturating_sub(self.cpu.used_until.replace(now));
            let entry = self.host.entry(self.vm.number);
            // No partner: a reader of the entry may find it a little late.
            entry.used_ticks.fetch_add(used, Ordering::Relaxed);
        }
    }
}

/// Adds to a counter of a vCPU. Only the CPU that runs the vCPU calls this, so no locked
/// instruction is needed.
#[inline]
pub fn increase(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Increments a counter of the vCPU on this CPU, or of the first vCPU if there is none.
#[cold]
pub fn count_here<A: Arch>(counter: Counter) {
    let row = A::this_cpu().current_vcpu.load(Ordering::Relaxed).saturating_sub(1);
    count_rare::<A>(VcpuIndex(row), counter);
}

/// Increments a counter of rare events from any CPU, hence by a locked add.
#[cold]
pub fn count_rare<A: Arch>(row: VcpuIndex, counter: Counter) {
    if let Some(host) = A::host() {
        host.counters_of(row)[counter as usize].fetch_add(1, Ordering::Relaxed);
    }
}
