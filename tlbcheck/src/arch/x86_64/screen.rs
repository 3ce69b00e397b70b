//! The screen, for machines without a serial port or with nobody at its other end.

use baremetal::arch::serial::CONSOLE;
use baremetal::x86_64::{clock, keyboard, screen};
use spin::Mutex;
use tlbcheck::history::History;
use tlbcheck::report::reason;

/// Microseconds between two looks at the keyboard.
const LOOK_US: u64 = 10_000;

pub(in crate::arch) use screen::open;

static HISTORY: Mutex<History> = Mutex::new(History::new());

/// Shows text beside what a serial port gets.
pub(in crate::arch) fn show(text: &str) {
    if screen::size().is_some() {
        screen::write(text.as_bytes());
        if let Some(mut history) = HISTORY.try_lock() {
            history.push(text);
        }
    }
}

/// The report is over: it stays on the screen, if there is one that somebody needs. With a keyboard
/// the pages of the report can be looked at: each key shows the next one.
pub(in crate::arch) fn stay() {
    let Some((columns, rows)) = screen::size().filter(|_| !CONSOLE.has_partner()) else { return };
    let Some(history) = HISTORY.try_lock() else { return };
    let pages = || history.pages(columns, rows - 1);
    let count = pages().count();
    if !keyboard::open(false) {
        return screen::write(b"# the end; there is no keyboard to look at the pages before");
    }
    let mut number = count;
    loop {
        let note = reason(format_args!("# page {number} of {count}: any key for the next one"));
        let page = pages().nth(number.saturating_sub(1)).unwrap_or_default();
        screen::show(page.iter().copied().chain(note.bytes()));
        let mut pressed = false;
        while !pressed {
            clock::delay(LOOK_US);
            keyboard::read(|_| pressed = true);
        }
        number = number % count.max(1) + 1;
    }
}
