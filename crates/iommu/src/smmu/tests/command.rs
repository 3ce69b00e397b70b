use coherence::tlbi::{Granule, LeafLevel};

use super::decode::{Tlbi, tlbi};
use crate::Command;
use crate::smmu::command::*;

const STREAM: StreamId = StreamId(0x8765_4321);
const ASID: Asid = Asid(0x1234);

#[test]
fn configuration_commands_bit_by_bit() {
    assert_eq!(cfgi_ste(STREAM, Depth::Leaf), Command([0x8765_4321_0000_0003, 1]));
    assert_eq!(cfgi_ste(STREAM, Depth::All), Command([0x8765_4321_0000_0003, 0]));
    assert_eq!(cfgi_ste_range(STREAM, 7), Command([0x8765_4321_0000_0004, 7]));
    assert_eq!(cfgi_ste_range(STREAM, 39), cfgi_ste_range(STREAM, 7), "truncated");
    assert_eq!(cfgi_all(), Command([0x04, 31]));
    assert_eq!(cfgi_cd(STREAM), Command([0x8765_4321_0000_0005, 1]));
}

#[test]
fn invalidations_of_everything_with_a_tag() {
    assert_eq!(tlbi_nh_asid(ASID), Command([0x1234_0000_0000_0011, 0]));
    assert_eq!(tlbi_el2_all(), Command([0x20, 0]));
    assert_eq!(tlbi_nsnh_all(), Command([0x30, 0]));
}

#[test]
fn invalidations_by_address_carry_the_tag_of_their_regime() {
    let first = 0x1234_5678_9000;
    let (opcode, vmid, asid, end) = (0x12, 0, 0x1234, first + 4096);
    let expected = Tlbi { opcode, vmid, asid, leaf: true, ttl: 0, granule: None, first, end };
    assert_eq!(tlbi(tlbi_nh_va(ASID, Span::address(0x1234_5678_9abc, Depth::Leaf))), expected);
}

#[test]
fn ranges_bit_by_bit() {
    // 3 MiB of pages from 1 GiB: 3 units of 256.
    let span = Span::range(Granule::Size4K, 1 << 30, 8, 3, Some(LeafLevel::Three), Depth::Leaf);
    let expected = [0x1234_0000_0000_0012 | 2 << 12 | 8 << 20, 1 << 30 | 1 << 10 | 3 << 8 | 1];
    assert_eq!(tlbi_nh_va(ASID, span), Command(expected));
    // With tables, and no hint.
    let span = Span::range(Granule::Size64K, 0x1_0000, 31, 32, None, Depth::All);
    assert_eq!(tlbi_nh_va(Asid(0), span), Command([0x12 | 31 << 12 | 31 << 20, 0x1_0000 | 3 << 10]));
    // An address within a granule: that granule.
    let span = Span::range(Granule::Size16K, 0x7fff, 1, 1, None, Depth::All);
    assert_eq!(tlbi_nh_va(Asid(0), span), Command([0x12 | 1 << 20, 0x4000 | 2 << 10]));
}

#[test]
fn p17_one_granule_without_a_hint_is_no_range() {
    for granule in [Granule::Size4K, Granule::Size16K, Granule::Size64K] {
        for depth in [Depth::Leaf, Depth::All] {
            let span = Span::range(granule, 0x10_0000, 0, 1, None, depth);
            assert_eq!(span, Span::address(0x10_0000, depth), "CERROR_ILL");
            let hinted = Span::range(granule, 0x10_0000, 0, 1, Some(LeafLevel::Three), depth);
            assert_eq!(tlbi(tlbi_nh_va(ASID, hinted)).granule, Some(granule.shift()));
        }
    }
}

#[test]
fn syncs_bit_by_bit() {
    assert_eq!(sync_poll(), Command([0x46, 0]));
}
