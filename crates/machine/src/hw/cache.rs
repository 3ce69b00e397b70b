//! The entries that the TLBs and walk caches of one CPU may hold under one tag.
//!
//! Nothing is stored there. A processor may hold whatever it could have loaded at some time while
//! the tag was in use on it, unless an invalidation since then must have removed it. So there is a
//! record of the times when the tag was in use, and of the invalidations; the tables remember their
//! earlier contents (`history.rs`). An invalidation removes no more than the architecture requires.

use std::collections::VecDeque;

use paging::Level;

/// Stays and invalidations that are remembered; entries loaded before the oldest count as removed.
const STAYS_MAX: usize = 12;
const INVALIDATIONS_MAX: usize = 48;

/// An entry that a processor holds, by an address that it translates or that is below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// TLB: guest virtual to physical, from a guest's leaf and a nested leaf of these sizes. It
    /// translates the smaller of the two: the TLB holds a large page of the guest over small nested
    /// ones in pieces (A17).
    Combined { va: u64, guest: Level, nested: Level, global: bool },
    /// Walk cache: the physical address of the table to which the guest's entry of this level
    /// points.
    GuestWalk { va: u64, level: Level },
    /// Nested TLB: guest physical to physical.
    NestedLeaf { gpa: u64, level: Level },
    /// Nested walk cache: the address of the table to which the nested entry of this level points.
    NestedWalk { gpa: u64, level: Level },
}

/// The entries that an invalidation removes under one tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Invalidation {
    All,
    /// Entries that depend on the guest's tables.
    Guest,
    /// The same without translations of global pages.
    GuestButGlobals,
    /// Entries that depend on the guest's tables and translate an address.
    GuestPage {
        va: u64,
        /// Only leaves of this level: the hint of the instruction.
        level: Option<Level>,
        /// All pieces of the guest's page, not only the one with the address.
        pieces: bool,
        /// Entries above the leaf too.
        walk: bool,
    },
    /// Entries that depend on the nested tables **alone** and translate a range.
    Nested {
        start: u64,
        len: u64,
        /// Only leaves of this level: the hint of the instruction.
        level: Option<Level>,
        /// Entries above the leaf too.
        walk: bool,
    },
}

const fn is_same_page(a: u64, b: u64, level: Level) -> bool {
    a >> level.shift() == b >> level.shift()
}

impl Invalidation {
    pub(crate) fn removes(&self, item: Item) -> bool {
        match (*self, item) {
            (Self::All, _) => true,
            (Self::Guest, Item::Combined { .. } | Item::GuestWalk { .. }) => true,
            (Self::GuestButGlobals, Item::Combined { global, .. }) => !global,
            (Self::GuestButGlobals, Item::GuestWalk { .. }) => true,
            (Self::GuestPage { va: at, level, pieces, .. }, Item::Combined { va, guest, nested, .. }) => {
                let extent = if pieces { guest } else { guest.min(nested) };
                level.is_none_or(|level| level == guest) && is_same_page(at, va, extent)
            }
            (Self::GuestPage { va: at, level: None, walk: true, .. }, Item::GuestWalk { va, level }) => {
                is_same_page(at, va, level)
            }
            (Self::Nested { start, len, level: hint, .. }, Item::NestedLeaf { gpa, level }) => {
                hint.is_none_or(|hint| hint == level) && overlaps(start, len, gpa, level)
            }
            (Self::Nested { start, len, level: None, walk: true }, Item::NestedWalk { gpa, level }) => {
                overlaps(start, len, gpa, level)
            }
            _ => false,
        }
    }
}

const fn overlaps(start: u64, len: u64, address: u64, level: Level) -> bool {
    let first = address & !level.offset_mask();
    first < start + len && start <= first | level.offset_mask()
}

/// A time during which a tag was in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stay {
    /// Its first and last moment.
    pub enter: u64,
    /// `u64::MAX` if it lasts.
    pub exit: u64,
    /// Root of the nested tables, a physical address.
    pub nested_root: u64,
}

/// Record of one tag on one CPU.
#[derive(Clone, Debug, Default)]
pub(crate) struct Context {
    stays: VecDeque<Stay>,
    /// Roots of the guest's tables, guest physical addresses, with the time from which each was in
    /// use.
    roots: VecDeque<(u64, u64)>,
    /// With the time, and the root that it is limited to, if it is.
    invalidations: VecDeque<(u64, Invalidation, Option<u64>)>,
    /// Nothing from this time or before is held.
    flushed: u64,
}

