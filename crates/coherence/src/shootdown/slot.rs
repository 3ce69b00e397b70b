//! The requests to one CPU: a cache line with a header that both sides change, and one request in
//! words.

use crate::shootdown::range::PageRange;
use crate::sync::{AtomicU64, Ordering, const_fn, update, zeroed};

/// Ranges that fit in the slot itself; more become everything.
pub const INLINE_RANGES: usize = 3;

/// Header: the CPU uses no translations of the space that it has loaded.
pub(super) const LAZY: u64 = 1 << 0;
/// Header: there is a request.
pub(super) const PENDING: u64 = 1 << 1;
/// Header: an initiator wants the acknowledgement after the flush.
pub(super) const LATE: u64 = 1 << 2;
/// Header: the words do not cover all requests.
pub(super) const EVERYTHING: u64 = 1 << 3;
/// Header: an initiator is writing the words.
pub(super) const FILLING: u64 = 1 << 4;
/// Header: the slot's CPU has claimed it.
const CLAIMED: u64 = 1 << 5;
/// Header: least significant bit of the count of requests. 58 bits: at one per 100 ns they last 900
/// years.
pub(super) const COUNT_SHIFT: u32 = 6;
const COUNT_ONE: u64 = 1 << COUNT_SHIFT;

/// Shape: the ranges are in the cells of the CPU whose number the shape has. Otherwise they are in
/// the slot.
const LENT: u64 = 1 << 0;
/// Shape: page tables are freed.
const TABLES: u64 = 1 << 1;
/// Shape: number of ranges, 16 bits.
const LEN_SHIFT: u32 = 8;
/// Longest list that a shape can describe.
pub(super) const LEN_MAX: usize = 0xffff;
/// Shape: lender, or the page sizes of the inline ranges, 8 bits each.
const REST_SHIFT: u32 = 24;

/// The words that one CPU shares with those that request flushes from it: one cache line.
///
/// # Ordering
///
/// ```text
/// initiator                               CPU of the slot
/// p  header: set FILLING, if neither      t  header: look
///    it nor PENDING is set                u  read the words
/// q  write the words                      v  header: clear PENDING, EVERYTHING, LATE, if it is as at t
/// r  header: clear FILLING, set           w  acknowledge: completed = count in the header at t
///    PENDING, count + 1
/// s  or instead of p to r: set PENDING
///    and EVERYTHING, count + 1
///
/// p after v     unread words are not overwritten
/// q before r    a reader sees complete words
/// u before v    the exchange fails if a request came in between: the words are incomplete (O8)
/// t before w    the acknowledged count is the one at t, and no request after it (O8)
/// ```
#[derive(Debug)]
#[repr(align(64))]
pub struct CpuSlot {
    /// Count of requests, and flags. Changed by read-modify-write only, `AcqRel` unless stated
    /// otherwise.
    pub(super) header: AtomicU64,
    /// Count of acknowledged requests. w releases, the wait acquires (G2). Written only by the
    /// slot's CPU.
    pub(super) completed: AtomicU64,
    space: AtomicU64,
    generation: AtomicU64,
    shape: AtomicU64,
    ranges: [AtomicU64; INLINE_RANGES],
}

const _: () = assert!(cfg!(loom) || size_of::<CpuSlot>() == 64);

/// A change of an address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Change {
    /// Id of the space.
    pub(super) space: u64,
    /// The generation that begins with the change.
    pub(super) generation: u64,
    /// Page tables are freed.
    pub(super) tables: bool,
}

/// The request that an initiator sends to each target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) change: Change,
    pub(super) list: List,
}

/// Where a request's ranges are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    /// In the request.
    Inline { ranges: [PageRange; INLINE_RANGES], len: usize },
    /// In the first `len` cells of CPU `cpu`.
    Lent { cpu: usize, len: usize },
}

impl List {
    /// The ranges in a form that fits a slot; `None` if they do not fit.
    pub(super) fn inline(ranges: &[PageRange]) -> Option<Self> {
        let mut inline = [PageRange::default(); INLINE_RANGES];
        inline.get_mut(..ranges.len())?.copy_from_slice(ranges);
        let fits = ranges.iter().all(|range| range.packed().is_some());
        fits.then_some(Self::Inline { ranges: inline, len: ranges.len() })
    }
}

/// A request that was posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Posted {
    /// Its number: the request is over when that many are acknowledged.
    pub(super) count: u64,
    /// No request was pending before it: its initiator interrupts the CPU.
    pub(super) is_first: bool,
}

/// Requests that the slot's CPU has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Taken {
    /// The count to acknowledge.
    pub(super) count: u64,
    /// The acknowledgement follows the flush.
    pub(super) is_late: bool,
    /// `None` if there were several, or if the ranges did not fit.
    pub(super) request: Option<Request>,
}

impl CpuSlot {
    const_fn! {
        /// The slot of a CPU that has nothing loaded.
        pub fn new() -> Self {
            Self {
                header: AtomicU64::new(0),
                completed: AtomicU64::new(0),
                space: AtomicU64::new(0),
                generation: AtomicU64::new(0),
                shape: AtomicU64::new(0),
                ranges: zeroed!(INLINE_RANGES),
            }
        }
    }

    /// Makes the caller the slot's CPU; false if the slot is already claimed.
    pub(super) fn claim(&self) -> bool {
        // Pairs with another claim: one of them is first.
        self.header.fetch_or(CLAIMED, Ordering::AcqRel) & CLAIMED == 0
    }

    /// The slot's CPU uses no translations of its space any more. Releases its accesses through
    /// them (G2).
    pub(super) fn set_lazy(&self) {
        // Pairs with `is_lazy`.
        self.header.fetch_or(LAZY, Ordering::AcqRel);
    }

