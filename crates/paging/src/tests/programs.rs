//! Random programs of changes, for the comparison with a model.

use std::ops::Range;

use proptest::prelude::*;

use crate::{Level, Permissions, PhysAddr, Tables};

/// Pages of the window under test: 6 MiB around a border of 1 GiB.
pub(super) const PAGES: u64 = 1536;
const BASE: u64 = (1 << 30) - (4 << 20);

#[derive(Clone, Debug)]
pub(super) enum Op {
    Map { pages: Range<u64>, frame: u64, permissions: Permissions, level: Level },
    Install { page: u64, frame: u64, permissions: Permissions, level: Level },
    Mark { page: u64, payload: u64 },
    Store { page: u64 },
    Protect { pages: Range<u64>, permissions: Permissions },
    Unmap { pages: Range<u64> },
    Zap { pages: Range<u64>, tables: Tables },
    WriteProtect { pages: Range<u64> },
    Clean { pages: Range<u64> },
    Split { pages: Range<u64>, level: Level },
    Collapse { pages: Range<u64>, level: Level, permissions: Permissions },
}

/// How a change is driven: entries for each step in turn, and whether the gather is taken in
/// between.
pub(super) type Pace = (Vec<u32>, bool);

/// Boundaries of large pages are frequent.
fn page() -> impl Strategy<Value = u64> {
    prop_oneof![0..PAGES, (0..=PAGES / 512).prop_map(|large| large * 512)]
}

fn pages() -> impl Strategy<Value = Range<u64>> {
    (page(), page()).prop_map(|(a, b)| a.min(b)..a.max(b))
}

fn permissions() -> impl Strategy<Value = Permissions> {
    const CHOICE: Permissions = Permissions::RWX.union(Permissions::TRACKED);
    any::<u8>().prop_map(|bits| Permissions::READ | Permissions::from_bits_truncate(bits) & CHOICE)
}

fn level() -> impl Strategy<Value = Level> {
    prop_oneof![Just(Level::Page4K), Just(Level::Page2M), Just(Level::Page1G)]
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    // Frames are mostly aligned like their pages; otherwise no large page would fit.
    let frame = || prop_oneof![3 => Just(0u64), 1 => 0..1024u64];
    prop_oneof![
        2 => (pages(), frame(), permissions(), level()).prop_map(|(pages, frame, permissions, level)| {
            Op::Map { pages, frame, permissions, level }
        }),
        2 => (0..PAGES, frame(), permissions(), level()).prop_map(|(page, frame, permissions, level)| {
            Op::Install { page, frame, permissions, level }
        }),
        1 => (0..PAGES, 0..4u64).prop_map(|(page, payload)| Op::Mark { page, payload }),
        1 => (0..PAGES).prop_map(|page| Op::Store { page }),
        1 => (pages(), permissions()).prop_map(|(pages, permissions)| Op::Protect { pages, permissions }),
        1 => pages().prop_map(|pages| Op::Unmap { pages }),
        2 => (pages(), any::<bool>()).prop_map(|(pages, free)| {
            Op::Zap { pages, tables: if free { Tables::Free } else { Tables::Keep } }
        }),
        1 => pages().prop_map(|pages| Op::WriteProtect { pages }),
        1 => pages().prop_map(|pages| Op::Clean { pages }),
        1 => (pages(), level()).prop_map(|(pages, level)| Op::Split { pages, level }),
        1 => (pages(), level(), permissions()).prop_map(|(pages, level, permissions)| {
            Op::Collapse { pages, level, permissions }
        }),
    ]
}

pub(super) fn pace() -> impl Strategy<Value = Pace> {
    (prop::collection::vec(prop_oneof![1..4u32, 1..2000u32], 1..4), any::<bool>())
}

pub(super) fn address(page: u64) -> u64 {
    BASE + page * 4096
}

pub(super) fn addresses(pages: &Range<u64>) -> Range<u64> {
    address(pages.start)..address(pages.end)
}

pub(super) fn pa(page: u64, frame: u64) -> PhysAddr {
    PhysAddr((4 << 30) + address(page) + frame * 4096)
}

/// Pages of the window in the `level`-sized page around one.
pub(super) fn around(page: u64, level: Level) -> Range<u64> {
    let start = address(page) & !level.offset_mask();
    let first = start.max(BASE) - BASE;
    let end = (start + level.size()).min(address(PAGES)) - BASE;
    first / 4096..end / 4096
}
