//! The walker against a map of pages: random programs, in steps of random size.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::arena::Arena;
use super::observer::Observer;
use super::programs::{Op, PAGES, Pace, address, addresses, around, op, pa, pace};
use super::{has_table, leaf_of, never_walked};
use crate::{
    Amd64Nested, Arm64Stage1, Arm64Stage2, Change, DirtySink, Ept, Format, Gather, Installed, Invalidation,
    Level, Look, MapError, Mapping, PageTable, Permissions, PhysAddr, Progress,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Page {
    Mapped { pa: PhysAddr, permissions: Permissions, is_dirty: bool },
    Marked(u64),
}

fn mapped(pa: PhysAddr, permissions: Permissions) -> Page {
    let is_dirty = permissions.contains(Permissions::WRITE) && !permissions.contains(Permissions::TRACKED);
    Page::Mapped { pa, permissions: permissions - Permissions::TRACKED, is_dirty }
}

type Model = BTreeMap<u64, Page>;

fn contents<F: Format>(table: &PageTable<F, &Arena>) -> Model {
    let look = |page| match table.look(address(page)) {
        Look::Absent => None,
        Look::Marked(payload) => Some((page, Page::Marked(payload))),
        Look::Mapped(Mapping { pa, permissions, is_dirty, .. }) => {
            Some((page, Page::Mapped { pa, permissions, is_dirty }))
        }
    };
    (0..PAGES).filter_map(look).collect()
}

/// A page table, and its expected contents.
struct Compared<'a, F: Format> {
    table: PageTable<F, &'a Arena>,
    model: Model,
}

impl<'a, F: Format> Compared<'a, F> {
    /// Performs an operation on both. Returns the pages that it may have touched, and its gathers.
    fn apply(&mut self, op: Op, pace: &Pace) -> (Range<u64>, Vec<Gather<&'a Arena>>) {
        match op {
            Op::Map { pages, frame, permissions, level } => self.map(pages, frame, permissions, level),
            Op::Install { page, frame, permissions, level } => self.install(page, frame, permissions, level),
            Op::Mark { page, payload } => {
                let is_mapped = matches!(self.model.get(&page), Some(Page::Mapped { .. }));
                assert_eq!(self.table.mark(address(page), payload), Ok(!is_mapped));
                if !is_mapped {
                    self.model.insert(page, Page::Marked(payload));
                }
            }
            Op::Store { page } => self.store(page),
            Op::Protect { pages, permissions } => return self.protect(pages, permissions),
            Op::Unmap { pages } => {
                let gather = self.table.unmap(addresses(&pages)).unwrap();
                self.model.retain(|page, _| !pages.contains(page));
                return (pages, vec![gather]);
            }
            Op::Zap { pages, tables } => {
                let touched = self.widened(&pages);
                let change = self.table.edit().unwrap().zap(addresses(&pages), tables);
                let gathers = drive(change, pace);
                self.model.retain(|page, _| !touched.contains(page));
                return (touched, gathers);
            }
            Op::WriteProtect { pages } => {
                let touched = self.widened(&pages);
                let gathers = drive(self.table.edit().unwrap().write_protect(addresses(&pages)), pace);
                self.update(touched.clone(), |_, permissions, _| *permissions -= Permissions::WRITE);
                return (touched, gathers);
            }
            Op::Clean { pages } => return self.clean(pages, pace),
            Op::Split { pages, level } => {
                let gathers = drive(self.table.edit().unwrap().split(addresses(&pages), level), pace);
                self.table.for_each(addresses(&pages), |_, mapping| assert!(mapping.level <= level));
                assert_eq!(gathers.iter().map(Gather::unsplit_count).sum::<u64>(), 0);
                return (0..0, gathers);
            }
            Op::Collapse { pages, level, permissions } => {
                return self.collapse(pages, level, permissions, pace);
            }
        }
        (0..0, Vec::new())
    }

    fn update(&mut self, pages: Range<u64>, change: impl Fn(PhysAddr, &mut Permissions, &mut bool)) {
        for page in self.model.range_mut(pages).map(|(_, page)| page) {
            if let Page::Mapped { pa, permissions, is_dirty } = page {
                change(*pa, permissions, is_dirty);
            }
        }
    }

    /// The pages of a range, and of the leaves that overlap it.
    fn widened(&self, pages: &Range<u64>) -> Range<u64> {
        if pages.is_empty() {
            return 0..0;
        }
        let leaf =
            |page| around(page, self.table.query(address(page)).map_or(Level::Page4K, |leaf| leaf.level));
        leaf(pages.start).start..leaf(pages.end - 1).end
    }

