//! Text on a screen: white on black, on a framebuffer of pixels.
//!
//! A screen is only written to: framebuffers are slow to read. The font is that of the crate
//! `noto-sans-mono-bitmap`, whose glyphs are made when it is built.

#[cfg(test)]
mod tests;
mod text;

use arrayvec::ArrayVec;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, RasterizedChar, get_raster, get_raster_width};

pub use text::{COLUMNS_MAX, ROWS_MAX, Text};

const WEIGHT: FontWeight = FontWeight::Bold;
const SIZE: RasterHeight = RasterHeight::Size16;

/// Pixels of a glyph.
pub const GLYPH_WIDTH: usize = get_raster_width(WEIGHT, SIZE);
/// As above.
pub const GLYPH_HEIGHT: usize = SIZE.val();

/// Bytes of a line of a glyph.
const LINE_MAX: usize = GLYPH_WIDTH * 4;
/// The largest framebuffer, of 8192 lines of 8192 pixels.
const BYTES_MAX: u64 = 256 << 20;

/// Where the bits of a colour are in a pixel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// The lowest bit.
    pub position: u8,
    /// Their number.
    pub size: u8,
}

impl Field {
    /// The bits of this intensity, of which 255 is the most.
    fn of(self, intensity: u8) -> u32 {
        let intensity = u32::from(intensity);
        match self.size.checked_sub(8) {
            Some(more) => intensity << more << self.position,
            None => intensity >> (8 - self.size) << self.position,
        }
    }
}

/// Red, green and blue.
pub type Colours = [Field; 3];

/// A framebuffer, as a loader describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its physical address.
    pub address: u64,
    /// Bytes from one line to the next.
    pub pitch: u32,
    /// Pixels of a line.
    pub width: u32,
    /// Lines.
    pub height: u32,
    /// Bits of a pixel.
    pub bits: u8,
    /// The colours among them; `None` if they are an index of a palette, a character, or else.
    pub colours: Option<Colours>,
}

impl Frame {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pitch) * u64::from(self.height)
    }

    fn bytes_of_pixel(&self) -> usize {
        usize::from(self.bits.div_ceil(8))
    }

    /// Checks that text can be shown on it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), &'static str> {
        let is_within = |field: &Field| (1..=16).contains(&field.size) && field.position <= 32 - field.size;
        let has_colours = self.colours.is_some_and(|fields| fields.iter().all(is_within));
        if !has_colours || !(15..=32).contains(&self.bits) {
            return Err("its pixels are not colours of 15 to 32 bits");
        }
        let line = u64::from(self.width) * self.bytes_of_pixel() as u64;
        let is_there = self.address != 0 && self.width != 0 && self.bytes() != 0 && self.bytes() <= BYTES_MAX;
        if !is_there || line > u64::from(self.pitch) || self.address.checked_add(self.bytes()).is_none() {
            return Err("it has no size that is possible");
        }
        Ok(())
    }

    fn pixel(&self, intensity: u8) -> u32 {
        self.colours.iter().flatten().fold(0, |pixel, field| pixel | field.of(intensity))
    }
}

/// The glyph of a character.
pub fn glyph(byte: u8) -> Option<RasterizedChar> {
    get_raster(char::from(byte), WEIGHT, SIZE)
}

/// The memory of a framebuffer.
pub trait Memory {
    /// Stores bytes from this offset on.
    fn store(&mut self, offset: usize, bytes: &[u8]);
}

/// What draws on a framebuffer.
#[derive(Debug)]
pub struct Brush<M> {
    frame: Frame,
    memory: M,
}

impl<M: Memory> Brush<M> {
    fn clear(&mut self) {
        let blank = [0; 1 << 12];
        let mut at = 0;
        while at < self.frame.bytes() as usize {
            let length = blank.len().min(self.frame.bytes() as usize - at);
            self.memory.store(at, blank.get(..length).unwrap_or(&[]));
            at += length;
        }
    }

    /// Draws a character.
    fn draw(&mut self, column: usize, row: usize, byte: u8) {
        let (frame, pitch) = (self.frame, self.frame.pitch as usize);
        let bytes = frame.bytes_of_pixel();
        let left = column * GLYPH_WIDTH * bytes;
        let Some(glyph) = glyph(byte) else { return };
        for (y, row_of_glyph) in glyph.rows().enumerate() {
            let mut line = ArrayVec::<u8, LINE_MAX>::new();
            for intensity in row_of_glyph {
                line.extend(frame.pixel(*intensity).to_le_bytes().into_iter().take(bytes));
            }
            self.memory.store((row * GLYPH_HEIGHT + y) * pitch + left, &line);
        }
    }
}

/// A screen with text, or none.
#[derive(Debug)]
pub struct Screen<M> {
    text: Text,
    brush: Option<Brush<M>>,
}

impl<M: Memory> Screen<M> {
    /// No screen.
    pub const fn none() -> Self {
        Self { text: Text::new(0, 0), brush: None }
    }

    /// Uses a framebuffer, which becomes black.
    ///
    /// # Errors
    ///
    /// Why it cannot be used.
    pub fn open(&mut self, frame: Frame, memory: M) -> Result<(), &'static str> {
        frame.check()?;
        let (columns, rows) = (frame.width as usize / GLYPH_WIDTH, frame.height as usize / GLYPH_HEIGHT);
        if columns == 0 || rows == 0 {
            return Err("it has no room for a character");
        }
        self.text.resize(columns, rows);
        let mut brush = Brush { frame, memory };
        brush.clear();
        self.brush = Some(brush);
        self.draw_all();
        Ok(())
    }

    /// The memory is elsewhere from here on.
    pub fn move_to(&mut self, memory: impl FnOnce(Frame) -> M) {
        if let Some(brush) = &mut self.brush {
            brush.memory = memory(brush.frame);
        }
    }

    /// The framebuffer that is used.
    pub fn frame(&self) -> Option<Frame> {
        self.brush.as_ref().map(|brush| brush.frame)
    }

    /// Columns and rows; `None` without a screen.
    pub fn size(&self) -> Option<(usize, usize)> {
        self.brush.as_ref().map(|_| self.text.size())
    }

    /// Shows a byte.
    pub fn put(&mut self, byte: u8) {
        if let Some(brush) = &mut self.brush {
            self.text.put(byte, &mut |column, row, byte| brush.draw(column, row, byte));
        }
    }

    /// Shows these bytes alone, or what has room of their end.
    pub fn show(&mut self, bytes: impl Iterator<Item = u8>) {
        self.text.clear();
        bytes.for_each(|byte| self.text.put(byte, &mut |_, _, _| {}));
        self.draw_all();
    }

    fn draw_all(&mut self) {
        if let Some(brush) = &mut self.brush {
            self.text.cells().for_each(|(column, row, byte)| brush.draw(column, row, byte));
        }
    }
}
