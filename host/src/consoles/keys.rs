//! What is typed while attached to a console: bytes for the guest, and keys for this tool after
//! Ctrl-A.

/// Ctrl-A.
const ESCAPE: u8 = 1;

/// What a piece of typing asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) bytes: Vec<u8>,
    /// The key to leave was pressed; what follows is ignored.
    pub(super) leaves: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Keys {
    leave: u8,
    is_escaped: bool,
}

impl Keys {
    pub(super) const fn new(leave: u8) -> Self {
        Self { leave, is_escaped: false }
    }

    /// What these bytes mean, which follow the previous ones. Ctrl-A a is Ctrl-A for the guest, and
    /// so is Ctrl-A twice; any other key after Ctrl-A is ignored.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> Typed {
        let mut typed = Typed::default();
        for &byte in bytes {
            match (std::mem::take(&mut self.is_escaped), byte) {
                (false, ESCAPE) => self.is_escaped = true,
                (false, byte) => typed.bytes.push(byte),
                (true, b'a' | ESCAPE) => typed.bytes.push(ESCAPE),
                (true, key) if key == self.leave => {
                    typed.leaves = true;
                    return typed;
                }
                (true, _) => {}
            }
        }
        typed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_after_ctrl_a_are_for_this_tool() {
        for (text, bytes, leaves) in [
            (&b"ls\r"[..], &b"ls\r"[..], false),
            (b"x\x01a", b"x\x01", false),
            (b"\x01\x01y", b"\x01y", false),
            (b"\x01qz", b"z", false),
            (b"ab\x01dcd", b"ab", true),
            (b"\x03\x04\x1a", b"\x03\x04\x1a", false),
        ] {
            for size in 1..=text.len() {
                let mut keys = Keys::new(b'd');
                let mut all = Typed::default();
                for part in text.chunks(size) {
                    let typed = keys.feed(part);
                    all.bytes.extend(typed.bytes);
                    all.leaves = typed.leaves;
                    if all.leaves {
                        break;
                    }
                }
                assert_eq!(all, Typed { bytes: bytes.to_vec(), leaves }, "{text:?} in pieces of {size}");
            }
        }
    }
}
