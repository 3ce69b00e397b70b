//! The run time of processors that share a CPU: what the one has had, the other has waited.

use super::prelude::*;

/// Turns of the second processor that are watched.
const TURNS: u32 = 20;
/// What is read at one time is read within this time, in units of 100 ns.
const AT_ONCE: u64 = 10_000;
const ATTEMPTS: u32 = 1000;

/// The run time that the second processor has read last.
static ITS_TIME: AtomicU64 = AtomicU64::new(0);

fn read(number: u32) -> Result<u64, Failure> {
    rdmsr(number).map_err(|fault| failure(format_args!("RDMSR of {number:#x}: {fault:x?}")))
}

/// Times in units of 100 ns.
struct Times {
    reference: u64,
    own: u64,
    other: u64,
}

impl Times {
    /// All three, without a turn of the other processor in between.
    fn now() -> Result<Self, Failure> {
        for _ in 0..ATTEMPTS {
            let reference = read(msr::TIME_REF_COUNT)?;
            let times =
                Self { reference, own: read(msr::VP_RUNTIME)?, other: ITS_TIME.load(Ordering::Relaxed) };
            if read(msr::TIME_REF_COUNT)? - reference < AT_ONCE {
                return Ok(times);
            }
        }
        Err(failure(format_args!("three registers are never read within {AT_ONCE} units of time")))
    }
}

/// Both work all the time, so the sum of what they have had is the time that has passed.
fn share() -> Verdict {
    let begins = clock::wait_until(PATIENCE_MS, || ITS_TIME.load(Ordering::Relaxed) != 0);
    ensure!(begins, "the second processor reads no run time");
    let before = Times::now()?;
    let (mut turns, mut its, mut own, mut is_monotonic) = (0, before.other, before.own, true);
    let limit = clock::now() + clock::ticks(PATIENCE_MS * 1000);
    // Without PAUSE: who spins makes room for the other.
    while turns < TURNS && clock::now() < limit {
        let now = read(msr::VP_RUNTIME)?;
        is_monotonic &= now >= core::mem::replace(&mut own, now);
        let last = core::mem::replace(&mut its, ITS_TIME.load(Ordering::Relaxed));
        is_monotonic &= its >= last;
        turns += u32::from(its != last);
    }
    ensure!(turns == TURNS, "{turns} turns of the second processor instead of {TURNS}");
    ensure!(is_monotonic, "a run time has decreased");
    let after = Times::now()?;
    let passed = after.reference - before.reference;
    let (own, other) = (after.own - before.own, after.other - before.other);
    let slack = passed / 20 + 2 * AT_ONCE;
    let is_shared = own.max(other) < passed / 10 * 7 && (own + other).abs_diff(passed) < slack;
    ensure!(is_shared, "of {passed} units they had {own} and {other}");
    Ok(())
}

/// Two processors that work all the time, on one CPU.
pub(super) fn run_time() -> Verdict {
    // SAFETY: it is refused, as the test checks.
    let written = unsafe { wrmsr(msr::VP_RUNTIME, 0) };
    ensure!(written == Err(Fault::PROTECTION), "WRMSR of the run time: {written:x?}");
    processors::start(SECOND)?;
    let read_on = |_| {
        while !processors::is_over() {
            ITS_TIME.store(rdmsr(msr::VP_RUNTIME).unwrap_or(0), Ordering::Relaxed);
        }
    };
    processors::beside(SECOND, read_on, share)
}
