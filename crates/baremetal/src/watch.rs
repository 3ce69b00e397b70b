//! Another processor reads words continuously, and reports if it sees removed contents.
//!
//! | first processor | watching processor |
//! |---|---|
//! | a: write round n to the page that is not mapped | |
//! | b: map it instead of the other | |
//! | c: flush | |
//! | d: `released` = n | e: r = `released` |
//! | | f: v = contents at the mapped address |
//! | g: wait for `checked` = n | h: v < r is stale; `checked` = r |
//!
//! If e sees n of d, then the flush of c has returned, so f reads the page of a or a later one. g
//! comes before the next a: a stale translation shows round n - 1 at h, and nothing newer. The
//! watching processor has no timer and causes no exit itself, because an exit drops translations on
//! some machines.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::pages::Page;

/// Rounds without a flush, at least one of which has to be detected.
const TRIES: u32 = 2000;

/// The watched words, and the findings.
pub struct Watched {
    /// The address of the first word, their number, and the distance between them.
    address: AtomicU64,
    words: AtomicU64,
    every: AtomicU64,
    released: AtomicU64,
    checked: AtomicU64,
    stale: AtomicU64,
    ends: AtomicBool,
    pages: [Page; 2],
}

/// Why a round proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// The watching processor does not read in this round.
    Silent(u64),
    /// This many pages were replaced without a flush, and none was detected.
    Unnoticed(u32),
}

impl Default for Watched {
    fn default() -> Self {
        Self::new()
    }
}

impl Watched {
    /// Nothing is watched.
    pub const fn new() -> Self {
        let [address, words, every, released] = [const { AtomicU64::new(0) }; 4];
        let [checked, stale] = [const { AtomicU64::new(0) }; 2];
        let (ends, pages) = (AtomicBool::new(true), [const { Page::new() }; 2]);
        Self { address, words, every, released, checked, stale, ends, pages }
    }

    /// The page of a round: different from that of the previous round.
    pub fn page_of(&self, round: u64) -> &Page {
        &self.pages[(round % 2) as usize]
    }

    /// The same, with the round's number in it.
    pub fn write_page(&self, round: u64) -> &Page {
        let page = self.page_of(round);
        page.write(&[round]);
        page
    }

    /// Reads once, by `read`. The handler of an NMI may do so as well, on the watching processor.
    #[inline(always)]
    pub fn look(&self, read: impl Fn(u64) -> u64) {
        // Pairs with `Watch::round`: d and e.
        let released = self.released.load(Ordering::Acquire);
        let address = self.address.load(Ordering::Relaxed);
        let every = self.every.load(Ordering::Relaxed);
        for word in 0..self.words.load(Ordering::Relaxed) {
            if read(address.wrapping_add(word * every)) < released {
                self.stale.fetch_add(1, Ordering::Relaxed);
            }
        }
        // Pairs with `Watch::round`: h and g.
        self.checked.store(released, Ordering::Release);
    }

    /// The loop of the watching processor until the rounds end.
    #[inline(always)]
    pub fn follow(&self, read: impl Fn(u64) -> u64) {
        // Pairs with `end`.
        while !self.ends.load(Ordering::Acquire) {
            self.look(&read);
        }
    }

    /// Starts watching `words` words, the first one at `address` and `every` bytes apart. The other
    /// processor calls [`follow`](Self::follow) afterwards. `wait` waits for a condition, for a
    /// limited time, and returns whether it holds.
    pub fn begin<'a>(&'a self, address: u64, words: u64, every: u64, wait: Wait) -> Watch<'a> {
        self.address.store(address, Ordering::Relaxed);
        self.words.store(words, Ordering::Relaxed);
        self.every.store(every, Ordering::Relaxed);
        self.released.store(0, Ordering::Relaxed);
        self.checked.store(0, Ordering::Relaxed);
        self.stale.store(0, Ordering::Relaxed);
        self.ends.store(false, Ordering::Relaxed);
        Watch { watched: self, round: 0, wait }
    }

    /// Ends the rounds.
    pub fn end(&self) {
        // Pairs with `follow`.
        self.ends.store(true, Ordering::Release);
    }
}

