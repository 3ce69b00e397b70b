//! Dirty logs: the pages of a slot that were stored to since the last fetch.

use core::ptr::NonNull;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use paging::Level;

use crate::sync::AtomicU64;

/// Pages per word of a log.
pub(crate) const PAGES_PER_WORD: u64 = u64::BITS as u64;

/// The location of a slot's dirty bitmap: bit `n % 64` of word `n / 64` is for the slot's page `n`
/// of 4 KiB.
///
/// It names the memory but gives no access to it: access goes through the slots that have the log.
///
/// # Ordering
///
/// A log is a bitmap with a bit for each page of 4 KiB. There may be too many marks, never too few:
/// the fetcher of the log copies the marked pages *after* taking the marks, and later stores must
/// be marked for the next fetch.
///
/// Five parties may access a page, in any order except as the third column says:
///
/// | party | events | why in this order |
/// |---|---|---|
/// | vCPU whose store faults on a leaf that is write-protected | a: make the leaf writable; b: mark; c: the store | a before b: if a fetch takes the mark, it sees the writable leaf and protects it again. Marked first, the mark could be taken and the leaf found protected before a, and c would leave no trace |
/// | vCPU that finds the leaf writable | s: the store, which sets the leaf's dirty bit in the same step if it is clear | the processor's |
/// | the same, and the processor lists the page whose bit it sets | s; m: mark what is listed, before others can see that the stay is over | s before m, as a before b. A flush waits for stays, so m is before D |
/// | hypervisor that stores for a guest | t: the store; u: mark | t before u: a fetcher that takes the mark sees the store. Marked first, the page could be fetched and copied in between |
/// | fetch | A: take the marks, by exchange; B: protect the pages that were marked, or clear their dirty bits if there are lists, or clear those of all leaves and add their pages; C: flush, receipt; D: look at the marks again and leave them | A before B, as the counterpart of a before b. C before the copy: until then processors store by what they hold. D after C, see below |
///
/// No store is lost, in each of these cases:
/// * c or s **with dirty bits**: B finds the bit, or the next fetch does. A processor that holds
///   the leaf as dirty stores without setting the bit until C; the pages contain those stores when
///   they are copied.
/// * c **with write protection**: if b is before A, A takes the mark. If not, the mark stays for
///   the next fetch, and the leaf stays writable until then.
/// * s **with write protection**, through a leaf that another vCPU's a has made writable and whose
///   b is still outstanding: the fetch may begin after s and before b. The receipt of C proves that
///   sections which began before it have ended, so b is before D, and D adds the page. The mark
///   stays, so that the next fetch protects the leaf.
/// * s **with lists**: m is before A, so B clears the bit and the next store is listed again; or m
///   is after A and leaves its mark for D and the next fetch. B may have cleared the bit of a page
///   that is listed and not marked yet, which lies between two marked ones: its mark comes.
/// * t: u either comes before A, or leaves its mark for D or the next fetch. The result of a fetch
///   contains each store of the hypervisor that had *returned* when the fetch began.
///
/// So each store of a guest that was visible before a fetch began is in its result, or in that of
/// an earlier fetch which ended after the store. Only one fetch of a log runs at a time.
///
/// The mark is always a read-modify-write: checking first whether it is already set would let the
/// check overtake t.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyLog {
    words: NonNull<AtomicU64>,
    word_count: usize,
}

// SAFETY: the words are atomics, which any thread may use; the caller that gives the log to a slot
// vouches for their lifetime.
unsafe impl Send for DirtyLog {}
// SAFETY: as above.
unsafe impl Sync for DirtyLog {}

impl DirtyLog {
    /// A log in these words. Pages whose bits are set count as dirty from the start.
    pub const fn new(words: &[AtomicU64]) -> Self {
        // A reference is never null.
        Self { words: NonNull::from_ref(words).cast(), word_count: words.len() }
    }

    /// Number of words that a slot of `size` bytes needs.
    pub const fn words_for(size: u64) -> u64 {
        size.div_ceil(Level::Page4K.size()).div_ceil(PAGES_PER_WORD)
    }

    /// The address of the words, for the caller that gets the log back.
    pub const fn as_ptr(&self) -> *const AtomicU64 {
        self.words.as_ptr()
    }

    /// Number of words.
    pub const fn word_count(&self) -> usize {
        self.word_count
    }

    pub(crate) fn covers(&self, size: u64) -> bool {
        self.word_count as u64 >= Self::words_for(size)
    }

    /// # Safety
    ///
    /// For the lifetime `'a`, a list that has the log is pinned.
    pub(crate) const unsafe fn marks<'a>(&self) -> Marks<'a> {
        // SAFETY: the caller that gave the log to the slot promised that the words exist, and are
        // accessed by atomics only, until the log is returned, which does not happen before the
        // pins of lists that have it are dropped.
        Marks(unsafe { core::slice::from_raw_parts(self.words.as_ptr(), self.word_count) })
    }
}

/// The words of a log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marks<'a>(pub(crate) &'a [AtomicU64]);

impl Marks<'_> {
    /// Marks the pages from `first` to `last`. The CPU that takes the marks sees the caller's
    /// earlier stores.
    pub(crate) fn mark(self, first: u64, last: u64) {
        for index in first / PAGES_PER_WORD..=last / PAGES_PER_WORD {
            let Some(word) = usize::try_from(index).ok().and_then(|index| self.0.get(index)) else { return };
            let start = index * PAGES_PER_WORD;
            let low = first.saturating_sub(start);
            let high = (last - start).min(PAGES_PER_WORD - 1);
            // u, b: pairs with `take`.
            word.fetch_or(u64::MAX >> (PAGES_PER_WORD - 1 - (high - low)) << low, Release);
        }
    }

    /// Marks the `n`th page from `first` on if bit `n` of `pages` is set; as [`mark`](Self::mark).
    pub(crate) fn mark_each(self, first: u64, pages: u64) {
        let (index, shift) = (first / PAGES_PER_WORD, first % PAGES_PER_WORD);
        let spilt = if shift == 0 { 0 } else { pages >> (PAGES_PER_WORD - shift) };
        for (index, marks) in [(index, pages << shift), (index + 1, spilt)] {
            let word = usize::try_from(index).ok().and_then(|index| self.0.get(index));
            if let Some(word) = word.filter(|_| marks != 0) {
                // u, b: as in `mark`, pairs with `take`.
                word.fetch_or(marks, Release);
            }
        }
    }

    /// A: takes the marks of a word; none if there is no such word.
    pub(crate) fn take(self, index: usize) -> u64 {
        // Pairs with `mark`: a CPU made the leaf writable, or stored, before it marked the page.
        self.0.get(index).map_or(0, |word| word.swap(0, Acquire))
    }

    /// D: reads a word's marks.
    pub(crate) fn look(self, index: usize) -> u64 {
        // Marks made before the receipt are visible because of the receipt, and all marks stay: the
        // next fetch acquires the stores behind them.
        self.0.get(index).map_or(0, |word| word.load(Relaxed))
    }

    /// Whether a page is marked.
    pub(crate) fn has(self, page: u64) -> bool {
        let index = usize::try_from(page / PAGES_PER_WORD).unwrap_or(usize::MAX);
        self.look(index) >> (page % PAGES_PER_WORD) & 1 != 0
    }

    /// Puts back marks that were taken.
    pub(crate) fn put_back(self, index: usize, marks: u64) {
        if let Some(word) = self.0.get(index).filter(|_| marks != 0) {
            // The next take reads from the release sequence that the first mark has begun.
            word.fetch_or(marks, Relaxed);
        }
    }
}
