//! The log.

use core::fmt::{self, Write};

use log::{Level, LevelFilter, Log, Metadata, Record};
use spin::Mutex;

use crate::arch::console;

static LOG_LOCK: Mutex<()> = Mutex::new(());

/// Writes text to the log as it is, without the lock: for a panic that may have happened while it was held.
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
        let _one_line_at_a_time = LOG_LOCK.lock();
        let level = match record.level() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            _ => "",
        };
        // Writing to the log port cannot fail.
        let _ = writeln!(LogPort, "quell: {level}{}", record.args());
    }

    fn flush(&self) {}
}

/// Starts the log. Its port is ready.
pub(crate) fn init() {
    log::set_logger(&Logger).expect("the logger is set once");
    log::set_max_level(LevelFilter::Info);
}
