//! Typing on the console of a guest, with this terminal's keys.

use super::keyboard::{Keyboard, ToGuest};
use crate::machine::control::Found;
use crate::machine::terminal::{Polled, SavedTerminal};
use crate::prelude::*;
use std::panic;
use std::sync::Once;

/// The key that ends the machine, after Ctrl-A.
const END: u8 = b'x';

/// This terminal, whose keys are for the guest. It is restored when this is dropped.
pub(crate) struct Typing {
    pub(super) keyboard: Keyboard,
    _raw: Option<RawTerminal>,
}

impl Drop for Typing {
    fn drop(&mut self) {
        self.keyboard.stop();
    }
}

impl Typing {
    /// Begins to type on the console of the only guest of the machine that this process runs;
    /// `None` if standard input is no terminal.
    pub(crate) fn start(machine: Found, guest: Name) -> Option<Self> {
        let raw = Some(RawTerminal::enter()?);
        Some(Self::on(raw, ToGuest { machine, guest, port: 0 }, END))
    }

    /// The same on any console, until the key `leave` after Ctrl-A.
    pub(super) fn on(raw: Option<RawTerminal>, guest: ToGuest, leave: u8) -> Self {
        Self { keyboard: Keyboard::start(Polled(io::stdin()), guest, leave), _raw: raw }
    }

    pub(crate) fn ends_machine(&self) -> bool {
        self.keyboard.has_left()
    }
}

/// What to restore; at most one console is attached to at a time.
static SAVED: Mutex<Option<SavedTerminal>> = Mutex::new(None);

/// Standard input in raw mode: every key is passed on at once, Ctrl-C included. The terminal is
/// made what it was when it is dropped, and if this process panics.
pub(super) struct RawTerminal(());

impl RawTerminal {
    /// Switches to raw mode; `None` if standard input is no terminal.
    pub(super) fn enter() -> Option<Self> {
        let saved = SavedTerminal::save()?;
        let is_raw = saved.make_raw();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        restore_on_panic();
        if !is_raw {
            restore();
            return None;
        }
        Some(Self(()))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        restore();
    }
}

fn restore() {
    drop(SAVED.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// A panic aborts this process and drops nothing.
fn restore_on_panic() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            restore();
            before(info);
        }));
    });
}
