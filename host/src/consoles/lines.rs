//! The output of one console as whole lines, to be shown among the lines of other consoles.
//!
//! What a guest does to a screen of its own is left out: cursor movements, clearing, titles. A
//! carriage return starts the line anew, as on a terminal, and a backspace takes a character back.

use console::AnsiCodeIterator;
use std::time::{Duration, Instant};

/// A line without end is shown after this time without further bytes: it may be a prompt.
pub(super) const QUIET: Duration = Duration::from_millis(300);

/// A line is shown in pieces of about this many bytes if it is longer.
const BYTES_MAX: usize = 4096;

/// An escape sequence that is longer is none.
const ESCAPE_BYTES_MAX: usize = 64;

/// Columns between two tab stops.
const TAB: usize = 8;

/// A line to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its text, without control characters other than those of colours.
    pub(super) text: String,
    /// Its beginning has been shown already.
    pub(super) is_continued: bool,
}

/// Makes lines of a console's bytes.
#[derive(Clone, Debug)]
pub(super) struct Lines {
    has_colours: bool,
    pending: Vec<u8>,
    is_continued: bool,
    last: Option<Instant>,
}

impl Lines {
    /// The lines of a console, with the guest's colours or without.
    pub(super) const fn new(has_colours: bool) -> Self {
        Self { has_colours, pending: Vec::new(), is_continued: false, last: None }
    }

    /// The lines that these bytes complete, at this time.
    pub(super) fn feed(&mut self, bytes: &[u8], now: Instant) -> Vec<Row> {
        let mut rows = Vec::new();
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.last = Some(now);
            // In pieces, so that the pending text never exceeds its bound.
            for piece in part.chunks(BYTES_MAX) {
                self.pending.extend_from_slice(piece);
                if piece.ends_with(b"\n") {
                    rows.extend(self.row(self.pending.len()));
                    self.is_continued = false;
                } else if self.pending.len() >= BYTES_MAX {
                    rows.extend(self.row(self.whole()));
                }
            }
        }
        rows
    }

    /// The line without end, if no byte has come for a while.
    pub(super) fn quiet(&mut self, now: Instant) -> Option<Row> {
        let is_quiet = self.last.is_some_and(|last| now.saturating_duration_since(last) >= QUIET);
        if !is_quiet {
            return None;
        }
        self.last = None;
        self.row(self.whole())
    }

    /// The line without end when the console has ended.
    pub(super) fn finish(&mut self) -> Option<Row> {
        self.row(self.pending.len())
    }

    /// How many of the pending bytes are neither part of an unfinished escape sequence nor of an
    /// unfinished character.
    fn whole(&self) -> usize {
        let all = self.pending.len();
        let escape = self.pending.iter().rposition(|byte| *byte == 0x1b);
        if let Some(start) = escape.filter(|start| all - start <= ESCAPE_BYTES_MAX) {
            let text = String::from_utf8_lossy(&self.pending[start..]);
            if !AnsiCodeIterator::new(&text).any(|(_, is_escape)| is_escape) {
                return start;
            }
        }
        match std::str::from_utf8(&self.pending) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => all,
        }
    }

    /// The first `count` pending bytes as a line. There is none if nothing is visible in a line
    /// that goes on.
    fn row(&mut self, count: usize) -> Option<Row> {
        let bytes: Vec<u8> = self.pending.drain(..count).collect();
        let (is_end, is_continued) = (bytes.ends_with(b"\n"), self.is_continued);
        let text = visible(&String::from_utf8_lossy(&bytes), self.has_colours);
        if text.is_empty() && (is_continued || !is_end) {
            return None;
        }
        self.is_continued = true;
        Some(Row { text, is_continued })
    }
}

/// What is to be seen of a line.
fn visible(line: &str, has_colours: bool) -> String {
    let mut shown = Shown::default();
    for (part, is_escape) in AnsiCodeIterator::new(line) {
        if !is_escape {
            part.chars().for_each(|char| shown.put(char));
        } else if has_colours && part.starts_with("\x1b[") && part.ends_with('m') {
            shown.colour(part);
        }
    }
    shown.text()
}

/// A line of a screen.
#[derive(Default)]
struct Shown {
    /// Characters, each after the colours that begin there.
    cells: Vec<(String, char)>,
    /// Colours of the next character.
    colours: String,
    has_colours: bool,
    /// The next character begins the line anew.
    returned: bool,
}

impl Shown {
    fn put(&mut self, char: char) {
        match char {
            '\r' => self.returned = true,
            '\u{8}' => drop(self.cells.pop()),
            '\t' => {
                let next = (self.cells.len() / TAB + 1) * TAB;
                (self.cells.len()..next).for_each(|_| self.put(' '));
            }
            control if control.is_control() => {}
            visible => {
                if std::mem::take(&mut self.returned) {
                    self.cells.clear();
                }
                self.cells.push((std::mem::take(&mut self.colours), visible));
            }
        }
    }

