//! What is known of a CPU's queue without its lock, and of a vCPU outside of all queues.

use super::queue::{RunQueue, WATCHED};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Mutex, Ordering};

/// The queue that a vCPU outside of all queues belongs to.
#[derive(Debug, Default)]
pub(super) struct Home {
    /// Queue it ran on last, which holds its timer.
    pub(super) cpu: AtomicU32,
    /// Its virtual time when it left that queue.
    pub(super) virtual_time: AtomicU64,
    /// The time at which it was put into a queue. Written by the CPU that does so, before.
    pub(super) ready_since: AtomicU64,
    /// CPU in whose timer class it waits, plus one; 0 if in none. Written under that queue's lock;
    /// a hint to readers that do not hold it.
    pub(super) timer_line: AtomicU32,
    /// The time that it has had. Written by the CPU that it leaves.
    pub(super) used: AtomicU64,
}

impl Home {
    /// The vCPU has had `ticks` more.
    #[inline(always)]
    pub(super) fn charge(&self, ticks: u64) {
        // No CPU but the one that it runs on writes it.
        let used = self.used.load(Ordering::Relaxed).wrapping_add(ticks);
        self.used.store(used, Ordering::Relaxed);
    }
}

/// One CPU's queue under its lock, with hints that other CPUs may read without it.
#[derive(Debug)]
pub(super) struct CpuQueue {
    pub(super) queue: Mutex<RunQueue>,
    /// [`RunQueue::watched_load`] as of the last release of the lock. It may be out of date when it
    /// is read without the lock.
    load: AtomicUsize,
    /// [`RunQueue::next_timer`], likewise.
    pub(super) next_timer: AtomicU64,
}

impl CpuQueue {
    pub(super) fn new(queue: RunQueue) -> Self {
        Self { queue: Mutex::new(queue), load: AtomicUsize::new(0), next_timer: AtomicU64::new(u64::MAX) }
    }

    #[inline]
    pub(super) fn with<R>(&self, act: impl FnOnce(&mut RunQueue) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = act(&mut queue);
        // Relaxed, but within the lock, so that the newest value is stored last. See the table of
        // hints in `notify`.
        self.load.store(queue.watched_load(), Ordering::Relaxed);
        result
    }

    /// The queue's timers have changed. Called with the lock held.
    #[inline]
    pub(super) fn note_timers(&self, queue: &RunQueue) {
        self.next_timer.store(queue.next_timer(), Ordering::Relaxed); // As above.
    }

    /// How many vCPUs wait or run here.
    pub(super) fn load(&self) -> usize {
        self.watched_load() & !WATCHED
    }

    #[inline]
    pub(super) fn watched_load(&self) -> usize {
        self.load.load(Ordering::Relaxed)
    }
}
