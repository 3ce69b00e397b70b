//! What is typed on a PC's keyboard: scan codes of set 1, into which the keyboard's controller
//! translates those of the keyboard.

use arrayvec::ArrayString;
use core::fmt;
use pc_keyboard::layouts::Us104Key;
use pc_keyboard::{DecodedKey, HandleControl, KeyCode, PS2Keyboard, ScancodeSet1};

/// A key that was pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// F1 to F8, counted from 0.
    Function(u32),
    /// Any other, by what a terminal sends for it.
    Typed(ArrayString<4>),
}

/// Makes keys of scan codes. The layout is that of the United States.
pub struct Keys(PS2Keyboard<Us104Key, ScancodeSet1>);

impl Default for Keys {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({:?})", self.0.get_modifiers())
    }
}

impl Keys {
    /// No key is down.
    pub const fn new() -> Self {
        Self(PS2Keyboard::new(ScancodeSet1::new(), Us104Key, HandleControl::MapLettersToUnicode))
    }

    /// Takes a scan code; returns the key that is pressed by it.
    pub fn take(&mut self, code: u8) -> Option<Key> {
        // A code that is not known is that of no key.
        let event = self.0.add_byte(code).ok()??;
        let mut utf8 = [0; 4];
        let text = match self.0.process_keyevent(event)? {
            DecodedKey::RawKey(code) => match function(code) {
                Some(number) => return Some(Key::Function(number)),
                None => special(code)?,
            },
            DecodedKey::Unicode('\n') => "\r",
            DecodedKey::Unicode('\u{8}') => "\u{7f}",
            DecodedKey::Unicode('\u{7f}') => "\x1b[3~",
            DecodedKey::Unicode(char) => char.encode_utf8(&mut utf8),
        };
        ArrayString::from(text).ok().map(Key::Typed)
    }
}

fn function(code: KeyCode) -> Option<u32> {
    use KeyCode::{F1, F2, F3, F4, F5, F6, F7, F8};
    (0..).zip([F1, F2, F3, F4, F5, F6, F7, F8]).find(|(_, known)| *known == code).map(|(number, _)| number)
}

/// What a terminal sends for a key that is no character.
const fn special(code: KeyCode) -> Option<&'static str> {
    Some(match code {
        KeyCode::ArrowUp => "\x1b[A",
        KeyCode::ArrowDown => "\x1b[B",
        KeyCode::ArrowRight => "\x1b[C",
        KeyCode::ArrowLeft => "\x1b[D",
        KeyCode::Home => "\x1b[H",
        KeyCode::End => "\x1b[F",
        KeyCode::PageUp => "\x1b[5~",
        KeyCode::PageDown => "\x1b[6~",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::String;
    use std::vec::Vec;

    /// What these codes type, and the function keys among them as numbers.
    fn typed(codes: &[u8]) -> String {
        let mut keys = Keys::new();
        let keys = codes.iter().filter_map(|code| keys.take(*code));
        keys.map(|key| match key {
            Key::Function(number) => std::format!("<{number}>"),
            Key::Typed(text) => text.as_str().into(),
        })
        .collect()
    }

    #[test]
    fn keys_are_typed_when_they_go_down() {
        assert_eq!(typed(&[0x23, 0xa3, 0x17, 0x97, 0x39, 0xb9]), "hi ");
        assert_eq!(typed(&[0x2a, 0x23, 0xa3, 0xaa, 0x23, 0x02]), "Hh1", "shift is down, and up");
        assert_eq!(typed(&[0x1d, 0x2e, 0x9d, 0x2e]), "\x03c", "control is, too");
        assert_eq!(typed(&[0x1c, 0x0e, 0xe0, 0x53, 0xe0, 0x1c]), "\r\u{7f}\x1b[3~\r");
    }

    #[test]
    fn arrows_and_function_keys_are_told_apart() {
        assert_eq!(typed(&[0xe0, 0x48, 0xe0, 0xc8, 0xe0, 0x49, 0x48]), "\x1b[A\x1b[5~8", "of the keypad");
        assert_eq!(typed(&[0x3b, 0xbb, 0x42, 0x43]), "<0><7>", "F9 is none of them");
    }

    #[test]
    fn whatever_comes_is_survived_and_ends_with_the_next_key() {
        let mut random = crate::random::Random::new(7);
        let codes: Vec<u8> = (0..100_000).map(|_| random.word() as u8).collect();
        let _ = typed(&codes);
        assert_eq!(typed(&[0xff, 0xfa, 0x00, 0x23]), "h");
        assert!(typed(&[0xe0, 0xff, 0x17, 0x23]).ends_with('h'));
    }
}
