//! Random requests.

use super::*;
use crate::{Call, ClusterIpi, PageSize, Targets, VpSet};
use proptest::prelude::*;
use std::vec::Vec;

fn any_range() -> impl Strategy<Value = VaRange> {
    let edge =
        prop_oneof![Just(0u64), Just(1 << 47), Just(!0 << 47), Just(TOP), Just(1 << 30), any::<u64>(),];
    let length = prop_oneof![0u64..0x3000, 0u64..1 << 26, 0u64..1 << 32];
    let size =
        prop::sample::select([PageSize::Small, PageSize::Small, PageSize::Large, PageSize::Huge].as_slice());
    (edge, -0x100_0000i64..0x100_0000, length, size).prop_map(|(edge, distance, length, size)| {
        let first = edge.wrapping_add(distance as u64);
        VaRange::new(first, first.saturating_add(length)).of(size)
    })
}

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(
        ranges in prop::collection::vec(any_range(), 0..60),
        repeat in prop_oneof![Just(1), 1usize..30],
        banks in prop::collection::vec(prop_oneof![Just(0u64), Just(0), any::<u64>(), Just(1 << 63)], 0..64),
        everyone in prop::bool::weighted(0.2),
        address_space in any::<Option<u64>>(),
        non_global_only in any::<bool>(),
        (vp_sets, xmm_input, extended_ranges) in any::<(bool, bool, bool)>(),
        limit in prop_oneof![Just(NO_LIMIT), Just(ListLimit::default()), (0u64..1 << 20, 0u64..1000)
            .prop_map(|(pages, elements)| ListLimit { pages, elements })],
        limited in any::<bool>(),
    ) {
        let interface = Interface { vp_sets, xmm_input, extended_ranges };
        let set = VpSet::dense(&banks).unwrap();
        let targets = if everyone { Targets::All } else { Targets::Set(set) };
        let request = FlushRequest { targets, address_space, non_global_only };
        let ranges: Vec<VaRange> = ranges.iter().copied().cycle().take(ranges.len() * repeat).collect();
        let limit = if limited { limit } else { NO_LIMIT };
        let flushed = list(request, interface, &ranges, limit);
        let nobody = !everyone && set.is_empty();
        prop_assert_eq!(flushed.is_none(), nobody || ranges.is_empty());
        let Some(flushed) = flushed else { return Ok(()) };

        // Targets: exactly the set, or all processors where the set cannot be named.
        let named = vp_sets || set.iter().all(|vp| vp < 64);
        let members = (!everyone && named).then(|| set.iter().collect::<Vec<_>>());
        prop_assert_eq!(flushed.members, members);

        // Pages: exactly the canonical pages of the ranges in whole pages, or everything beyond the
        // limit.
        let extended = extended_ranges && ranges.iter().any(|range| range.page_size != PageSize::Small);
        let shift = |range: &VaRange| if extended { range.page_size.shift() } else { 12 };
        let per_element = if extended { 2048 } else { 4096 };
        let (mut pages, mut elements) = (0u64, 0u64);
        for range in &ranges {
            let count = (range.last >> shift(range)) - (range.first >> shift(range)) + 1;
            pages += count;
            elements += count.div_ceil(per_element);
        }
        let expected = ranges.iter().flat_map(|range| {
            let bits = (1u64 << shift(range)) - 1;
            canonical(&VaRange::new(range.first & !bits, range.last | bits))
        });
        let sure = ranges.len() as u64 <= limit.elements;
        if sure && pages <= limit.pages && elements <= limit.elements {
            prop_assert_eq!(flushed.pages, Some(join(expected)));
        } else if sure {
            prop_assert_eq!(flushed.pages, None);
        }

        // Form: no more calls than needed, and none that is not offered.
        let ex = flushed.controls.iter().any(|control| control & 0xffff >= 0x13);
        prop_assert_eq!(ex, !everyone && vp_sets && set.iter().any(|vp| vp >= 64));
        prop_assert!(xmm_input || flushed.controls.iter().all(|control| control >> 16 & 1 == 0));
    }

    #[test]
    fn interrupts_that_are_encoded_are_decoded(
        banks in prop::collection::vec(prop_oneof![Just(0u64), any::<u64>()], 0..64),
        vector in 0x10u8..=0xff,
        (vp_sets, xmm_input) in any::<(bool, bool)>(),
    ) {
        let interface = Interface { vp_sets, xmm_input, extended_ranges: false };
        let set = VpSet::dense(&banks).unwrap();
        let ipi = ClusterIpi { vector, targets: Targets::Set(set) };
        let mut page = [!0; PAGE_WORDS];
        match cluster_ipi(ipi, interface, &mut page) {
            Ok(Some(call)) => {
                make(&call, &page, interface, |decoded| assert_eq!(decoded, Call::ClusterIpi(ipi)));
            }
            Ok(None) => prop_assert!(set.is_empty()),
            Err(error) => {
                prop_assert_eq!(error, IpiError::NeedsVpSets);
                prop_assert!(!vp_sets && set.iter().any(|vp| vp >= 64));
            }
        }
    }
}
