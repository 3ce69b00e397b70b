use std::vec::Vec;

use coherence::tlbi::{Granule, LeafLevel, Stale};
use proptest::prelude::*;

use super::decode::tlbi;
use crate::Command;
use crate::smmu::command::*;
use crate::smmu::features::Features;
use crate::smmu::range::*;
use crate::smmu::registers::IDR3;

const GRANULES: [Granule; 3] = [Granule::Size4K, Granule::Size16K, Granule::Size64K];
const LEVELS: [Option<LeafLevel>; 4] =
    [None, Some(LeafLevel::One), Some(LeafLevel::Two), Some(LeafLevel::Three)];
const ASID: Asid = Asid(7);
const SETUP: Setup = Setup { granule: Granule::Size4K, has_ranges: true, commands_max: 64 };

/// The end of the address space that tables of a granule map.
fn end_of(granule: Granule) -> u64 {
    match granule {
        Granule::Size64K => 1 << 52,
        _ => 1 << 48,
    }
}

fn stale(start: u64, len: u64) -> Stale {
    Stale { start, len, leaf: None, tables: false }
}

fn commands(setup: &Setup, stale: Stale) -> Vec<Command> {
    plan(setup, ASID, [stale]).collect()
}

/// Checks that range commands cover a range without a gap, without anything around it, and in as
/// few commands as `fewest` says.
fn check(granule: Granule, stale: Stale, fewest: Option<usize>) -> Result<(), TestCaseError> {
    let leaf = 1 << stale.leaf.unwrap_or(LeafLevel::Three).shift(granule);
    let first = stale.start / leaf * leaf;
    let end = (stale.start + stale.len).div_ceil(leaf) * leaf;
    let commands = commands(&Setup { granule, ..SETUP }, stale);
    let mut reached = first;
    for command in &commands {
        let read = tlbi(*command);
        prop_assert_eq!((read.opcode, read.asid, read.leaf), (0x12, 7, !stale.tables));
        prop_assert_eq!(read.first, reached, "a gap, or twice");
        // Without a granule the SMMU drops whatever it has there, one entry at least.
        reached = read.granule.map_or(read.first + granule.bytes(), |_| read.end);
        prop_assert!(read.granule.is_none_or(|shift| shift == granule.shift()));
    }
    prop_assert_eq!(reached, end);
    let pages = (end - first) / granule.bytes();
    let most = (u64::BITS - pages.leading_zeros()).div_ceil(5) as usize;
    prop_assert!(commands.len() <= most, "{} commands for {pages:#x} granules", commands.len());
    prop_assert!(fewest.is_none_or(|fewest| commands.len() == fewest));
    Ok(())
}

#[test]
fn p17_ranges_end_where_the_address_space_does() {
    for (granule, has_ranges) in GRANULES.into_iter().flat_map(|granule| [(granule, false), (granule, true)])
    {
        let setup = Setup { granule, has_ranges, ..SETUP };
        let (end, page) = (end_of(granule), granule.bytes());
        let [last] = commands(&setup, stale(end - page, page))[..] else { panic!("one page") };
        assert_eq!(tlbi(last).first, end - page);
        for beyond in [stale(end - page, page + 1), stale(end, 1), stale(u64::MAX, 2), stale(1, u64::MAX)] {
            assert_eq!(commands(&setup, beyond), [tlbi_nh_asid(ASID)], "{beyond:?}");
        }
        if has_ranges {
            check(granule, stale(end - 77 * page, 77 * page), None).expect("covered");
            check(granule, stale(0, end), Some(1)).expect("all of it");
            check(granule, stale(page, end - page), None).expect("all but a page");
        }
    }
}

#[test]
fn plans_by_features_and_limits() {
    let pages = |count: u64| Stale { leaf: Some(LeafLevel::Three), ..stale(1 << 30, count << 12) };
    let without = Setup { has_ranges: false, ..SETUP };
    let planned = |setup: &Setup, list: &[Stale]| plan(setup, ASID, list.iter().copied()).collect::<Vec<_>>();
    assert_eq!(planned(&SETUP, &[]), []);
    assert_eq!(planned(&SETUP, &[pages(0), pages(0)]), []);
    assert_eq!(planned(&without, &[pages(0)]), []);
    assert_eq!(planned(&SETUP, &[stale(0x5123, 0)]), [], "within a page");
    assert_eq!(planned(&without, &[pages(64)]).len(), 64);
    assert_eq!(planned(&without, &[pages(32), pages(0), pages(32)]).len(), 64);
    assert_eq!(planned(&without, &[pages(65)]), [tlbi_nh_asid(ASID)]);
    assert_eq!(planned(&without, &[pages(64), pages(1)]), [tlbi_nh_asid(ASID)], "together");
    assert_eq!(planned(&without, &[pages(1 << 36)]), [tlbi_nh_asid(ASID)], "without counting");
    assert_eq!(planned(&SETUP, &[pages(65)]).len(), 2);
    assert_eq!(planned(&SETUP, &[pages(1); 64]).len(), 64);
    assert_eq!(planned(&SETUP, &[pages(1); 65]), [tlbi_nh_asid(ASID)]);
    let nothing_by_address = Setup { commands_max: 0, ..SETUP };
    assert_eq!(planned(&nothing_by_address, &[pages(1)]), [tlbi_nh_asid(ASID)]);
    assert_eq!(planned(&nothing_by_address, &[pages(0)]), []);
}

#[test]
fn range_commands_are_used_where_idr3_has_them() {
    let setup = |idr3| {
        let features = Features::read(|register| if register == IDR3 { idr3 } else { 0 });
        Setup::new(&features, Granule::Size4K, 64)
    };
    assert_eq!(setup(1 << 10), SETUP);
    assert_eq!(setup(!(1 << 10)), Setup { has_ranges: false, ..SETUP });
}

fn granule() -> impl Strategy<Value = Granule> {
    prop_oneof![Just(Granule::Size4K), Just(Granule::Size16K), Just(Granule::Size64K)]
}

proptest! {
    #[test]
    fn p17_any_range_of_any_granule_is_covered(
        granule in granule(),
        start in any::<u64>(),
        // All orders of magnitude alike, up to the whole address space.
        bits in 0u32..52,
        len in any::<u64>(),
        level in prop::sample::select(LEVELS.as_slice()),
        tables in any::<bool>(),
    ) {
        let end = end_of(granule);
        let len = (len & ((1 << bits) - 1) | 1 << bits).min(end);
        let start = start % (end - len + 1);
        check(granule, Stale { start, len, leaf: level, tables }, None)?;
    }

    #[test]
    fn p17_pages_cover_in_strides_of_the_smallest_leaf(
        granule in granule(),
        start in 0u64..1 << 44,
        leaves in 1u64..700,
        level in prop_oneof![Just(None), Just(Some(LeafLevel::Two)), Just(Some(LeafLevel::Three))],
        tables in any::<bool>(),
    ) {
        let stride = 1u64 << level.unwrap_or(LeafLevel::Three).shift(granule);
        let len = leaves * stride;
        let setup = Setup { granule, has_ranges: false, commands_max: 701 };
        let commands = commands(&setup, Stale { start, len, leaf: level, tables });
        prop_assert!(commands.len() as u64 <= leaves + 1);
        let mut reached = start / stride * stride;
        for read in commands.into_iter().map(tlbi) {
            prop_assert_eq!((read.first, read.granule, read.leaf), (reached, None, !tables));
            reached += stride;
        }
        prop_assert!(reached >= start + len && reached < start + len + stride);
    }
}
