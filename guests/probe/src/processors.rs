//! The other processors by their APIC ids: start them, give them jobs.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicUsize, Ordering};

use baremetal::x86_64::{apic, processors};

use crate::clock;
use crate::report::{Failure, Verdict, ensure};

/// Most processors that the probe uses; their APIC ids count from 0, which is the first
/// processor's.
pub(crate) const PROCESSORS: usize = 8;
/// The second one's APIC id.
pub(crate) const SECOND: u32 = 1;

/// The jobs by APIC id, each the address of a `fn()`. Stored before the processor is given
/// [`work`].
static JOBS: [AtomicUsize; PROCESSORS] = [const { AtomicUsize::new(0) }; PROCESSORS];

/// How long another processor may take for anything: much longer than it does on the busiest
/// machine.
const PATIENCE_MS: u64 = 60_000;

/// Enables the first processor's APIC; processors are numbered by their APIC ids.
pub(crate) fn prepare() {
    apic::enable();
    clock::prepare();
    (0..PROCESSORS).for_each(|id| processors::set_apic_id(id, id as u32));
}

/// Starts processor `id`, one of 1 to [`PROCESSORS`] - 1, if it does not run already.
pub(crate) fn start(id: u32) -> Verdict {
    ensure!(processors::start(id as usize), "processor {id} does not start; is there one?");
    Ok(())
}

/// How many processors there are, of which [`PROCESSORS`] at most are used.
pub(crate) fn count() -> u32 {
    // Logical processors, by CPUID.
    (__cpuid(1).ebx >> 16 & 0xff).clamp(1, PROCESSORS as u32)
}

/// Whether processor `id` has been started, and not been reset since.
pub(crate) fn runs(id: u32) -> bool {
    processors::runs(id as usize)
}

/// Resets processor `id`, in whatever it is doing. It does nothing until it is started again.
pub(crate) fn reset(id: u32) {
    processors::reset(id as usize);
}

/// What a processor with a job does.
fn work(id: usize) {
    // SAFETY: `give` stored it, and nothing else does.
    let job = unsafe { core::mem::transmute::<usize, fn()>(JOBS[id].load(Ordering::Acquire)) };
    job();
}

/// Has processor `id`, which runs, do `job`, and returns at once.
pub(crate) fn give(id: u32, job: fn()) {
    JOBS[id as usize].store(job as usize, Ordering::Release);
    processors::give(id as usize, work);
}

/// Waits until processor `id` has done its job.
pub(crate) fn join(id: u32) -> Verdict {
    ensure!(processors::join(id as usize, PATIENCE_MS), "processor {id} does not come to its end");
    Ok(())
}

/// Has processor `id` do `job`, to its end; starts it first if need be.
pub(crate) fn run(id: u32, job: fn()) -> Result<(), Failure> {
    start(id)?;
    give(id, job);
    join(id)
}
