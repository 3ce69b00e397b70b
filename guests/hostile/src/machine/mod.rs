//! Machine-specific code, and work for all processors.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::ops::Range;
use core::sync::atomic::{AtomicUsize, Ordering};

use baremetal::arch::info::BootInfo;
use baremetal::arch::{clock, processors};
use baremetal::pages::PAGE;
use baremetal::report;
use spin::Once;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{number, off, undefined};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{number, off, undefined};

#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;

static COUNT: AtomicUsize = AtomicUsize::new(1);

static FREE: Once<Range<u64>> = Once::new();

pub(crate) fn prepare(info: &BootInfo) {
    let count = own::prepare(info);
    FREE.call_once(|| {
        let after_image = own::image_end().next_multiple_of(PAGE);
        let ranges = info.ram.iter().map(|ram| ram.start.max(after_image)..ram.end & !(PAGE - 1));
        let largest =
            ranges.filter(|range| range.start < range.end).max_by_key(|range| range.end - range.start);
        largest.unwrap_or(0..0)
    });
    for number in 1..count {
        assert!(processors::start(number), "processor {number} does not start");
    }
    COUNT.store(count, Ordering::Relaxed);
}

pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Whole pages that the program does not use: the largest range after the image.
pub(crate) fn free_memory() -> Range<u64> {
    FREE.get().cloned().unwrap_or(0..0)
}

/// Number of loop iterations after which a condition is given up: at least some minutes where each
/// is an exit, and half a minute where none is. Tests may change the clock.
pub(crate) const TURNS_MAX: u64 = 1 << 31;

pub(crate) fn on_all(job: processors::Job) {
    (1..count()).for_each(|number| processors::give(number, job));
    job(0);
    (1..count()).for_each(await_end);
}

/// Sends an interrupt to every processor but the first.
pub(crate) fn wake_all() {
    (1..count()).for_each(processors::wake);
}

/// Waits until processor `number` has done its job, or reports whether it has missed the interrupt.
pub(crate) fn await_end(number: usize) {
    if ends(number, TURNS_MAX) {
        return;
    }
    processors::wake(number);
    match ends(number, TURNS_MAX / 16) {
        true => report::abort(format_args!(
            "processor {number} has missed the interrupt for its job, and comes by another one"
        )),
        false => report::abort(format_args!("processor {number} does not come to the end of its job")),
    }
}

/// Whether processor `number` finishes its job within this many iterations.
fn ends(number: usize, turns: u64) -> bool {
    (0..turns).any(|_| {
        clock::relax();
        !processors::is_busy(number)
    })
}
