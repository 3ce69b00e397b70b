//! Fetching a dirty log.

use core::ops::Range;

use paging::{FlushReceipt, Gpa, Level, Stamp};

use crate::access::GuestMemory;
use crate::dirty::{DirtyLog, Marks, PAGES_PER_WORD};
use crate::slot::{Slot, SlotError, SlotId};

/// Bytes of guest memory per word of a log.
const WORD_SPAN: u64 = PAGES_PER_WORD * Level::Page4K.size();

impl<'m> GuestMemory<'m> {
    /// Begins to fetch the dirty log of a slot, or a part of it: takes the marks of `words.len()`
    /// words starting at `first_word` into `words`; words beyond the last page are 0.
    ///
    /// The slots stay pinned until the fetch ends, so an update waits for it.
    ///
    /// # Errors
    ///
    /// [`SlotError::UnknownId`] and [`SlotError::NoLog`].
    pub fn fetch_dirty<'w>(
        self,
        id: SlotId,
        first_word: usize,
        words: &'w mut [u64],
    ) -> Result<DirtyFetch<'m, 'w>, SlotError> {
        let (slot, log) = self.with_list(|slots| {
            let (slot, log) = slots.get(id).ok_or(SlotError::UnknownId)?;
            Ok((*slot, *log.ok_or(SlotError::NoLog)?))
        })?;
        let first_word = first_word.min(log.word_count());
        let marks = marks(&self, &log);
        for (word, index) in words.iter_mut().zip(first_word..) {
            *word = in_slot(&slot, index, marks.take(index));
        }
        Ok(DirtyFetch { memory: self, slot, log, first_word, words })
    }
}

/// The words of a log in a list that `memory` pins.
fn marks<'a>(memory: &'a GuestMemory<'_>, log: &DirtyLog) -> Marks<'a> {
    let _pinned = memory;
    // SAFETY: both users found the log in the list that `memory` pins; the marks do not outlive the
    // borrow of it.
    unsafe { log.marks() }
}

/// The marks of a word that stand for pages of the slot. There are thousands of words in a step,
/// and most have none.
const fn in_slot(slot: &Slot, index: usize, marks: u64) -> u64 {
    if marks == 0 {
        return 0;
    }
    let page_count = slot.size >> Level::Page4K.shift();
    match page_count.saturating_sub(index as u64 * PAGES_PER_WORD) {
        left @ 0..PAGES_PER_WORD => marks & ((1 << left) - 1),
        _ => marks,
    }
}

/// A fetch of a dirty log in progress. The table in `dirty.rs` explains this order:
///
/// 1. [`GuestMemory::fetch_dirty`] takes the marks.
/// 2. The caller write-protects the marked pages ([`next_run`](Self::next_run)), or clears the
///    dirty bits of the leaves in [`range`](Self::range) and [adds](Self::add) the pages that had
///    them; and flushes. The flush is needed even if nothing was changed: it waits for faults that
///    are still being handled.
/// 3. [`finish`](Self::finish), given the flush's receipt, adds the pages marked meanwhile. Then
///    the pages can be copied.
///
/// If dropped before, it puts the marks back, so that the next fetch finds them.
#[must_use = "a fetch that is dropped puts the marks back"]
#[derive(Debug)]
pub struct DirtyFetch<'m, 'w> {
    memory: GuestMemory<'m>,
    slot: Slot,
    log: DirtyLog,
    first_word: usize,
    words: &'w mut [u64],
}

impl DirtyFetch<'_, '_> {
    /// The slot being fetched.
    pub fn slot(&self) -> &Slot {
        &self.slot
    }

    /// The guest physical addresses being fetched.
    pub fn range(&self) -> Range<u64> {
        let offset = |word: usize| (word as u64).saturating_mul(WORD_SPAN).min(self.slot.size);
        let Range { start, .. } = self.slot.range();
        start + offset(self.first_word)..start + offset(self.first_word.saturating_add(self.words.len()))
    }

    /// The first run of dirty pages at `from` or above, as guest physical addresses.
    pub fn next_run(&self, from: Gpa) -> Option<Range<u64>> {
        let Range { start, .. } = self.range();
        let from = from.0.saturating_sub(start).div_ceil(Level::Page4K.size());
        // No bit beyond the slot's last page is set.
        let first = self.find(from, 0)?;
        let end = self.find(first, u64::MAX).unwrap_or(self.words.len() as u64 * PAGES_PER_WORD);
        Some(start + first * Level::Page4K.size()..start + end * Level::Page4K.size())
    }

    /// The first page from `from` on that is dirty, or that is clean if `flip` has all bits set.
    /// Skips words as a whole.
    fn find(&self, from: u64, flip: u64) -> Option<u64> {
        let first = usize::try_from(from / PAGES_PER_WORD).ok()?;
        let mut mask = u64::MAX << (from % PAGES_PER_WORD);
        for (index, word) in self.words.iter().enumerate().skip(first) {
            let found = (word ^ flip) & mask;
            if found != 0 {
                return Some(index as u64 * PAGES_PER_WORD + u64::from(found.trailing_zeros()));
            }
            mask = u64::MAX;
        }
        None
    }

    /// From the first to the last dirty page, as guest physical addresses.
    pub(crate) fn hull(&self) -> Option<Range<u64>> {
        let Range { start, .. } = self.range();
        let first = self.find(0, 0)?;
        let (index, word) = self.words.iter().enumerate().rfind(|(_, word)| **word != 0)?;
        let end = index as u64 * PAGES_PER_WORD + u64::from(u64::BITS - word.leading_zeros());
        Some(start + first * Level::Page4K.size()..start + end * Level::Page4K.size())
    }

    /// Adds pages that the processor has marked in their leaves. Pages outside of
    /// [`range`](Self::range) are ignored.
    pub fn add(&mut self, gpas: Range<u64>) {
        let Range { start, end } = self.range();
        let (first, last) = (gpas.start.max(start), gpas.end.min(end));
        if first >= last {
            return;
        }
        let page = |gpa: u64| (gpa - start) >> Level::Page4K.shift();
        for page in page(first)..=page(last - 1) {
            if let Some(word) = self.words.get_mut((page / PAGES_PER_WORD) as usize) {
                *word |= 1 << (page % PAGES_PER_WORD);
            }
        }
    }

    /// Ends the fetch: adds the pages marked since it began; their marks stay. Returns the number
    /// of dirty pages. `last` is the page table's stamp after the pages were protected or cleaned.
    ///
    /// # Errors
    ///
    /// The fetch itself, if the receipt does not cover `last`.
    pub fn finish(mut self, receipt: &(impl FlushReceipt + ?Sized), last: Stamp) -> Result<u64, Self> {
        if !receipt.covers(last) {
            return Err(self);
        }
        // Nothing is put back from here on.
        let words = core::mem::take(&mut self.words);
        let marks = marks(&self.memory, &self.log);
        Ok(words.iter_mut().zip(self.first_word..).fold(0, |count, (word, index)| {
            *word |= in_slot(&self.slot, index, marks.look(index));
            if *word == 0 { count } else { count + u64::from(word.count_ones()) }
        }))
    }
}

impl Drop for DirtyFetch<'_, '_> {
    fn drop(&mut self) {
        let marks = marks(&self.memory, &self.log);
        for (word, index) in self.words.iter().zip(self.first_word..) {
            marks.put_back(index, *word);
        }
    }
}
