use super::*;
use tlfs::VaWidth;

fn planned(list: &[u64], page_limit: u64) -> Plan {
    plan(&FlushScope::List(GvaList::new(list, VaWidth::Bits48)), page_limit)
}

fn ranges(ranges: &[(u64, u64)]) -> Plan {
    Plan::Ranges(ranges.iter().map(|&(first, pages)| GvaRange { first, pages }).collect())
}

#[test]
fn ranges_that_continue_each_other_become_one() {
    assert_eq!(planned(&[0x1000, 0x2000 | 2, 0x5000, 0x9000], 100), ranges(&[(0x1000, 5), (0x9000, 1)]));
    assert_eq!(planned(&[0x2000, 0x1000], 100), ranges(&[(0x2000, 1), (0x1000, 1)]), "not backwards");
    let adjacent: Vec<u64> = (0..509).map(|page| page << 12).collect();
    assert_eq!(planned(&adjacent, 509), ranges(&[(0, 509)]));
}

#[test]
fn h24_a_list_of_any_length_becomes_bounded_work() {
    let apart: Vec<u64> = (0..509).map(|page| page << 13).collect();
    assert!(matches!(planned(&apart[..RANGES_MAX], 1000), Plan::Ranges(list) if list.len() == RANGES_MAX));
    assert_eq!(planned(&apart[..RANGES_MAX + 1], 1000), Plan::Whole(Why::ManyRanges));
    assert_eq!(planned(&[0x1000 | 4095], 4095), Plan::Whole(Why::ManyPages));
    assert_eq!(planned(&[0x1000 | 4095], 4096), ranges(&[(0x1000, 4096)]));
    let longest = [!0; 509];
    assert_eq!(planned(&longest, u64::MAX), Plan::Whole(Why::ManyRanges), "the top page, 509 times");
}

#[test]
fn h9_what_is_not_canonical_is_no_work() {
    assert_eq!(planned(&[0x8000_0000_0000_0000], 10), ranges(&[]));
    assert_eq!(plan(&FlushScope::Everything, 10), Plan::Whole(Why::Asked));
}

#[test]
fn a_target_obeys_in_the_cheapest_way_that_is_right() {
    let usual = Target { asid: Some(7), owes_flush: false, pcid: false, pae: true };
    for (pages, target, work) in [
        (1, Target { asid: None, ..usual }, Work::Nothing),
        (1, Target { asid: None, pcid: true, pae: false, ..usual }, Work::Nothing),
        (1, Target { owes_flush: true, ..usual }, Work::Nothing),
        (0, Target { pcid: true, ..usual }, Work::Nothing),
        (1, Target { pcid: true, ..usual }, Work::Whole),
        (100, usual, Work::Pages { asid: 7 }),
        (101, usual, Work::Whole),
    ] {
        assert_eq!(obey(pages, target, 100), work, "{pages} {target:?}");
    }
}

#[test]
fn a17_large_pages_that_may_lie_in_pieces_go_as_a_whole() {
    let target = Target { asid: Some(7), owes_flush: false, pcid: false, pae: false };
    assert_eq!(obey(1, target, 100), Work::Whole, "4 MiB in nested pages of 2 MiB");
}

#[test]
fn the_limit_is_where_the_costs_meet_and_below_half_a_step() {
    let measured = Measured { page: 400, miss: 100, entries: 1536, ticks_per_us: 2500 };
    // 768 × 200 / 400 = 384 pages would be worth it, 25 µs hold 156.
    assert_eq!(Cost::new(measured).page_limit(), 156);
    assert_eq!(Cost::new(Measured { miss: 20, ..measured }).page_limit(), 76);
    for degenerate in
        [Measured { page: 0, miss: 0, entries: 0, ticks_per_us: 0 }, Measured { page: 1 << 40, ..measured }]
    {
        assert_eq!(Cost::new(degenerate).page_limit(), RANGES_MAX as u64);
    }
    let free = Measured { page: 0, miss: u64::MAX, entries: u64::MAX, ticks_per_us: u64::MAX };
    assert!(Cost::new(free).page_limit() > 1 << 30, "saturates");
}
