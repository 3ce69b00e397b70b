//! The guest's end: decoding an encoded call gives the same targets and at least the same pages.
#![no_main]

use guest::Offers;
use libfuzzer_sys::fuzz_target;
use quell_tlfs::encode::{FlushCalls, FlushRequest, Interface, ListLimit, VaRange};
use quell_tlfs::{
    Call, CallRegisters, FlushScope, InputError, InputPage, InputSource, PAGE_WORDS, PageSize, Targets,
    VaWidth, VpSet, XMM_WORDS, decode,
};
use zerocopy::IntoBytes;

struct Memory<'p>(&'p [u64; PAGE_WORDS]);

impl InputSource for Memory<'_> {
    fn read(&self, _: u64, into: &mut [u8]) -> Result<(), InputError> {
        into.copy_from_slice(&self.0.as_bytes()[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        std::array::from_fn(|index| self.0[index + 2])
    }
}

/// Pages at the ends of the first ranges that can be translated.
fn ends(ranges: &[(u64, u64, u8)], width: VaWidth) -> Vec<u64> {
    let sign_bit = if width == VaWidth::Bits57 { 56 } else { 47 };
    let named = ranges.iter().take(4).filter(|(first, last, _)| first <= last);
    named
        .flat_map(|(first, last, _)| [first & !0xfff, last & !0xfff])
        .filter(|page| matches!((*page as i64) >> sign_bit, 0 | -1))
        .collect()
}

type Request = (Option<u64>, bool, Vec<(u64, u64, u8)>, Vec<u64>, bool, Offers, u16);

fuzz_target!(|input: Request| {
    let (address_space, non_global_only, ranges, banks, vp_sets, offers, elements) = input;
    let Ok(set) = VpSet::dense(&banks) else { return };
    let request = FlushRequest { targets: Targets::Set(set), address_space, non_global_only };
    let profile = offers.profile();
    let interface =
        Interface { vp_sets, xmm_input: offers.xmm_input, extended_ranges: offers.extended_ranges };
    let mut missing = ends(&ranges, profile.va_width);
    let ranges = ranges.iter().map(|(first, last, size)| {
        let sizes = [PageSize::Small, PageSize::Large, PageSize::Huge];
        VaRange::new(*first, *last).of(sizes[usize::from(size % 3)])
    });
    let limit = ListLimit { pages: u64::MAX, elements: elements.into() };
    let mut calls = FlushCalls::list(request, interface, ranges, limit);
    let (mut page, mut copy) = ([!0; PAGE_WORDS], InputPage::new());
    let mut left = u32::from(elements) + 2;
    while let Some(call) = calls.next_into(&mut page) {
        left = left.checked_sub(1).expect("more calls than elements");
        let fast = call.control.fast();
        let input = if fast { page[0] } else { 0 };
        let registers = CallRegisters { control: call.control.into_bits(), input, output: page[1] };
        let Ok(Call::Flush(flush)) = decode(registers, &Memory(&page), &mut copy, &profile) else {
            panic!("refused: {call:?}");
        };
        assert!(!set.is_empty(), "a call to nobody");
        match flush.targets {
            Targets::All => assert!(!vp_sets),
            Targets::Set(decoded) => assert_eq!(decoded, set),
        }
        match flush.scope {
            FlushScope::Everything => missing.clear(),
            FlushScope::List(list) => {
                assert!(!list.words().is_empty());
                for range in list.ranges() {
                    missing.retain(|page| !(range.start..=range.last()).contains(page));
                }
            }
        }
    }
    assert!(missing.is_empty() || set.is_empty(), "not flushed: {missing:#x?}");
});
