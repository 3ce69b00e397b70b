//! Typing to the only guest of the machine that this process runs.

use super::keyboard::{Keyboard, ToGuest};
use super::terminal::RawTerminal;
use crate::machine::control::Found;
use crate::machine::terminal::Polled;
use hostlink::name::Name;
use std::io;

/// The key that ends the machine, after Ctrl-A.
const END: u8 = b'x';

/// This terminal, whose keys are for the guest. It is restored when this is dropped.
pub(crate) struct Typing {
    keyboard: Keyboard,
    _raw: RawTerminal,
}

impl Drop for Typing {
    fn drop(&mut self) {
        self.keyboard.stop();
    }
}

impl Typing {
    /// Begins to type on the guest's console; `None` if standard input is no terminal.
    pub(crate) fn start(machine: Found, guest: Name) -> Option<Self> {
        let raw = RawTerminal::enter()?;
        let keyboard = Keyboard::start(Polled(io::stdin()), ToGuest { machine, guest, port: 0 }, END);
        Some(Self { keyboard, _raw: raw })
    }

    /// Whether the user ends the machine.
    pub(crate) fn ends_machine(&self) -> bool {
        self.keyboard.has_left()
    }
}
