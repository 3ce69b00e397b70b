//! The findings of processors that read the same word over and over.

use arrayvec::ArrayVec;
use spin::Mutex;

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

/// The findings of one processor, in order: that processor notes them, another one reports them.
#[derive(Debug, Default)]
pub struct Findings(Mutex<ArrayVec<Sight, CHANGES>>);

impl Findings {
    /// No findings.
    pub const fn new() -> Self {
        Self(Mutex::new(ArrayVec::new_const()))
    }

    /// Clears all findings; no processor may be noting.
    pub fn clear(&self) {
        self.0.lock().clear();
    }

    /// Notes the result of a check, if it differs from the previous one.
    #[inline]
    pub fn note(&self, last: &mut Option<Sight>, now: Sight) {
        if *last != Some(now) {
            *last = Some(now);
            let _ = self.0.lock().try_push(now);
        }
    }

    /// The findings from number `from` on, in order.
    pub fn since(&self, from: usize) -> ArrayVec<Sight, CHANGES> {
        self.0.lock().iter().skip(from).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_told_of_what_stays_the_same_or_was_told() {
        let (findings, mut last) = (Findings::new(), None);
        assert!(findings.since(0).is_empty() && findings.since(3).is_empty());
        for sight in [Sight::Value(7), Sight::Value(7), Sight::Fault, Sight::Fault, Sight::Value(0)] {
            findings.note(&mut last, sight);
        }
        assert_eq!(findings.since(0)[..], [Sight::Value(7), Sight::Fault, Sight::Value(0)]);
        assert_eq!(findings.since(2)[..], [Sight::Value(0)]);
        assert!(findings.since(3).is_empty() && findings.since(4).is_empty());
        findings.clear();
        assert!(findings.since(0).is_empty());
    }

    #[test]
    fn more_changes_than_there_is_room_for_are_lost() {
        let (findings, mut last) = (Findings::new(), None);
        (0..CHANGES as u64 + 5).for_each(|value| findings.note(&mut last, Sight::Value(value)));
        assert_eq!(findings.since(CHANGES - 1)[..], [Sight::Value(CHANGES as u64 - 1)]);
        assert!(findings.since(CHANGES).is_empty());
    }
}
