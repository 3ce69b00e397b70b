//! Rows of several consoles, one below the other, each after its guest's name.

use super::lines::{Row, fold};
use crate::machine::log_file::{Output, Sink};
use crate::prelude::*;
use console::{Color, Style};
use std::io::Write;
use std::iter::repeat;

/// Makes a terminal cut lines that are too long, and go on below with them again (DECAWM).
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

const COLOURS: [Color; 6] =
    [Color::Cyan, Color::Yellow, Color::Green, Color::Magenta, Color::Blue, Color::Red];

pub(super) struct Screen {
    output: Output<Box<dyn Write + Send>>,
    has_colours: bool,
    /// The terminal's columns; `None` elsewhere.
    columns: fn() -> Option<usize>,
    /// Columns for names.
    width: usize,
    names: Vec<Name>,
}

impl Screen {
    /// A screen for these guests, and for others that come later.
    pub(super) fn new(sink: Box<dyn Write + Send>, has_colours: bool, names: &[Name]) -> Self {
        let width = names.iter().map(|name| name.as_str().len()).max().unwrap_or(0);
        Self { output: Output::new(sink), has_colours, columns: || None, width, names: names.to_vec() }
    }

    /// The same on a terminal, whose rows are as long as this says each time.
    pub(super) fn on_terminal(self, columns: fn() -> Option<usize>) -> Self {
        Self { columns, ..self }
    }

    pub(super) fn rows(&mut self, name: Name, rows: impl IntoIterator<Item = Row>) {
        for row in rows {
            self.put(name, if row.is_continued { '+' } else { '|' }, &row.text);
        }
    }

    /// Shows something about a guest that its console did not.
    pub(super) fn remark(&mut self, name: Name, text: &str) {
        self.put(name, '*', text);
    }

    /// Shows bytes as they are.
    pub(super) fn raw(&mut self, bytes: &[u8]) {
        self.output.show(bytes);
    }

    pub(super) fn flush(&mut self) {
        self.output.flush();
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.output.failure()
    }

    fn put(&mut self, name: Name, sign: char, text: &str) {
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.names.len() - 1
        });
        let width = self.width.max(name.as_str().len());
        self.width = width;
        let style = Style::new().fg(COLOURS[index % COLOURS.len()]).force_styling(self.has_colours);
        let columns = (self.columns)();
        // A row that the terminal would go on with below would begin without its guest's name, and
        // could look like another one's.
        let rows = columns
            .map_or_else(|| vec![text.to_owned()], |all| fold(text, all.saturating_sub(width + 4).max(2)));
        for (row, sign) in rows.iter().zip([sign].into_iter().chain(repeat('+'))) {
            let prefix = format!("{name:<width$}  {sign}");
            let line = format!("{} {row}", style.apply_to(prefix));
            let line = line.trim_end();
            // A terminal may take a character for wider than this tool does.
            let line =
                if columns.is_some() { format!("{NO_WRAP}{line}{WRAP}\n") } else { format!("{line}\n") };
            self.raw(line.as_bytes());
        }
    }
}

#[cfg(test)]
pub(super) mod made {
    //! A screen that a test reads.

    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    pub(crate) struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Paper {
        pub(crate) fn text(&self) -> String {
            String::from_utf8_lossy(&self.0.lock().expect("is whole")).into_owned()
        }
    }

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("is whole").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made::Paper;
    use super::*;

    fn name(text: &str) -> Name {
        Name::parse(text).expect("is one")
    }

    fn row(text: &str, is_continued: bool) -> Option<Row> {
        Some(Row { text: text.to_owned(), is_continued })
    }

    #[test]
    fn u53_each_row_of_a_terminal_has_its_guests_name() {
        let (web, db) = (name("web"), name("db"));
        let paper = Paper::default();
        let screen = Screen::new(Box::new(paper.clone()), false, &[web, db]);
        let mut screen = screen.on_terminal(|| Some(12));
        screen.rows(web, row("12345db   | x", false));
        screen.rows(db, row("\u{4e2d}\u{4e2d}\u{4e2d}", true));
        screen.remark(db, "running");
        let rows = paper.text().replace(NO_WRAP, "<").replace(WRAP, ">");
        let expected = "<web  | 12345>\n<web  + db>\n<web  + | x>\n<db   + \u{4e2d}\u{4e2d}>\n<db   + \u{4e2d}>\n\
                        <db   * runni>\n<db   + ng>\n";
        assert_eq!(rows, expected);
    }

    #[test]
    fn names_are_aligned_and_coloured_on_a_terminal_only() {
        let (web, db, late) = (name("web"), name("db"), name("latecomer"));
        let paper = Paper::default();
        let mut screen = Screen::new(Box::new(paper.clone()), false, &[web, db]);
        screen.rows(web, row("one", false));
        screen.rows(db, row("two", true));
        screen.rows(db, row("", false));
        screen.remark(late, "running");
        screen.rows(web, row("three", false));
        let expected = "web  | one\ndb   + two\ndb   |\nlatecomer  * running\nweb        | three\n";
        assert_eq!(paper.text(), expected);

        let paper = Paper::default();
        let mut screen = Screen::new(Box::new(paper.clone()), true, &[web, db]);
        screen.rows(web, row("one", false));
        screen.rows(db, row("two", false));
        assert_eq!(paper.text(), "\x1b[36mweb  |\x1b[0m one\n\x1b[33mdb   |\x1b[0m two\n");
    }
}
