//! The terminal while its keys are for a guest.

use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcsetattr};
use std::io;
use std::panic;
use std::sync::{Mutex, Once, PoisonError};

/// The settings to restore; at most one console is attached to at a time.
static SAVED: Mutex<Option<Termios>> = Mutex::new(None);

/// Standard input in raw mode: every key is passed on at once, Ctrl-C included. The former settings
/// are restored when it is dropped, and if this process panics.
pub(super) struct RawTerminal(());

impl RawTerminal {
    /// Switches to raw mode; `None` if standard input is no terminal.
    pub(super) fn enter() -> Option<Self> {
        let stdin = io::stdin();
        let saved = isatty(&stdin).then(|| tcgetattr(&stdin).ok()).flatten()?;
        let mut raw = saved.clone();
        raw.make_raw();
        *SAVED.lock().unwrap_or_else(PoisonError::into_inner) = Some(saved);
        restore_on_panic();
        if tcsetattr(&stdin, OptionalActions::Now, &raw).is_err() {
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
    let saved = SAVED.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(saved) = saved {
        // A closed terminal needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &saved);
    }
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
