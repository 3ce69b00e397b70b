//! Both ends against each other: decoding gives what was encoded.

mod random;

use std::vec;
use std::vec::Vec;

use zerocopy::IntoBytes;

use super::*;
use crate::{
    Call, CallRegisters, ClusterIpi, FlushCall, FlushScope, InputError, InputPage, InputSource, PageSize,
    Profile, Targets, VpSet, XMM_WORDS, decode,
};

const FULL: Interface = Interface { vp_sets: true, xmm_input: true, extended_ranges: true };
const MEMORY: Interface = Interface { vp_sets: true, xmm_input: false, extended_ranges: false };
const NO_LIMIT: ListLimit = ListLimit { pages: u64::MAX, elements: u64::MAX };
const GPA: u64 = 0x7000;
const TOP: u64 = u64::MAX;

/// The hypervisor's end, which offers exactly what `interface` says.
struct Host<'p> {
    page: &'p [u64; PAGE_WORDS],
    registers: [u64; XMM_FAST_WORDS],
}

impl InputSource for Host<'_> {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        assert_eq!(gpa, GPA);
        into.copy_from_slice(&self.page.as_bytes()[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        self.registers[2..].try_into().unwrap()
    }
}

/// Makes `call` and passes what the hypervisor understands to `judge`.
fn make<R>(
    call: &EncodedCall,
    page: &[u64; PAGE_WORDS],
    interface: Interface,
    judge: impl FnOnce(Call<'_>) -> R,
) -> R {
    let host = Host { page, registers: call.registers(page) };
    let (input, output) =
        if call.control.fast() { (host.registers[0], host.registers[1]) } else { (GPA, !0) };
    let profile = Profile {
        empty_targets: crate::EmptyTargets::Strict,
        xmm_input: interface.xmm_input,
        extended_ranges: interface.extended_ranges,
        ..Profile::FULL
    };
    let mut copy = InputPage::new();
    let registers = CallRegisters { control: call.control.into_bits(), input, output };
    judge(decode(registers, &host, &mut copy, &profile).expect("what is encoded is valid"))
}

/// The effect of a flush at the hypervisor's end.
#[derive(Debug, Default, PartialEq, Eq)]
struct Flushed {
    /// Control words.
    controls: Vec<u64>,
    /// First and last page numbers in order, with neighbours joined; `None` for everything.
    pages: Option<Vec<(u64, u64)>>,
    /// `None` for all.
    members: Option<Vec<u32>>,
}

fn join(pages: impl IntoIterator<Item = (u64, u64)>) -> Vec<(u64, u64)> {
    let mut joined: Vec<(u64, u64)> = vec![];
    for (first, last) in pages {
        match joined.last_mut() {
            Some(before) if before.1.checked_add(1) == Some(first) => before.1 = last,
            _ => joined.push((first, last)),
        }
    }
    joined
}

fn flush<R: Iterator<Item = VaRange> + Clone>(
    mut calls: FlushCalls<'_, R>,
    request: FlushRequest<'_>,
    interface: Interface,
) -> Option<Flushed> {
    let mut page = [!0; PAGE_WORDS];
    let mut flushed: Option<Flushed> = None;
    let mut pages = vec![];
    while let Some(call) = calls.next_into(&mut page) {
        let flushed = flushed.get_or_insert_default();
        flushed.controls.push(call.control.into_bits());
        make(&call, &page, interface, |decoded| {
            let Call::Flush(flush @ FlushCall { flags, .. }) = decoded else { panic!("{decoded:?}") };
            assert_eq!(flags.all_address_spaces(), request.address_space.is_none());
            assert_eq!(flush.address_space, request.address_space.unwrap_or(0));
            assert_eq!(flags.non_global_only(), request.non_global_only);
            flushed.members = match flush.targets {
                Targets::All => None,
                Targets::Set(set) => Some(set.iter().collect()),
            };
            match flush.scope {
                FlushScope::Everything => flushed.pages = None,
                FlushScope::List(list) => {
                    pages.extend(list.ranges().map(|r| (r.start >> 12, r.last() >> 12)));
                    flushed.pages = Some(vec![]);
                }
            }
            assert_eq!(call.progress(flush.completed()), CallProgress::Done);
        });
    }
    if let Some(Flushed { pages: listed @ Some(_), .. }) = &mut flushed {
        *listed = Some(join(pages));
    }
    flushed
}

fn all(address_space: Option<u64>) -> FlushRequest<'static> {
    FlushRequest { targets: Targets::All, address_space, non_global_only: false }
}

