//! The guest's output: text on the console, JSON lines on the report channel.

use core::fmt::{self, Write};

use baremetal::arch::serial::{CONSOLE, REPORTS};
pub(crate) use baremetal::ensure;
pub(crate) use baremetal::verdict::{Verdict, failure};
use baremetal::verdict::{as_json, in_words};
use spin::Mutex;

static RUNNING: Mutex<&str> = Mutex::new("");

pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = write!({ CONSOLE }, "hostile: {text}\r\n");
}

fn json(text: fmt::Arguments<'_>) {
    // Earlier output there must not become the beginning of the line.
    let _ = write!({ REPORTS }, "\r\n{text}\r\n");
}

/// Tells the host that the program has reached a point.
pub(crate) fn event(name: &str) {
    json(format_args!(r#"{{"event":"{name}"}}"#));
}

pub(crate) fn begin(name: &'static str) {
    *RUNNING.lock() = name;
}

pub(crate) fn end(name: &str, verdict: &Verdict) {
    say(format_args!("{}", in_words(name, verdict)));
    json(format_args!("{}", as_json(name, verdict)));
}

/// Reports the running test as failed, and ends the machine: the program itself cannot continue.
pub(crate) fn abort(why: fmt::Arguments<'_>) -> ! {
    let name = RUNNING.try_lock().map_or("", |name| *name);
    end(name, &Err(failure(why)));
    crate::machine::off()
}
