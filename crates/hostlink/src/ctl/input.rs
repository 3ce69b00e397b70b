//! Bytes that are typed on a console.

use super::Word;
use core::fmt;

/// Bytes that are typed on a console, at least one. As text they are pairs of hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Input {
    bytes: [u8; Self::BYTES_MAX],
    len: usize,
}

impl Input {
    /// Most bytes of one request.
    pub const BYTES_MAX: usize = 64;

    /// What its text has to be.
    pub const EXPECTED: &str = "1 to 64 bytes, two hexadecimal digits each";

    /// These bytes; `None` if they are too many, or none.
    pub fn new(typed: &[u8]) -> Option<Self> {
        let mut input = Self { bytes: [0; Self::BYTES_MAX], len: typed.len() };
        input.bytes.get_mut(..typed.len()).filter(|places| !places.is_empty())?;
        input.bytes.iter_mut().zip(typed).for_each(|(place, byte)| *place = *byte);
        Some(input)
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Word for Input {
    fn read(text: &str) -> Option<Self> {
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut input = Self { bytes: [0; Self::BYTES_MAX], len: pairs.len() };
        if pairs.is_empty() || pairs.len() > Self::BYTES_MAX || !rest.is_empty() {
            return None;
        }
        let digit = |byte: u8| char::from(byte).to_digit(16);
        for (place, [high, low]) in input.bytes.iter_mut().zip(pairs) {
            *place = u8::try_from(digit(*high)? << 4 | digit(*low)?).ok()?;
        }
        Some(input)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Input({self})")
    }
}
