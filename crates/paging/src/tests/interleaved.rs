//! Changes in small steps, with faults and stores in between, against processors that cache as much
//! as they can.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::arena::Arena;
use super::{RWX, RX, leaf_of, never_walked};
use crate::{
    Amd64Nested, Arm64Stage2, Change, DirtySink, Editor, Ept, Format, Invalidation, Level, Mapping,
    PageTable, Permissions, PhysAddr, Progress, Tables,
};

/// 4 MiB, the second half of them in another table of 2 MiB pages.
const PAGES: u64 = 1024;
const BASE: u64 = (1 << 30) - (2 << 20);

#[derive(Clone, Copy, Debug)]
enum Kind {
    Zap(Tables),
    WriteProtect,
    Clean,
    Split,
    Collapse,
}

/// An event between two steps.
#[derive(Clone, Debug)]
enum Event {
    Fault { page: u64, level: Level, permissions: Permissions },
    Store { page: u64 },
    Mark { page: u64 },
}

fn address(page: u64) -> u64 {
    BASE + page * 4096
}

fn pa(page: u64) -> PhysAddr {
    PhysAddr((4 << 30) + address(page))
}

/// The translations that processors may hold, and the stores that they have made through them.
#[derive(Default)]
struct Tlb {
    /// Every translation that has existed, one page at a time.
    held: BTreeMap<u64, Vec<Mapping>>,
    stored: BTreeSet<u64>,
}

impl Tlb {
    fn fill<F: Format>(&mut self, table: &PageTable<F, &Arena>, page: u64) {
        if let Some(mapping) = table.query(address(page)) {
            let held = self.held.entry(page).or_default();
            if !held.contains(&mapping) {
                held.push(mapping);
            }
        }
    }

    /// A store through any translation that allows it: one that is held as dirty leaves no trace.
    fn store<F: Format>(&mut self, table: &PageTable<F, &Arena>, page: u64) {
        let silent = |mapping: &Mapping| mapping.permissions.contains(Permissions::WRITE) && mapping.is_dirty;
        if self.held.get(&page).is_some_and(|held| held.iter().any(silent)) {
            self.stored.insert(page);
            return;
        }
        let Some((cell, _)) = leaf_of(table, address(page)) else { return };
        let leaf = cell.load(Relaxed);
        if F::permissions(leaf).contains(Permissions::WRITE) {
            cell.store(F::dirtied(leaf), Relaxed);
            self.stored.insert(page);
            self.fill(table, page);
        }
    }

    /// A held translation that allows more than the table must be in `flushed`.
    fn check<F: Format>(&self, table: &PageTable<F, &Arena>, flushed: &[Range<u64>]) {
        for (&page, held) in &self.held {
            let now = table.query(address(page));
            let is_right = |old: &Mapping| {
                now.is_some_and(|now| {
                    now.pa == old.pa
                        && now.permissions.contains(old.permissions)
                        && (now.is_dirty || !old.is_dirty)
                })
            };
            let is_flushed = flushed.iter().any(|range| range.contains(&address(page)));
            assert!(is_flushed || held.iter().all(is_right), "{page}: {held:?} is held, {now:?} is right");
        }
    }
}

fn happen<F: Format>(table: &PageTable<F, &Arena>, tlb: &mut Tlb, event: &Event) {
    match *event {
        Event::Fault { page, level, permissions } => {
            let _ = table.install(address(page), pa(page), level, permissions);
            let first = page & !511;
            (first..first + 512).for_each(|page| tlb.fill(table, page));
        }
        Event::Store { page } => tlb.store(table, page),
        Event::Mark { page } => drop(table.mark(address(page), page)),
    }
}