    fn map(&mut self, pages: Range<u64>, frame: u64, permissions: Permissions, level: Level) {
        let result = self.table.map(addresses(&pages), pa(pages.start, frame), permissions, level);
        let is_mapped = |page: &u64| matches!(self.model.get(page), Some(Page::Mapped { .. }));
        match pages.clone().find(is_mapped) {
            Some(page) => assert_eq!(result, Err(MapError::AlreadyMapped { address: address(page) })),
            None => {
                assert_eq!(result, Ok(()));
                self.model.extend(pages.map(|page| (page, mapped(pa(page, frame), permissions))));
            }
        }
    }

    fn install(&mut self, page: u64, frame: u64, permissions: Permissions, level: Level) {
        match self.table.install(address(page), pa(page, frame), level, permissions) {
            Err(error) => {
                assert_eq!(error, MapError::Unaligned);
                assert!(!(frame * 4096).is_multiple_of(level.size()));
            }
            Ok(Installed::Present(there)) => {
                let Page::Mapped { pa: expected, permissions: has, .. } = self.model[&page] else {
                    panic!("{page} is not mapped")
                };
                assert_eq!((there.pa, there.permissions), (expected, has));
                let suffices = has.contains(permissions - Permissions::TRACKED);
                assert!(suffices || expected != pa(page, frame) || there.level > level);
            }
            Ok(Installed::Upgraded(at)) => {
                assert!(at <= level);
                let added = permissions - Permissions::TRACKED;
                let is_dirty =
                    matches!(mapped(PhysAddr(0), permissions), Page::Mapped { is_dirty: true, .. });
                let Page::Mapped { pa: there, .. } = self.model[&page] else {
                    panic!("{page} is not mapped")
                };
                assert_eq!(there, pa(page, frame), "another page");
                self.update(around(page, at), |_, has, dirty| {
                    assert!(!has.contains(added), "nothing was missing");
                    *has |= added;
                    let tracked = permissions.contains(Permissions::TRACKED);
                    *dirty |= is_dirty || has.contains(Permissions::WRITE) && !tracked;
                });
            }
            Ok(Installed::New(level)) => {
                for page in around(page, level) {
                    let old = self.model.insert(page, mapped(pa(page, frame), permissions));
                    assert!(!matches!(old, Some(Page::Mapped { .. })), "{page} was mapped");
                }
            }
        }
    }

    /// A store by a processor.
    fn store(&mut self, page: u64) {
        let Some((cell, level)) = leaf_of(&self.table, address(page)) else { return };
        let leaf = cell.load(Relaxed);
        if F::permissions(leaf).contains(Permissions::WRITE) {
            cell.store(F::dirtied(leaf), Relaxed);
            self.update(around(page, level), |_, _, is_dirty| *is_dirty = true);
        }
    }

    fn protect(
        &mut self,
        pages: Range<u64>,
        permissions: Permissions,
    ) -> (Range<u64>, Vec<Gather<&'a Arena>>) {
        let result = self.table.protect(addresses(&pages), permissions);
        let is_mapped = |page: &u64| matches!(self.model.get(page), Some(Page::Mapped { .. }));
        if let Some(hole) = pages.clone().find(|page| !is_mapped(page)) {
            assert_eq!(result.unwrap_err(), MapError::NotMapped { address: address(hole) });
            return (0..0, Vec::new());
        }
        let Page::Mapped { permissions: new, is_dirty, .. } = mapped(PhysAddr(0), permissions) else {
            unreachable!()
        };
        self.update(pages.clone(), |_, has, dirty| {
            *has = new;
            *dirty |= is_dirty;
        });
        (pages, vec![result.unwrap()])
    }

    fn clean(&mut self, pages: Range<u64>, pace: &Pace) -> (Range<u64>, Vec<Gather<&'a Arena>>) {
        let touched = self.widened(&pages);
        let mut told = Vec::new();
        let sink = |page: Range<u64>| told.push(page);
        let gathers = drive(self.table.edit().unwrap().clean(addresses(&pages), sink), pace);
        assert!(told.is_sorted_by(|a, b| a.end <= b.start), "each once, in order: {told:x?}");
        for page in touched.clone() {
            let was_dirty = matches!(self.model.get(&page), Some(Page::Mapped { is_dirty: true, .. }));
            let is_told = told.iter().any(|range| range.contains(&address(page)));
            assert_eq!(is_told, was_dirty, "{page}");
        }
        self.update(touched.clone(), |_, _, is_dirty| *is_dirty = false);
        (touched, gathers)
    }

