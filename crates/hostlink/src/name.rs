//! Names of guests.

use core::fmt;

/// Bytes of a name as it is stored, NUL at its end included.
pub const NAME_BYTES: usize = 32;

/// The name of a guest: 1 to 31 of the characters `a`–`z`, `0`–`9`, `-` and `_`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// Zeros follow the last character.
    bytes: [u8; NAME_BYTES],
}

impl Name {
    /// What a name has to be.
    pub const EXPECTED: &str = "1 to 31 characters of a-z, 0-9, - and _";

    /// The name of a guest that was given none.
    pub const GUEST: Self = Self { bytes: *b"guest\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0" };

    /// The name that this text is; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        if text.is_empty() || text.len() >= NAME_BYTES || !text.bytes().all(is_allowed) {
            return None;
        }
        let mut bytes = [0; NAME_BYTES];
        bytes.iter_mut().zip(text.bytes()).for_each(|(place, byte)| *place = byte);
        Some(Self { bytes })
    }

    /// The name in these bytes, to the first NUL; `None` if they hold none.
    pub fn from_bytes(bytes: &[u8; NAME_BYTES]) -> Option<Self> {
        let text = bytes.split(|byte| *byte == 0).next()?;
        Self::parse(core::str::from_utf8(text).ok()?)
    }

    /// Its bytes, filled up with NULs.
    pub const fn bytes(&self) -> &[u8; NAME_BYTES] {
        &self.bytes
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        let text = self.bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        core::str::from_utf8(text).unwrap_or_default()
    }
}

/// Whether a name may contain this byte.
const fn is_allowed(byte: u8) -> bool {
    matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_')
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn names_are_kept_as_they_were_given() {
        for text in ["a", "web-1", "db_2", "0", &"x".repeat(31)] {
            let name = Name::parse(text).expect("is one");
            assert_eq!((name.as_str(), format!("{name}").as_str()), (text, text));
            assert_eq!(Name::from_bytes(name.bytes()), Some(name));
        }
        assert_eq!(Name::parse("guest"), Some(Name::GUEST));
        assert_eq!(format!("{:>6}|{:<6}", Name::GUEST, Name::GUEST), " guest|guest ");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in ["", "Web", "a b", "a/b", "ü", "a\0", "a.b", &"x".repeat(32)] {
            assert_eq!(Name::parse(text), None, "{text:?}");
        }
        assert_eq!(Name::from_bytes(&[0; NAME_BYTES]), None);
        assert_eq!(Name::from_bytes(&[b'a'; NAME_BYTES]), None, "its end is missing");
        assert_eq!(Name::from_bytes(&[0xff; NAME_BYTES]), None);
    }
}
