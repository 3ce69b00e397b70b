//! Processors and platform, determined once at the beginning.

use arm_sysregs::el1::accessors as registers;
use baremetal::aarch64::info::BootInfo;
use baremetal::aarch64::{clock, gic, interrupts, power, processors};
use tlbcheck::arm64::Identity;
pub(in crate::arch) use tlbcheck::arm64::TlbFeatures as Platform;
use tlbcheck::command_line::Options;
use tlbcheck::needs;
use tlbcheck::report::{Clock, Verdict};

use crate::arch::console;
use crate::arch::testbed::{self, PATIENCE_MS};
pub(super) use crate::arch::testbed::{get, give, join};

/// Detects the machine, starts the processors, begins the report.
pub(in crate::arch) fn find(info: &BootInfo, options: &Options<'_>) {
    if let Err(why) = gic::enable_distributor().and_then(|()| gic::enable()) {
        console::bail(format_args!("{why}"));
    }
    let identity = Identity {
        midr: registers::read_midr_el1().bits(),
        isar0: registers::read_id_aa64isar0_el1().bits(),
        mmfr0: registers::read_id_aa64mmfr0_el1().bits(),
        mmfr1: registers::read_id_aa64mmfr1_el1().bits(),
        mmfr2: registers::read_id_aa64mmfr2_el1().bits(),
    };
    let platform = Platform::new(identity, power::call(Platform::UID_CALL, [0; 3]));
    let clock = Clock::VirtualCounter(clock::hz());
    let ids = info.processors.iter().copied();
    testbed::begin(gic::affinity(), ids, platform, options, (clock, "arm64 image"));
}

/// Processors other than the first; skips if there is none.
pub(super) fn others() -> Result<core::ops::Range<usize>, tlbcheck::report::Stop> {
    let processors = get().processors;
    needs!(processors > 1, "there is one processor");
    Ok(1..processors)
}

/// Microseconds for which an idle processor sleeps, and the checks that it makes before.
const SLEEP_US: u64 = 50;
const LOOKS: u64 = 64;

/// Sleeps for a moment: a virtual processor yields. Interrupts are masked: one that arrives before
/// the processor sleeps ends its sleep as well, so no wake-up is lost.
pub(super) fn sleep() {
    clock::set_timer(SLEEP_US);
    interrupts::wait();
    clock::stop_timer();
}

/// Waits until the condition holds, for at most [`PATIENCE_MS`]; returns whether it does. It sleeps
/// in between: the processors that it waits for may share its CPU, and a hypervisor below cannot
/// tell that it waits, because the clock that it reads always changes.
pub(in crate::arch) fn wait_until(mut condition: impl FnMut() -> bool) -> bool {
    let end = clock::now() + clock::ticks(PATIENCE_MS * 1000);
    loop {
        for _ in 0..LOOKS {
            if condition() {
                return true;
            }
            clock::relax();
        }
        if clock::now() > end {
            return condition();
        }
        sleep();
    }
}

/// Runs `job` on all processors, including the calling one, which is the first.
pub(super) fn on_all(job: processors::Job) -> Verdict {
    let all = 1..get().processors;
    all.clone().try_for_each(|number| give(number, job))?;
    job(0);
    all.map(join).fold(Ok(()), Verdict::and)
}