fn to<'a>(set: VpSet<'a>) -> FlushRequest<'a> {
    FlushRequest { targets: Targets::Set(set), address_space: Some(0x1000), non_global_only: false }
}

fn list(
    request: FlushRequest<'_>,
    interface: Interface,
    ranges: &[VaRange],
    limit: ListLimit,
) -> Option<Flushed> {
    flush(FlushCalls::list(request, interface, ranges.iter().copied(), limit), request, interface)
}

/// Canonical pages from `first` to `last` for 48 bits, in up to two pieces.
fn canonical(range: &VaRange) -> Vec<(u64, u64)> {
    if range.first > range.last {
        return vec![];
    }
    let (first, last) = (range.first >> 12, range.last >> 12);
    [(0, (1 << 35) - 1), ((1 << 52) - (1 << 35), (1 << 52) - 1)]
        .into_iter()
        .map(|(low, high)| (first.max(low), last.min(high)))
        .filter(|(first, last)| first <= last)
        .collect()
}

/// Request and ranges; the control word and the words that they are encoded as.
type Golden<'a> = (FlushRequest<'a>, Interface, Option<&'a [VaRange]>, u64, &'a [u64]);

#[test]
fn golden_calls() {
    let mask = 0b1010;
    let cpus = [1, 0, 0, 1 << 5];
    let wide = VpSet::dense(&cpus).unwrap();
    let range = [VaRange::new(0x5000, 0x7fff), VaRange::new(0x9fff, 0xa000)];
    let rows: [Golden<'_>; 8] = [
        (all(Some(0x1000)), MEMORY, None, 0x2, &[0x1000, 1, 0]),
        (all(None), MEMORY, None, 0x2, &[0, 3, 0]),
        (to(VpSet::from_mask(&mask)), MEMORY, None, 0x2, &[0x1000, 0, 0b1010]),
        (to(wide), MEMORY, None, 0x4_0013, &[0x1000, 0, 0, 0b1001, 1, 1 << 5]),
        (to(wide), Interface::default(), None, 0x2, &[0x1000, 1, 0]),
        (all(None), MEMORY, Some(&range), 0x2_0000_0003, &[0, 3, 0, 0x5002, 0x9001]),
        (to(wide), MEMORY, Some(&range), 0x2_0004_0014, &[0x1000, 0, 0, 0b1001, 1, 1 << 5, 0x5002, 0x9001]),
        (to(wide), FULL, Some(&range), 0x2_0005_0014, &[0x1000, 0, 0, 0b1001, 1, 1 << 5, 0x5002, 0x9001]),
    ];
    for (request, interface, ranges, control, words) in rows {
        let mut page = [!0; PAGE_WORDS];
        let call = match ranges {
            None => FlushCalls::space(request, interface).next_into(&mut page),
            Some(ranges) => {
                FlushCalls::list(request, interface, ranges.iter().copied(), NO_LIMIT).next_into(&mut page)
            }
        };
        let call = call.unwrap();
        assert_eq!((call.control.into_bits(), call.words(&page)), (control, words));
        assert!(page[words.len()..].iter().all(|word| *word == !0), "nothing behind the input");
        let mut registers = words.to_vec();
        registers.resize(XMM_FAST_WORDS, 0);
        assert_eq!(call.registers(&page)[..], registers, "and zeros in registers");
    }
}

#[test]
fn h8_an_empty_set_makes_no_call() {
    let empty_banks = [0; 64];
    let ranges = [VaRange::new(0, 0xfff)];
    for set in [VpSet::EMPTY, VpSet::from_mask(&0), VpSet::dense(&empty_banks).unwrap()] {
        for interface in [FULL, MEMORY, Interface::default()] {
            assert_eq!(list(to(set), interface, &ranges, NO_LIMIT), None);
            assert_eq!(flush(FlushCalls::space(to(set), interface), to(set), interface), None);
            let ipi = ClusterIpi { vector: 0x20, targets: Targets::Set(set) };
            assert_eq!(cluster_ipi(ipi, interface, &mut [0; PAGE_WORDS]), Ok(None));
        }
    }
}

