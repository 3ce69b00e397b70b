//! The output of one console as whole lines, to be shown among the lines of other consoles.
//!
//! What a guest does to a screen of its own is left out: cursor movements, clearing, titles. A
//! carriage return starts the line anew, as on a terminal, and a backspace takes a character back.

use crate::prelude::*;
use crate::text::moves_text;
use console::{AnsiCodeIterator, measure_text_width};

/// A line without end is shown after this time without further bytes: it may be a prompt.
pub(super) const QUIET: Duration = Duration::from_millis(300);

/// A line is shown in pieces of about this many bytes if it is longer.
const BYTES_MAX: usize = 4096;

/// An escape sequence that is longer is none.
const ESCAPE_BYTES_MAX: usize = 64;

const TAB: usize = 8;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Row {
    /// Its text, without control characters other than those of colours.
    pub(super) text: String,
    /// Its beginning has been shown already.
    pub(super) is_continued: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Lines {
    has_colours: bool,
    pending: Vec<u8>,
    is_continued: bool,
    last: Option<Instant>,
}

impl Lines {
    pub(super) const fn new(has_colours: bool) -> Self {
        Self { has_colours, pending: Vec::new(), is_continued: false, last: None }
    }

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
        self.last.take_if(|last| now.saturating_duration_since(*last) >= QUIET)?;
        self.row(self.whole())
    }

    /// The line without end when the console has ended.
    pub(super) fn finish(&mut self) -> Option<Row> {
        self.row(self.pending.len())
    }

    /// How many pending bytes are before an unfinished escape sequence or character.
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

    /// The first `count` pending bytes as a line, if something is visible or it is a whole one.
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

fn visible(line: &str, has_colours: bool) -> String {
    let mut shown = Shown::default();
    for (part, is_escape) in AnsiCodeIterator::new(line) {
        if !is_escape {
            part.chars().for_each(|char| shown.put(char));
        } else if has_colours && is_colour(part) {
            shown.colours += part;
            shown.has_colours = true;
        }
    }
    shown.text()
}

/// Whether an escape sequence sets colours and does nothing else: `CSI`, numbers, `m`. With other
/// characters it may be a question, which the terminal answers as if the user typed.
fn is_colour(sequence: &str) -> bool {
    let numbers = sequence.strip_prefix("\x1b[").and_then(|rest| rest.strip_suffix('m'));
    numbers.is_some_and(|numbers| numbers.bytes().all(|byte| byte.is_ascii_digit() || byte == b';'))
}

/// A line in rows of at most this many columns. Colours end with each row, and go on in the next.
pub(super) fn fold(text: &str, columns: usize) -> Vec<String> {
    let (mut rows, mut row, mut used) = (Vec::new(), String::new(), 0);
    let mut colours = String::new();
    for (part, is_escape) in AnsiCodeIterator::new(text) {
        if is_escape {
            row += part;
            if matches!(part, "\x1b[m" | "\x1b[0m") || colours.len() + part.len() > ESCAPE_BYTES_MAX {
                colours.clear();
            }
            colours += part;
            continue;
        }
        for char in part.chars() {
            let width = measure_text_width(char.encode_utf8(&mut [0; 4]));
            if used + width > columns && used > 0 {
                if !colours.is_empty() {
                    row += "\x1b[0m";
                }
                rows.push(std::mem::replace(&mut row, colours.clone()));
                used = 0;
            }
            row.push(char);
            used += width;
        }
    }
    rows.push(row);
    rows
}

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
            control if control.is_control() || moves_text(control) => {}
            visible => {
                if std::mem::take(&mut self.returned) {
                    self.cells.clear();
                }
                self.cells.push((std::mem::take(&mut self.colours), visible));
            }
        }
    }

    fn text(self) -> String {
        let mut text: String = self.cells.into_iter().map(|(set, char)| format!("{set}{char}")).collect();
        if self.has_colours && !text.is_empty() {
            text += "\x1b[0m";
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

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
    fn u53_only_colours_pass_to_a_terminal() {
        for pass in ["\x1b[m", "\x1b[0m", "\x1b[1;38;5;200m"] {
            assert_eq!(visible(&format!("{pass}x"), true), format!("{pass}x\x1b[0m"));
        }
        for stay in [
            "\x1b[?4m",
            "\x1b[#?0m",
            "\x1b[>4;2m",
            "\x1b[<0;1;1m",
            "\x1b[=1m",
            "\x1b[0 m",
            "\x1b[!p",
            "\x1b[6n",
            "\x1b[c",
            "\x1b[?1049h",
            "\x1b]11;?\x07",
            "\x1bP$qm\x1b\\",
            "\x1b[1$m",
            "\u{9b}6n",
            "\u{202e}",
            "\u{2028}",
        ] {
            let shown = visible(&format!("{stay}x"), true);
            assert!(
                !shown.contains('\x1b') && !shown.contains(['\u{9b}', '\u{202e}', '\u{2028}']),
                "{shown:?}"
            );
        }
    }

    proptest! {
        /// Whatever a guest sends, what remains is text and colours.
        #[test]
        fn u53_nothing_but_text_and_colours_remains(text in "(\x1b\\[[?#>=<!$ ]?[0-9;:]{0,3}[?#$ ]?[mhncx]|\x1b[\\]P][0-9?;]{0,3}[\x07\x18a]?|[\x1b\u{9b}\\[]|\\PC){0,20}") {
            let shown = visible(&text, true);
            for (index, rest) in shown.split('\x1b').enumerate() {
                prop_assert!(!rest.chars().any(char::is_control), "{shown:?}");
                let numbers = rest.strip_prefix('[').and_then(|rest| Some(rest.split_once('m')?.0));
                let is_colour = numbers.is_some_and(|all| all.chars().all(|char| "0123456789;".contains(char)));
                prop_assert!(index == 0 || is_colour, "{shown:?}");
            }
        }

        /// No row is wider than the terminal, and nothing is lost.
        #[test]
        fn u53_rows_fit_the_terminal(text in "([a-z\u{e9}\u{301}\u{4e2d}\u{1f600}]|\x1b\\[[0-9;]{0,4}m){0,80}", columns in 2_usize..20) {
            let rows = fold(&text, columns);
            let plain = |text: &str| console::strip_ansi_codes(text).into_owned();
            for row in &rows {
                prop_assert!(measure_text_width(row) <= columns, "{row:?}");
            }
            prop_assert_eq!(rows.iter().map(|row| plain(row)).collect::<String>(), plain(&text));
        }
    }

    #[test]
    fn u53_colours_go_on_in_the_next_row() {
        assert_eq!(
            fold("\x1b[31mabcd\x1b[0me", 2),
            ["\x1b[31mab\x1b[0m", "\x1b[31mcd\x1b[0m\x1b[0m", "\x1b[0me"]
        );
        assert_eq!(fold("", 2), [""]);
        let row = fold(&format!("{}ab", "\x1b[31m".repeat(100)), 1).pop().expect("has one");
        assert!(row.len() < 2 * ESCAPE_BYTES_MAX, "what is repeated is short");
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
