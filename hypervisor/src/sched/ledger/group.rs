//! One guest's account.

use core::ops::Range;
use hostlink::cpus::CpuSet;

use super::cap::Cap;
use super::{Share, VcpuIndex};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The virtual time that a tick costs a guest of weight 1.
const UNIT: u64 = 1 << 26;

/// One guest's account: its share, and what its vCPUs have had on all CPUs.
#[derive(Debug, Default)]
pub(in crate::sched) struct Group {
    first: AtomicU32,
    end: AtomicU32,
    cpus: [AtomicU64; 4],
    /// How many of the machine's CPUs are among them.
    usable: AtomicU32,
    /// It may not use all the time of all CPUs.
    is_bounded: AtomicU32,
    /// The virtual time that a tick costs; 0 if there is no such guest.
    factor: AtomicU64,
    /// Compared by differences only, for it wraps around.
    pub(super) virtual_time: AtomicU64,
    /// How many of its vCPUs wait or run. Not counted while the guest is alone on the machine.
    runnable: AtomicU32,
    /// When one of its vCPUs was last seen to wait for a CPU.
    wanting_at: AtomicU64,
    /// The virtual time of a guest during whose turn one of its vCPUs has waited.
    catches_up_to: AtomicU64,
    /// Until when it is put first, about; 0 if it is not.
    first_until: AtomicU64,
    pub(super) cap: Cap,
}

impl Group {
    /// Opens the account at `virtual_time`. None of the vCPUs is runnable.
    pub(super) fn open(
        &self,
        vcpus: Range<VcpuIndex>,
        share: &Share,
        usable: u32,
        is_everywhere: bool,
        virtual_time: u64,
    ) {
        self.is_bounded.store((!is_everywhere || share.cap.is_some()).into(), Ordering::Relaxed);
        self.usable.store(usable, Ordering::Relaxed);
        self.first.store(vcpus.start.0, Ordering::Relaxed);
        self.end.store(vcpus.end.0, Ordering::Relaxed);
        for (word, bits) in self.cpus.iter().zip(share.cpus.words()) {
            word.store(bits, Ordering::Relaxed);
        }
        self.virtual_time.store(virtual_time, Ordering::Relaxed);
        self.catches_up_to.store(virtual_time, Ordering::Relaxed);
        self.runnable.store(0, Ordering::Relaxed);
        self.wanting_at.store(0, Ordering::Relaxed);
        self.end_first(u64::MAX);
        self.cap.set(share.cap);
        let weight = u64::from(share.weight.max(1));
        self.factor.store(((UNIT + weight / 2) / weight).max(1), Ordering::Relaxed);
    }

    /// All but what depends on time: its virtual time begins at the average of all.
    #[cfg(test)]
    pub(in crate::sched) fn known(&self) -> alloc::string::String {
        let Self {
            first,
            end,
            cpus,
            usable,
            is_bounded,
            factor,
            virtual_time: _,
            runnable,
            wanting_at,
            catches_up_to: _,
            first_until: _,
            cap,
        } = self;
        let share = alloc::format!("{first:?} {end:?} {cpus:?} {usable:?} {is_bounded:?} {factor:?} {cap:?}");
        alloc::format!("{share} {runnable:?} {wanting_at:?} {}", self.beyond_debt() < 0)
    }

    pub(super) fn close(&self) {
        self.factor.store(0, Ordering::Relaxed);
        self.end.store(0, Ordering::Relaxed);
        self.cap.set(None);
    }

    pub(in crate::sched) fn is_open(&self) -> bool {
        self.factor() != 0
    }

    /// Whether it may not use all the time of all CPUs: it has a cap or a set of CPUs.
    pub(super) fn is_bounded(&self) -> bool {
        self.is_bounded.load(Ordering::Relaxed) != 0
    }

    pub(in crate::sched) fn is_capped(&self) -> bool {
        self.cap.exists()
    }

    pub(in crate::sched) fn vcpus(&self) -> Range<VcpuIndex> {
        VcpuIndex(self.first.load(Ordering::Relaxed))..VcpuIndex(self.end.load(Ordering::Relaxed))
    }

    pub(in crate::sched) fn cpus(&self) -> CpuSet {
        CpuSet::from_words(self.cpus.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }

    pub(in crate::sched) fn factor(&self) -> u64 {
        self.factor.load(Ordering::Relaxed)
    }

    /// The weight's reciprocal, as a divisor.
    pub(in crate::sched) fn divisor(&self) -> i64 {
        self.factor().max(1).cast_signed()
    }

    /// `ticks` of a CPU as virtual time.
    pub(in crate::sched) fn cost(&self, ticks: u64) -> i64 {
        i64::try_from(ticks.saturating_mul(self.factor())).unwrap_or(i64::MAX / 8).min(i64::MAX / 8)
    }

    pub(super) fn wanting_at(&self) -> u64 {
        self.wanting_at.load(Ordering::Relaxed)
    }

    /// One of its vCPUs waits.
    pub(super) fn note_wanting(&self, now: u64) {
        self.wanting_at.store(now, Ordering::Relaxed);
    }

    /// How far its virtual time is ahead of this one.
    pub(super) fn ahead_of(&self, time: u64) -> i64 {
        self.virtual_time.load(Ordering::Relaxed).wrapping_sub(time).cast_signed()
    }

    /// Moves its virtual time, without a turn.
    pub(super) fn shift(&self, by: i64) {
        self.virtual_time.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
        self.catches_up_to.fetch_add(by.cast_unsigned(), Ordering::Relaxed);
    }

    /// How far it is beyond what it was owed; negative while it catches up.
    pub(super) fn beyond_debt(&self) -> i64 {
        self.ahead_of(self.catches_up_to.load(Ordering::Relaxed))
    }

    /// One of its vCPUs has waited during a turn of this guest's.
    pub(in crate::sched) fn note_waits_for(&self, running: &Self) {
        let until = running.virtual_time.load(Ordering::Relaxed);
        if self.ahead_of(until) < self.beyond_debt().min(0) {
            self.catches_up_to.store(until, Ordering::Relaxed);
        }
    }

    pub(super) fn put_first(&self, until: u64) {
        self.first_until.store(until, Ordering::Relaxed);
    }

    pub(super) fn is_first(&self) -> bool {
        self.first_until.load(Ordering::Relaxed) != 0
    }

    /// It is not put first any more if it was until then.
    pub(in crate::sched) fn end_first(&self, now: u64) {
        let until = self.first_until.load(Ordering::Relaxed);
        if until != 0 && until <= now {
            // If it fails, it has just been put first again.
            let _ended = self.first_until.compare_exchange(until, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// It is owed nothing.
    pub(super) fn has_caught_up(&self) {
        self.catches_up_to.store(self.virtual_time.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    pub(in crate::sched) fn runnable(&self) -> u32 {
        self.runnable.load(Ordering::Relaxed)
    }

    /// How many CPUs it could use at this moment.
    pub(super) fn wanted(&self) -> u32 {
        self.runnable().min(self.usable.load(Ordering::Relaxed))
    }

    /// So many more of its vCPUs wait or run.
    pub(in crate::sched) fn count_in(&self, vcpus: u32) {
        self.runnable.fetch_add(vcpus, Ordering::Relaxed);
    }

    /// So many fewer do.
    pub(in crate::sched) fn count_out(&self, vcpus: u32) {
        self.runnable.fetch_sub(vcpus, Ordering::Relaxed);
    }
}