impl Context {
    /// Records that the tag is in use.
    pub(crate) fn enter(&mut self, time: u64, nested_root: u64, guest_root: u64) {
        if self.stays.len() == STAYS_MAX {
            let oldest = self.stays.pop_front();
            self.flushed = self.flushed.max(oldest.map_or(0, |stay| stay.exit));
        }
        self.stays.push_back(Stay { enter: time, exit: u64::MAX, nested_root });
        self.set_root(time, guest_root);
    }

    /// Records that the tag is not in use any more.
    pub(crate) fn exit(&mut self, time: u64) {
        if let Some(stay) = self.stays.back_mut() {
            stay.exit = stay.exit.min(time);
        }
    }

    /// The guest switches to other tables. The caller records what that removes.
    pub(crate) fn set_root(&mut self, time: u64, guest_root: u64) {
        if self.roots.back().is_some_and(|&(_, root)| root == guest_root) {
            return;
        }
        if self.roots.len() == INVALIDATIONS_MAX {
            self.roots.pop_front();
        }
        self.roots.push_back((time, guest_root));
    }

    pub(crate) fn invalidate(&mut self, time: u64, what: Invalidation) {
        self.invalidate_of(time, what, None);
    }

    /// Records an invalidation, limited to entries loaded under one of the guest's roots if one is
    /// named.
    pub(crate) fn invalidate_of(&mut self, time: u64, what: Invalidation, guest_root: Option<u64>) {
        if what == Invalidation::All {
            self.flushed = time;
            self.invalidations.clear();
            self.stays.retain(|stay| stay.exit > time);
            return;
        }
        if self.invalidations.len() == INVALIDATIONS_MAX {
            let oldest = self.invalidations.pop_front();
            self.flushed = self.flushed.max(oldest.map_or(0, |(time, ..)| time));
        }
        self.invalidations.push_back((time, what, guest_root));
    }

    /// The latest time up to `time` at which the processor could load something that it may still
    /// hold.
    pub(crate) fn loadable(&self, time: u64) -> Option<u64> {
        let stay = self.stays.iter().rev().find(|stay| stay.enter <= time)?;
        Some(time.min(stay.exit)).filter(|&time| time > self.flushed)
    }

    /// The roots that were in use at `time`: nested and guest.
    pub(crate) fn roots_at(&self, time: u64) -> Option<(u64, u64)> {
        let stay = self.stays.iter().rev().find(|stay| stay.enter <= time && time <= stay.exit)?;
        let (_, guest_root) = self.roots.iter().rev().find(|(since, _)| *since <= time)?;
        Some((stay.nested_root, *guest_root))
    }

    /// The guest's roots that were in use.
    pub(crate) fn roots(&self) -> Vec<u64> {
        let mut roots: Vec<_> = self.roots.iter().map(|(_, root)| *root).collect();
        roots.sort_unstable();
        roots.dedup();
        roots
    }

    /// The times of the last few invalidations.
    pub(crate) fn last_invalidations(&self) -> impl Iterator<Item = u64> {
        self.invalidations.iter().rev().take(2).map(|(time, ..)| *time)
    }

    /// Whether something may be held.
    pub(crate) fn may_hold(&self) -> bool {
        self.stays.iter().any(|stay| stay.exit > self.flushed)
    }

    /// Whether the tag is in use at `time`, with these nested tables.
    pub(crate) fn is_at(&self, time: u64, nested_root: u64) -> bool {
        self.roots_at(time).is_some_and(|(root, _)| root == nested_root)
    }