#[test]
fn ranges_without_addresses_make_no_call() {
    for ranges in [vec![], vec![VaRange::new(1, 0)], vec![VaRange::new(TOP, 0), VaRange::new(0x5000, 0x4fff)]]
    {
        assert_eq!(list(all(None), MEMORY, &ranges, ListLimit { pages: 0, elements: 0 }), None);
    }
}

#[test]
fn h4_a_full_list_goes_on_in_the_next_call() {
    let banks = [1; 64];
    let counts = |request, interface, elements: u64| {
        let ranges: Vec<VaRange> = (0..elements).map(|i| VaRange::new(i << 13, (i << 13) + 1)).collect();
        let flushed = list(request, interface, &ranges, NO_LIMIT).unwrap();
        assert_eq!(flushed.pages.unwrap().len() as u64, elements);
        flushed.controls.iter().map(|control| (control >> 32) as u16).collect::<Vec<_>>()
    };
    assert_eq!(counts(all(None), MEMORY, 509), [509]);
    assert_eq!(counts(all(None), MEMORY, 510), [509, 1]);
    assert_eq!(counts(all(None), MEMORY, 1018), [509, 509]);
    for count in [2, 64] {
        let request = to(VpSet::dense(&banks[..count]).unwrap());
        let room = 508 - count as u16;
        assert_eq!(counts(request, MEMORY, room.into()), [room]);
        assert_eq!(counts(request, MEMORY, u64::from(room) * 2 + 1), [room, room, 1]);
    }
    // In registers as far as they suffice, including the last of several calls.
    let fast = |elements| {
        let ranges: Vec<VaRange> = (0..elements).map(|i| VaRange::new(i << 13, i << 13)).collect();
        list(all(None), FULL, &ranges, NO_LIMIT).unwrap().controls
    };
    assert_eq!(fast(11), [0x0b_0001_0003]);
    assert_eq!(fast(12), [0x0c_0000_0003]);
    assert_eq!(fast(510), [0x1fd_0000_0003, 0x1_0001_0003]);
}

#[test]
fn h9_the_whole_address_space_is_a_list_that_ends() {
    let everything = VaRange::new(0, TOP);
    assert_eq!(list(all(None), MEMORY, &[everything], ListLimit::default()).unwrap().pages, None);
    let huge = everything.of(PageSize::Huge);
    // 2^34 pages of 1 GiB: 2^23 elements.
    assert_eq!(ranges::Format::Extended.cost(&huge), (1 << 34, 1 << 23));
    let ranges = core::iter::repeat_n(everything, 8192);
    let limit = ListLimit { pages: u64::MAX - 1, elements: u64::MAX };
    let flushed = flush(FlushCalls::list(all(None), MEMORY, ranges, limit), all(None), MEMORY);
    assert_eq!(flushed.unwrap().pages, None, "the sum of pages does not wrap");
    // The last element of all ends with the last page.
    let end = ranges::Elements::new([VaRange::new(TOP - (1 << 25), TOP)].into_iter(), ranges::Format::Plain);
    assert_eq!(end.last(), Some(!0xfff), "one page is left of 8193");
}

#[test]
fn a_list_beyond_the_limit_is_a_flush_of_everything() {
    let ranges = [VaRange::new(0, 0xffff), VaRange::new(1 << 30, (1 << 30) + (16 << 20))];
    // 16 pages and 4097: one element and two.
    for (pages, elements, listed) in [
        (4113, 3, true),
        (4112, 3, false),
        (4113, 2, false),
        (u64::MAX, 3, true),
        (0, u64::MAX, false),
        (u64::MAX, 0, false),
    ] {
        let flushed = list(all(Some(0x1000)), MEMORY, &ranges, ListLimit { pages, elements }).unwrap();
        assert_eq!(flushed.pages.is_some(), listed, "{pages} {elements}");
        assert_eq!(flushed.controls.len(), 1);
    }
}

#[test]
fn h22_large_pages_are_named_as_such_only_where_that_is_offered() {
    let range = [VaRange::new(0x4020_1234, 0x40c0_0000).of(PageSize::Large)];
    let (mut page, limit) = ([0; PAGE_WORDS], NO_LIMIT);
    let mut words = |interface| {
        let call = FlushCalls::list(all(None), interface, range.into_iter(), limit).next_into(&mut page);
        call.unwrap().words(&page)[1..].to_vec()
    };
    assert_eq!(words(FULL), [0xb, 0, 0x4020_0000 | 1 << 11 | 5]);
    assert_eq!(words(MEMORY), [3, 0, 0x4020_1000 | 0x9ff]);
}

