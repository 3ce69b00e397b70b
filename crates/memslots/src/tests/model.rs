//! Copies against a list of bytes.

use proptest::prelude::*;

use super::{Backing, PAGE};
use crate::{AccessError, Gpa, Memslots};

/// Pages and bytes that are targets of copies.
const PAGES: usize = 6;
const BYTES: usize = PAGES * PAGE as usize;

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 96 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn copies_agree_with_a_list_of_bytes(
        holes in prop::collection::vec(any::<bool>(), PAGES),
        ops in prop::collection::vec((0..BYTES + 16, 0..6000usize, any::<bool>(), any::<u8>(), any::<bool>()), 1..12),
    ) {
        let backings: Vec<_> = (0..PAGES).map(|_| Backing::new(1)).collect();
        let mut memslots = Memslots::new(48);
        let mut model = vec![None; BYTES + 8000];
        for (page, backing) in backings.iter().enumerate().filter(|(page, _)| !holes[*page]) {
            // SAFETY: the backing outlives the slots, and is accessed through them only.
            unsafe { memslots.add(backing.slot(page as u16, page as u64)) }.unwrap();
            model[page * PAGE as usize..][..PAGE as usize].fill(Some(0));
        }
        let memory = memslots.memory();
        for (start, len, is_short, seed, is_write) in ops {
            let len = if is_short { len % 24 } else { len };
            let gpa = Gpa(start as u64);
            let there = &mut model[start..start + len];
            let hole = there.iter().position(Option::is_none);
            let expected = hole.map_or(Ok(()), |hole| Err(AccessError::Unmapped { gpa: Gpa((start + hole) as u64) }));
            let mut bytes: Vec<_> = (0..len).map(|index| seed.wrapping_add((index % 251) as u8)).collect();
            if is_write {
                prop_assert_eq!(memory.write(gpa, &bytes), expected);
                if expected.is_ok() {
                    there.iter_mut().zip(bytes).for_each(|(byte, new)| *byte = Some(new));
                }
            } else {
                let before = bytes.clone();
                prop_assert_eq!(memory.read(gpa, &mut bytes), expected);
                let now = if expected.is_ok() { there.iter().copied().flatten().collect() } else { before };
                prop_assert!(bytes == now);
                let word = |len| model[start..start + len].iter().copied().collect::<Option<Vec<_>>>();
                let (half, whole) = (memory.read_u32(gpa).ok(), memory.read_u64(gpa).ok());
                prop_assert_eq!(half.map(|word| word.to_le_bytes().to_vec()), word(4));
                prop_assert_eq!(whole.map(|word| word.to_le_bytes().to_vec()), word(8));
            }
        }
        let mut all = vec![0; PAGE as usize];
        for page in (0..PAGES).filter(|page| !holes[*page]) {
            let start = page * PAGE as usize;
            memory.read(Gpa(start as u64), &mut all).unwrap();
            prop_assert!(all.iter().zip(&model[start..]).all(|(byte, expected)| Some(*byte) == *expected));
        }
    }
}
