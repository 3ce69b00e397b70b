//! Text in rows and columns: what a terminal makes of the bytes that it gets.
//!
//! The cells are kept in RAM, so nothing is ever read from a screen. What is drawn is each cell
//! that changes.

/// The most columns and rows.
pub const COLUMNS_MAX: usize = 160;
/// As above.
pub const ROWS_MAX: usize = 100;

const BLANK: u8 = b' ';
/// Stands for what is no ASCII.
const UNKNOWN: u8 = b'?';
const TAB: usize = 8;
/// The screen moves up by this part of its rows at once: to move it is slow.
const STEPS: usize = 4;

/// How far an escape sequence has come (ECMA-48, section 5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Escape {
    None,
    Begun,
    /// Of a control sequence: whether it has parameters.
    Control(bool),
}

/// The cells.
#[derive(Debug)]
pub struct Text {
    columns: usize,
    rows: usize,
    /// The place of the next character; a full row goes on in the next one when that has come.
    column: usize,
    row: usize,
    escape: Escape,
    cells: [[u8; COLUMNS_MAX]; ROWS_MAX],
}

impl Text {
    /// Blank, with at most [`COLUMNS_MAX`] columns and [`ROWS_MAX`] rows.
    pub const fn new(columns: usize, rows: usize) -> Self {
        let columns = if columns < COLUMNS_MAX { columns } else { COLUMNS_MAX };
        let rows = if rows < ROWS_MAX { rows } else { ROWS_MAX };
        let cells = [[BLANK; COLUMNS_MAX]; ROWS_MAX];
        Self { columns, rows, column: 0, row: 0, escape: Escape::None, cells }
    }

    /// Blank, with other numbers of columns and rows.
    pub fn resize(&mut self, columns: usize, rows: usize) {
        (self.columns, self.rows) = (columns.min(COLUMNS_MAX), rows.min(ROWS_MAX));
        self.clear();
    }

    /// Blank, and from the beginning. Nothing is drawn.
    pub fn clear(&mut self) {
        (self.column, self.row, self.escape) = (0, 0, Escape::None);
        self.cells.as_flattened_mut().fill(BLANK);
    }

    /// The numbers of columns and of rows.
    pub const fn size(&self) -> (usize, usize) {
        (self.columns, self.rows)
    }

    /// Each cell: column, row and character.
    pub fn cells(&self) -> impl Iterator<Item = (usize, usize, u8)> + '_ {
        let rows = self.cells.iter().take(self.rows).enumerate();
        rows.flat_map(|(row, cells)| {
            cells.iter().take(self.columns).enumerate().map(move |(column, cell)| (column, row, *cell))
        })
    }

    /// Takes a byte, and calls `draw` with each cell that it changes.
    pub fn put(&mut self, byte: u8, draw: &mut impl FnMut(usize, usize, u8)) {
        match (self.escape, byte) {
            (_, 0x1b) => self.escape = Escape::Begun,
            (Escape::None, _) => self.plain(byte, draw),
            (Escape::Begun, b'[') => self.escape = Escape::Control(false),
            (Escape::Begun, _) => self.escape = Escape::None,
            (Escape::Control(has_parameters), 0x40..=0x7e) => {
                self.escape = Escape::None;
                // The two by which shells edit their line (ECMA-48, sections 8.3.39 and 8.3.41):
                // the rest of the row, or of the screen, is cleared. All others have no effect.
                if !has_parameters && (byte == b'K' || byte == b'J') {
                    self.blank(self.row, self.column, draw);
                    let below = self.row + 1..if byte == b'J' { self.rows } else { 0 };
                    below.for_each(|row| self.blank(row, 0, draw));
                }
            }
            (Escape::Control(_), _) => self.escape = Escape::Control(true),
        }
    }

    fn plain(&mut self, byte: u8, draw: &mut impl FnMut(usize, usize, u8)) {
        match byte {
            b'\n' => self.next_row(draw),
            b'\r' => self.column = 0,
            8 => self.column = self.column.saturating_sub(1),
            b'\t' => self.column = (self.column / TAB * TAB + TAB).min(self.columns.saturating_sub(1)),
            // The first byte of a character of UTF-8 stands for all of it.
            b' '..=b'~' | 0xc0..=0xff => {
                if self.column >= self.columns {
                    self.next_row(draw);
                }
                let shown = if byte.is_ascii() { byte } else { UNKNOWN };
                self.set(self.column, self.row, shown, draw);
                self.column += 1;
            }
            _ => {}
        }
    }

    /// Clears a row from a column on.
    fn blank(&mut self, row: usize, from: usize, draw: &mut impl FnMut(usize, usize, u8)) {
        (from..self.columns).for_each(|column| self.set(column, row, BLANK, draw));
    }

    fn set(&mut self, column: usize, row: usize, byte: u8, draw: &mut impl FnMut(usize, usize, u8)) {
        let cell = self.cells.get_mut(row).and_then(|cells| cells.get_mut(column));
        if let Some(cell) = cell.filter(|cell| **cell != byte) {
            *cell = byte;
            draw(column, row, byte);
        }
    }

    fn next_row(&mut self, draw: &mut impl FnMut(usize, usize, u8)) {
        self.column = 0;
        self.row += 1;
        if self.row < self.rows {
            return;
        }
        let step = (self.rows / STEPS).max(1);
        self.row = self.rows.saturating_sub(step);
        for row in 0..self.rows {
            let below = self.cells.get(row + step).copied().filter(|_| row + step < self.rows);
            let below = below.unwrap_or([BLANK; COLUMNS_MAX]);
            (0..self.columns).zip(below).for_each(|(column, byte)| self.set(column, row, byte, draw));
        }
    }
}
