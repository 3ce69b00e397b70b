//! Arm64.

use core::arch::{asm, global_asm};

use baremetal::aarch64::info::BootInfo;
use baremetal::aarch64::{boot, clock, gic, interrupts, power};

use super::Absent;

pub(crate) use clock::nanoseconds;
pub(crate) use power::{halt, off};

/// The first hint there is a function for, and bytes from one function to the next.
const HINT_FIRST: u8 = 0x60;
const HINT_SIZE: usize = 8;

// A hint's number is part of its instruction: a function for each.
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

/// How long the processor sleeps when there is nothing to do.
const IDLE_US: u64 = 1000;

/// Lets the processor sleep until its timer.
pub(crate) fn prepare(_: &BootInfo) {
    if let Err(why) = gic::enable_distributor().and_then(|()| gic::enable()) {
        panic!("{why}");
    }
}

/// Sleeps for a while.
pub(crate) fn idle() {
    clock::set_timer(IDLE_US);
    interrupts::wait();
}

/// HINT, of a number from 0x60 to 0x7f.
pub(crate) fn hint(number: u8) -> Result<u64, Absent> {
    let index = usize::from(number.checked_sub(HINT_FIRST).filter(|index| *index < 32).ok_or(Absent)?);
    let function = (&raw const hint_functions).wrapping_add(index * HINT_SIZE);
    // SAFETY: a function of that number is there, which changes no register; these hints do nothing.
    unsafe { asm!("blr {}", in(reg) function, out("x30") _, options(nostack, preserves_flags)) };
    Ok(1)
}

/// Memory that is the program's.
pub(crate) fn taken() -> [(u64, u64); 1] {
    [boot::image()]
}
