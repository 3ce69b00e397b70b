//! The guest's console as read by this tool.
//!
//! It may also contain reports to the host tool.
//!
//! Arm machines have one serial port of their own. A report is a line that begins with `{` and is a
//! JSON object. Everything else is console output, whatever it looks like: the hypervisor's log has
//! a port that no guest reaches. Only at the end of a line is it known whether the line is a
//! report, so a candidate is held back until then; every other byte is passed on immediately,
//! because a user may be typing at a prompt.

use super::payload::Payload;
use super::reports::{LINE_MAX, Reports, Stream, report};
use crate::prelude::*;
use std::io::Read;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConsolePiece {
    Console(Vec<u8>),
    /// A report, and the length of its line in bytes.
    Report(Value, usize),
}

#[derive(Debug, Default)]
pub(crate) struct Splitter {
    /// The beginning of the line, while it may become a report.
    held: Vec<u8>,
    is_console: bool,
}

impl Splitter {
    /// The pieces that these bytes, which follow the previous ones, complete.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<ConsolePiece> {
        let mut pieces = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            let is_end = part.ends_with(b"\n");
            if self.is_console {
                show(&mut pieces, part);
            } else {
                self.held.extend_from_slice(part);
                if is_end {
                    let line = std::mem::take(&mut self.held);
                    pass(&mut pieces, line);
                } else if self.held.first().is_some_and(|byte| *byte != b'{') || self.held.len() > LINE_MAX {
                    self.is_console = true;
                    let begun = std::mem::take(&mut self.held);
                    show(&mut pieces, &begun);
                }
            }
            if is_end {
                self.is_console = false;
            }
        }
        pieces
    }

    pub(crate) fn finish(self) -> Option<ConsolePiece> {
        (!self.held.is_empty()).then_some(ConsolePiece::Console(self.held))
    }
}

fn pass(pieces: &mut Vec<ConsolePiece>, line: Vec<u8>) {
    match report(&line) {
        Some(report) => pieces.push(ConsolePiece::Report(report, line.len())),
        None => show(pieces, &line),
    }
}

/// Adds console output, to the last piece if that is console output.
fn show(pieces: &mut Vec<ConsolePiece>, bytes: &[u8]) {
    match pieces.last_mut() {
        Some(ConsolePiece::Console(shown)) => shown.extend_from_slice(bytes),
        _ => pieces.push(ConsolePiece::Console(bytes.to_vec())),
    }
}