    /// b: the slot's CPU is about to use them again.
    pub(super) fn clear_lazy(&self) {
        // Pairs with `is_lazy`: changes counted before that look are visible from here on.
        self.header.fetch_and(!LAZY, Ordering::AcqRel);
    }

    /// D: whether the CPU can be skipped because it is lazy.
    ///
    /// The look that counts is a read-modify-write: the CPU stops being lazy after it, and then
    /// sees the generation that the caller has counted. The load before it avoids touching others'
    /// cache lines; if the load is wrong, the CPU gets a needless request.
    pub(super) fn is_lazy(&self) -> bool {
        // The exchange pairs with `set_lazy` and `clear_lazy`.
        self.header.load(Ordering::Relaxed) & LAZY != 0
            && self.header.fetch_or(0, Ordering::AcqRel) & LAZY != 0
    }

    /// E: adds a request (p, q, r or s). Without `request`, or while another request is pending, it
    /// is one for everything.
    pub(super) fn post(&self, request: Option<&Request>, is_late: bool) -> Posted {
        let late = if is_late { LATE } else { 0 };
        match request {
            Some(request) if self.begin() => {
                self.write(request);
                self.count(FILLING, PENDING | late)
            }
            _ => self.count(0, PENDING | EVERYTHING | late),
        }
    }

    /// p: whether the caller may write the words.
    pub(super) fn begin(&self) -> bool {
        let begin = |header: u64| (header & (PENDING | FILLING) == 0).then_some(header | FILLING);
        update(&self.header, begin).is_ok()
    }

    /// r, s: counts a request.
    pub(super) fn count(&self, clear: u64, set: u64) -> Posted {
        let count = |header: u64| Some((header & !clear).checked_add(COUNT_ONE)? | set);
        match update(&self.header, count) {
            Ok(old) => Posted { count: (old >> COUNT_SHIFT) + 1, is_first: old & PENDING == 0 },
            Err(_) => panic!("out of request numbers"),
        }
    }

    /// q.
    pub(super) fn write(&self, request: &Request) {
        let mut shape = if request.change.tables { TABLES } else { 0 };
        match request.list {
            List::Inline { ranges, len } => {
                shape |= (len as u64) << LEN_SHIFT;
                let used = ranges.iter().take(len).zip(&self.ranges).enumerate();
                used.for_each(|(place, (range, word))| {
                    shape |= u64::from(range.shift) << (REST_SHIFT + 8 * place as u32);
                    word.store(range.packed().unwrap_or_default(), Ordering::Relaxed);
                });
            }
            List::Lent { cpu, len } => {
                shape |= LENT | (len as u64) << LEN_SHIFT | (cpu as u64) << REST_SHIFT;
            }
        }
        self.space.store(request.change.space, Ordering::Relaxed);
        self.generation.store(request.change.generation, Ordering::Relaxed);
        self.shape.store(shape, Ordering::Relaxed);
    }

    /// u.
    pub(super) fn read(&self) -> Request {
        let shape = self.shape.load(Ordering::Relaxed);
        let len = (shape >> LEN_SHIFT) as usize & LEN_MAX;
        let rest = shape >> REST_SHIFT;
        let list = if shape & LENT != 0 {
            List::Lent { cpu: rest as usize, len }
        } else {
            let range = |place: usize| {
                let word = self.ranges.get(place).filter(|_| place < len)?.load(Ordering::Relaxed);
                Some(PageRange::unpacked(word, (rest >> (8 * place)) as u8))
            };
            let ranges = core::array::from_fn(|place| range(place).unwrap_or_default());
            List::Inline { ranges, len: len.min(INLINE_RANGES) }
        };
        let change = Change {
            space: self.space.load(Ordering::Relaxed),
            generation: self.generation.load(Ordering::Relaxed),
            tables: shape & TABLES != 0,
        };
        Request { change, list }
    }

    /// Whether a request seems to be pending: a hint, for a caller that polls.
    pub(super) fn is_pending(&self) -> bool {
        self.header.load(Ordering::Relaxed) & PENDING != 0
    }

    /// J: takes the requests so far (t, u, v). They must be acknowledged.
    ///
    /// The look at t is a read-modify-write, which sees the newest header: an interrupt orders
    /// nothing, and is sent only once. Each failure of the exchange is another request, after which
    /// there are no words to read, so the loop ends.
    pub(super) fn take(&self) -> Option<Taken> {
        // Pairs with `count`, as the exchange below.
        let mut header = self.header.fetch_or(0, Ordering::AcqRel);
        while header & PENDING != 0 {
            let is_whole = header & (EVERYTHING | FILLING) == 0;
            let taken = Taken {
                count: header >> COUNT_SHIFT,
                is_late: header & LATE != 0,
                request: is_whole.then(|| self.read()),
            };
            let rest = header & !(PENDING | LATE | EVERYTHING);
            // Pairs with `begin`, which writes the words after they were read, and with `count`.
            match self.header.compare_exchange(header, rest, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Some(taken),
                Err(now) => header = now,
            }
        }
        None
    }

    /// L: acknowledges. Releases the CPU's accesses through the dropped translations (G2).
    pub(super) fn complete(&self, count: u64) {
        // Pairs with `is_complete`.
        self.completed.store(count, Ordering::Release);
    }

    /// H: whether request `count` is acknowledged. Acquires what `complete` released.
    pub(super) fn is_complete(&self, count: u64) -> bool {
        // Pairs with `complete`.
        self.completed.load(Ordering::Acquire) >= count
    }
}

impl Default for CpuSlot {
    fn default() -> Self {
        Self::new()
    }
}
