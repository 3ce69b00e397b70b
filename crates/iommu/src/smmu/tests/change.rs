use std::vec::Vec;

use proptest::prelude::*;

use crate::smmu::change::Words;
use crate::smmu::stream::*;

/// Every entry that a reader may assemble during a step: each word from before or after it. A
/// reader that began before the step is over when its sync is.
fn mixtures(before: Words, after: Words) -> impl Iterator<Item = Words> {
    (0u32..256).map(move |mask| {
        core::array::from_fn(|index| if mask >> index & 1 == 0 { before[index] } else { after[index] })
    })
}

/// Performs a change, and checks what readers can meet in between.
fn check(old: StreamEntry, new: StreamEntry) -> Result<usize, TestCaseError> {
    let mut now = old.0;
    let steps: Vec<_> = old.change_to(new).collect();
    for step in &steps {
        let mut after = now;
        step.writes().for_each(|(index, word)| after[index] = word);
        prop_assert_ne!(now, after, "a step for nothing");
        for seen in mixtures(now, after) {
            prop_assert!(seen[0] & 1 == 0 || seen == old.0 || seen == new.0, "{seen:x?}");
        }
        now = after;
    }
    prop_assert_eq!(now, new.0);
    Ok(steps.len())
}

const A: StreamEntry = StreamEntry([1, 2, 3, 4, 0, 0, 0, 0]);
const B: StreamEntry = StreamEntry([5, 6, 7, 8, 0, 0, 0, 9]);

#[test]
fn a_change_takes_no_more_steps_than_it_needs() {
    let count = |old, new| check(old, new).expect("consistent");
    assert_eq!(count(A, A), 0);
    assert_eq!(count(A, B), 3);
    assert_eq!(count(StreamEntry::INVALID, B), 2, "fill, make valid");
    assert_eq!(count(B, StreamEntry::INVALID), 2, "make invalid, clear");
    assert_eq!(count(StreamEntry::INVALID, StreamEntry::ABORT), 1);
    // One word is replaced whole, and no access is aborted.
    let StreamEntry(mut words) = A;
    words[1] = 7;
    assert_eq!(count(A, StreamEntry(words)), 1);
    words[0] = 0;
    assert_eq!(count(StreamEntry(words), A), 2, "not valid: both words");
}

#[test]
fn descriptors_are_invalid_by_their_own_bit() {
    let valid = |head: u64, rest| ContextDescriptor([head | 1 << 31, rest, 0, rest, 0, 0, 0, 0]);
    let steps: Vec<Vec<_>> =
        valid(1, 2).change_to(valid(3, 4)).map(|step| step.writes().take(1).collect()).collect();
    assert_eq!(steps, [[(0, 0)], [(1, 4)], [(0, 3 | 1 << 31)]]);
    // Bit 0, which makes entries valid, is T0SZ here.
    let invalid = ContextDescriptor([1, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(invalid.change_to(valid(3, 4)).count(), 2);
}

proptest! {
    #[test]
    fn no_reader_meets_a_mixture_of_two_entries(
        old in prop::array::uniform8(0u64..4),
        new in prop::array::uniform8(0u64..4),
    ) {
        let count = check(StreamEntry(old), StreamEntry(new))?;
        prop_assert!(count <= 3);
    }
}
