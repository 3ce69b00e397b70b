//! The processors: start them, give them jobs.

use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use super::interrupts::{self, WAKE};
use super::{boot, clock, gic, power};

/// Most processors that there can be.
pub const MAX_PROCESSORS: usize = 256;

/// Bytes of each stack; `boot.rs` multiplies by it.
pub(super) const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
pub(super) struct Stack(MaybeUninit<[u8; STACK_SIZE]>);

/// By number; the first processor's is not used. The entry does not clear them: that would touch all of this memory.
#[unsafe(link_section = ".bss.uninitialised")]
pub(super) static mut STACKS: [Stack; MAX_PROCESSORS] =
    [const { Stack(MaybeUninit::uninit()) }; MAX_PROCESSORS];

/// What a processor does: it is told its number.
pub type Job = fn(usize);

/// What the first processor and another one tell each other.
struct Processor {
    /// It has come to [`other`].
    runs: AtomicBool,
    /// Its job as the address of a [`Job`]; 0 is none. A job is stored by [`give`] and removed by the processor when it
    /// is done, each with release against the other's acquire.
    job: AtomicUsize,
    affinity: AtomicU64,
}

/// By number.
static ALL: [Processor; MAX_PROCESSORS] = [const {
    Processor { runs: AtomicBool::new(false), job: AtomicUsize::new(0), affinity: AtomicU64::new(0) }
}; MAX_PROCESSORS];

/// How long a processor may take to start: one that is not the only one to run on its CPU may wait long.
const PATIENCE_MS: u64 = 5000;

/// Says what the affinity of processor `number` is; that of the first is needed as well.
pub fn set_affinity(number: usize, affinity: u64) {
    ALL[number].affinity.store(affinity, Ordering::Relaxed);
}

/// The affinity of processor `number`.
pub fn affinity(number: usize) -> u64 {
    ALL[number].affinity.load(Ordering::Relaxed)
}

/// Starts processor `number`, from 1 on, if it does not run already; says whether it runs.
pub fn start(number: usize) -> bool {
    if runs(number) {
        return true;
    }
    // It begins with the MMU off, past the caches: until that is on, it needs registers and code alone.
    let started = power::cpu_on(affinity(number), boot::other_entry_address(), number as u64);
    started.is_ok() && clock::wait_until(PATIENCE_MS, || runs(number))
}

/// Whether processor `number` has been started.
pub fn runs(number: usize) -> bool {
    // Pairs with `other`, which is ready when it says so.
    ALL[number].runs.load(Ordering::Acquire)
}

/// Whether processor `number` has something to do.
pub fn is_busy(number: usize) -> bool {
    // Pairs with `other`: what the job did is to be seen.
    ALL[number].job.load(Ordering::Acquire) != 0
}

/// Wakes processor `number`, if it waits for an interrupt.
pub fn wake(number: usize) {
    gic::send(affinity(number), WAKE);
}

/// Has processor `number`, which runs and has nothing to do, do `job`, and returns at once.
pub fn give(number: usize, job: Job) {
    // Pairs with `other`, which takes the job.
    ALL[number].job.store(job as usize, Ordering::Release);
    wake(number);
}

/// Waits until processor `number` has done its job, for so many milliseconds at most; says whether it has.
pub fn join(number: usize, ms: u64) -> bool {
    clock::wait_until(ms, || !is_busy(number))
}

/// Where a processor other than the first one begins.
pub(super) extern "C" fn other(number: usize) -> ! {
    // SAFETY: this is the processor of that number, which comes here once.
    unsafe { interrupts::load(number) };
    if let Err(why) = gic::enable() {
        panic!("processor {number}: {why}");
    }
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`.
    runs.store(true, Ordering::Release);
    loop {
        // Pairs with `give`.
        match job.load(Ordering::Acquire) {
            0 => interrupts::wait(),
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
