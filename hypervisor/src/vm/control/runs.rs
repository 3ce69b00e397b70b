//! Runs of dirty pages, as they are sent.

use core::ops::Range;
use hostlink::ctl::record::{Dirty, Runs};

use super::Answer;
use crate::vm::arch::Arch;

/// Number of pages that a word of a log covers.
const PAGES_PER_WORD: u64 = 64;

/// Sends some runs of dirty pages from `page` on; returns where the next ones begin, if there are
/// any.
pub(super) fn send_runs<A: Arch>(words: &[u64], page: u64, answer: &mut Answer) -> Option<u64> {
    let page_count = words.len() as u64 * PAGES_PER_WORD;
    let Runs(mut runs) = Runs::default();
    let mut next = page;
    while !runs.is_full()
        && let Some(run) = find_run(words, next, page_count)
    {
        runs.push((run.start, run.end - run.start));
        next = run.end;
    }
    if runs.is_empty() {
        return None;
    }
    answer.record::<A>(&Dirty { dirty: Runs(runs) });
    Some(next)
}

/// The first run of dirty pages at or after `from`; its end is not looked for behind `most` pages
/// and the rest of their last word.
pub(super) fn find_run(words: &[u64], from: u64, most: u64) -> Option<Range<u64>> {
    let first = find_page(words, from, true)?;
    let count = ((first + most) / PAGES_PER_WORD + 1).min(words.len() as u64);
    let end = words.get(..count as usize).and_then(|words| find_page(words, first, false));
    Some(first..end.unwrap_or(count * PAGES_PER_WORD))
}

/// The first page at or after `from` that is dirty, or that is not, as `is_dirty` says.
fn find_page(words: &[u64], from: u64, is_dirty: bool) -> Option<u64> {
    let mut from = from;
    loop {
        let word = words.get((from / PAGES_PER_WORD) as usize)?;
        let word = if is_dirty { *word } else { !*word } >> (from % PAGES_PER_WORD);
        if word != 0 {
            return Some(from + u64::from(word.trailing_zeros()));
        }
        from = (from / PAGES_PER_WORD + 1) * PAGES_PER_WORD;
    }
}
