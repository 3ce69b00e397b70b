use std::vec::Vec;

use proptest::prelude::*;

use crate::smmu::event_queue::*;

const OVERFLOW: u32 = 1 << 31;

#[test]
fn lost_events_are_told_once_and_acknowledged() {
    let mut reader = Reader::new(2);
    for (prod, cons, has_lost) in [
        (4 | OVERFLOW, 4 | OVERFLOW, true),
        (5 | OVERFLOW, 5 | OVERFLOW, false),
        (1, 1, true), // the bit has changed again
        (1, 1, false),
    ] {
        assert_eq!(reader.advance(prod), Advance { cons, has_lost });
    }
}

proptest! {
    /// A device that writes up to its limit, and a reader that reads now and then.
    #[test]
    fn nothing_is_missed_or_read_twice(order in 0u32..=19, turns in prop::collection::vec(0u32..=1 << 19, 1..20)) {
        let (mut reader, mut written) = (Reader::new(order), 0u32);
        for count in turns {
            let first = written;
            written += count.min(1 << order);
            let prod = written & ((2 << order) - 1);
            let expected = (first..written).map(|position| position & ((1 << order) - 1));
            prop_assert!(reader.unread(prod).eq(expected));
            prop_assert_eq!(reader.advance(prod), Advance { cons: prod, has_lost: false });
        }
    }

    #[test]
    fn indexes_are_in_the_queue_whatever_the_register_says(order in any::<u32>(), prods: Vec<u32>) {
        let mut reader = Reader::new(order);
        let len = 1 << order.min(19);
        for prod in prods {
            let indexes: Vec<_> = reader.unread(prod).collect();
            prop_assert!(indexes.len() <= len as usize && indexes.iter().all(|&index| index < len));
            let _ = reader.advance(prod);
        }
    }
}
