//! The inner loops of changes that process many small pages.

use core::sync::atomic::Ordering::Relaxed;

use crate::change::{Action, Change, DirtySink};
use crate::format::{is_settled, settled};
use crate::frames::Frames;
use crate::span;
use crate::sync::{AtomicU64, overwrite};
use crate::visit::{cleaned, rewrite};
use crate::{Format, Level, TableMemory};

/// Entries whose changes are recorded together, each as a bit of a word.
const GROUP: usize = u64::BITS as usize;

/// Entries that are read before the first of them is written, so that tests and loops handle all at
/// once.
const CHUNK: usize = 16;

impl<F: Format, M: TableMemory, S: DirtySink, R: Frames> Change<'_, F, M, S, R> {
    /// Removes the right to store from leaves of the last level, or cleans them; the first is at
    /// the offset `start`.
    pub(crate) fn sweep(&mut self, cells: &[AtomicU64], start: u64) {
        let (mut cells, mut start) = (cells, start);
        // The number of changed leaves right before `start`.
        let mut run = 0;
        while !cells.is_empty() {
            // Groups are aligned, so that they match the words of an aligned log.
            let to_border = GROUP - Level::Page4K.index(start) % GROUP;
            let (group, rest) = cells.split_at(to_border.min(cells.len()));
            let changed = match self.action {
                Action::Clean(_) => sweep::<F>(group, cleaned::<F>, F::is_dirty),
                _ => sweep::<F>(group, |leaf| F::protected(leaf, Level::Page4K), |_| true),
            };
            if let Action::Clean(sink) = &mut self.action
                && changed != 0
            {
                sink.dirty_pages(span::address_of::<F>(start), changed);
            }
            if changed | run != 0 {
                run = self.swept(start, group.len(), changed, run);
            }
            start = start.wrapping_add((group.len() as u64) << Level::Page4K.shift());
            cells = rest;
        }
        self.record(start, run);
    }

    /// Records which of `count` leaves from `start` on have changed, and the `run` before them,
    /// except for a run at their end, whose length it returns.
    fn swept(&mut self, start: u64, count: usize, changed: u64, run: u64) -> u64 {
        if changed == u64::MAX {
            return run + u64::from(u64::BITS);
        }
        let (mut run, mut next) = (run, 0);
        while next < count as u32 {
            let rest = changed >> next;
            // Ends at the last leaf of the group.
            let ones = rest.trailing_ones();
            run += u64::from(ones);
            next += ones;
            let zeros = (rest.checked_shr(ones).unwrap_or(0)).trailing_zeros();
            if zeros != 0 && next < count as u32 {
                self.record(start + (u64::from(next) << Level::Page4K.shift()), run);
                run = 0;
            }
            next += zeros;
        }
        run
    }

    /// Records that the `count` leaves before `end` have changed. All of them must be flushed: they
    /// were dirty and are clean, or allowed stores.
    fn record(&mut self, end: u64, count: u64) {
        if count != 0 {
            let len = count << Level::Page4K.shift();
            self.gather.leaves(span::address_of::<F>(end - len), len, Level::Page4K);
        }
    }
}

/// Replaces each leaf of a group by the result of `new`, and returns which have changed. `may` is
/// quick, and tells of which entries that may be expected: most leaves are clean when a log is
/// fetched. When it begins most are dirty: if the first entry is, no other is asked.
#[inline(always)]
fn sweep<F: Format>(
    group: &[AtomicU64],
    new: impl Fn(u64) -> u64 + Copy,
    may: impl Fn(u64) -> bool + Copy,
) -> u64 {
    let may = |cell: &AtomicU64| may(cell.load(Relaxed));
    if group.first().is_some_and(may) {
        sweep_those::<F>(group, new, |_| true)
    } else {
        sweep_those::<F>(group, new, |chunk| chunk.iter().fold(false, |any, cell| any | may(cell)))
    }
}

/// Only chunks that `may` names are looked at.
///
/// A leaf that is [settled](Format::SETTLED) is overwritten. No processor changes it, since it is
/// dirty already. At most, a fault may have added a right to it since it was read; that right is
/// lost again, its user faults once more, and processors' copies of it are flushed with the rest.
/// Every other leaf is exchanged.
#[inline(always)]
fn sweep_those<F: Format>(
    group: &[AtomicU64],
    new: impl Fn(u64) -> u64 + Copy,
    may: impl Fn(&[AtomicU64; CHUNK]) -> bool,
) -> u64 {
    let (mut changed, mut done) = (0, 0);
    let (chunks, rest) = group.as_chunks::<CHUNK>();
    // A bit for each entry of the chunk.
    let mut bits = u64::MAX >> (GROUP - CHUNK);
    for chunk in chunks {
        if !may(chunk) {
            bits <<= CHUNK;
            done += CHUNK;
            continue;
        }
        let leaves = chunk.each_ref().map(|cell| cell.load(Relaxed));
        // Without a branch per leaf.
        if leaves.iter().fold(true, |all, &leaf| all & is_settled::<F>(leaf)) {
            for (cell, leaf) in chunk.iter().zip(leaves) {
                overwrite(cell, new(settled::<F>(leaf)));
            }
            changed |= bits;
        } else if leaves.iter().any(|&leaf| F::is_present(leaf) && new(leaf) != leaf) {
            changed |= sweep_singly::<F>(chunk, new) << done;
        }
        bits <<= CHUNK;
        done += CHUNK;
    }
    if rest.is_empty() {
        return changed;
    }
    changed | sweep_singly::<F>(rest, new) << done
}

/// A separate function, so that the loop for settled leaves keeps its registers.
#[inline(never)]
fn sweep_singly<F: Format>(cells: &[AtomicU64], new: impl Fn(u64) -> u64) -> u64 {
    let mut changed = 0;
    for (index, cell) in cells.iter().enumerate() {
        let leaf = cell.load(Relaxed);
        let has_changed = if is_settled::<F>(leaf) {
            overwrite(cell, new(leaf));
            true
        } else {
            F::is_present(leaf) && rewrite(cell, leaf, &new).is_some()
        };
        changed |= u64::from(has_changed) << index;
    }
    changed
}
