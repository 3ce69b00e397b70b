//! Whether one vCPU's writes to its registers reach another one.

use baremetal::arch::processors::Job;

use super::arch::crossing as own;
use super::findings::Findings;
use crate::tests::prelude::*;

/// Maximum number of registers that belong to a vCPU.
pub(super) const OWN_MAX: usize = 512;

/// The value that the second processor finds in each; the second time in the second half.
static SEEN: [AtomicU64; 2 * OWN_MAX] = [const { AtomicU64::new(0) }; 2 * OWN_MAX];

/// Reads them all into one half of [`SEEN`].
fn look(half: usize) {
    own::read_all(|index, value| SEEN[half * OWN_MAX + index].store(value, Ordering::Release));
}

/// Makes the second processor check, while the first waits asleep: both may share one CPU.
fn look_elsewhere(job: Job) {
    processors::give(1, job);
    machine::await_end(1);
}

/// A value that one vCPU writes is neither read by another one, nor lost after that one has run.
pub(super) fn crossing(_: &Orders<'_>) -> Verdict {
    own::prepare();
    // Twice: after that, the state left by faults does not change any more.
    look_elsewhere(|_| look(0));
    look_elsewhere(|_| look(0));
    let (mut findings, mut held) = (Findings::default(), 0);
    for (index, (name, mask)) in own::registers().enumerate() {
        let Some(old) = own::read(name) else { continue };
        if !own::write(name, old ^ mask) {
            continue;
        }
        let new = own::read(name).unwrap_or(old);
        look_elsewhere(|_| look(1));
        let before = SEEN[index].load(Ordering::Acquire);
        let after = SEEN[OWN_MAX + index].load(Ordering::Acquire);
        let left = own::read(name).unwrap_or(old);
        own::write(name, old);
        held += u32::from(new != old);
        if before != after {
            findings.tell(format_args!("{name} of another vCPU has changed: {before:#x}, {after:#x}"));
        }
        if left != new {
            findings.tell(format_args!("{name} is not as it was left: {new:#x}, {left:#x}"));
        }
    }
    findings.verdict(held, 20)
}
