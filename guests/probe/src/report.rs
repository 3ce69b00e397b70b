//! The probe's output: text on COM1, JSON lines on COM2.

use core::fmt::{self, Write};

pub(crate) use baremetal::ensure;
pub(crate) use baremetal::verdict::{Failure, Verdict, failure};
use baremetal::verdict::{as_json, in_words};
use baremetal::x86_64::serial::{CONSOLE, REPORTS};
use spin::Mutex;
use x86_64::instructions::port::Port;

/// The higher byte of ACPI's PM1a control register, and the value that switches the machine off:
/// SLP_TYP 5, SLP_EN.
const PM1A_CONTROL_HIGH: u16 = 0x605;
const POWER_OFF: u8 = 5 << 2 | 1 << 5;

/// The running test, by its name on the command line or in the table.
static RUNNING: Mutex<&str> = Mutex::new("");

pub(crate) fn say(text: fmt::Arguments<'_>) {
    let _ = writeln!({ CONSOLE }, "{text}\r");
}

fn json(text: fmt::Arguments<'_>) {
    let _ = writeln!({ REPORTS }, "{text}");
}

/// Reports instructions: of one operation, or of all calls of a case that says so. The lines have
/// the same length for small and large numbers, so the cost of reporting does not depend on the
/// value.
pub(crate) fn measured(case: &str, instructions: u64) {
    say(format_args!("{case:20} {instructions:12}"));
    json(format_args!(r#"{{"case":"{case}","metric":"instructions","value":{instructions:12}}}"#));
}

/// Tells the host that the program has reached a point.
pub(crate) fn event(name: &str) {
    json(format_args!(r#"{{"event":"{name}"}}"#));
}

/// The same; calls a function just before the end of the line, after which the host may act.
pub(crate) fn event_after<R>(name: &str, last: impl FnOnce() -> R) -> R {
    let _ = write!({ REPORTS }, r#"{{"event":"{name}"}}"#);
    let result = last();
    let _ = writeln!({ REPORTS });
    result
}

pub(crate) fn done() {
    json(format_args!(r#"{{"event":"done"}}"#));
}

pub(crate) fn begin(name: &'static str) {
    *RUNNING.lock() = name;
    say(format_args!("{name}"));
}

pub(crate) fn end(name: &str, verdict: &Verdict) {
    say(format_args!("{}", in_words(name, verdict)));
    json(format_args!("{}", as_json(name, verdict)));
}

/// Reports the running test as failed, and ends the machine: the probe itself cannot continue.
pub(crate) fn abort(why: fmt::Arguments<'_>) -> ! {
    let name = RUNNING.try_lock().map_or("", |name| *name);
    end(name, &Err(failure(why)));
    power_off()
}

pub(crate) fn power_off() -> ! {
    // SAFETY: the port is the platform's switch; the code after it is for machines without one.
    unsafe { Port::new(PM1A_CONTROL_HIGH).write(POWER_OFF) };
    loop {
        x86_64::instructions::interrupts::disable();
        x86_64::instructions::hlt();
    }
}
