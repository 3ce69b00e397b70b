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
    /// Of a control sequence: its numbers, which of them comes next, and whether it is private.
    Control([usize; 2], usize, bool),
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
            (Escape::Begun, b'[') => self.escape = Escape::Control([0; 2], 0, false),
            (Escape::Begun, _) => self.escape = Escape::None,
            (Escape::Control(mut numbers, at, private), b'0'..=b'9') => {
                if let Some(number) = numbers.get_mut(at) {
                    *number = number.saturating_mul(10).saturating_add(usize::from(byte - b'0'));
                }
                self.escape = Escape::Control(numbers, at, private);
            }
            (Escape::Control(numbers, at, private), b';') => {
                self.escape = Escape::Control(numbers, at.saturating_add(1), private);
            }
            (Escape::Control(numbers, _, private), 0x40..=0x7e) => {
                self.escape = Escape::None;
                if !private {
                    self.control(byte, numbers, draw);
                }
            }
            (Escape::Control(numbers, at, _), _) => self.escape = Escape::Control(numbers, at, true),
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

    /// A control sequence: those by which shells edit their line, and that clear (ECMA-48, section
    /// 8.3). Colours and all others have no effect.
    fn control(&mut self, last: u8, [first, second]: [usize; 2], draw: &mut impl FnMut(usize, usize, u8)) {
        let (count, right, bottom) =
            (first.max(1), self.columns.saturating_sub(1), self.rows.saturating_sub(1));
        match last {
            b'A' => self.row = self.row.saturating_sub(count),
            b'B' => self.row = self.row.saturating_add(count).min(bottom),
            b'C' => self.column = self.column.saturating_add(count).min(right),
            b'D' => self.column = self.column.saturating_sub(count),
            b'H' | b'f' => {
                (self.row, self.column) = ((count - 1).min(bottom), (second.max(1) - 1).min(right));
            }
            b'K' if first == 0 => self.blank(self.row, self.column, draw),
            b'J' => {
                let from = if first == 0 { self.row } else { 0 };
                self.blank(from, if first == 0 { self.column } else { 0 }, draw);
                (from + 1..self.rows).for_each(|row| self.blank(row, 0, draw));
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
