//! The requests to one target: a bounded list of ranges that overflows into "everything", and the
//! generation of the newest request.

use crate::sync::{AtomicU64, Ordering, const_fn, spin_loop, update, zeroed};

/// Ranges that a mailbox holds. One more turns the request into [`Scope::All`].
pub const RANGE_CAPACITY: usize = if cfg!(loom) { 2 } else { 16 };

/// A run of guest virtual pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GvaRange {
    /// Address of the first page.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

/// The translations that an initiator wants flushed.
///
/// Exhaustive: a caller that overlooks one flushes too little.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Every translation of the target that depends on the guest's tables.
    All,
    /// The translations of these ranges. More may be flushed, never less.
    Ranges(&'a [GvaRange]),
}

/// Ordinal of a request to one target. The first is 1.
///
/// 62 bits: at one request per nanosecond they last 146 years, and the increment is checked (O7).
///
/// One header word carries the generation together with the two facts that a consumer must learn at
/// the same instant: that everything is to be flushed, and that the list is not empty. A request
/// for everything therefore costs one read-modify-write and no lock.
///
/// ```text
/// initiator                                owner (out of guest mode)
/// a  append ranges, under the lock         e  clear FLUSH in the word
/// b  header: generation + 1, ALL/LISTED    f  header: sample generation, clear ALL/LISTED
/// c  set FLUSH in the word                 g  drain the list, under the lock
///
/// a before b   a sampled generation has its ranges in the list already
/// b before c   an owner that sees FLUSH sees the generation
/// e before f   a request that f misses sets FLUSH after e, and is taken next time
/// f before g   what g drains is at least what f counted (O8); the rest is flushed twice
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation(pub(crate) u64);

/// The reason why a request for ranges became one for everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Widened {
    /// No mailbox holds that many ranges.
    TooLong,
    /// This mailbox already holds too many other ranges.
    Overflow,
}

/// A request that was added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Posted {
    pub(crate) generation: Generation,
    pub(crate) widened: Option<Widened>,
}

/// The translations that an owner has to flush: a [`Scope`] that owns its ranges. The ranges are
/// empty if a request's ranges were taken together with an earlier request's.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::large_enum_variant, reason = "lives on the stack of one entry; nothing is allocated")]
pub(crate) enum Work {
    All,
    Ranges(RangeList),
}

/// Up to [`RANGE_CAPACITY`] ranges; dereferences to a slice.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeList {
    ranges: [GvaRange; RANGE_CAPACITY],
    len: usize,
}

impl core::ops::Deref for RangeList {
    type Target = [GvaRange];

    fn deref(&self) -> &[GvaRange] {
        self.ranges.get(..self.len).unwrap_or(&[])
    }
}

/// Header: everything is to be flushed.
const ALL: u64 = 1 << 0;
/// Header: the list was appended to.
const LISTED: u64 = 1 << 1;
/// Header: least significant bit of the generation.
const GENERATION_SHIFT: u32 = 2;

const UNLOCKED: u64 = 0;
const LOCKED: u64 = 1;

/// Many producers, one consumer.
pub(crate) struct Mailbox {
    /// Generation, [`LISTED`], [`ALL`]. `AcqRel`: b releases the initiator's page-table writes,
    /// f acquires them. Changed by read-modify-write only (O6).
    pub(crate) header: AtomicU64,
    /// Guards `len` and `slots`, which are atomic only so that no unsafe code is needed. Held for
    /// at most [`RANGE_CAPACITY`] copies, and never taken in an NMI handler.
    lock: AtomicU64,
    len: AtomicU64,
    first: [AtomicU64; RANGE_CAPACITY],
    pages: [AtomicU64; RANGE_CAPACITY],
}

impl Mailbox {
    const_fn! {
        pub(crate) fn new() -> Self {
            Self {
                header: AtomicU64::new(0),
                lock: AtomicU64::new(UNLOCKED),
                len: AtomicU64::new(0),
                first: zeroed!(RANGE_CAPACITY),
                pages: zeroed!(RANGE_CAPACITY),
            }
        }
    }

    /// Initiator: adds a request (events a and b). The caller then sets FLUSH (c).
    pub(crate) fn post(&self, scope: Scope<'_>) -> Posted {
        let all = |widened| Posted { generation: self.announce(ALL), widened };
        match scope {
            Scope::All => all(None),
            Scope::Ranges(ranges) if ranges.len() > RANGE_CAPACITY => all(Some(Widened::TooLong)),
            Scope::Ranges(ranges) => self.locked(|| {
                if self.append(ranges) {
                    Posted { generation: self.announce(LISTED), widened: None }
                } else {
                    all(Some(Widened::Overflow))
                }
            }),
        }
    }

    /// Owner: takes everything requested so far (events f and g).
    pub(crate) fn take(&self) -> (Generation, Work) {
        let header = self.sample();
        let ranges = if header & LISTED != 0 { self.locked(|| self.drain()) } else { RangeList::default() };
        let work = if header & ALL != 0 { Work::All } else { Work::Ranges(ranges) };
        (Generation(header >> GENERATION_SHIFT), work)
    }

    /// b: counts the request and records its kind, in one step.
    pub(crate) fn announce(&self, kind: u64) -> Generation {
        let count = |header: u64| header.checked_add(1 << GENERATION_SHIFT).map(|header| header | kind);
        match update(&self.header, count) {
            Ok(old) => Generation((old >> GENERATION_SHIFT) + 1),
            Err(_) => panic!("out of flush generations"),
        }
    }

