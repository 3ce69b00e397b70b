//! What differs from machine to machine, and work for all processors.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::sync::atomic::{AtomicUsize, Ordering};

use baremetal::arch::info::BootInfo;
use baremetal::arch::{clock, processors};

use crate::report;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::{number, off, undefined, wake_all};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::{number, off, undefined, wake_all};

#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;

/// How many processors there are; the first one has number 0.
static COUNT: AtomicUsize = AtomicUsize::new(1);

/// Starts all processors.
pub(crate) fn prepare(info: &BootInfo) {
    let count = own::prepare(info);
    for number in 1..count {
        assert!(processors::start(number), "processor {number} does not start");
    }
    COUNT.store(count, Ordering::Relaxed);
}

/// How many processors there are.
pub(crate) fn count() -> usize {
    COUNT.load(Ordering::Relaxed)
}

/// Turns of a loop after which what is waited for never comes: some minutes at least where each is
/// an exit, and half a minute where none is. The clock may be one of the things that tests change.
pub(crate) const TURNS_MAX: u64 = 1 << 31;

/// Has all processors do `job`, this one included, and waits for them.
pub(crate) fn on_all(job: processors::Job) {
    (1..count()).for_each(|number| processors::give(number, job));
    job(0);
    (1..count()).for_each(await_end);
}

/// Waits until processor `number` has done its job. Where that never comes, says whether it has
/// slept through its beginning.
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

/// Whether processor `number` does its job within so many turns.
fn ends(number: usize, turns: u64) -> bool {
    (0..turns).any(|_| {
        clock::relax();
        !processors::is_busy(number)
    })
}
