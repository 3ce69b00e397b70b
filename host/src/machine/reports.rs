//! The guest's reports to this tool, JSON objects, one per line; and bounded buffers for all of its
//! output: a guest may produce output for as long as it runs, and as fast as it likes.
//!
//! Nothing here makes the guest wait. Excess output is dropped and counted.

use crate::prelude::*;
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard};

pub(super) const LINE_MAX: usize = 1 << 16;

#[derive(Debug)]
pub(super) struct Reports {
    kept: Mutex<Ends<Value>>,
    comes: Condvar,
    /// Number of lines that began like a report but were too long.
    too_long: AtomicUsize,
}

impl Reports {
    pub(super) const fn new() -> Self {
        Self { kept: Mutex::new(Ends::new()), comes: Condvar::new(), too_long: AtomicUsize::new(0) }
    }

    /// Waits for the report channel, and reads it.
    pub(super) fn listen(reports: &Arc<Self>, listener: UnixListener) -> JoinHandle<()> {
        let reports = Arc::clone(reports);
        thread::spawn(move || listener.accept().into_iter().for_each(|(stream, _)| reports.read(stream)))
    }

    fn kept(&self) -> MutexGuard<'_, Ends<Value>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, report: Value, bytes: usize) {
        self.kept().push(report, bytes);
        self.comes.notify_one();
    }

    /// The report with this number, or the next one that is kept; and the successor's number.
    pub(super) fn await_one(&self, number: usize, timeout: Duration) -> Option<(Value, usize)> {
        let kept = self.kept();
        let waited = self.comes.wait_timeout_while(kept, timeout, |kept| kept.at(number).is_none());
        waited.unwrap_or_else(PoisonError::into_inner).0.at(number)
    }

    pub(super) fn all(&self) -> Vec<Value> {
        self.kept().all()
    }

    pub(super) fn dropped(&self) -> usize {
        self.kept().dropped() + self.too_long.load(Ordering::Relaxed)
    }

    /// Processes the report channel's lines. The guest's kernel may print there, too.
    pub(super) fn read(&self, source: impl Read) {
        let mut source = BufReader::new(source);
        let mut line = Vec::new();
        let mut is_rest = false;
        loop {
            line.clear();
            let is_read = source.by_ref().take(LINE_MAX as u64).read_until(b'\n', &mut line);
            if is_read.is_err() || line.is_empty() {
                return;
            }
            // A line without either end continues until the channel ends.
            let is_end = line.ends_with(b"\n") || line.len() < LINE_MAX;
            match report(&line) {
                Some(report) if is_end && !is_rest => self.add(report, line.len()),
                _ if !is_end && !is_rest && line.starts_with(b"{") => {
                    self.too_long.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
            is_rest = !is_end;
        }
    }
}

pub(super) fn report(line: &[u8]) -> Option<Value> {
    serde_json::from_slice::<Value>(line.trim_ascii()).ok().filter(Value::is_object)
}

/// What a line of Xen's log says that begins with a domain's number.
fn behind_number(line: &[u8]) -> &[u8] {
    let rest = line.strip_prefix(b"(d").unwrap_or_default();
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if digits > 0 { rest[digits..].strip_prefix(b") ").unwrap_or(line) } else { line }
}

/// The reports in bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Stream {
    pub(super) line: Vec<u8>,
    /// They are in Xen's log.
    pub(super) is_xens: bool,
}

impl Stream {
    /// The reports that these bytes complete. A line that is too long is none.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<Value> {
        let mut reports = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.line.len() + part.len() <= LINE_MAX {
                self.line.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                let line = std::mem::take(&mut self.line);
                reports.extend(report(if self.is_xens { behind_number(&line) } else { &line }));
            }
        }
        reports
    }
}

/// The end of a text, each byte of which has a number: the count of bytes before it.
#[derive(Debug)]
pub(super) struct Ring {
    bytes: Vec<u8>,
    first: usize,
    least: usize,
}

