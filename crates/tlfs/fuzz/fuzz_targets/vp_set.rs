//! VP sets against a naive model.
#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_tlfs::VpSet;

fuzz_target!(|input: (u64, Vec<u64>, u32)| {
    let (valid_banks, packed, vp) = input;
    let Ok(set) = VpSet::sparse(valid_banks, &packed) else {
        assert_ne!(valid_banks.count_ones() as usize, packed.len());
        return;
    };
    let mut model = Vec::new();
    let present = (0..64u32).filter(|bank| valid_banks >> bank & 1 == 1);
    for (bank, contents) in present.zip(&packed) {
        model.extend((0..64).filter(|bit| contents >> bit & 1 == 1).map(|bit| bank * 64 + bit));
    }
    assert!(set.iter().eq(model.iter().copied()));
    assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
    assert_eq!(set.contains(vp), model.contains(&vp));
});
