//! The walker against a map of pages.

use std::collections::BTreeMap;
use std::ops::Range;

use proptest::prelude::*;

use super::arena::Arena;
use super::never_walked;
use crate::{
    Amd64Nested, Gather, Installed, Invalidation, Level, MapError, PageTable, Permissions, PhysAddr, Tables,
};

/// Pages of the window under test: 6 MiB around a border of 1 GiB.
const PAGES: u64 = 1536;
const BASE: u64 = (1 << 30) - (4 << 20);

#[derive(Clone, Debug)]
enum Op {
    Map { pages: Range<u64>, frame: u64, permissions: Permissions, level: Level },
    Install { page: u64, frame: u64, permissions: Permissions, level: Level },
    Protect { pages: Range<u64>, permissions: Permissions },
    Unmap { pages: Range<u64> },
    Zap { pages: Range<u64>, tables: Tables },
}

/// Borders of large pages come up often.
fn page() -> impl Strategy<Value = u64> {
    prop_oneof![0..PAGES, (0..=PAGES / 512).prop_map(|large| large * 512)]
}

fn pages() -> impl Strategy<Value = Range<u64>> {
    (page(), page()).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn permissions() -> impl Strategy<Value = Permissions> {
    (0..8u8).prop_map(|bits| Permissions::READ | Permissions::from_bits_truncate(bits))
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![Just(Level::Page4K), Just(Level::Page2M), Just(Level::Page1G)]
}

fn op() -> impl Strategy<Value = Op> {
    // Frames lie like their pages most of the time, or no large page would fit.
    let frame = || prop_oneof![3 => Just(0u64), 1 => 0..1024u64];
    prop_oneof![
        (pages(), frame(), permissions(), level()).prop_map(|(pages, frame, permissions, level)| Op::Map {
            pages,
            frame,
            permissions,
            level
        }),
        (0..PAGES, frame(), permissions(), level())
            .prop_map(|(page, frame, permissions, level)| Op::Install { page, frame, permissions, level }),
        (pages(), permissions()).prop_map(|(pages, permissions)| Op::Protect { pages, permissions }),
        pages().prop_map(|pages| Op::Unmap { pages }),
        (pages(), any::<bool>()).prop_map(|(pages, free)| {
            Op::Zap { pages, tables: if free { Tables::Free } else { Tables::Keep } }
        }),
    ]
}

fn address(page: u64) -> u64 {
    BASE + page * 4096
}

fn addresses(pages: &Range<u64>) -> Range<u64> {
    address(pages.start)..address(pages.end)
}

fn pa(page: u64, frame: u64) -> PhysAddr {
    PhysAddr((4 << 30) + address(page) + frame * 4096)
}

type Model = BTreeMap<u64, (PhysAddr, Permissions)>;

fn contents(table: &PageTable<Amd64Nested, &Arena>) -> Model {
    (0..PAGES)
        .filter_map(|page| {
            let mapping = table.query(address(page))?;
            Some((page, (mapping.pa, mapping.permissions)))
        })
        .collect()
}

/// Every page whose translation was removed or changed is in the invalidation.
fn check_covers(gather: &Gather<&Arena>, before: &Model, after: &Model) {
    let Invalidation::Ranges(ranges) = gather.invalidation() else {
        assert!(gather.invalidation() == Invalidation::Everything || before == after);
        return;
    };
    for (&page, mapping) in before {
        let address = address(page);
        let covered = ranges.iter().any(|range| (range.start..range.start + range.len).contains(&address));
        assert!(covered || after.get(&page) == Some(mapping), "{page} changed, and is not invalidated");
    }
}

fn step(table: &mut PageTable<Amd64Nested, &Arena>, model: &mut Model, op: Op) {
    let before = model.clone();
    let gather = match op {
        Op::Map { pages, frame, permissions, level } => {
            let result = table.map(addresses(&pages), pa(pages.start, frame), permissions, level);
            match model.range(pages.clone()).next() {
                Some((&page, _)) => {
                    assert_eq!(result, Err(MapError::AlreadyMapped { address: address(page) }))
                }
                None => {
                    assert_eq!(result, Ok(()));
                    model.extend(pages.map(|page| (page, (pa(page, frame), permissions))));
                }
            }
            return;
        }
        Op::Install { page, frame, permissions, level } => {
            let span = level.size() / 4096;
            match table.install(address(page), pa(page, frame), level, permissions) {
                Err(error) => {
                    assert_eq!(error, MapError::Unaligned);
                    assert!(!(frame * 4096).is_multiple_of(level.size()));
                }
                Ok(Installed::Present(mapping)) => assert_eq!(model[&page].0, mapping.pa),
                Ok(Installed::New(level)) => {
                    let first = (address(page) & !level.offset_mask()).wrapping_sub(BASE) as i64 / 4096;
                    for page in first..first + (level.size() / 4096) as i64 {
                        let page = page as u64;
                        if page < PAGES {
                            let old = model.insert(page, (pa(page, frame), permissions));
                            assert!(old.is_none(), "{page} was mapped, in a span of {span}");
                        }
                    }
                }
            }
            return;
        }
        Op::Protect { pages, permissions } => {
            let result = table.protect(addresses(&pages), permissions);
            if let Some(hole) = pages.clone().find(|page| !model.contains_key(page)) {
                assert_eq!(result.unwrap_err(), MapError::NotMapped { address: address(hole) });
                return;
            }
            model.range_mut(pages).for_each(|(_, mapping)| mapping.1 = permissions);
            result.unwrap()
        }
        Op::Unmap { pages } => {
            model.retain(|page, _| !pages.contains(page));
            table.unmap(addresses(&pages)).unwrap()
        }
        Op::Zap { pages, tables } => {
            let gather = table.zap(addresses(&pages), tables);
            let after = contents(table);
            assert_eq!(after.range(pages.clone()).next(), None);
            // Beyond the range, only rests of large pages may have gone: what the invalidation names.
            assert!(after.iter().all(|(page, mapping)| model.get(page) == Some(mapping)));
            *model = after;
            gather
        }
    };
    check_covers(&gather, &before, model);
    gather.release(&never_walked()).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn behaves_as_a_map_of_pages(ops in prop::collection::vec(op(), 1..16)) {
        let arena = Arena::new(32);
        let mut table = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
        let mut model = Model::new();
        for op in ops {
            step(&mut table, &mut model, op);
            prop_assert_eq!(&contents(&table), &model);
        }
        let used_count = arena.used_count();
        let gather = table.dismantle();
        prop_assert_eq!(gather.table_count(), used_count);
        gather.release(&never_walked()).unwrap();
        prop_assert_eq!(arena.used_count(), 0);
    }
}
