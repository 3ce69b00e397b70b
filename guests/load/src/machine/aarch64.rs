//! Arm64.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicUsize, Ordering};

use baremetal::aarch64::info::BootInfo;
use baremetal::aarch64::{boot, clock, interrupts, power, processors};
use load::command::Misuse;

use crate::guest::Failure;

pub(crate) use power::{halt, off};

/// The first hint that has a function, and the distance in bytes between functions.
const HINT_FIRST: u8 = 0x60;
const HINT_SIZE: usize = 8;

// A hint's number is part of its instruction, so each hint has a function.
global_asm!(
    r#"
.section .text
.balign 8
hint_functions:
.set number, 0x60
.rept 32
    hint #number
    ret
    .set number, number + 1
.endr
"#
);

unsafe extern "C" {
    static hint_functions: u8;
}

/// Time for which the processor sleeps when there is nothing to do.
const IDLE_US: u64 = 1000;

/// Number of processors; the first one has number 0.
static PROCESSORS: AtomicUsize = AtomicUsize::new(1);
/// Time limit for another processor to finish, in milliseconds: it may be waiting for a CPU.
const PATIENCE_MS: u64 = 20_000;

/// Finds the other processors, without starting them.
pub(crate) fn prepare(info: &BootInfo) {
    PROCESSORS.store(processors::find(&info.processors), Ordering::Relaxed);
}

/// Starts `job` on other processors, up to number `limit` - 1, and starts these if necessary.
/// Returns the number of processors including the first one; numbers have no gaps.
pub(crate) fn begin_on_others(limit: usize, job: processors::Job) -> usize {
    let count = PROCESSORS.load(Ordering::Relaxed).min(limit);
    for number in 1..count {
        if processors::is_busy(number) || !processors::start(number) {
            return number;
        }
        processors::give(number, job);
    }
    count
}

/// Waits until processors 1 to `count` - 1 are done; returns whether they are.
pub(crate) fn await_others(count: usize) -> bool {
    (1..count).all(|number| processors::join(number, PATIENCE_MS))
}

pub(crate) fn idle() {
    clock::set_timer(IDLE_US);
    interrupts::wait();
}

/// Executes HINT, with a number from 0x60 to 0x7f.
pub(crate) fn hint(number: u8) -> Result<u64, Failure> {
    let index =
        usize::from(number.checked_sub(HINT_FIRST).filter(|index| *index < 32).ok_or(Failure::Absent)?);
    let function = (&raw const hint_functions).wrapping_add(index * HINT_SIZE);
    // SAFETY: there is a function for that number, which changes no register; hints do nothing.
    unsafe { asm!("blr {}", in(reg) function, out("x30") _, options(nostack, preserves_flags)) };
    Ok(1)
}

/// Functions show no messages on this architecture.
pub(crate) fn hog() -> Result<u64, Failure> {
    Err(Failure::Absent)
}

/// This is not offered on this architecture.
pub(crate) fn reset(_: bool) -> Result<u64, Failure> {
    Err(Failure::Absent)
}

/// There are no functions here.
pub(crate) fn misuse(_: Misuse, _: u64, _: u64) -> Result<u64, Failure> {
    Err(Failure::Misused { what: "functions", number: 0 })
}

pub(crate) fn taken() -> [(u64, u64); 1] {
    [boot::image()]
}
