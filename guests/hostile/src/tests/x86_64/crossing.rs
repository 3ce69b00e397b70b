//! Whether one vCPU's writes to its MSRs reach another one.

use baremetal::x86_64::guarded::{rdmsr, wrmsr};
use baremetal::x86_64::processors;

use crate::tests::findings::Findings;
use crate::tests::prelude::*;
use hostile::allowed::msrs;

/// Maximum number of MSRs that belong to a vCPU.
const OWN_MAX: usize = 256;
/// The value that the second processor finds in each; the second time in the second half.
static SEEN: [AtomicU64; 2 * OWN_MAX] = [const { AtomicU64::new(0) }; 2 * OWN_MAX];

/// MSRs that belong to a vCPU, and the bits that may be changed.
fn own() -> impl Iterator<Item = (u32, u64)> {
    let rows = msrs::ROWS.iter().filter_map(|row| match row.kind {
        Kind::Own(mask) if mask != 0 => Some((row, mask)),
        _ => None,
    });
    rows.flat_map(|(row, mask)| (row.first..=row.last).map(move |number| (number, mask))).take(OWN_MAX)
}

/// Reads them all into one half of [`SEEN`].
fn look(half: usize) {
    for (index, (number, _)) in own().enumerate() {
        SEEN[half * OWN_MAX + index].store(rdmsr(number).unwrap_or(0), Ordering::Release);
    }
}

/// Makes the second processor check, while the first one waits: both may share one CPU.
fn look_elsewhere(job: processors::Job) {
    processors::give(1, job);
    machine::await_end(1);
}

/// A value that one vCPU writes is neither read by another one, nor lost after that one has run.
pub(super) fn crossing(_: &Orders<'_>) -> Verdict {
    let (mut findings, mut held) = (Findings::default(), 0);
    look_elsewhere(|_| look(0));
    for (index, (number, mask)) in own().enumerate() {
        let Ok(old) = rdmsr(number) else { continue };
        // SAFETY: rows say which writes the program can cope with.
        let Ok(()) = (unsafe { wrmsr(number, old ^ mask) }) else { continue };
        let new = rdmsr(number).unwrap_or(old);
        look_elsewhere(|_| look(1));
        let before = SEEN[index].load(Ordering::Acquire);
        let after = SEEN[OWN_MAX + index].load(Ordering::Acquire);
        let left = rdmsr(number).unwrap_or(old);
        // SAFETY: it is the previous value.
        let _ = unsafe { wrmsr(number, old) };
        held += u32::from(new != old);
        if before != after {
            findings
                .tell(format_args!("MSR {number:#x} of another vCPU has changed: {before:#x}, {after:#x}"));
        }
        if left != new {
            findings.tell(format_args!("MSR {number:#x} is not as it was left: {new:#x}, {left:#x}"));
        }
    }
    findings.verdict(held, 20)
}
