//! The two serial ports, the report, and the ways to the end.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayString;
use baremetal::x86_64::power;
use baremetal::x86_64::serial::{COM1, COM2, Serial};
use spin::{Mutex, Once};
use tlbcheck::command_line::Options;
use tlbcheck::report::{Report, Totals, reason};

use super::machine;

/// Port of QEMU's debug exit device, as its users place it by convention.
const DEBUG_EXIT_PORT: u16 = 0xf4;
/// What the device is told: QEMU's exit status is twice that and 1.
const CODE_GOOD: u8 = 0;
const CODE_FAILED: u8 = 1;
const CODE_STOPPED: u8 = 2;

static LINE: Once<ArrayString<512>> = Once::new();
static DEBUG_EXIT: AtomicBool = AtomicBool::new(false);

/// The report on COM1, and the one on COM2 if there is one.
static REPORTS: Mutex<(Report<Serial>, Option<Report<Serial>>)> =
    Mutex::new((Report::new(Serial(COM1), false), None));

/// Opens the first port; keeps the command line.
pub(super) fn open(line: &str) -> &'static str {
    Serial(COM1).set_up();
    LINE.call_once(|| ArrayString::from(line).unwrap_or_default())
}

/// Opens the report that the command line asks for.
pub(super) fn choose(options: &Options<'_>) {
    DEBUG_EXIT.store(options.debug_exit, Ordering::Relaxed);
    let mut reports = REPORTS.lock();
    if options.report_to_com2 {
        Serial(COM2).set_up();
        reports.1 = Some(Report::new(Serial(COM2), options.json));
    } else {
        reports.0 = Report::new(Serial(COM1), options.json);
    }
}

/// Has `write` write to each report.
pub(super) fn report(mut write: impl FnMut(&mut Report<Serial>)) {
    let mut reports = REPORTS.lock();
    write(&mut reports.0);
    if let Some(second) = &mut reports.1 {
        write(second);
    }
}

/// Notes something that belongs to no row.
pub(super) fn note(text: fmt::Arguments<'_>) {
    let text = reason(text);
    report(|report| report.note(&text));
}

/// Ends the run.
pub(super) fn end(totals: Totals) -> ! {
    report(|report| report.end(&totals));
    leave(if totals.failed == 0 { CODE_GOOD } else { CODE_FAILED })
}

/// Stops the run: the image itself cannot go on. Any processor may come here, even in the middle of a report.
pub(super) fn bail(why: fmt::Arguments<'_>) -> ! {
    x86_64::instructions::interrupts::disable();
    match REPORTS.try_lock() {
        Some(mut reports) => {
            let why = reason(why);
            reports.0.bail(&why);
            if let Some(second) = &mut reports.1 {
                second.bail(&why);
            }
        }
        None => {
            let _ = write!(Serial(COM1), "\r\nBail out! {why}\r\n");
        }
    }
    leave(CODE_STOPPED)
}

fn leave(code: u8) -> ! {
    if DEBUG_EXIT.load(Ordering::Relaxed) {
        power::debug_exit(DEBUG_EXIT_PORT, code);
    }
    power::off(machine::switch())
}
