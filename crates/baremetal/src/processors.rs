//! State shared by the first processor and the others: which ones run, and their jobs.

use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use crate::HardwareId;
use crate::arch::{clock, processors};

/// The most processors.
pub const MAX_PROCESSORS: usize = 256;

/// A processor's job; it receives the processor's number.
pub type Job = fn(usize);

struct Processor {
    /// It has reached [`work`].
    runs: AtomicBool,
    /// Its job as the address of a [`Job`]; 0 is none. [`give`] stores a job, and the processor
    /// removes it when it is done, each with release against the other's acquire.
    job: AtomicUsize,
    /// Its APIC id, or its affinity.
    id: AtomicU64,
}

/// By number.
static ALL: [Processor; MAX_PROCESSORS] =
    [const { Processor { runs: AtomicBool::new(false), job: AtomicUsize::new(0), id: AtomicU64::new(0) } };
        MAX_PROCESSORS];

/// How long a processor may take to start: a virtual one that shares its CPU may wait for long.
pub(crate) const PATIENCE_MS: u64 = 5000;

/// Sets the id of processor `number`, an APIC id or an affinity; that of the first is needed as
/// well.
pub fn set_id(number: usize, id: HardwareId) {
    ALL[number].id.store(id.0, Ordering::Relaxed);
}

/// Numbers the processors: the calling one, whose id is `own`, has number 0, and the others with
/// these ids follow. Returns how many there are.
pub fn number_all(own: HardwareId, ids: impl IntoIterator<Item = HardwareId>) -> usize {
    set_id(0, own);
    let others = ids.into_iter().filter(|id| *id != own).take(MAX_PROCESSORS - 1);
    others.fold(1, |number, id| {
        set_id(number, id);
        number + 1
    })
}

/// The id of processor `number`.
pub fn id(number: usize) -> HardwareId {
    HardwareId(ALL[number].id.load(Ordering::Relaxed))
}

/// Whether processor `number` has been started, and not been reset since.
pub fn runs(number: usize) -> bool {
    // Pairs with `work`: the processor is ready when it says so.
    ALL[number].runs.load(Ordering::Acquire)
}

/// Records that processor `number` is reset, or does not start: its job is dropped.
pub fn forget(number: usize) {
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`.
    runs.store(false, Ordering::Release);
    // Pairs with `is_busy`.
    job.store(0, Ordering::Release);
}

/// Whether processor `number` has a job.
pub fn is_busy(number: usize) -> bool {
    // Pairs with `work`: the effects of the job are visible.
    ALL[number].job.load(Ordering::Acquire) != 0
}

/// Gives `job` to processor `number`, which must be running and idle, and returns immediately.
pub fn give(number: usize, job: Job) {
    // Pairs with `work`, which takes the job.
    ALL[number].job.store(job as usize, Ordering::Release);
    processors::wake(number);
}

/// Waits until processor `number` has done its job, for at most `ms` milliseconds; returns whether
/// it has.
pub fn join(number: usize, ms: u64) -> bool {
    clock::wait_until(ms, || !is_busy(number))
}

/// The loop of a processor other than the first one: runs its jobs. `mask` masks interrupts, and
/// `wait` waits for one with them unmasked, so that an interrupt between the two ends the wait.
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