    /// Whether an entry loaded at `loaded` may still be held at `time`.
    pub(crate) fn survives(&self, item: Item, loaded: u64, time: u64) -> bool {
        loaded > self.flushed
            && !self.invalidations.iter().rev().take_while(|(when, ..)| *when > loaded).any(
                |(when, what, root)| {
                    let was_under = |root| self.roots_at(loaded).is_some_and(|(_, was)| was == root);
                    *when <= time && what.removes(item) && root.is_none_or(was_under)
                },
            )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VA: u64 = 0x4020_3000;
    const SMALL: Item = Item::Combined { va: VA, guest: Level::Page4K, nested: Level::Page2M, global: false };
    const LARGE: Item = Item::Combined { va: VA, guest: Level::Page2M, nested: Level::Page2M, global: true };
    const PIECE: Item = Item::Combined { va: VA, guest: Level::Page2M, nested: Level::Page4K, global: false };
    const GUEST_WALK: Item = Item::GuestWalk { va: VA, level: Level::Page2M };
    const NESTED: Item = Item::NestedLeaf { gpa: VA, level: Level::Page4K };
    const NESTED_WALK: Item = Item::NestedWalk { gpa: VA, level: Level::Page2M };
    const ITEMS: [Item; 6] = [SMALL, LARGE, PIECE, GUEST_WALK, NESTED, NESTED_WALK];

    fn removed(what: Invalidation) -> Vec<Item> {
        ITEMS.into_iter().filter(|&item| what.removes(item)).collect()
    }

    #[test]
    fn invalidations_remove_what_they_must_and_nothing_else() {
        let page = |va, level, pieces, walk| Invalidation::GuestPage { va, level, pieces, walk };
        let nested = |start, level, walk| Invalidation::Nested { start, len: 0x1000, level, walk };
        assert_eq!(removed(Invalidation::All), ITEMS);
        assert_eq!(removed(Invalidation::Guest), [SMALL, LARGE, PIECE, GUEST_WALK]);
        assert_eq!(removed(Invalidation::GuestButGlobals), [SMALL, PIECE, GUEST_WALK]);
        assert_eq!(removed(page(VA, None, true, true)), [SMALL, LARGE, PIECE, GUEST_WALK]);
        assert_eq!(removed(page(VA, None, false, false)), [SMALL, LARGE, PIECE]);
        assert_eq!(removed(page(VA + 0x1000, None, true, true)), [LARGE, PIECE, GUEST_WALK]);
        assert_eq!(removed(page(VA + 0x1000, None, false, true)), [LARGE, GUEST_WALK], "A17: one piece");
        assert_eq!(removed(page(VA, Some(Level::Page4K), true, true)), [SMALL], "P18: the hint is believed");
        assert_eq!(removed(page(VA + 0x20_0000, None, true, true)), []);
        assert_eq!(removed(nested(VA, None, true)), [NESTED, NESTED_WALK]);
        assert_eq!(removed(nested(VA, None, false)), [NESTED]);
        assert_eq!(removed(nested(VA, Some(Level::Page4K), true)), [NESTED], "P18");
        assert_eq!(removed(nested(VA, Some(Level::Page2M), true)), [], "P18");
        assert_eq!(removed(nested(VA + 0x1000, None, true)), [NESTED_WALK]);
    }

    #[test]
    fn held_is_what_was_loaded_during_a_stay_and_not_removed_since() {
        let mut context = Context::default();
        assert_eq!(context.loadable(9), None);
        context.enter(10, 1, 2);
        context.exit(20);
        context.enter(30, 3, 4);
        assert_eq!([9, 15, 25, 35].map(|time| context.loadable(time)), [None, Some(15), Some(20), Some(35)]);
        assert_eq!([15, 25, 35].map(|time| context.roots_at(time)), [Some((1, 2)), None, Some((3, 4))]);
        context.invalidate(40, Invalidation::Guest);
        assert!(context.survives(SMALL, 15, 39) && !context.survives(SMALL, 15, 40));
        assert!(context.survives(NESTED, 15, 45) && context.survives(SMALL, 40, 45));
        context.invalidate(50, Invalidation::All);
        assert!(!context.survives(NESTED, 15, 55) && context.loadable(45).is_none());
        assert_eq!(context.loadable(55), Some(55));
    }

    #[test]
    fn a_root_that_is_named_is_the_only_one() {
        let mut context = Context::default();
        context.enter(10, 1, 2);
        context.set_root(20, 3);
        context.invalidate_of(30, Invalidation::Guest, Some(2));
        assert!(!context.survives(SMALL, 15, 35) && context.survives(SMALL, 25, 35));
        context.invalidate_of(40, Invalidation::Guest, Some(3));
        assert!(!context.survives(SMALL, 25, 45) && context.survives(NESTED, 25, 45));
    }

    #[test]
    fn what_is_too_long_ago_is_gone() {
        let mut context = Context::default();
        context.enter(1, 1, 1);
        let other = Invalidation::Nested { start: 0, len: 1, level: None, walk: true };
        (2..100).for_each(|time| context.invalidate(time, other));
        assert!(!context.survives(NESTED, 1, 100) && context.survives(NESTED, 99, 100));
        (0..20).for_each(|turn| {
            context.exit(100 + 2 * turn);
            context.enter(101 + 2 * turn, 1, 1);
        });
        assert!(context.loadable(101).is_none() && context.loadable(130).is_some());
    }
}
