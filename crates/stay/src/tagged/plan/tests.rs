use super::*;
use std::vec::Vec;
use tlfs::VaWidth;

fn planned(list: &[u64], page_limit: u64) -> Plan {
    plan(&GvaList::new(list, VaWidth::Bits48), page_limit)
}

fn ranges(ranges: &[(u64, u64)], done: u16) -> Plan {
    let ranges = ranges.iter().map(|&(first, pages)| GvaRange { first, pages }).collect();
    Plan::Ranges { ranges, done }
}

/// Lists of single pages with gaps between them.
fn apart(count: u64) -> Vec<u64> {
    (0..count).map(|page| page << 13).collect()
}

#[test]
fn ranges_that_continue_each_other_become_one() {
    assert_eq!(planned(&[0x1000, 0x2000 | 2, 0x5000, 0x9000], 100), ranges(&[(0x1000, 5), (0x9000, 1)], 4));
    assert_eq!(planned(&[0x2000, 0x1000], 100), ranges(&[(0x2000, 1), (0x1000, 1)], 2), "not backwards");
    let adjacent: Vec<u64> = (0..509).map(|page| page << 12).collect();
    assert_eq!(planned(&adjacent, 509), ranges(&[(0, 509)], 509));
}

#[test]
fn h24_a_list_of_any_length_becomes_bounded_work() {
    assert_eq!(planned(&[0x1000 | 4095], 4095), Plan::Whole(Why::ManyPages));
    assert_eq!(planned(&[0x1000 | 4095], 4096), ranges(&[(0x1000, 4096)], 1));
    for count in [1, 16, 17, 100, 509] {
        for limit in [16, 17, 33, 83, 600, 100_000] {
            if let Plan::Ranges { ranges, .. } = planned(&apart(count), limit) {
                assert!(ranges.iter().map(|range| range.pages).sum::<u64>() <= limit);
                assert!(ranges.len() <= RANGES_MAX);
            }
        }
    }
    let longest = [!0; 509];
    assert_eq!(planned(&longest, 508), Plan::Whole(Why::ManyPages), "the top page, 509 times");
}

#[test]
fn h25_a_long_list_is_done_in_parts_while_that_is_cheaper() {
    let list = apart(40);
    // 40 pages, and two extra parts, each as expensive as 16.
    assert_eq!(planned(&list, 71), Plan::Whole(Why::ManyRanges));
    assert!(matches!(planned(&list, 72), Plan::Ranges { done: 16, .. }));
    // The same with one extra part, and with none.
    let parts = |count, limit| matches!(planned(&apart(count), limit), Plan::Ranges { done: 16, .. });
    assert_eq!([(16, 16), (17, 33), (17, 32)].map(|(count, limit)| parts(count, limit)), [true, true, false]);
    // The second part costs less than both: a list begun in parts continues in parts.
    let rest = GvaList::new(&list[16..], VaWidth::Bits48).starting_at(16);
    let Plan::Ranges { ranges, done } = plan(&rest, 72) else { panic!("not in parts") };
    assert_eq!((ranges[0].first, ranges.len(), done), (16 << 13, 16, 32));
}

#[test]
fn h25_parts_cover_the_list_and_come_to_an_end() {
    // Gaps, neighbours, non-canonical elements at the ends of parts, and one range twice.
    let mut list = apart(300);
    list.splice(15..15, [1 << 63, 0x1d000]);
    list.splice(16..16, [0x1e000, 0x1f000 | 2]);
    list.push(1 << 63);
    for limit in [400, 700, 10_000] {
        let (mut flushed, mut start) = (Vec::new(), 0u16);
        while usize::from(start) < list.len() {
            let rest = GvaList::new(&list[start.into()..], VaWidth::Bits48).starting_at(start);
            match plan(&rest, limit) {
                Plan::Whole(_) => {
                    assert_eq!((limit, start), (400, 0), "only at the beginning");
                    break;
                }
                Plan::Ranges { ranges, done } => {
                    assert!(done > start, "no progress");
                    flushed
                        .extend(ranges.iter().flat_map(|r| (0..r.pages).map(|page| r.first + (page << 12))));
                    start = done;
                }
            }
        }
        let named = GvaList::new(&list, VaWidth::Bits48);
        let named = named.ranges().flat_map(|r| (0..r.pages).map(move |page| r.start + (page << 12)));
        assert!(limit == 400 || flushed == named.collect::<Vec<_>>(), "{limit}");
    }
}

#[test]
fn h9_what_is_not_canonical_is_no_work() {
    assert_eq!(planned(&[0x8000_0000_0000_0000], 10), ranges(&[], 1));
    assert_eq!(planned(&[], 10), ranges(&[], 0));
}

#[test]
fn a_target_obeys_in_the_cheapest_way_that_is_right() {
    let usual = Mode { pcid: false, pae: true, pieces: false };
    for (pages, asid, owes_flush, mode, work) in [
        (1, None, false, usual, Work::Nothing),
        (1, Some(7), false, Mode { pieces: true, ..usual }, Work::Whole(Why::Pieces)),
        (1, None, false, Mode { pcid: true, pae: false, ..usual }, Work::Nothing),
        (1, Some(7), true, usual, Work::Nothing),
        (0, Some(7), false, Mode { pcid: true, ..usual }, Work::Nothing),
        (1, Some(7), false, Mode { pcid: true, ..usual }, Work::Whole(Why::Pcid)),
        (100, Some(7), false, usual, Work::Pages { asid: 7 }),
        (101, Some(7), false, usual, Work::Whole(Why::ManyPages)),
    ] {
        assert_eq!(obey(pages, asid, owes_flush, mode, 100), work, "{pages} {asid:?} {owes_flush} {mode:?}");
    }
}

#[test]
fn a17_large_pages_that_may_lie_in_pieces_go_as_a_whole() {
    let mode = Mode { pcid: false, pae: false, pieces: false };
    let work = obey(1, Some(7), false, mode, 100);
    assert_eq!(work, Work::Whole(Why::LegacyPaging), "4 MiB in nested pages of 2 MiB");
}