#[test]
fn h3_o16_what_a_result_means() {
    let ranges: Vec<VaRange> = (0..9).map(|page| VaRange::new(page << 13, page << 13)).collect();
    let mut page = [0; PAGE_WORDS];
    let call =
        FlushCalls::list(all(None), MEMORY, ranges.iter().copied(), NO_LIMIT).next_into(&mut page).unwrap();
    let after = |call: &EncodedCall, status, reps| call.progress(HvResult::of(status, reps));
    assert_eq!(after(&call, Status::SUCCESS, 9), CallProgress::Done);
    assert_eq!(after(&call, Status::SUCCESS, 10), CallProgress::Done);
    let CallProgress::Unfinished(rest) = after(&call, Status::SUCCESS, 4) else { panic!() };
    make(&rest, &page, MEMORY, |decoded| {
        let Call::Flush(FlushCall { scope: FlushScope::List(list), .. }) = decoded else { panic!() };
        assert!(list.elements().map(|(index, _)| index).eq(4..9));
    });
    for done in [0, 1, 4] {
        let stuck = CallProgress::Failed { status: Status::SUCCESS, done };
        assert_eq!(after(&rest, Status::SUCCESS, done), stuck, "no progress is no success");
    }
    let failed = CallProgress::Failed { status: Status::INVALID_PARAMETER, done: 3 };
    assert_eq!(after(&call, Status::INVALID_PARAMETER, 3), failed);
    let space = FlushCalls::space(all(None), MEMORY).next_into(&mut page).unwrap();
    assert_eq!(after(&space, Status::SUCCESS, 0), CallProgress::Done);
    let failed = CallProgress::Failed { status: Status::ACCESS_DENIED, done: 0 };
    assert_eq!(after(&space, Status::ACCESS_DENIED, 9), failed);
}

#[test]
fn h26_interrupts() {
    let wide = [0, 1];
    let wide = Targets::Set(VpSet::dense(&wide).unwrap());
    let mask = Targets::Set(VpSet::from_mask(&6));
    let rows: [(Targets<'_>, Interface, u64, &[u64]); 5] = [
        (mask, Interface::default(), 0x1_000b, &[0xfe, 6]),
        (wide, MEMORY, 0x2_0015, &[0xfe, 0, 0b10, 1]),
        (wide, FULL, 0x3_0015, &[0xfe, 0, 0b10, 1]),
        (Targets::All, MEMORY, 0x0_0015, &[0xfe, 1, 0]),
        (Targets::All, FULL, 0x1_0015, &[0xfe, 1, 0]),
    ];
    let mut page = [!0; PAGE_WORDS];
    for (targets, interface, control, words) in rows {
        let ipi = ClusterIpi { vector: 0xfe, targets };
        let call = cluster_ipi(ipi, interface, &mut page).unwrap().unwrap();
        assert_eq!((call.control.into_bits(), call.words(&page)), (control, words));
        make(&call, &page, interface, |decoded| assert_eq!(decoded, Call::ClusterIpi(ipi)));
    }
    for targets in [wide, Targets::All] {
        let ipi = ClusterIpi { vector: 0xfe, targets };
        assert_eq!(cluster_ipi(ipi, Interface::default(), &mut page), Err(IpiError::NeedsVpSets));
    }
    for vector in 0..=0xff {
        let call = cluster_ipi(ClusterIpi { vector, targets: mask }, FULL, &mut page);
        assert_eq!(call.err(), (vector < 0x10).then_some(IpiError::Vector), "{vector:#x}");
    }
}

#[test]
fn h21_the_interface_is_what_cpuid_says() {
    assert_eq!(ListLimit::default(), ListLimit { pages: u64::MAX, elements: 509 }, "one call");
    assert_eq!(Interface::from_cpuid(!0, !0), FULL);
    assert_eq!(Interface::from_cpuid(!(1 << 4 | 1 << 14), 1 << 11), MEMORY);
    assert_eq!(Interface::from_cpuid(0, !(1 << 11)), Interface::default());
}
