//! The probe's output: text on COM1, JSON lines on COM2.

use core::fmt::Write;

pub(crate) use baremetal::ensure;
use baremetal::report::{self, Program, json};
pub(crate) use baremetal::report::{end, event, say};
pub(crate) use baremetal::verdict::{Failure, Verdict, failure};
use baremetal::x86_64::power::{self, Switch};
use baremetal::x86_64::serial::REPORTS;

use hostlink::exit::ExitCode;

use crate::svm;

pub(crate) const PROGRAM: Program = Program { name: "", around: ["", "\n"], off: power_off };

/// By the higher byte of ACPI's PM1a control register: SLP_TYP 5, SLP_EN. An emulator is ended as
/// Quell would end it then.
fn power_off() -> ! {
    if svm::is_bare() {
        power::end_emulator(ExitCode::GuestPowerOff as u8);
    }
    power::set_switch(Some(Switch::sleep_control(0x605, 5)));
    power::off()
}

/// Reports instructions: of one operation, or of all calls of a case that says so. The lines have
/// the same length for small and large numbers, so the cost of reporting does not depend on the
/// value.
pub(crate) fn measured(case: &str, instructions: u64) {
    say(format_args!("{case:20} {instructions:12}"));
    json(format_args!(r#"{{"case":"{case}","metric":"instructions","value":{instructions:12}}}"#));
}

/// As [`event`]; calls a function just before the end of the line, after which the host may act.
pub(crate) fn event_after<R>(name: &str, last: impl FnOnce() -> R) -> R {
    let mut reports = REPORTS.or_logged();
    let _ = write!(reports, r#"{{"event":"{name}"}}"#);
    let result = last();
    let _ = writeln!(reports);
    result
}

pub(crate) fn done() {
    json(format_args!(r#"{{"event":"done"}}"#));
}

pub(crate) fn begin(name: &'static str) {
    report::begin(name);
    say(format_args!("{name}"));
}
