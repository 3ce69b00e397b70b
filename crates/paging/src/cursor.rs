//! The position of a change: an explicit stack, so that it can stop at any entry and continue
//! there.

use crate::span::{Span, SpanPiece, pieces};
use crate::{Format, Level, PhysAddr};

/// A table that was cut off with everything below it, and is being emptied.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    /// Level of its entries.
    pub(crate) level: Level,
    /// The addresses that it covers: offset and length.
    pub(crate) start: u64,
    pub(crate) len: u64,
}

/// A walk over two spans. All tables on the stack remain tables of the tree, or are cut off and not
/// yet held by a gather: only an editor cuts off and frees tables, and the only editor is the one
/// whose walk this is.
#[derive(Debug)]
pub(crate) struct Cursor {
    /// The remaining spans: the next entry is the one at the start of the first.
    rest: [Span; 2],
    /// The table of each level on the way to the next entry, down to `level`.
    tables: [PhysAddr; Level::ALL.len()],
    level: Level,
    cut: Option<Cut>,
}

impl Cursor {
    pub(crate) fn new<F: Format>(root: PhysAddr, spans: [Span; 2]) -> Self {
        let mut cursor = Self { rest: spans, tables: [root; Level::ALL.len()], level: F::ROOT, cut: None };
        cursor.next_span();
        cursor
    }

    /// Level of the table that holds the next entry.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// The table that holds the next entry.
    pub(crate) fn table(&self) -> PhysAddr {
        self.tables[self.level as usize]
    }

    /// The topmost table that is cut off, if the next entry is in or below one.
    pub(crate) fn cut(&self) -> Option<Cut> {
        self.cut
    }

    /// The part of the span that the next entry covers, or `None` at the end.
    pub(crate) fn piece(&self) -> Option<SpanPiece> {
        pieces(self.rest[0].clone(), self.level).next()
    }

    /// Number of entries from the next one to the end of its table or of the span.
    pub(crate) fn run(&self) -> usize {
        let (start, shift) = (self.rest[0].start, self.level.shift());
        let in_span = (self.rest[0].end >> shift).saturating_sub(start >> shift) as usize;
        in_span.min(crate::ENTRY_COUNT - self.level.index(start))
    }

    /// Continues in the table that the next entry points to, or pointed to.
    pub(crate) fn descend(&mut self, table: PhysAddr) {
        if let Some(below) = self.level.below() {
            self.level = below;
            self.tables[below as usize] = table;
        }
    }

    /// Records that the table that the next entry pointed to is cut off. Call `descend` next.
    pub(crate) fn begin_cut(&mut self, cut: Cut) {
        self.cut = Some(cut);
    }

    /// Passes `count` entries, and leaves finished tables: `emptied` receives those that are cut
    /// off.
    pub(crate) fn advance<F: Format>(&mut self, count: usize, mut emptied: impl FnMut(PhysAddr)) {
        let at = self.rest[0].start & !self.level.offset_mask();
        let next = at + ((count as u64) << self.level.shift());
        self.rest[0].start = next;
        while let Some(above) = self.level.above()
            && self.level < F::ROOT
            && (next & above.offset_mask() == 0 || next >= self.rest[0].end)
        {
            if let Some(cut) = self.cut {
                emptied(self.table());
                if cut.level == self.level {
                    self.cut = None;
                }
            }
            self.level = above;
        }
        self.next_span();
    }

    fn next_span(&mut self) {
        if self.rest[0].is_empty() {
            self.rest = [self.rest[1].clone(), 0..0];
        }
    }
}
