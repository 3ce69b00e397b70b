//! Text that others have written, before it reaches a terminal: a guest, another machine, a file.
//! And checksums as text.

/// Without characters that a terminal obeys, as one line.
pub(crate) fn foreign(text: &str) -> String {
    text.chars().map(|char| if char.is_control() || moves_text(char) { ' ' } else { char }).collect()
}

/// The same for text of several lines.
pub(crate) fn foreign_lines(text: &str) -> String {
    text.split('\n').map(foreign).collect::<Vec<_>>().join("\n")
}

/// Whether a character moves others: it changes the direction of text, or ends a line.
pub(crate) fn moves_text(char: char) -> bool {
    matches!(char, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_others_moves_no_cursor_and_turns_no_line_round() {
        assert_eq!(foreign("a\x1b]0;title\x07b\r\nc\u{202e}d\u{9b}2J"), "a ]0;title b  c d 2J");
        assert_eq!(foreign_lines("one\x1b[2J\ntwo\tthree\n"), "one [2J\ntwo three\n");
        assert_eq!(foreign("plain – ü"), "plain – ü");
    }
}
