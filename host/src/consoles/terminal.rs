//! The terminal while its keys are for a guest.

use crate::machine::terminal::SavedTerminal;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

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
