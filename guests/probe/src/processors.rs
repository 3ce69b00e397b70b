//! The other processors by their APIC ids: start them, give them jobs.

use core::arch::x86_64::__cpuid;

use baremetal::HardwareId;
use baremetal::x86_64::processors::Job;
use baremetal::x86_64::{apic, processors};

use crate::clock;
use crate::report::{Failure, Verdict, ensure};

/// Maximum number of processors that the probe uses; their APIC ids start at 0.
pub(crate) const PROCESSORS: usize = 8;
/// The second one's APIC id.
pub(crate) const SECOND: u32 = 1;

/// Time limit for any action of another processor: much longer than needed on the busiest machine.
pub(crate) const PATIENCE_MS: u64 = 60_000;

/// Enables the first processor's APIC; processors are numbered by their APIC ids.
pub(crate) fn prepare() {
    apic::enable();
    clock::prepare();
    (0..PROCESSORS).for_each(|id| processors::set_id(id, HardwareId(id as u64)));
}

/// Starts processor `id`, one of 1 to [`PROCESSORS`] - 1, if it is not running already.
pub(crate) fn start(id: u32) -> Verdict {
    ensure!(processors::start(id as usize), "processor {id} does not start; is there one?");
    Ok(())
}

/// The number of processors, of which at most [`PROCESSORS`] are used.
pub(crate) fn count() -> u32 {
    // Logical processors, by CPUID.
    (__cpuid(1).ebx >> 16 & 0xff).clamp(1, PROCESSORS as u32)
}

/// Whether processor `id` has been started, and not been reset since.
pub(crate) fn runs(id: u32) -> bool {
    processors::runs(id as usize)
}

/// Resets processor `id`, regardless of its state. It does nothing until it is started again.
pub(crate) fn reset(id: u32) {
    processors::reset(id as usize);
}

/// Gives `job` to processor `id`, which must be running, and returns at once.
pub(crate) fn give(id: u32, job: Job) {
    processors::give(id as usize, job);
}

/// Waits until processor `id` has done its job.
pub(crate) fn join(id: u32) -> Verdict {
    ensure!(processors::join(id as usize, PATIENCE_MS), "processor {id} does not come to its end");
    Ok(())
}

/// Runs `job` on processor `id` to its end; starts the processor first if necessary.
pub(crate) fn run(id: u32, job: Job) -> Result<(), Failure> {
    start(id)?;
    give(id, job);
    join(id)
}