    fn collapse(
        &mut self,
        pages: Range<u64>,
        level: Level,
        permissions: Permissions,
        pace: &Pace,
    ) -> (Range<u64>, Vec<Gather<&'a Arena>>) {
        let units: Vec<_> = pages
            .clone()
            .filter(|&page| address(page).is_multiple_of(level.size()))
            .filter(|page| page + level.size() / 4096 <= pages.end && level != Level::Page4K)
            .filter(|&page| has_table(&self.table, address(page), level))
            .collect();
        let change =
            self.table.edit().unwrap().collapse(addresses(&pages), level, pa(pages.start, 0), permissions);
        let gathers = drive(change.unwrap(), pace);
        for unit in units {
            assert_eq!(self.table.query(address(unit)).unwrap().level, level);
            let permissions = permissions - Permissions::TRACKED;
            self.model.extend(around(unit, level).map(|page| (page, mapped(pa(page, 0), permissions))));
        }
        (pages, gathers)
    }
}

/// Makes a change in steps.
fn drive<'a, F: Format, S: DirtySink>(
    mut change: Change<'_, F, &'a Arena, S>,
    (steps, take): &Pace,
) -> Vec<Gather<&'a Arena>> {
    let mut gathers = Vec::new();
    for &entries in steps.iter().cycle() {
        match change.step(entries) {
            Progress::More if *take => gathers.push(change.take_gather()),
            Progress::More => {}
            Progress::Done => break,
            other => panic!("{other:?}"),
        }
    }
    gathers.push(change.finish());
    gathers
}

/// Every page whose translation was removed or restricted is in an invalidation, and only touched
/// pages are.
fn check_covers(gathers: &[Gather<&Arena>], before: &Model, after: &Model, touched: &Range<u64>) {
    let mut ranges = Vec::new();
    for gather in gathers {
        match gather.invalidation() {
            Invalidation::Nothing => {}
            Invalidation::Ranges(some) => {
                ranges.extend(some.iter().map(|range| range.start..range.start + range.len))
            }
            Invalidation::Everything => return,
        }
    }
    let (window, touched) = (addresses(&(0..PAGES)), addresses(touched));
    for range in &ranges {
        let inside = |address: u64| touched.contains(&address) || !window.contains(&address);
        assert!(inside(range.start) && inside(range.end - 1), "{range:x?} goes beyond {touched:x?}");
    }
    for (&page, old) in before {
        let Page::Mapped { pa, permissions, is_dirty } = *old else { continue };
        let is_kept = match after.get(&page) {
            Some(&Page::Mapped { pa: to, permissions: has, is_dirty: still }) => {
                pa == to && has.contains(permissions) && (still || !is_dirty)
            }
            _ => false,
        };
        let covered = ranges.iter().any(|range| range.contains(&address(page)));
        assert!(covered || is_kept, "{page} changed, and is not invalidated");
    }
}

fn run<F: Format>(ops: Vec<(Op, Pace)>) {
    let arena = Arena::new(32);
    let mut machine = Compared { table: PageTable::<F, _>::new(&arena).unwrap(), model: Model::new() };
    if !F::REPLACES_IN_PLACE {
        arena.watch(Observer::new::<F>(machine.table.root()));
    }
    for (op, pace) in ops {
        let before = machine.model.clone();
        let (touched, gathers) = machine.apply(op, &pace);
        assert_eq!(contents(&machine.table), machine.model);
        check_covers(&gathers, &before, &machine.model, &touched);
        let _ = arena.observe(|observer| observer.look(&arena));
        for gather in gathers {
            gather.release(&never_walked()).unwrap();
        }
        let _ = arena.observe(|observer| observer.on_flush(&arena));
    }
    let used_count = arena.used_count();
    let gather = machine.table.dismantle();
    assert_eq!(gather.release(&never_walked()).unwrap().table_count, used_count, "a table was lost");
    assert_eq!(arena.used_count(), 0);
}

const CASES: u32 = if cfg!(miri) { 2 } else { 64 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    /// P4, P8: no step of a change loses or repeats anything, whatever its size.
    #[test]
    fn p4_amd64_behaves_as_a_map_of_pages(ops in prop::collection::vec((op(), pace()), 1..24)) {
        run::<Amd64Nested>(ops);
    }

    #[test]
    fn p4_ept_behaves_as_a_map_of_pages(ops in prop::collection::vec((op(), pace()), 1..24)) {
        run::<Ept>(ops);
    }

    /// P3: and nothing is replaced without a break.
    #[test]
    fn p3_p4_stage_2_behaves_as_a_map_of_pages(ops in prop::collection::vec((op(), pace()), 1..10)) {
        run::<Arm64Stage2<3>>(ops);
    }

    #[test]
    fn p3_p4_stage_1_behaves_as_a_map_of_pages(ops in prop::collection::vec((op(), pace()), 1..10)) {
        run::<Arm64Stage1>(ops);
    }
}
