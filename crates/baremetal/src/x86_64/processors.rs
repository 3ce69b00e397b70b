//! The processors: start them, give them jobs.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use x86_64::instructions::interrupts;

use super::interrupts::VECTOR_WAKE;
use super::{apic, boot, clock, tables};

/// Most processors that there can be.
pub const MAX_PROCESSORS: usize = 256;

pub(super) const STACK_SIZE: usize = 16 << 10;

#[repr(C, align(16))]
pub(super) struct Stack([u8; STACK_SIZE]);

/// By number; the first processor's is not used.
pub(super) static mut STACKS: [Stack; MAX_PROCESSORS] = [const { Stack([0; STACK_SIZE]) }; MAX_PROCESSORS];

/// What a processor does: it is told its number.
pub type Job = fn(usize);

/// What the first processor and another one tell each other.
struct Processor {
    /// It has come to [`other`].
    runs: AtomicBool,
    /// Its job as the address of a [`Job`]; 0 is none. A job is stored by [`give`] and removed by the processor when it
    /// is done, each with release against the other's acquire.
    job: AtomicUsize,
    apic_id: AtomicU32,
}

/// By number.
static ALL: [Processor; MAX_PROCESSORS] = [const {
    Processor { runs: AtomicBool::new(false), job: AtomicUsize::new(0), apic_id: AtomicU32::new(0) }
}; MAX_PROCESSORS];

/// How long a processor may take to start: one that is not the only one to run on its CPU may wait long.
const PATIENCE_MS: u64 = 5000;
/// Pauses that the start-up of real processors needs (Intel SDM volume 3A, section 9.4.4.1).
const AFTER_INIT_US: u64 = 10_000;
const AFTER_STARTUP_US: u64 = 200;

/// Says what the APIC id of processor `number` is; that of the first is needed as well.
pub fn set_apic_id(number: usize, id: u32) {
    ALL[number].apic_id.store(id, Ordering::Relaxed);
}

/// The APIC id of processor `number`.
pub fn apic_id(number: usize) -> u32 {
    ALL[number].apic_id.load(Ordering::Relaxed)
}

/// Starts processor `number`, from 1 on, if it does not run already; says whether it runs.
pub fn start(number: usize) -> bool {
    if runs(number) {
        return true;
    }
    let (id, page) = (apic_id(number), (boot::STARTUP_PAGE >> 12) as u8);
    // SAFETY: the page is kept for this; the processor of this number does not run.
    unsafe { boot::offer_start(id, number as u32) };
    apic::send_init(id);
    clock::delay(AFTER_INIT_US);
    // The second time only if the first was of no use.
    for _ in 0..2 {
        apic::send_startup(id, page);
        clock::delay(AFTER_STARTUP_US);
        if clock::wait_until(PATIENCE_MS, || runs(number)) {
            return true;
        }
    }
    // It is sent back to where only a start-up IPI gets it from, in case it comes at this moment.
    boot::withdraw_start();
    reset(number);
    clock::delay(AFTER_INIT_US);
    // Pairs with `runs`.
    ALL[number].runs.store(false, Ordering::Release);
    false
}

/// Whether processor `number` has been started, and not been reset since.
pub fn runs(number: usize) -> bool {
    // Pairs with `other`, which is ready when it says so.
    ALL[number].runs.load(Ordering::Acquire)
}

/// Resets processor `number`, in whatever it is doing. It does nothing until it is started again.
pub fn reset(number: usize) {
    apic::send_init(apic_id(number));
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`, and the job pairs with `is_busy`.
    runs.store(false, Ordering::Release);
    // Pairs with `is_busy`.
    job.store(0, Ordering::Release);
}

/// Whether processor `number` has something to do.
pub fn is_busy(number: usize) -> bool {
    // Pairs with `other`: what the job did is to be seen.
    ALL[number].job.load(Ordering::Acquire) != 0
}

/// Wakes processor `number`, if it waits for an interrupt.
pub fn wake(number: usize) {
    apic::send_fixed(apic_id(number), VECTOR_WAKE);
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
pub(super) extern "C" fn other(number: u64) -> ! {
    let number = number as usize;
    // SAFETY: this is the processor of that number, which comes here once after each reset.
    unsafe { tables::load(number) };
    apic::enable();
    let Processor { runs, job, .. } = &ALL[number];
    // Pairs with `runs`.
    runs.store(true, Ordering::Release);
    loop {
        interrupts::disable();
        // Pairs with `give`.
        match job.load(Ordering::Acquire) {
            // An interrupt that comes before HLT ends it.
            0 => interrupts::enable_and_hlt(),
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