    /// f: the newest generation, and the kinds of request that led up to it.
    pub(crate) fn sample(&self) -> u64 {
        // Pairs with `announce`.
        self.header.fetch_and(!(ALL | LISTED), Ordering::AcqRel)
    }

    /// a: returns false and appends nothing if the list has no room for all of `ranges`.
    pub(crate) fn append(&self, ranges: &[GvaRange]) -> bool {
        let len = self.len.load(Ordering::Relaxed) as usize;
        let slots = self.first.iter().zip(&self.pages).skip(len);
        if slots.len() < ranges.len() {
            return false;
        }
        for ((first, pages), range) in slots.zip(ranges) {
            first.store(range.first, Ordering::Relaxed);
            pages.store(range.pages, Ordering::Relaxed);
        }
        self.len.store((len + ranges.len()) as u64, Ordering::Relaxed);
        true
    }

    /// g: empties the list.
    pub(crate) fn drain(&self) -> RangeList {
        let len = self.len.load(Ordering::Relaxed) as usize;
        let mut list = RangeList { len, ..RangeList::default() };
        let slots = self.first.iter().zip(&self.pages).take(len);
        for (range, (first, pages)) in list.ranges.iter_mut().zip(slots) {
            range.first = first.load(Ordering::Relaxed);
            range.pages = pages.load(Ordering::Relaxed);
        }
        self.len.store(0, Ordering::Relaxed);
        list
    }

    /// Runs `section` under the lock. `Acquire` pairs with the `Release` of the holder before.
    pub(crate) fn locked<R>(&self, section: impl FnOnce() -> R) -> R {
        let lock = || self.lock.compare_exchange(UNLOCKED, LOCKED, Ordering::Acquire, Ordering::Relaxed);
        while lock().is_err() {
            spin_loop();
        }
        let result = section();
        // Pairs with the exchange by the next holder.
        self.lock.store(UNLOCKED, Ordering::Release);
        result
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    fn range(number: u64) -> GvaRange {
        GvaRange { first: number << 12, pages: number }
    }

    /// Posts `count` ranges in requests of `step` and returns what is taken.
    fn posted(count: usize, step: usize) -> Work {
        let mailbox = Mailbox::new();
        let ranges: Vec<_> = (1..=count as u64).map(range).collect();
        let newest = ranges.chunks(step).map(|chunk| mailbox.post(Scope::Ranges(chunk)).generation).last();
        let (generation, work) = mailbox.take();
        assert_eq!(Some(generation), newest);
        assert_eq!(mailbox.take(), (generation, Work::Ranges(RangeList::default())), "not emptied");
        work
    }

    #[test]
    fn o9_list_that_does_not_fit_becomes_everything() {
        for step in [1, 2, 3, 16, 17, 33] {
            for count in [17, 18, 31, 32, 33, 255] {
                assert_eq!(posted(count, step), Work::All, "{count} by {step}");
            }
            for count in [1, 15, 16] {
                let Work::Ranges(list) = posted(count, step) else { panic!("{count} by {step}") };
                assert!(list.iter().copied().eq((1..=count as u64).map(range)));
            }
        }
    }

    #[test]
    fn o10_request_after_the_sample_is_counted_next_time() {
        let mailbox = Mailbox::new();
        mailbox.post(Scope::Ranges(&[range(1)]));
        let sampled = mailbox.sample() >> GENERATION_SHIFT;
        mailbox.post(Scope::All);
        mailbox.locked(|| mailbox.drain());
        assert_eq!((sampled, mailbox.take()), (1, (Generation(2), Work::All)));
    }

    #[test]
    fn request_for_everything_waits_for_no_lock() {
        let mailbox = Mailbox::new();
        let taken = mailbox.locked(|| {
            mailbox.post(Scope::All);
            mailbox.post(Scope::Ranges(&[range(1); RANGE_CAPACITY + 1]));
            mailbox.take()
        });
        assert_eq!(taken, (Generation(2), Work::All));
    }

    #[test]
    #[should_panic(expected = "out of flush generations")]
    fn o7_generation_stops_rather_than_wraps() {
        let mailbox = Mailbox::new();
        mailbox.header.store(u64::MAX - 3, Ordering::Relaxed);
        mailbox.post(Scope::All);
    }

    proptest! {
        /// Requests and takes in any order: each range is taken, individually or by "everything",
        /// no later than its generation.
        #[test]
        fn g4_nothing_is_taken_short(steps in prop::collection::vec(0usize..20, 1..60)) {
            let mailbox = Mailbox::new();
            let mut outstanding: Vec<(Generation, Option<GvaRange>)> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    0..4 => {
                        let (generation, work) = mailbox.take();
                        outstanding.retain(|&(posted, range)| {
                            assert!(posted <= generation, "a request is left behind");
                            match (&work, range) {
                                (Work::All, _) => false,
                                (Work::Ranges(list), Some(range)) => !list.contains(&range),
                                (Work::Ranges(_), None) => true,
                            }
                        });
                        prop_assert!(outstanding.is_empty(), "lost: {outstanding:?}");
                    }
                    4 => outstanding.push((mailbox.post(Scope::All).generation, None)),
                    count => {
                        let base = 100 * number as u64;
                        let ranges: Vec<_> = (base..base + count as u64 - 5).map(range).collect();
                        let generation = mailbox.post(Scope::Ranges(&ranges)).generation;
                        outstanding.extend(ranges.iter().map(|&range| (generation, Some(range))));
                    }
                }
            }
        }
    }
}
