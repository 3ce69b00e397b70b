//! The guest's reports to this tool: JSON objects, one per line.

use super::kept::Ends;
use crate::prelude::*;
use std::io::{BufRead, BufReader, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, MutexGuard};

pub(super) const LINE_MAX: usize = 1 << 16;

/// The reports so far, or the first and the last of them.
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

    fn kept(&self) -> MutexGuard<'_, Ends<Value>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, report: Value, bytes: usize) {
        self.kept().push(report, bytes);
        self.comes.notify_one();
    }

    /// Waits for the report with this number, for at most `timeout`. If it has been dropped,
    /// returns the next one; also returns the number of the successor.
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

    /// Processes the lines of the report channel until it is closed. Lines that are not reports are
    /// skipped: the guest's kernel may print there, too.
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

/// The reports in bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Stream {
    line: Vec<u8>,
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
                reports.extend(report(&std::mem::take(&mut self.line)));
            }
        }
        reports
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_reports_are_skipped() {
        let reports = Reports::new();
        reports.read(&b"boot\r\n{\"a\":1}\r\n[2]\n{\"b\":\n{\"c\":3} d\n{\"e\":5}"[..]);
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

    #[test]
    fn u18_the_last_report_is_kept_however_many_come_before() {
        let reports = Reports::new();
        let flood = "{\"event\":\"flood\"}\n".repeat(3 * Ends::<Value>::COUNT_MAX);
        reports.read(
            format!("{{\"event\":\"begin\"}}\n{flood}{{\"event\":\"exit\",\"status\":7}}\n").as_bytes(),
        );
        let all = reports.all();
        assert_eq!(all.first(), Some(&json!({"event": "begin"})));
        assert_eq!(all.last(), Some(&json!({"event": "exit", "status": 7})));
        assert_eq!(all.len() + reports.dropped(), 3 * Ends::<Value>::COUNT_MAX + 2);
        assert!(reports.dropped() > 0);
    }
}