/// Waits for a condition, for a limited time, and returns whether it holds.
pub type Wait = fn(&dyn Fn() -> bool) -> bool;

/// Rounds in which a processor watches.
pub struct Watch<'a> {
    watched: &'a Watched,
    round: u64,
    wait: Wait,
}

impl Watch<'_> {
    /// One round: `replace` maps its page, `flush` makes that visible. Returns how many stale words
    /// have been seen.
    ///
    /// # Errors
    ///
    /// The error of `flush`, or that the watching processor does not read.
    pub fn round<E: From<Unseen>>(
        &mut self,
        replace: impl FnOnce(u64),
        flush: impl FnOnce() -> Result<(), E>,
    ) -> Result<u64, E> {
        self.round += 1;
        let (round, watched) = (self.round, self.watched);
        replace(round);
        let flushed = flush();
        // Pairs with `look`: d and e.
        watched.released.store(round, Ordering::Release);
        // Pairs with `look`: g and h.
        let is_checked = (self.wait)(&|| watched.checked.load(Ordering::Acquire) == round);
        flushed?;
        if !is_checked {
            return Err(Unseen::Silent(round).into());
        }
        Ok(watched.stale.swap(0, Ordering::Relaxed))
    }

    /// Succeeds if an omitted flush is detected: then rounds without stale words prove something.
    ///
    /// # Errors
    ///
    /// As for [`round`](Self::round); or none was detected.
    pub fn notices<E: From<Unseen>>(
        &mut self,
        mut replace: impl FnMut(u64),
        flush: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        for _ in 0..TRIES {
            if self.round(&mut replace, || Ok::<(), E>(()))? != 0 {
                // Stale words seen before this round's flush do not count.
                return self.round(replace, flush).map(drop);
            }
        }
        Err(Unseen::Unnoticed(TRIES).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    /// Ends the rounds even if one fails: the watching thread is joined.
    struct Ends<'a>(&'a Watched);

    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.end();
        }
    }

    fn wait(condition: &dyn Fn() -> bool) -> bool {
        (0..1000).any(|_| {
            thread::yield_now();
            condition()
        })
    }

    /// Rounds with a watcher that reads the result of `read` for the round's number.
    fn watched(read: fn(u64) -> u64, rounds: impl FnOnce(&mut Watch<'_>, &AtomicU64)) {
        let (watched, mapped) = (Watched::new(), AtomicU64::new(0));
        thread::scope(|scope| {
            let mut watch = watched.begin(0, 3, 8, |condition| {
                while !condition() {
                    thread::yield_now();
                }
                true
            });
            scope.spawn(|| watched.follow(|_| read(mapped.load(Ordering::SeqCst))));
            let _ends = Ends(&watched);
            rounds(&mut watch, &mapped);
        });
    }

    #[test]
    fn a_page_that_is_replaced_in_time_is_never_stale() {
        watched(
            |round| round,
            |watch, mapped| {
                for _ in 0..100 {
                    let map = |round| mapped.store(round, Ordering::SeqCst);
                    assert_eq!(watch.round(map, || Ok::<(), Unseen>(())), Ok(0));
                }
            },
        );
    }

    #[test]
    fn each_word_that_is_a_round_behind_is_counted() {
        watched(
            |round| round.saturating_sub(1),
            |watch, mapped| {
                let map = |round| mapped.store(round, Ordering::SeqCst);
                assert!(watch.round(map, || Ok::<(), Unseen>(())).expect("it looks") >= 3);
                assert_eq!(watch.notices(map, || Ok::<(), Unseen>(())), Ok(()));
            },
        );
    }

    #[test]
    fn a_processor_that_does_not_look_or_keeps_nothing_is_reported() {
        let watched = Watched::new();
        let mut watch = watched.begin(0, 1, 8, wait);
        assert_eq!(watch.round(|_| {}, || Ok(())), Err(Unseen::Silent(1)));
        let mut watch = watched.begin(0, 1, 8, |_| true);
        assert_eq!(watch.notices(|_| {}, || Ok(())), Err(Unseen::Unnoticed(TRIES)));
        assert_ne!(watched.page_of(1).address(), watched.page_of(2).address());
    }
}
