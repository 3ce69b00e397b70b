//! Runs of dirty pages, as they are sent.

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
    while !runs.is_full() && next < page_count {
        let Some(first) = find_page(words, next, true) else { break };
        let end = find_page(words, first, false).unwrap_or(page_count);
        runs.push((first, end - first));
        next = end;
    }
    if runs.is_empty() {
        return None;
    }
    answer.record::<A>(&Dirty { dirty: Runs(runs) });
    Some(next)
}

/// The first page at or after `from` that is dirty, or that is not, as `is_dirty` says.
pub(super) fn find_page(words: &[u64], from: u64, is_dirty: bool) -> Option<u64> {
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
