//! The log.

use core::fmt::{self, Write};
use core::sync::atomic::Ordering;
use hostlink::config::MAX_GUESTS;
use hostlink::counters::Counter;
use log::{Level, LevelFilter, Log, Metadata, Record};
use spin::{Mutex, Once};

use super::{Bare, Local, PerCpu};
use crate::quota::{Answer, Quota};
use crate::sched::VcpuIndex;
use crate::vm::arch::{Arch, Clock};
use crate::vm::{Charged, GUEST, Host, increase};

/// In the long run one of the lines that a guest can cause is written per this period.
const GUEST_LINE_PERIOD_US: u64 = 500_000;

/// Index of the quota of no guest.
const NO_GUEST: usize = MAX_GUESTS as usize;

/// The quota of each guest. Held while a line is written.
static LOG_LOCK: Mutex<[Quota; NO_GUEST + 1]> = Mutex::new([const { Quota::FULL }; NO_GUEST + 1]);

/// Writes text to the log unchanged, without the lock: for a panic that may have occurred while the
/// lock was held.
pub(crate) struct LogPort;

impl Write for LogPort {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        Local::log_text(text);
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
        let charged = charged(record.target());
        if let Some(charged) = charged {
            let number = charged.guest.map_or(NO_GUEST, |number| number.min(NO_GUEST));
            match quotas[number].ask(Local::now(), Local::ticks_of_us(GUEST_LINE_PERIOD_US)) {
                Answer::Write { left_out: 0 } => {}
                Answer::Write { left_out } => {
                    let _ = writeln!(LogPort, "quell: {left_out} lines like the next were left out");
                }
                Answer::LeaveOut => return count_left_out(charged),
            }
        }
        let level = match record.level() {
            Level::Error => "error: ",
            Level::Warn => "warning: ",
            _ => "",
        };
        // Writing to the log port cannot fail.
        let _ = match charged.and_then(|charged| charged.name) {
            Some(name) => writeln!(LogPort, "quell: {level}{name}: {}", record.args()),
            _ => writeln!(LogPort, "quell: {level}{}", record.args()),
        };
    }

    fn flush(&self) {}
}

/// Who has caused a line with this target; `None` if it has no quota.
fn charged(target: &str) -> Option<Charged> {
    match CHARGES.get() {
        Some(host) => {
            let here = PerCpu::current().current_vcpu.load(Ordering::Relaxed).checked_sub(1);
            host.charge(target, here.map(VcpuIndex))
        }
        None => target.starts_with(GUEST).then_some(Charged::NOBODY),
    }
}

#[cold]
fn count_left_out(charged: Charged) {
    if let (Some(host), Some(row)) = (CHARGES.get(), charged.row) {
        host.count_left_out(row);
    }
}

/// What knows whose lines those of the log are.
trait Charges: Sync {
    /// See [`Host::charged`].
    fn charge(&self, target: &str, here: Option<VcpuIndex>) -> Option<Charged>;
    /// A line of this vCPU was left out.
    fn count_left_out(&self, row: VcpuIndex);
}

impl<A: Arch> Charges for Host<A> {
    fn charge(&self, target: &str, here: Option<VcpuIndex>) -> Option<Charged> {
        self.charged(target, here)
    }

    fn count_left_out(&self, row: VcpuIndex) {
        increase(&self.counters_of(row)[Counter::LogLinesLeftOut as usize], 1);
    }
}

static CHARGES: Once<&'static dyn Charges> = Once::new();

/// There are guests: lines that they cause are charged to them.
pub(crate) fn charge_by<A: Arch>(host: &'static Host<A>) {
    CHARGES.call_once(|| host);
}

/// Starts the log. Its port must be ready.
pub(crate) fn init() {
    log::set_logger(&Logger).expect("the logger is set once");
    log::set_max_level(LevelFilter::Info);
}
