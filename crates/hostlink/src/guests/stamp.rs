//! A stamp on several words: one CPU changes them while an outside reader reads them, and the
//! reader notices whether what it has read belongs together. There is no lock, and the writer does
//! not wait.
//!
//! The stamp is odd while the words change, and grows with each change.
//!
//! ```text
//! writer                                     reader
//!
//! A  store the stamp, odd (Relaxed)          a  load the stamp (Acquire): it is even
//! B  fence(Release)                          b  load the words (Relaxed)
//! C  store the words (Relaxed)               c  fence(Acquire)
//! D  store the stamp, even (Release)         d  load the stamp (Relaxed): it is the same
//! ```
//!
//! | must hold | because |
//! |---|---|
//! | the words of the change with this stamp, or later ones, are there at b | `a` reads what `D` of this change stored |
//! | a word of a later change that `b` has read is detected | then `B` of that change is before `c`, so `d` reads what its `A` stored at least |
//!
//! Two changes at once are the writers' business: they hold a lock.

#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicU32, Ordering, fence};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// The writer's end.
#[derive(Clone, Copy, Debug)]
pub struct Stamp<'s>(pub &'s AtomicU32);

impl Stamp<'_> {
    /// Changes the words. Not to be called on two CPUs at once.
    pub fn change<R>(&self, words: impl FnOnce() -> R) -> R {
        let before = self.0.load(Ordering::Relaxed);
        self.0.store(before.wrapping_add(1), Ordering::Relaxed); // A
        fence(Ordering::Release); // B; pairs with the reader's fence, c.
        let result = words(); // C
        self.0.store(before.wrapping_add(2), Ordering::Release); // D; pairs with the reader's a.
        result
    }
}

/// The reader's end: what `words` reads with its stamp, if it belongs together; otherwise try
/// again. `stamp` loads the stamp with acquire ordering.
///
/// # Errors
///
/// Those of the two.
pub fn read<R, E>(
    stamp: impl Fn() -> Result<u32, E>,
    words: impl FnOnce() -> Result<R, E>,
) -> Result<Option<(u32, R)>, E> {
    let before = stamp()?; // a
    if !before.is_multiple_of(2) {
        return Ok(None);
    }
    let result = words()?; // b
    fence(Ordering::Acquire); // c; pairs with the writer's fence, B.
    Ok((stamp()? == before).then_some((before, result))) // d
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;

    struct Memory {
        stamp: AtomicU32,
        words: [AtomicU32; 2],
    }

    impl Memory {
        fn new() -> Self {
            Self { stamp: AtomicU32::new(0), words: [AtomicU32::new(0), AtomicU32::new(0)] }
        }

        fn put(&self, value: u32) {
            self.words.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        }

        fn read(&self) -> Option<(u32, [u32; 2])> {
            let [first, second] = &self.words;
            // Pairs with D.
            let stamp = || Ok::<_, Infallible>(self.stamp.load(Ordering::Acquire));
            let words = || Ok([first.load(Ordering::Relaxed), second.load(Ordering::Relaxed)]);
            let Ok(found) = read(stamp, words);
            found
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn words_are_read_with_their_stamp_and_not_during_a_change() {
        let memory = Memory::new();
        let stamp = Stamp(&memory.stamp);
        stamp.change(|| memory.put(7));
        assert_eq!(memory.read(), Some((2, [7, 7])));
        stamp.change(|| assert_eq!(memory.read(), None));
        memory.stamp.store(u32::MAX - 1, Ordering::Relaxed);
        stamp.change(|| memory.put(8));
        assert_eq!(memory.read(), Some((0, [8, 8])), "it may wrap around");
    }

    /// Two changes, and a concurrent reader.
    #[cfg(loom)]
    fn beside(change: fn(&Memory, u32)) {
        loom::model(move || {
            let memory = loom::sync::Arc::new(Memory::new());
            let writer = {
                let memory = memory.clone();
                loom::thread::spawn(move || (1..=2).for_each(|value| change(&memory, value)))
            };
            for _ in 0..2 {
                if let Some((stamp, words)) = memory.read() {
                    assert_eq!(words, [stamp / 2; 2], "words that do not belong together");
                }
            }
            writer.join().unwrap();
            assert_eq!(memory.read(), Some((4, [2, 2])));
        });
    }

    #[cfg(loom)]
    #[test]
    fn words_of_two_changes_are_never_taken_together() {
        beside(|memory, value| Stamp(&memory.stamp).change(|| memory.put(value)));
    }

    #[cfg(loom)]
    #[test]
    #[should_panic(expected = "do not belong together")]
    fn a_change_without_its_fence_is_found() {
        beside(|memory, value| {
            memory.stamp.store(2 * value - 1, Ordering::Relaxed);
            memory.put(value);
            memory.stamp.store(2 * value, Ordering::Release);
        });
    }

    #[cfg(loom)]
    #[test]
    #[should_panic(expected = "do not belong together")]
    fn a_stamp_without_release_is_found() {
        beside(|memory, value| {
            memory.stamp.store(2 * value - 1, Ordering::Relaxed);
            fence(Ordering::Release);
            memory.put(value);
            memory.stamp.store(2 * value, Ordering::Relaxed);
        });
    }
}
