//! The log.

use core::fmt::{self, Write};
use core::sync::atomic::Ordering;

use hostlink::config::MAX_GUESTS;
use hostlink::counters::Counter;
use hostlink::name::Name;
use log::{Level, LevelFilter, Log, Metadata, Record};
use spin::Mutex;

use crate::arch::{Local, PerCpu, console};
use crate::quota::{Answer, Quota};
use crate::vm::arch::Clock;
use crate::vm::{GUEST, increase};

/// In the long run one of the lines that a guest can cause is written per this period.
const GUEST_LINE_PERIOD_US: u64 = 500_000;

/// Index of the quota of no guest.
const NO_GUEST: usize = MAX_GUESTS as usize;

/// The quota of each guest. Held while a line is written.
static LOG_LOCK: Mutex<[Quota; NO_GUEST + 1]> = Mutex::new([const { Quota::new() }; NO_GUEST + 1]);

/// Writes text to the log unchanged, without the lock: for a panic that may have occurred while the
/// lock was held.
pub(crate) struct LogPort;

impl Write for LogPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.bytes().for_each(console::log_byte);
        Ok(())
    }
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut quotas = LOG_LOCK.lock();
        let guest = if record.target() == GUEST { Some(guest_here()) } else { None };
        if let Some((number, _)) = guest {
            match quotas[number].ask(Local::now(), Local::ticks_of_us(GUEST_LINE_PERIOD_US)) {
                Answer::Write { left_out: 0 } => {}
                Answer::Write { left_out } => {
                    let _ = writeln!(LogPort, "quell: {left_out} lines like the next were left out");
                }
                Answer::LeaveOut => return count_left_out(),
            }
        }
        let level = match record.level() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            _ => "",
        };
        // Writing to the log port cannot fail.
        let _ = match guest {
            Some((_, Some(name))) => writeln!(LogPort, "quell: {level}{name}: {}", record.args()),
            _ => writeln!(LogPort, "quell: {level}{}", record.args()),
        };
    }

    fn flush(&self) {}
}

/// The guest whose vCPU is on this CPU: the index of its quota, and its name if there are several.
fn guest_here() -> (usize, Option<Name>) {
    let row = PerCpu::current().current_vcpu.load(Ordering::Relaxed).checked_sub(1);
    let (Some(host), Some(row)) = (super::host(), row) else { return (NO_GUEST, None) };
    let (number, name) = host.guest_of(row);
    (number.min(NO_GUEST), name)
}

/// Counts a line that was left out; the vCPU on this CPU caused it.
#[cold]
fn count_left_out() {
    let Some(host) = super::host() else { return };
    let vcpu = PerCpu::current().current_vcpu.load(Ordering::Relaxed);
    if let Some(row) = vcpu.checked_sub(1) {
        increase(&host.counters_of(row)[Counter::LogLinesLeftOut as usize], 1);
    }
}

/// Starts the log. Its port must be ready.
pub(crate) fn init() {
    log::set_logger(&Logger).expect("the logger is set once");
    log::set_max_level(LevelFilter::Info);
}