/// The requested text begins before the kept part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dropped {
    pub(super) count: usize,
}

impl Ring {
    /// Keeps the last `least` bytes, and never more than twice as many.
    pub(super) const fn new(least: usize) -> Self {
        Self { bytes: Vec::new(), first: 0, least }
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        // In pieces, so that the kept text never exceeds its bound meanwhile.
        for piece in bytes.chunks(self.least) {
            self.bytes.extend_from_slice(piece);
            if self.bytes.len() > 2 * self.least {
                // Rarely: each byte is moved at most once, on average.
                let excess = self.bytes.len() - self.least;
                self.bytes.drain(..excess);
                self.first += excess;
            }
        }
    }

    /// The text after the first `from` bytes.
    pub(super) fn behind(&self, from: usize) -> Result<&[u8], Dropped> {
        match from.checked_sub(self.first) {
            Some(skipped) => Ok(self.bytes.get(skipped..).unwrap_or_default()),
            None => Err(Dropped { count: self.first - from }),
        }
    }

    /// The kept text, after a line that says how much was dropped.
    pub(super) fn shown(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        match self.first {
            0 => text.into_owned(),
            dropped => format!("({dropped} bytes before this are not kept)\n{text}"),
        }
    }
}

/// The first and the last of a sequence, each up to a number of values and a number of bytes.
#[derive(Debug)]
pub(super) struct Ends<T> {
    first: Side<T>,
    last: Side<T>,
    last_from: usize,
}

#[derive(Debug)]
struct Side<T> {
    values: VecDeque<(T, usize)>,
    bytes: usize,
}

impl<T> Side<T> {
    const fn new() -> Self {
        Self { values: VecDeque::new(), bytes: 0 }
    }

    fn add(&mut self, value: T, bytes: usize) {
        self.values.push_back((value, bytes));
        self.bytes += bytes;
    }

    fn has_room(&self, count: usize, bytes: usize) -> bool {
        self.values.len() + count <= Ends::<T>::COUNT_MAX && self.bytes + bytes <= Ends::<T>::BYTES_MAX
    }
}

impl<T: Clone> Ends<T> {
    pub(super) fn push(&mut self, value: T, bytes: usize) {
        let is_whole = self.last.values.is_empty() && self.last_from == self.first.values.len();
        if is_whole && self.first.has_room(1, bytes) {
            self.first.add(value, bytes);
            self.last_from += 1;
            return;
        }
        self.last.add(value, bytes);
        while !self.last.has_room(0, 0) {
            let (_, bytes) = self.last.values.pop_front().expect("an empty one has room");
            self.last.bytes -= bytes;
            self.last_from += 1;
        }
    }

    /// The value with this number, or the next one that is kept; and the successor's number.
    pub(super) fn at(&self, number: usize) -> Option<(T, usize)> {
        if let Some((value, _)) = self.first.values.get(number) {
            return Some((value.clone(), number + 1));
        }
        let index = number.saturating_sub(self.last_from);
        self.last.values.get(index).map(|(value, _)| (value.clone(), self.last_from + index + 1))
    }

    pub(super) fn all(&self) -> Vec<T> {
        self.first.values.iter().chain(&self.last.values).map(|(value, _)| value.clone()).collect()
    }

    pub(super) fn dropped(&self) -> usize {
        self.last_from - self.first.values.len()
    }
}

impl<T> Ends<T> {
    /// The most values at each end, and the most bytes.
    pub(super) const COUNT_MAX: usize = 1024;
    pub(super) const BYTES_MAX: usize = 1 << 20;