/// Drives a change, with events between the steps, and returns the ranges to flush.
fn drive<F: Format, S: DirtySink>(
    mut change: Change<'_, F, &Arena, S>,
    table: &PageTable<F, &Arena>,
    tlb: &mut Tlb,
    steps: &[(u32, Vec<Event>)],
) -> Option<Vec<Range<u64>>> {
    for (entries, events) in steps.iter().cycle() {
        if change.step(*entries) == Progress::Done {
            break;
        }
        events.iter().for_each(|event| happen(table, tlb, event));
    }
    let gather = change.finish();
    let ranges = match gather.invalidation() {
        Invalidation::Nothing => Some(Vec::new()),
        Invalidation::Ranges(ranges) => {
            Some(ranges.iter().map(|range| range.start..range.start + range.len).collect())
        }
        Invalidation::Everything => None,
    };
    gather.release(&never_walked()).unwrap();
    ranges
}

fn run<F: Format>(kind: Kind, before: &[Event], pages: Range<u64>, steps: &[(u32, Vec<Event>)]) {
    let arena = Arena::new(64);
    let table = PageTable::<F, _>::new(&arena).unwrap();
    let mut tlb = Tlb::default();
    before.iter().for_each(|event| happen(&table, &mut tlb, event));
    let range = address(pages.start)..address(pages.end);
    let edit: Editor<'_, F, _> = table.edit().unwrap();
    let mut told = Vec::new();
    let flushed = match kind {
        Kind::Zap(tables) => drive(edit.zap(range, tables), &table, &mut tlb, steps),
        Kind::WriteProtect => drive(edit.write_protect(range), &table, &mut tlb, steps),
        Kind::Clean => drive(edit.clean(range, |page| told.push(page)), &table, &mut tlb, steps),
        Kind::Split => drive(edit.split(range, Level::Page4K), &table, &mut tlb, steps),
        Kind::Collapse => {
            let change = edit.collapse(range, Level::Page2M, pa(pages.start), RWX).unwrap();
            drive(change, &table, &mut tlb, steps)
        }
    };
    let Some(flushed) = flushed else { return };
    tlb.check(&table, &flushed);
    if !matches!(kind, Kind::Zap(_)) {
        for &page in &tlb.stored {
            let is_told = told.iter().any(|range: &Range<u64>| range.contains(&address(page)));
            let is_dirty = table.query(address(page)).is_some_and(|mapping| mapping.is_dirty);
            assert!(is_told || is_dirty, "the store to {page} is not known any more");
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let level = prop_oneof![Just(Level::Page4K), Just(Level::Page2M)];
    let permissions = prop_oneof![Just(RX), Just(RWX), Just(RWX | Permissions::TRACKED)];
    prop_oneof![
        4 => (0..PAGES, level, permissions)
            .prop_map(|(page, level, permissions)| Event::Fault { page, level, permissions }),
        3 => (0..PAGES).prop_map(|page| Event::Store { page }),
        1 => (0..PAGES).prop_map(|page| Event::Mark { page }),
    ]
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Zap(Tables::Free)),
        Just(Kind::Zap(Tables::Detach)),
        Just(Kind::Zap(Tables::Keep)),
        Just(Kind::WriteProtect),
        Just(Kind::Clean),
        Just(Kind::Split),
        Just(Kind::Collapse),
    ]
}

/// Whole tables, and parts of them.
fn pages() -> impl Strategy<Value = Range<u64>> {
    let end = || prop_oneof![Just(0), Just(512), Just(PAGES), 0..=PAGES];
    (end(), end()).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn steps() -> impl Strategy<Value = Vec<(u32, Vec<Event>)>> {
    let entries = prop_oneof![1..4u32, 1..300u32];
    prop::collection::vec((entries, prop::collection::vec(event(), 0..4)), 1..6)
}

const CASES: u32 = if cfg!(miri) { 2 } else { 64 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p4_p14_nothing_is_lost_to_faults_and_stores_between_steps(
        kind in kind(),
        before in prop::collection::vec(event(), 0..24),
        pages in pages(),
        steps in steps(),
    ) {
        // A collapse needs a range aligned like its memory.
        let pages = if matches!(kind, Kind::Collapse) { pages.start & !511..pages.end } else { pages };
        run::<Amd64Nested>(kind, &before, pages.clone(), &steps);
        run::<Ept>(kind, &before, pages.clone(), &steps);
        run::<Arm64Stage2<3>>(kind, &before, pages, &steps);
    }
}
