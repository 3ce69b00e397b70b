//! Text on a screen: white on black, on a framebuffer with a byte of a pixel for each colour.
//!
//! A screen is only written to: framebuffers are slow to read. The font is that of the crate
//! `noto-sans-mono-bitmap`, whose glyphs are made when it is built.

#[cfg(test)]
mod tests;
mod text;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, RasterizedChar, get_raster, get_raster_width};

pub use text::{COLUMNS_MAX, ROWS_MAX, Text};

const WEIGHT: FontWeight = FontWeight::Bold;
const SIZE: RasterHeight = RasterHeight::Size16;

/// Pixels of a glyph.
pub const GLYPH_WIDTH: usize = get_raster_width(WEIGHT, SIZE);
/// As above.
pub const GLYPH_HEIGHT: usize = SIZE.val();

/// Bytes of a pixel.
const PIXEL: u32 = 4;
/// The largest framebuffer, of 8192 lines of 8192 pixels.
const BYTES_MAX: u64 = 256 << 20;

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
    /// Whether each colour is one of a pixel's bytes.
    pub has_byte_colours: bool,
}

impl Frame {
    /// Its size in bytes.
    pub fn bytes(&self) -> u64 {
        u64::from(self.pitch) * u64::from(self.height)
    }

    /// Checks that text can be shown on it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub fn check(&self) -> Result<(), &'static str> {
        if u32::from(self.bits) != 8 * PIXEL || !self.has_byte_colours {
            return Err("its pixels are not 32 bits with a byte for each colour");
        }
        let is_aligned = self.address.is_multiple_of(PIXEL.into()) && self.pitch.is_multiple_of(PIXEL);
        let is_there = self.address != 0 && self.width != 0 && self.bytes() != 0 && self.bytes() <= BYTES_MAX;
        let is_wide = self.pitch / PIXEL >= self.width;
        if !is_aligned || !is_there || !is_wide || self.address.checked_add(self.bytes()).is_none() {
            return Err("it has no size that is possible");
        }
        Ok(())
    }
}

/// The glyph of a character.
pub fn glyph(byte: u8) -> Option<RasterizedChar> {
    get_raster(char::from(byte), WEIGHT, SIZE)
}

/// The memory of a framebuffer.
pub trait Memory {
    /// Stores pixels from this one on.
    fn store(&mut self, first: usize, pixels: &[u32]);
}

/// What draws on a framebuffer.
#[derive(Debug)]
pub struct Brush<M> {
    frame: Frame,
    memory: M,
}

impl<M: Memory> Brush<M> {
    /// Pixels from one line to the next.
    const fn pitch(&self) -> usize {
        (self.frame.pitch / PIXEL) as usize
    }

    fn clear(&mut self) {
        let (blank, pixels) = ([0; 1 << 10], self.pitch() * self.frame.height as usize);
        let mut first = 0;
        while first < pixels {
            let length = blank.len().min(pixels - first);
            self.memory.store(first, blank.get(..length).unwrap_or(&[]));
            first += length;
        }
    }

    /// Draws a character.
    fn draw(&mut self, column: usize, row: usize, byte: u8) {
        let Some(glyph) = glyph(byte) else { return };
        for (y, intensities) in glyph.rows().enumerate() {
            // Grey is the same in each order of the colours.
            let mut line = [0; GLYPH_WIDTH];
            line.iter_mut()
                .zip(intensities)
                .for_each(|(pixel, grey)| *pixel = u32::from_ne_bytes([*grey; 4]));
            self.memory.store((row * GLYPH_HEIGHT + y) * self.pitch() + column * GLYPH_WIDTH, &line);
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
        if let Some(brush) = &mut self.brush {
            self.text.cells().for_each(|(column, row, byte)| brush.draw(column, row, byte));
        }
    }
}
