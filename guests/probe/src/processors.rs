//! The other processors: start them, give them jobs.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use x86_64::instructions::interrupts;

use crate::interrupts::VECTOR_WAKE;
use crate::report::{Failure, Verdict, ensure};
use crate::{apic, boot, clock, tables};

/// Most processors that the probe uses; their APIC ids count from 0, which is the first processor's.
pub(crate) const PROCESSORS: usize = 8;
/// The second one's APIC id.
pub(crate) const SECOND: u32 = 1;

/// What the first processor and another one tell each other.
struct Processor {
    /// It has come to [`main`].
    runs: AtomicBool,
    /// Its job as the address of a `fn()`; 0 is none.
    job: AtomicUsize,
}

/// By APIC id; the first processor's is not used.
static ALL: [Processor; PROCESSORS] =
    [const { Processor { runs: AtomicBool::new(false), job: AtomicUsize::new(0) } }; PROCESSORS];

/// How long another processor may take for anything.
const PATIENCE_MS: u64 = 10_000;

/// Starts processor `id`, one of 1 to [`PROCESSORS`] - 1, if it does not run already.
pub(crate) fn start(id: u32) -> Verdict {
    if runs(id) {
        return Ok(());
    }
    // SAFETY: nobody else uses the page; what it holds is always the same.
    unsafe { boot::install_startup_page() };
    apic::send_startup(id, (boot::STARTUP_PAGE >> 12) as u8);
    let started = clock::wait_until(PATIENCE_MS, || runs(id));
    ensure!(started, "processor {id} does not start; is there one?");
    Ok(())
}

/// How many processors there are, of which [`PROCESSORS`] at most are used.
pub(crate) fn count() -> u32 {
    // Logical processors, by CPUID.
    (__cpuid(1).ebx >> 16 & 0xff).clamp(1, PROCESSORS as u32)
}

/// Whether processor `id` has been started, and not been reset since.
pub(crate) fn runs(id: u32) -> bool {
    ALL[id as usize].runs.load(Ordering::Acquire)
}

/// Resets processor `id`, in whatever it is doing. It does nothing until it is started again.
pub(crate) fn reset(id: u32) {
    apic::send_init(id);
    let Processor { runs, job } = &ALL[id as usize];
    runs.store(false, Ordering::Release);
    job.store(0, Ordering::Release);
}

/// Has processor `id`, which runs, do `job`, and returns at once.
pub(crate) fn give(id: u32, job: fn()) {
    ALL[id as usize].job.store(job as usize, Ordering::Release);
    apic::send_fixed(id, VECTOR_WAKE);
}

/// Waits until processor `id` has done its job.
pub(crate) fn join(id: u32) -> Verdict {
    let done = clock::wait_until(PATIENCE_MS, || ALL[id as usize].job.load(Ordering::Acquire) == 0);
    ensure!(done, "processor {id} does not come to its end");
    Ok(())
}

/// Has processor `id` do `job`, to its end; starts it first if need be.
pub(crate) fn run(id: u32, job: fn()) -> Result<(), Failure> {
    start(id)?;
    give(id, job);
    join(id)
}

/// Where the processor with APIC id `id` begins.
pub(crate) extern "C" fn main(id: u32) -> ! {
    let index = id as usize;
    // SAFETY: this is the processor of that number, which comes here once after each reset.
    unsafe { tables::load(index) };
    apic::enable();
    let Processor { runs, job } = &ALL[index];
    runs.store(true, Ordering::Release);
    loop {
        interrupts::disable();
        match job.load(Ordering::Acquire) {
            0 => interrupts::enable_and_hlt(),
            address => {
                // SAFETY: `give` stored it, and nothing else does.
                let work = unsafe { core::mem::transmute::<usize, fn()>(address) };
                work();
                job.store(0, Ordering::Release);
            }
        }
    }
}
