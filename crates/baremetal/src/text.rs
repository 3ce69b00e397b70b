//! Text for reports.

use core::fmt::{self, Write};

use arrayvec::ArrayString;

/// Text for use in a JSON string: characters that would need escaping are replaced.
pub struct Quoted<'a>(pub &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.chars().try_for_each(|char| match char {
            '"' => f.write_char('\''),
            '\\' => f.write_char('/'),
            control if control.is_control() => f.write_char(' '),
            other => f.write_char(other),
        })
    }
}

/// Writes the text that fits, and drops an overlong end.
pub struct Cut<'a, const N: usize>(pub &'a mut ArrayString<N>);

impl<const N: usize> Write for Cut<'_, N> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|char| self.0.try_push(char)).map_err(|_| fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn nothing_ends_a_quoted_text() {
        assert_eq!(Quoted("a\"b\\c\nd\u{7f}e\u{e9}").to_string(), "a'b/c d e\u{e9}");
    }

    #[test]
    fn an_overlong_end_is_left_out_between_characters() {
        let mut text = ArrayString::<4>::new();
        assert!(Cut(&mut text).write_fmt(format_args!("ab{}", "c\u{e9}d")).is_err());
        assert_eq!(&*text, "abc");
        assert!(Cut(&mut text).write_str("d").is_ok());
        assert_eq!(&*text, "abcd");
    }
}
