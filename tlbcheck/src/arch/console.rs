//! The serial ports, the screen, the report, and the end of a run.

use core::fmt::{self, Write};
use core::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayString;
use baremetal::arch::serial::{CONSOLE, REPORTS, Serial};
use baremetal::arch::{interrupts, power};
use spin::{Mutex, Once};
use tlbcheck::command_line::Options;
use tlbcheck::report::{Report, Totals, reason};

use super::this::{HAS_SECOND_PORT, screen};

/// The exit codes for the program that started the emulator.
const CODE_GOOD: u8 = 0;
const CODE_FAILED: u8 = 1;
const CODE_STOPPED: u8 = 2;

static LINE: Once<ArrayString<512>> = Once::new();
static DEBUG_EXIT: AtomicBool = AtomicBool::new(false);

/// A serial port, beside which the screen shows the same if it is the first.
pub(super) struct Port(Serial, bool);

impl Write for Port {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        if self.1 {
            screen::show(text);
        }
        self.0.write_str(text)
    }
}

/// The report on the first port, and the one on the second if there is one.
static OPEN: Mutex<(Report<Port>, Option<Report<Port>>)> =
    Mutex::new((Report::new(Port(CONSOLE, true), false), None));

/// Opens the first port; keeps the command line.
pub(super) fn open(line: &str) -> &'static str {
    CONSOLE.set_up();
    OPEN.lock().0 = Report::new(Port(CONSOLE.or_logged(), true), false);
    LINE.call_once(|| ArrayString::from(line).unwrap_or_default())
}

/// Opens the report that the command line selects.
pub(super) fn choose(options: &Options<'_>) {
    DEBUG_EXIT.store(options.debug_exit, Ordering::Relaxed);
    let mut reports = OPEN.lock();
    if HAS_SECOND_PORT && options.report_to_com2 {
        REPORTS.set_up();
        reports.1 = Some(Report::new(Port(REPORTS.or_logged(), false), options.json));
    } else {
        reports.0 = Report::new(Port(CONSOLE.or_logged(), true), options.json);
    }
}

pub(super) fn report(mut write: impl FnMut(&mut Report<Port>)) {
    let mut reports = OPEN.lock();
    write(&mut reports.0);
    if let Some(second) = &mut reports.1 {
        write(second);
    }
}

pub(super) fn note(text: fmt::Arguments<'_>) {
    let text = reason(text);
    report(|report| report.note(&text));
}

pub(super) fn end(totals: Totals) -> ! {
    report(|report| report.end(&totals));
    leave(if totals.failed == 0 { CODE_GOOD } else { CODE_FAILED })
}

/// Aborts the run: the image cannot continue. Any processor may, even in the middle of a report.
pub(super) fn bail(why: fmt::Arguments<'_>) -> ! {
    interrupts::disable();
    match OPEN.try_lock() {
        Some(mut reports) => {
            let why = reason(why);
            reports.0.bail(&why);
            if let Some(second) = &mut reports.1 {
                second.bail(&why);
            }
        }
        None => {
            let _ = write!(Port(CONSOLE.or_logged(), true), "\r\nBail out! {why}\r\n");
        }
    }
    leave(CODE_STOPPED)
}

/// Ends QEMU with status 2 * code + 1, if it is to be ended, or else switches the machine off.
fn leave(code: u8) -> ! {
    if DEBUG_EXIT.load(Ordering::Relaxed) {
        power::end_emulator(code);
    }
    screen::stay();
    power::off()
}
