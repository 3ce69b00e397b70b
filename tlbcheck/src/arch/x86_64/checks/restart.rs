//! A processor that is started again executes by no translation from before INIT: without paging a
//! linear address is a physical one. AMD64 APM volume 2 (24593, rev. 3.42), sections 14.1.3 and
//! 15.27; Intel SDM volume 3A, section 9.4.

use baremetal::x86_64::boot::STARTUP_PAGE;

use super::prelude::*;

const ROUNDS: u32 = 8;
/// HLT and a jump back to it, and in the next word a function that returns 42.
const CODE: [u64; 2] = [
    u64::from_le_bytes([0xf4, 0xeb, 0xfd, 0, 0, 0, 0, 0]),
    u64::from_le_bytes([0xb8, 42, 0, 0, 0, 0xc3, 0, 0]),
];

static ROOT: AtomicU64 = AtomicU64::new(0);
static HAS_RUN: AtomicBool = AtomicBool::new(false);

/// Enters a space that maps other code where start-up code is, calls it, and stays there.
fn call_and_stay(_: usize) {
    window::enter_space(ROOT.load(Ordering::Acquire));
    HAS_RUN.store(window::call(STARTUP_PAGE + 8) == 42, Ordering::Release);
    loop {
        core::hint::spin_loop();
    }
}

/// After INIT and a start-up IPI the processor executes the start-up page, and not the one that its
/// former tables map there, which halts it.
pub(super) fn init() -> Verdict {
    let processor = machine::second()?;
    let code = &take(1, 1)[0];
    code.write(&CODE);
    ROOT.store(window::space_with(STARTUP_PAGE, code), Ordering::Release);
    for round in 0..ROUNDS {
        HAS_RUN.store(false, Ordering::Release);
        machine::give(processor, call_and_stay)?;
        let has_run = clock::wait_until(PATIENCE_MS, || HAS_RUN.load(Ordering::Acquire));
        processors::reset(processor);
        let starts = processors::start(processor);
        ensure!(has_run, "the other processor does not use its own tables");
        ensure!(starts, "it executes what its former tables map, or nothing, in round {round}");
    }
    Ok(())
}
