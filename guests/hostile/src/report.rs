//! What the guest says: text on the console, JSON lines on the report channel.

use core::fmt::{self, Write};

use arrayvec::ArrayString;
use baremetal::arch::serial::{CONSOLE, REPORTS};
use baremetal::text::{Cut, Quoted};
use spin::Mutex;

/// Why a test failed.
pub(crate) type Failure = ArrayString<120>;

/// What a test says.
pub(crate) type Verdict = Result<(), Failure>;

/// The test that runs, as the table names it.
static RUNNING: Mutex<&str> = Mutex::new("");

/// A failure with this text, of which an overlong end is left out.
pub(crate) fn failure(text: fmt::Arguments<'_>) -> Failure {
    let mut failure = Failure::new();
    let _ = Cut(&mut failure).write_fmt(text);
    failure
}

/// Fails with a text unless the condition holds.
macro_rules! ensure {
    ($condition:expr, $($text:tt)+) => {
        if !$condition {
            return Err($crate::report::failure(format_args!($($text)+)));
        }
    };
}
pub(crate) use ensure;

/// Writes a line of text.
pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = write!({ CONSOLE }, "hostile: {text}\r\n");
}

/// Writes a line of JSON.
fn json(text: fmt::Arguments<'_>) {
    // What others have written there before must not be the beginning of the line.
    let _ = write!({ REPORTS }, "\r\n{text}\r\n");
}

/// Tells the host that the program has come to a point.
pub(crate) fn event(name: &str) {
    json(format_args!(r#"{{"event":"{name}"}}"#));
}

/// Says which test runs from now on.
pub(crate) fn begin(name: &'static str) {
    *RUNNING.lock() = name;
}

/// Reports a test's verdict.
pub(crate) fn end(name: &str, verdict: &Verdict) {
    match verdict {
        Ok(()) => {
            say(format_args!("PASS {name}"));
            json(format_args!(r#"{{"test":"{name}","result":"pass"}}"#));
        }
        Err(why) => {
            say(format_args!("FAIL {name}: {why}"));
            json(format_args!(r#"{{"test":"{}","result":"fail","why":"{}"}}"#, Quoted(name), Quoted(why)));
        }
    }
}

/// Reports the running test as failed, and ends the machine: the program itself cannot go on.
pub(crate) fn abort(why: fmt::Arguments<'_>) -> ! {
    let name = RUNNING.try_lock().map_or("", |name| *name);
    end(name, &Err(failure(why)));
    crate::machine::off()
}
