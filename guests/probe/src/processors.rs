//! The second processor: start it, give it jobs.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use x86_64::instructions::interrupts;

use crate::interrupts::VECTOR_WAKE;
use crate::report::{Failure, Verdict, ensure};
use crate::{apic, boot, clock, tables};

/// Processors that the probe uses.
pub(crate) const PROCESSORS: usize = 2;
/// The second one's APIC id.
pub(crate) const SECOND: u32 = 1;

/// The job of the second processor as the address of a `fn()`; 0 is none.
static JOB: AtomicUsize = AtomicUsize::new(0);
static RUNS: AtomicBool = AtomicBool::new(false);

/// How long the second processor may take for anything.
const PATIENCE_MS: u64 = 10_000;

/// Starts the second processor, if it does not run already.
pub(crate) fn start_second() -> Verdict {
    if RUNS.load(Ordering::Acquire) {
        return Ok(());
    }
    // SAFETY: nobody else uses the page.
    unsafe { boot::install_startup_page() };
    apic::send_startup(SECOND, (boot::STARTUP_PAGE >> 12) as u8);
    let runs = clock::wait_until(PATIENCE_MS, || RUNS.load(Ordering::Acquire));
    ensure!(runs, "the second processor does not start; are there 2?");
    Ok(())
}

/// Has the second processor run `job`, and returns at once.
pub(crate) fn give(job: fn()) {
    JOB.store(job as usize, Ordering::Release);
    apic::send_fixed(SECOND, VECTOR_WAKE);
}

/// Waits until the second processor has done its job.
pub(crate) fn join() -> Verdict {
    let done = clock::wait_until(PATIENCE_MS, || JOB.load(Ordering::Acquire) == 0);
    ensure!(done, "the second processor does not come to its end");
    Ok(())
}

/// Has the second processor run `job`, to its end.
pub(crate) fn run(job: fn()) -> Result<(), Failure> {
    start_second()?;
    give(job);
    join()
}

/// Where the second processor begins.
pub(crate) extern "C" fn second_main() -> ! {
    // SAFETY: this is the second processor, which comes here once.
    unsafe { tables::load(1) };
    apic::enable();
    RUNS.store(true, Ordering::Release);
    loop {
        interrupts::disable();
        match JOB.load(Ordering::Acquire) {
            0 => interrupts::enable_and_hlt(),
            address => {
                // SAFETY: `give` stored it, and nothing else does.
                let job = unsafe { core::mem::transmute::<usize, fn()>(address) };
                job();
                JOB.store(0, Ordering::Release);
            }
        }
    }
}