/// Passes on input until QEMU closes it.
pub(super) fn read(mut source: impl Read, mut take: impl FnMut(&[u8])) {
    let mut buffer = [0; 4096];
    loop {
        match source.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => take(&buffer[..count]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}

pub(super) fn read_split(source: impl Read, mut take: impl FnMut(&[u8]), reports: &Reports) {
    let mut splitter = Splitter::default();
    let mut pass = |piece| match piece {
        ConsolePiece::Console(bytes) => take(&bytes),
        ConsolePiece::Report(report, bytes) => reports.add(report, bytes),
    };
    read(source, |bytes| splitter.feed(bytes).into_iter().for_each(&mut pass));
    splitter.finish().into_iter().for_each(pass);
}

/// Where reports are among what a machine shows.
pub(super) enum Among {
    /// They are lines of it, and taken out.
    Text(Arc<Reports>),
    /// They are lines of Xen's log, which stay in it.
    Log(Arc<Reports>),
}

impl Among {
    /// What takes them, in this machine, to `reports`.
    pub(super) fn of(spec: &Spec, reports: &Arc<Reports>) -> Option<Self> {
        match spec.payload {
            Payload::Xen { .. } => Some(Self::Log(Arc::clone(reports))),
            _ => spec.platform.arch().reports_on_console().then(|| Self::Text(Arc::clone(reports))),
        }
    }
}

/// Reads Xen's log, and the reports in it: what a domain has written is behind its number.
pub(super) fn read_logged(source: impl Read, mut take: impl FnMut(&[u8]), reports: &Reports) {
    let mut lines = Stream { line: Vec::new(), is_xens: true };
    read(source, |bytes| {
        take(bytes);
        lines.feed(bytes).into_iter().for_each(|report| {
            let length = report.to_string().len();
            reports.add(report, length);
        });
    });
}

/// Whole lines that contain `text`, and where each ends; the first byte is number `from`.
pub(super) fn lines_with(text: &str, bytes: &[u8], from: usize) -> Vec<(String, usize)> {
    let mut end = from;
    let mut found = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        end += line.len();
        let shown = String::from_utf8_lossy(line);
        if line.ends_with(b"\n") && shown.contains(text) {
            found.push((shown.trim_end().to_owned(), end));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(parts: &[&[u8]]) -> Vec<ConsolePiece> {
        let mut splitter = Splitter::default();
        let mut all: Vec<ConsolePiece> = Vec::new();
        let pieces: Vec<_> = parts.iter().flat_map(|part| splitter.feed(part)).collect();
        for piece in pieces.into_iter().chain(splitter.finish()) {
            match piece {
                ConsolePiece::Console(bytes) => show(&mut all, &bytes),
                other => all.push(other),
            }
        }
        all
    }

    const TEXT: &[u8] =
        b"boot\r\n{\"event\":\"boot\"}\r\nquell: a line\r\n{no json}\n# quell: x\n{\"a\":1} b\n# ";

    #[test]
    fn lines_are_found_when_they_are_whole() {
        let bytes = b"xx\nload: a=1\r\n\xff load: b\nother\nload: c";
        let lines = |from: usize| lines_with("load: ", &bytes[from..], from);
        assert_eq!(lines(0), [("load: a=1".to_owned(), 14), ("\u{fffd} load: b".to_owned(), 24)]);
        assert_eq!(lines(14).len(), 1);
        assert_eq!(lines(24), []);
    }

    #[test]
    fn what_a_domain_reports_is_read_from_xens_log_and_stays_there() {
        let log = b"(XEN) {\"a\":1}\n(d1) {\"b\":2}\r\n{\"c\":3}\n(dx) {\"d\":4}\n(d12) {\"e\":5\n";
        let (reports, mut shown) = (Reports::new(), Vec::new());
        read_logged(&log[..], |bytes| shown.extend_from_slice(bytes), &reports);
        assert_eq!(reports.all(), [json!({"b": 2}), json!({"c": 3})]);
        assert_eq!(shown, log);
    }

    #[test]
    fn reports_are_told_apart_however_the_bytes_arrive() {
        let expected = [
            ConsolePiece::Console(b"boot\r\n".to_vec()),
            ConsolePiece::Report(json!({"event": "boot"}), 18),
            ConsolePiece::Console(b"quell: a line\r\n{no json}\n# quell: x\n{\"a\":1} b\n# ".to_vec()),
        ];
        assert_eq!(split(&[TEXT]), expected);
        for size in 1..TEXT.len() {
            let parts: Vec<_> = TEXT.chunks(size).collect();
            assert_eq!(split(&parts), expected, "in pieces of {size}");
        }
    }

    #[test]
    fn a_prompt_is_shown_at_once() {
        let mut splitter = Splitter::default();
        assert_eq!(splitter.feed(b"\n# "), [ConsolePiece::Console(b"\n# ".to_vec())]);
        assert_eq!(splitter.feed(b"q"), [ConsolePiece::Console(b"q".to_vec())]);
        assert_eq!(splitter.feed(b"\nqu"), [ConsolePiece::Console(b"\nqu".to_vec())]);
    }

    #[test]
    fn what_is_held_back_is_neither_lost_nor_without_bound() {
        assert_eq!(split(&[b"{\"a\":"]), [ConsolePiece::Console(b"{\"a\":".to_vec())]);
        let mut splitter = Splitter::default();
        assert_eq!(splitter.feed(&vec![b'{'; LINE_MAX]), []);
        assert_eq!(splitter.feed(b"{"), [ConsolePiece::Console(vec![b'{'; LINE_MAX + 1])]);
        assert_eq!(splitter.feed(b"\n{\"b\":2}\n").last(), Some(&ConsolePiece::Report(json!({"b": 2}), 8)));
    }
}
