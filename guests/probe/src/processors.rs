//! The other processors: start them, give them jobs.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicBool, Ordering};

use baremetal::HardwareId;
use baremetal::x86_64::processors::Job;
pub(crate) use baremetal::x86_64::processors::{give, id, reset, runs};
use baremetal::x86_64::{apic, processors};

use crate::clock;
use crate::report::{Failure, Verdict, ensure};

/// Maximum number of processors that the probe uses; their APIC ids start at 0, and but on Xen are
/// their numbers.
pub(crate) const PROCESSORS: usize = 8;
/// The second one's number.
pub(crate) const SECOND: usize = 1;

/// Time limit for any action of another processor: much longer than needed on the busiest machine.
pub(crate) const PATIENCE_MS: u64 = 60_000;

/// Sends the calling processor an interrupt, by whichever interface its APIC has.
pub(crate) fn send_to_self(vector: u8) {
    apic::send_fixed(apic::id(), vector);
}

/// Enables the first processor's APIC, and numbers the processors.
pub(crate) fn prepare() {
    apic::enable();
    clock::prepare();
    (0..PROCESSORS).for_each(|id| processors::set_id(id, HardwareId(id as u64 * step())));
}

/// Between APIC ids: Xen numbers them by twos. With Hyper-V's interface its own is the second.
fn step() -> u64 {
    let leaf = __cpuid(0x4000_0100);
    if [leaf.ebx, leaf.ecx, leaf.edx].map(u32::to_le_bytes).as_flattened() == b"XenVMMXenVMM" { 2 } else { 1 }
}

/// Starts processor `id`, one of 1 to [`PROCESSORS`] - 1, if it is not running already.
pub(crate) fn start(id: usize) -> Verdict {
    ensure!(processors::start(id), "processor {id} does not start; is there one?");
    Ok(())
}

/// The number of processors, of which at most [`PROCESSORS`] are used.
pub(crate) fn count() -> usize {
    // Logical processors, by CPUID.
    (__cpuid(1).ebx as usize >> 16 & 0xff).clamp(1, PROCESSORS)
}

/// Waits until processor `id` has done its job.
pub(crate) fn join(id: usize) -> Verdict {
    ensure!(processors::join(id, PATIENCE_MS), "processor {id} does not come to its end");
    Ok(())
}

/// Runs `job` on processor `id` to its end; starts the processor first if necessary.
pub(crate) fn run(id: usize, job: Job) -> Verdict {
    start(id)?;
    give(id, job);
    join(id)
}

static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether a job that [`beside`] has given is to end.
pub(crate) fn is_over() -> bool {
    IS_OVER.load(Ordering::Acquire)
}

/// Runs `act` while the other processors up to `last`, which are running, do `job` until it
/// [`is_over`].
pub(crate) fn beside<R>(
    last: usize,
    job: Job,
    act: impl FnOnce() -> Result<R, Failure>,
) -> Result<R, Failure> {
    IS_OVER.store(false, Ordering::Release);
    (1..=last).for_each(|id| give(id, job));
    let done = act();
    IS_OVER.store(true, Ordering::Release);
    (1..=last).try_for_each(join).and(done)
}
