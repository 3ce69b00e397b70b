//! What was shown on a screen, to be shown again page by page.

use arrayvec::ArrayVec;

/// Bytes that are kept: a report of all rows takes a fifth of that.
const BYTES: usize = 64 << 10;

/// The text from the beginning on.
#[derive(Debug)]
pub struct History(ArrayVec<u8, BYTES>);

impl Default for History {
    fn default() -> Self {
        Self::new()
    }
}

impl History {
    /// Nothing was shown.
    pub const fn new() -> Self {
        Self(ArrayVec::new_const())
    }

    /// Adds text. What there is no room for is dropped.
    pub fn push(&mut self, text: &str) {
        self.0.extend(text.bytes().take(self.0.remaining_capacity()));
    }

    /// The pages of this size. Lines that are longer than a row take several.
    pub fn pages(&self, columns: usize, rows: usize) -> impl Iterator<Item = &[u8]> {
        let mut rest = &*self.0;
        core::iter::from_fn(move || {
            let (mut taken, mut used) = (0, 0);
            for line in rest.split_inclusive(|byte| *byte == b'\n') {
                let shown = line.iter().filter(|byte| !byte.is_ascii_control()).count();
                used += shown.div_ceil(columns.max(1)).max(1);
                if used > rows && taken != 0 {
                    break;
                }
                taken += line.len();
            }
            let (page, after) = rest.split_at_checked(taken)?;
            rest = after;
            (!page.is_empty()).then_some(page)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    fn pages(text: &str, columns: usize, rows: usize) -> Vec<String> {
        let mut history = History::new();
        history.push(text);
        history.pages(columns, rows).map(|page| String::from_utf8_lossy(page).into()).collect()
    }

    #[test]
    fn a_page_has_as_many_rows_as_fit() {
        assert_eq!(pages("a\r\nb\r\nc\r\n", 5, 2), ["a\r\nb\r\n", "c\r\n"]);
        assert_eq!(pages("a\n\nc\nd\n", 5, 4), ["a\n\nc\nd\n"]);
        assert_eq!(pages("12345\n123456\nc", 5, 2), ["12345\n", "123456\n", "c"]);
        assert_eq!(pages("12345678901234567890\nb\n", 5, 2), ["12345678901234567890\n", "b\n"], "too long");
        assert_eq!(pages("a\nb\n", 0, 0), ["a\n", "b\n"]);
        assert!(pages("", 5, 2).is_empty());
    }

    #[test]
    fn what_is_too_much_is_dropped_at_the_end() {
        let shown = pages(&"0123456789abcde\n".repeat(BYTES / 16 + 7), 80, 24);
        assert_eq!(shown.iter().map(String::len).sum::<usize>(), BYTES);
        assert!(shown[0].starts_with('0'));
    }
}
