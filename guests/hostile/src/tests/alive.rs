//! Whether all processors are present, take faults and interrupts, and finish their jobs.

use crate::tests::prelude::*;
use baremetal::arch::interrupts;

const ROUNDS: usize = 100;

static FAULTS: [AtomicUsize; processors::MAX_PROCESSORS] =
    [const { AtomicUsize::new(0) }; processors::MAX_PROCESSORS];

fn fault(number: usize) {
    let faults = (0..ROUNDS).filter(|_| machine::undefined()).count();
    FAULTS[number].store(faults, Ordering::Release);
    assert!(machine::number() == number, "processor {number} takes itself for another one");
}

/// Each processor takes faults at instructions that may fault, and an interrupt for each job.
pub(crate) fn alive(_: &Orders<'_>) -> Verdict {
    for _ in 0..2 {
        machine::on_all(fault);
        for number in 0..machine::count() {
            let faults = FAULTS[number].swap(0, Ordering::Acquire);
            ensure!(faults == ROUNDS, "processor {number} has taken {faults} faults of {ROUNDS}");
        }
        machine::wake_all();
        interrupts::enable();
        interrupts::disable();
    }
    Ok(())
}
