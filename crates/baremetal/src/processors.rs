//! What the first processor and the others tell each other: who runs, and what there is to do.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::arch::{clock, processors};

/// Most processors that there can be.
pub const MAX_PROCESSORS: usize = 256;

/// What a processor does: it is told its number.
pub type Job = fn(usize);

struct Processor {
    /// It has come to [`work`].
    runs: AtomicBool,
    /// Its job as the address of a [`Job`]; 0 is none. A job is stored by [`give`] and removed by
    /// the processor when it is done, each with release against the other's acquire.
    job: AtomicUsize,
    /// Its APIC id, or its affinity.
    id: AtomicU64,
}

/// By number.
static ALL: [Processor; MAX_PROCESSORS] =
    [const { Processor { runs: AtomicBool::new(false), job: AtomicUsize::new(0), id: AtomicU64::new(0) } };
        MAX_PROCESSORS];

/// How long a processor may take to start: one that is not the only one to run on its CPU may wait
/// long.
pub(crate) const PATIENCE_MS: u64 = 5000;

pub(crate) fn set_id(number: usize, id: u64) {
    ALL[number].id.store(id, Ordering::Relaxed);
}

pub(crate) fn id(number: usize) -> u64 {
    ALL[number].id.load(Ordering::Relaxed)
}

/// Whether processor `number` has been started, and not been reset since.
pub fn runs(number: usize) -> bool {
    // Pairs with `work`: the processor is ready when it says so.
    ALL[number].runs.load(Ordering::Acquire)
}

/// Processor `number` is reset, or does not start: what it had to do is nobody's.
pub fn forget(number: usize) {
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`.
    runs.store(false, Ordering::Release);
    // Pairs with `is_busy`.
    job.store(0, Ordering::Release);
}

/// Whether processor `number` has something to do.
pub fn is_busy(number: usize) -> bool {
    // Pairs with `work`: what the job did is to be seen.
    ALL[number].job.load(Ordering::Acquire) != 0
}

/// Has processor `number`, which runs and has nothing to do, do `job`, and returns at once.
pub fn give(number: usize, job: Job) {
    // Pairs with `work`, which takes the job.
    ALL[number].job.store(job as usize, Ordering::Release);
    processors::wake(number);
}

/// Waits until processor `number` has done its job, for so many milliseconds at most; says whether
/// it has.
pub fn join(number: usize, ms: u64) -> bool {
    clock::wait_until(ms, || !is_busy(number))
}

/// What a processor other than the first one does when it is ready: its jobs. `mask` masks
/// interrupts, and `wait` waits for one with them unmasked, so that one which comes between the two
/// ends the wait.
pub(crate) fn work(number: usize, mask: fn(), wait: fn()) -> ! {
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`.
    runs.store(true, Ordering::Release);
    loop {
        mask();
        // Pairs with `give`.
        match job.load(Ordering::Acquire) {
            0 => wait(),
            address => {
                // SAFETY: `give` stored it, and nothing else does.
                let work = unsafe { core::mem::transmute::<usize, Job>(address) };
                work(number);
                // Pairs with `is_busy`.
                job.store(0, Ordering::Release);
            }
        }
    }
}