    pub(super) const fn new() -> Self {
        Self { first: Side::new(), last: Side::new(), last_from: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_that_are_no_reports_are_skipped() {
        let reports = Reports::new();
        reports.read(&b"boot\r\n{\"a\":1}\r\n[2]\n{\"b\":\n{\"c\":3} d\n(d1) {\"f\":6}\n{\"e\":5}"[..]);
        assert_eq!(reports.all(), [json!({"a": 1}), json!({"e": 5})]);
        assert_eq!(reports.dropped(), 0);
        let (first, next) = reports.await_one(0, Duration::ZERO).expect("is there");
        assert_eq!((first, next), (json!({"a": 1}), 1));
        assert_eq!(reports.await_one(2, Duration::ZERO), None);
    }

    #[test]
    fn u18_a_line_without_end_is_not_kept() {
        let mut text = vec![b'{'; 3 * LINE_MAX + 5];
        text.extend_from_slice(b"\n{\"a\":1}\n");
        let reports = Reports::new();
        reports.read(&*text);
        assert_eq!((reports.all(), reports.dropped()), (vec![json!({"a": 1})], 1));
        let longest = format!("{{\"a\":\"{}\"}}\n", "x".repeat(LINE_MAX - 9));
        assert_eq!(longest.len(), LINE_MAX);
        let reports = Reports::new();
        reports.read(format!("{longest}{{\"b\":2}}\n").as_bytes());
        assert_eq!((reports.all().len(), reports.dropped()), (2, 0));
    }

    const LEAST: usize = 16;

    proptest! {
        #[test]
        fn u18_a_ring_is_the_end_of_all_that_came(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 0..20),
            from in 0_usize..500,
        ) {
            let mut ring = Ring::new(LEAST);
            let mut all = Vec::new();
            for piece in pieces {
                ring.push(&piece);
                all.extend_from_slice(&piece);
                prop_assert!(ring.bytes.len() <= 2 * LEAST);
                prop_assert!(ring.bytes.len() >= all.len().min(LEAST));
                match ring.behind(from) {
                    Ok(text) => prop_assert_eq!(text, all.get(from..).unwrap_or_default()),
                    Err(Dropped { count }) => {
                        prop_assert!(from + LEAST < all.len(), "what has to be there is not");
                        prop_assert_eq!(&ring.bytes, &all[from + count..]);
                    }
                }
                prop_assert_eq!(ring.shown().contains("not kept"), ring.bytes.len() < all.len());
            }
        }

        #[test]
        fn u18_the_first_and_the_last_are_kept(sizes in proptest::collection::vec(1_usize..500_000, 0..40)) {
            let mut ends = Ends::new();
            for (number, &size) in sizes.iter().enumerate() {
                ends.push(number, size);
                // The naive way: as many as fit from the front, and of the others from the back.
                let sum = |range: &[usize]| range.iter().sum::<usize>();
                let upto = (0..=number + 1).rev().find(|&upto| sum(&sizes[..upto]) <= Ends::<usize>::BYTES_MAX);
                let upto = upto.expect("nothing has room");
                let rest = (upto..=number + 1).find(|&from| sum(&sizes[from..=number]) <= Ends::<usize>::BYTES_MAX);
                let rest = rest.expect("nothing has room");
                let kept: Vec<_> = (0..upto).chain(rest..=number).collect();
                prop_assert_eq!(ends.all(), kept.clone());
                prop_assert_eq!(ends.dropped(), number + 1 - kept.len());
                let mut walked = Vec::new();
                let mut at = 0;
                while let Some((value, next)) = ends.at(at) {
                    walked.push(value);
                    at = next;
                }
                prop_assert_eq!(walked, kept);
            }
        }
    }

    #[test]
    fn u18_many_small_ones_are_bounded_by_their_number() {
        let mut ends = Ends::new();
        (0..3 * Ends::<usize>::COUNT_MAX).for_each(|number| ends.push(number, 1));
        assert_eq!(ends.all().len(), 2 * Ends::<usize>::COUNT_MAX);
        assert_eq!(ends.dropped(), Ends::<usize>::COUNT_MAX);
        assert_eq!(ends.all().last(), Some(&(3 * Ends::<usize>::COUNT_MAX - 1)));
    }
}
