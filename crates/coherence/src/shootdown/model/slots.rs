//! The words of a slot: two requests, and a CPU that takes them.

use loom::sync::Arc;

use crate::interleave::{explore, on_a_thread};
use crate::shootdown::slot::{COUNT_SHIFT, Change, CpuSlot, List, PENDING, Request, Taken};
use crate::shootdown::{INLINE_RANGES, PageRange};
use crate::sync::Ordering::AcqRel;

/// A request whose words all identify it.
fn request(number: u64) -> Request {
    let mut ranges = [PageRange::default(); INLINE_RANGES];
    ranges[0] = PageRange::small(number << 12, number);
    let change = Change { space: number, generation: number, tables: number == 2 };
    Request { change, list: List::Inline { ranges, len: 1 } }
}

/// The second request arrives while the first is being taken.
fn taken_by(take: fn(&CpuSlot) -> Option<Taken>) {
    let slot = Arc::new(CpuSlot::new());
    assert!(slot.post(Some(&request(1)), true).is_first);
    let poster = on_a_thread(&slot, move |slot| slot.post(Some(&request(2)), true));
    let first = take(&slot).expect("posted before");
    let posted = poster.join().unwrap();
    let second = take(&slot);
    let taken: std::vec::Vec<_> = [Some(first), second].into_iter().flatten().collect();
    for taken in &taken {
        let whole = taken.request.is_none_or(|taken| taken == request(taken.change.generation));
        assert!(whole, "torn: {taken:x?}");
    }
    match taken[..] {
        [both] => assert!(both.count == 2 && both.request.is_none() && !posted.is_first, "lost"),
        [one, two] => {
            // The second one's is missing if it was posted while the first was still pending.
            let second = two.request.is_none_or(|taken| taken == request(2));
            assert!(one.request == Some(request(1)) && second, "lost");
            assert!((one.count, two.count) == (1, 2) && posted.is_first, "miscounted");
        }
        _ => unreachable!("two at most"),
    }
}

#[test]
fn o8_o9_requests_are_whole_or_everything() {
    explore(None, || taken_by(CpuSlot::take));
}

/// The words are read after the exchange that takes them: an initiator may already be writing
/// others.
#[test]
#[should_panic(expected = "torn")]
fn o8_words_read_after_they_were_taken() {
    explore(None, || {
        taken_by(|slot| {
            slot.take().map(|taken| Taken { request: taken.request.map(|_| slot.read()), ..taken })
        });
    });
}

/// The exchange succeeds whatever happened in between, and takes the earlier state.
#[test]
#[should_panic(expected = "lost")]
fn o9_request_that_came_between_look_and_exchange() {
    explore(None, || {
        taken_by(|slot| {
            let header = slot.header.fetch_or(0, AcqRel);
            let request = slot.read();
            let old = slot.header.fetch_and(!PENDING, AcqRel);
            let count = header >> COUNT_SHIFT;
            (old & PENDING != 0).then_some(Taken { count, is_late: true, request: Some(request) })
        });
    });
}
