//! An automaton for the rules of break-before-make and publication.
//!
//! It regards every entry that was ever valid as cached, until an invalidation of its addresses
//! finds it invalid. A valid entry that replaces a cached one of another kind, size, or target is
//! an error.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;
use std::sync::atomic::Ordering::Relaxed;

use super::arena::Arena;
use crate::format::Entry;
use crate::{FlushRange, Format, Level, PhysAddr};

/// An entry by its level and extent: the place where processors cache it.
type EntryPlace = (Level, u64);

pub(super) struct Observer {
    root: PhysAddr,
    root_level: Level,
    decode: fn(u64, Level) -> Entry,
    cached: BTreeMap<EntryPlace, Entry>,
    /// The contents of tables when they were last published before they were in the tree.
    published: BTreeMap<PhysAddr, Vec<u64>>,
    reachable: Vec<PhysAddr>,
    /// Whether to look at the tree at every publication, which is slow: entries already in the tree
    /// at that time were not published before.
    pub(super) is_strict: bool,
    pub(super) breaks: Vec<FlushRange>,
    pub(super) publish_count: usize,
}

impl Observer {
    pub(super) fn new<F: Format>(root: PhysAddr) -> Self {
        Self {
            root,
            root_level: F::ROOT,
            decode: Entry::decode::<F>,
            cached: BTreeMap::new(),
            published: BTreeMap::from([(root, vec![0; 512])]),
            reachable: vec![root],
            is_strict: false,
            breaks: Vec::new(),
            publish_count: 0,
        }
    }

    pub(super) fn on_publish(&mut self, arena: &Arena) {
        self.publish_count += 1;
        if self.is_strict {
            self.look(arena);
        }
        for (table, entries) in arena.used().filter(|(table, _)| !self.reachable.contains(table)) {
            let contents = entries.iter().map(|entry| entry.load(Relaxed)).collect();
            self.published.insert(table, contents);
        }
    }

    pub(super) fn on_break(&mut self, arena: &Arena, range: FlushRange) {
        self.breaks.push(range);
        let now = self.look(arena);
        let covers = |&(level, start): &EntryPlace| {
            start < range.start + range.len && range.start < start + level.size() && level.size() <= range.len
        };
        if let Some(valid) = now.keys().find(|place| covers(place)) {
            panic!("{valid:x?} is valid during the break of {range:x?}");
        }
        // A hint at the level must be right, or entries of other levels stay cached.
        self.cached.retain(|place, entry| {
            let is_leaf = matches!(entry, Entry::Leaf(_));
            let missed = !range.tables && (!is_leaf || place.0 != range.level);
            !covers(place) || missed
        });
    }

    /// All pending invalidations have been flushed.
    pub(super) fn on_flush(&mut self, arena: &Arena) {
        self.cached = self.look(arena);
    }

    /// Looks at the tree, adds its valid entries to the cached ones, and checks that they may be
    /// cached.
    pub(super) fn look(&mut self, arena: &Arena) -> BTreeMap<EntryPlace, Entry> {
        let tables: BTreeMap<_, _> = arena.used().collect();
        let mut now = BTreeMap::new();
        let mut reachable = Vec::new();
        let mut walk = vec![(self.root, self.root_level, 0)];
        while let Some((table, level, base)) = walk.pop() {
            reachable.push(table);
            for (index, entry) in tables[&table].iter().enumerate() {
                let start = base + ((index as u64) << level.shift());
                match (self.decode)(entry.load(Relaxed), level) {
                    Entry::Absent | Entry::Frozen => continue,
                    Entry::Table(next) => walk.push((next, level.below().unwrap(), start)),
                    Entry::Leaf(_) => {}
                }
                now.insert((level, start), (self.decode)(entry.load(Relaxed), level));
            }
        }
        for table in &reachable {
            assert!(self.published.contains_key(table), "{table:?} got into the tree unpublished");
        }
        self.reachable = reachable;
        for (&place, &entry) in &now {
            self.check_sizes(place, entry);
            match self.cached.entry(place) {
                Slot::Vacant(slot) => drop(slot.insert(entry)),
                Slot::Occupied(slot) => {
                    assert_eq!(*slot.get(), entry, "{place:x?} was replaced without a break")
                }
            }
        }
        now
    }

    /// A leaf is not cached together with leaves of other sizes for the same addresses.
    fn check_sizes(&self, (level, start): EntryPlace, entry: Entry) {
        if !matches!(entry, Entry::Leaf(_)) {
            return;
        }
        for other in Level::ALL.into_iter().filter(|&other| other > level) {
            let around = self.cached.get(&(other, start & !other.offset_mask()));
            assert!(!matches!(around, Some(Entry::Leaf(_))), "{start:x} is cached at {other:?}, too");
        }
        for other in Level::ALL.into_iter().filter(|&other| other < level) {
            let inside = self.cached.range((other, start)..(other, start + level.size())).next();
            assert!(!matches!(inside, Some((_, Entry::Leaf(_)))), "{start:x} is cached at {other:?}, too");
        }
    }

    /// The contents of a table when it was published.
    pub(super) fn published(&self, table: PhysAddr) -> Option<Vec<u64>> {
        self.published.get(&table).cloned()
    }
}
