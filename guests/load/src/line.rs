//! Lines received byte by byte.

use arrayvec::ArrayString;

/// Maximum length of a line in bytes.
pub const LENGTH: usize = 256;

/// A line that is being received.
#[derive(Clone, Debug, Default)]
pub struct Line {
    text: ArrayString<LENGTH>,
    is_too_long: bool,
}

impl Line {
    /// An empty line.
    pub const fn new() -> Self {
        Self { text: ArrayString::new_const(), is_too_long: false }
    }

    /// Takes a byte. With the last one, a line feed or a carriage return, returns the line and
    /// begins the next; empty lines are skipped. Bytes that are not ASCII become question marks.
    ///
    /// # Errors
    ///
    /// The line was too long, and is lost.
    pub fn take(&mut self, byte: u8) -> Result<Option<ArrayString<LENGTH>>, &'static str> {
        if byte != b'\n' && byte != b'\r' {
            let char = if byte.is_ascii() { char::from(byte) } else { '?' };
            self.is_too_long |= self.text.try_push(char).is_err();
            return Ok(None);
        }
        let Self { text, is_too_long } = core::mem::take(self);
        if is_too_long {
            return Err("the line is too long");
        }
        Ok((!text.is_empty()).then_some(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn lines(bytes: &[u8]) -> Vec<Result<String, &'static str>> {
        let mut line = Line::new();
        let taken = bytes.iter().map(|byte| line.take(*byte));
        taken
            .filter_map(|result| result.map(|line| line.map(|line| String::from(&*line))).transpose())
            .collect()
    }

    #[test]
    fn an_overlong_line_is_lost_and_the_next_is_not() {
        let mut bytes = [b'x'; LENGTH + 1].to_vec();
        bytes.extend(b"\nhalt\n");
        assert_eq!(lines(&bytes), [Err("the line is too long"), Ok("halt".into())]);
        assert_eq!(lines(&bytes[1..]).len(), 2);
    }

    #[test]
    fn lines_end_by_either_byte_or_both() {
        assert_eq!(lines(b"a\r\nb\n\n\rc\rd"), [Ok("a".into()), Ok("b".into()), Ok("c".into())]);
        assert_eq!(lines(b"\xffa\n"), [Ok("?a".into())]);
        assert_eq!(lines(b""), []);
    }
}