    fn colour(&mut self, sequence: &str) {
        self.colours += sequence;
        self.has_colours = true;
    }

    fn text(self) -> String {
        let mut text = String::new();
        for (colours, char) in self.cells {
            text += &colours;
            text.push(char);
        }
        if self.has_colours && !text.is_empty() {
            text += "\x1b[0m";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(rows: impl IntoIterator<Item = Row>) -> Vec<String> {
        let mark = |row: Row| format!("{}{}", if row.is_continued { "+" } else { "" }, row.text);
        rows.into_iter().map(mark).collect()
    }

    #[test]
    fn lines_are_shown_when_they_are_whole_however_their_bytes_arrive() {
        let text = "boot\r\n\r\n[  0.1] caf\u{e9}\r\nlast".as_bytes();
        for size in 1..=text.len() {
            let mut lines = Lines::new(false);
            let mut rows = Vec::new();
            text.chunks(size).for_each(|bytes| rows.extend(lines.feed(bytes, Instant::now())));
            rows.extend(lines.finish());
            assert_eq!(texts(rows), ["boot", "", "[  0.1] caf\u{e9}", "last"], "in pieces of {size}");
        }
    }

    #[test]
    fn a_prompt_is_shown_after_a_quiet_time_and_its_line_goes_on() {
        let (begin, mut lines) = (Instant::now(), Lines::new(false));
        let after = |ms| begin + Duration::from_millis(ms);
        assert_eq!(lines.feed(b"a\r\n# ", begin).len(), 1);
        assert_eq!(lines.quiet(after(299)), None);
        assert_eq!(texts(lines.quiet(after(300))), ["# "]);
        assert_eq!(lines.quiet(after(900)), None, "it is shown once");
        assert_eq!(lines.feed(b"ls", after(1000)), []);
        assert_eq!(texts(lines.feed(b"\r\nbin\r\n", after(1001))), ["+ls", "bin"]);
        assert_eq!(lines.feed(b"# ", after(1002)), []);
        assert_eq!(texts(lines.quiet(after(2000))), ["# "]);
        assert_eq!(
            texts(lines.feed(b"\r\nnext\r\n", after(2001))),
            ["next"],
            "nothing is left of the prompt's"
        );
    }

    #[test]
    fn what_is_done_to_a_screen_is_left_out() {
        for (text, shown) in [
            ("\x1b[2J\x1b[H\x1b[31mred\x1b[0m text", "red text"),
            ("10 %\r20 %\r100 %\r", "100 %"),
            ("abc\rx", "x"),
            ("lsx\u{8} \u{8}", "ls"),
            ("\x1b[?25l\x1b]0;title\x07shell", "shell"),
            ("a\tb", "a       b"),
            ("\x07\x00bell\x7f", "bell"),
            ("\x1b[6n# ", "# "),
        ] {
            assert_eq!(visible(text, false), shown, "{text:?}");
        }
        assert_eq!(visible("\x1b[2J\x1b[31mred\x1b[0m text", true), "\x1b[31mred\x1b[0m text\x1b[0m");
        assert_eq!(visible("\x1b[31m", true), "");
    }

    #[test]
    fn half_an_escape_sequence_or_character_is_held_back() {
        let (begin, mut lines) = (Instant::now(), Lines::new(false));
        lines.feed(b"# \x1b[", begin);
        assert_eq!(texts(lines.quiet(begin + QUIET)), ["# "]);
        lines.feed(b"6nx\xc3", begin);
        assert_eq!(texts(lines.quiet(begin + QUIET)), ["+x"]);
        assert_eq!(texts(lines.feed(b"\xa9\n", begin)), ["+\u{e9}"]);
    }

    #[test]
    fn a_line_without_end_is_shown_in_pieces() {
        let mut lines = Lines::new(false);
        let rows = lines.feed(&vec![b'x'; 3 * BYTES_MAX + 1], Instant::now());
        assert_eq!(rows.len(), 3);
        assert!(rows.iter().all(|row| row.text.len() == BYTES_MAX));
        assert!(lines.pending.len() <= BYTES_MAX && !rows[0].is_continued && rows[2].is_continued);
        let escapes = [b"\x1b".as_slice(), &vec![b'['; 2 * BYTES_MAX]].concat();
        let mut lines = Lines::new(false);
        lines.feed(&escapes, Instant::now());
        assert!(lines.pending.len() <= BYTES_MAX, "what is no escape sequence is not kept");
    }
}
