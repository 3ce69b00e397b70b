//! The printed part of a guest's crash report. The guest controls its contents.

use super::msrs::CrashMessage;

/// Number of reports that are printed before the guest is reset.
pub const REPORTS_MAX: u32 = 3;
/// Number of bytes of a report's text that are read: the last ones, which are the most useful.
pub const TEXT_MAX: usize = 768;
/// Number of its lines that are printed, and bytes of each.
pub const LINES_MAX: usize = 12;
const LINE_MAX: usize = 100;

impl CrashMessage {
    /// Address and length of the text's last bytes, at most [`TEXT_MAX`]; `None` if the address is
    /// invalid.
    pub fn end(&self) -> Option<(u64, usize)> {
        let length = self.len.min(TEXT_MAX as u64);
        let start = self.gpa.checked_add(self.len - length)?;
        start.checked_add(length)?;
        Some((start, length as usize))
    }
}

/// The last non-empty lines of a text, each cut to the printed length.
pub fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_end = |byte: &u8| matches!(byte, b'\n' | b'\r' | 0);
    let lines = || text.split(is_end).filter(|line| !line.is_empty());
    lines().skip(lines().count().saturating_sub(LINES_MAX)).map(|line| &line[..line.len().min(LINE_MAX)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u5_of_a_long_text_the_end_is_printed() {
        let text = "first\n".repeat(4000) + "last but one\n\0\nlast";
        let message = CrashMessage { gpa: 0x1000, len: text.len() as u64 };
        let (start, length) = message.end().unwrap();
        assert_eq!((start - 0x1000 + length as u64, length), (text.len() as u64, TEXT_MAX));
        let printed: Vec<_> = lines(text.as_bytes()).collect();
        assert_eq!(printed.len(), LINES_MAX);
        assert_eq!(printed[LINES_MAX - 2..], [&b"last but one"[..], b"last"]);
        assert_eq!(lines(&[b'x'; TEXT_MAX]).map(<[u8]>::len).collect::<Vec<_>>(), [LINE_MAX]);
        assert_eq!(lines(b"\n\0\r\n").count(), 0);
    }

    #[test]
    fn u5_no_text_lies_beyond_all_addresses() {
        let end = |gpa, len| CrashMessage { gpa, len }.end();
        assert_eq!((end(0x1000, 0), end(u64::MAX, 1)), (Some((0x1000, 0)), None));
        assert_eq!(end(u64::MAX, u64::MAX), None);
        assert_eq!(end(0, u64::MAX), Some((u64::MAX - TEXT_MAX as u64, TEXT_MAX)));
    }
}
