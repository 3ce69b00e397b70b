//! The findings of processors that read the same word over and over.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

/// Maximum number of processors that watch.
pub const WATCHERS: usize = 16;
/// Number of changes that are kept of each; later ones are lost.
pub const CHANGES: usize = 16;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The word has this value.
    Value(u64),
    /// There is no memory, or it is not mapped.
    Fault,
}

#[derive(Debug)]
struct Change {
    is_fault: AtomicBool,
    value: AtomicU64,
}

/// The findings of one processor, in order: that processor notes them, another one reports them.
#[derive(Debug)]
pub struct Findings {
    changes: [Change; CHANGES],
    /// Number of complete ones. The noting processor releases, the reporting one acquires.
    count: AtomicUsize,
}

impl Findings {
    /// No findings.
    pub const fn new() -> Self {
        let changes =
            [const { Change { is_fault: AtomicBool::new(false), value: AtomicU64::new(0) } }; CHANGES];
        Self { changes, count: AtomicUsize::new(0) }
    }

    /// Clears all findings; no processor may be noting.
    pub fn clear(&self) {
        self.count.store(0, Ordering::Release);
    }

    /// Notes the result of a check, if it differs from the previous one.
    #[inline]
    pub fn note(&self, last: &mut Option<Sight>, now: Sight) {
        if *last != Some(now) {
            *last = Some(now);
            self.add(now);
        }
    }

    #[cold]
    fn add(&self, sight: Sight) {
        let count = self.count.load(Ordering::Relaxed);
        let Some(change) = self.changes.get(count) else { return };
        let (is_fault, value) = match sight {
            Sight::Fault => (true, 0),
            Sight::Value(value) => (false, value),
        };
        change.is_fault.store(is_fault, Ordering::Relaxed);
        change.value.store(value, Ordering::Relaxed);
        self.count.store(count + 1, Ordering::Release);
    }

    /// The findings from number `from` on, in order.
    pub fn since(&self, from: usize) -> impl Iterator<Item = Sight> {
        let count = self.count.load(Ordering::Acquire);
        let new = self.changes.get(from..count).unwrap_or_default();
        new.iter().map(|change| match change.is_fault.load(Ordering::Relaxed) {
            true => Sight::Fault,
            false => Sight::Value(change.value.load(Ordering::Relaxed)),
        })
    }
}

impl Default for Findings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn told(findings: &Findings, from: usize) -> Vec<Sight> {
        findings.since(from).collect()
    }

    #[test]
    fn nothing_is_told_of_what_stays_the_same_or_was_told() {
        let (findings, mut last) = (Findings::new(), None);
        assert!(told(&findings, 0).is_empty() && told(&findings, 3).is_empty());
        for sight in [Sight::Value(7), Sight::Value(7), Sight::Fault, Sight::Fault, Sight::Value(0)] {
            findings.note(&mut last, sight);
        }
        assert_eq!(told(&findings, 0), [Sight::Value(7), Sight::Fault, Sight::Value(0)]);
        assert_eq!(told(&findings, 2), [Sight::Value(0)]);
        assert!(told(&findings, 3).is_empty() && told(&findings, 4).is_empty());
        findings.clear();
        assert!(told(&findings, 0).is_empty());
    }

    #[test]
    fn more_changes_than_there_is_room_for_are_lost() {
        let (findings, mut last) = (Findings::new(), None);
        (0..CHANGES as u64 + 5).for_each(|value| findings.note(&mut last, Sight::Value(value)));
        assert_eq!(told(&findings, CHANGES - 1), [Sight::Value(CHANGES as u64 - 1)]);
        assert!(told(&findings, CHANGES).is_empty());
    }
}
