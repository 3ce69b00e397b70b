//! The earlier contents of a table.

use paging::ENTRY_COUNT;

/// The most changes of one table that are remembered: a split writes 512.
const PAST_MAX: usize = 1200;

#[derive(Clone, Copy, Debug)]
struct Change {
    time: u64,
    index: u16,
    /// The word before `time`.
    old: u64,
}

/// The words of one table, now and before: an undo log.
#[derive(Debug)]
pub(super) struct History {
    words: [u64; ENTRY_COUNT],
    past: Vec<Change>,
    /// Nothing before this time is known.
    floor: u64,
}

impl History {
    /// A frame's table is all zero from `time` on. What it has of its frame's earlier lives stays.
    pub(super) fn begin(history: &mut Option<Box<Self>>, time: u64) {
        match history {
            Some(history) => history.restart(time),
            None => *history = Some(Self::new(time)),
        }
    }

    fn new(time: u64) -> Box<Self> {
        Box::new(Self { words: [0; ENTRY_COUNT], past: Vec::new(), floor: time })
    }

    /// The table is all zero again, in another life of its frame. Processors may still hold entries
    /// from the earlier one, so its contents are remembered.
    fn restart(&mut self, time: u64) {
        for index in 0..ENTRY_COUNT {
            if self.words[index] != 0 {
                self.change(time, index, 0);
            }
        }
    }

    pub(super) fn words(&self) -> &[u64; ENTRY_COUNT] {
        &self.words
    }

    /// Records that a word changes at `time`.
    pub(super) fn change(&mut self, time: u64, index: usize, new: u64) {
        let old = core::mem::replace(&mut self.words[index], new);
        self.past.push(Change { time, index: index as u16, old });
        if self.past.len() > PAST_MAX {
            let gone = self.past.drain(..PAST_MAX / 2).next_back();
            self.floor = gone.map_or(self.floor, |change| change.time);
        }
    }

    /// A word at `time`; `None` if that is not known any more.
    pub(super) fn value_at(&self, index: usize, time: u64) -> Option<u64> {
        if time < self.floor {
            return None;
        }
        let undone =
            |word, change: &Change| if usize::from(change.index) == index { change.old } else { word };
        Some(self.past.iter().rev().take_while(|change| change.time > time).fold(self.words[index], undone))
    }

    /// The times at which a word changed, the latest first.
    pub(super) fn changes(&self, index: usize) -> impl Iterator<Item = u64> {
        self.past
            .iter()
            .rev()
            .filter(move |change| usize::from(change.index) == index)
            .map(|change| change.time)
    }

    /// The time when a word that was `held` at `time` became one for which `is_replaced` is true;
    /// `u64::MAX` if it has not.
    pub(super) fn replaced_at(&self, index: usize, time: u64, is_replaced: impl Fn(u64) -> bool) -> u64 {
        // Backwards; `word` is the value after the change under examination.
        let (mut word, mut replaced) = (self.words[index], u64::MAX);
        for change in self.past.iter().rev().take_while(|change| change.time > time) {
            if usize::from(change.index) == index {
                if is_replaced(word) {
                    replaced = change.time;
                }
                word = change.old;
            }
        }
        replaced
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_replacements_by_time() {
        let mut history = History::new(10);
        history.change(20, 3, 5);
        history.change(30, 4, 9);
        history.change(40, 3, 7);
        history.change(50, 3, 5);
        let values: Vec<_> =
            [9, 10, 19, 20, 39, 40, 50].iter().map(|&time| history.value_at(3, time)).collect();
        assert_eq!(values, [None, Some(0), Some(0), Some(5), Some(5), Some(7), Some(5)]);
        assert_eq!(history.replaced_at(3, 25, |word| word != 5), 40, "the first time, though it came back");
        assert_eq!(history.replaced_at(3, 50, |word| word != 5), u64::MAX);
        assert_eq!(history.replaced_at(4, 10, |word| word != 0), 30);
        history.restart(60);
        assert_eq!((history.value_at(3, 55), history.value_at(3, 60)), (Some(5), Some(0)));
    }

    #[test]
    fn a_long_past_is_forgotten_and_that_is_known() {
        let mut history = History::new(0);
        (1..=2000).for_each(|time| history.change(time, 0, time));
        assert_eq!(history.value_at(0, 100), None);
        assert!((1000..2000).all(|time| history.value_at(0, time).is_none_or(|value| value == time)));
        assert_eq!(history.value_at(0, 1900), Some(1900));
    }
}
