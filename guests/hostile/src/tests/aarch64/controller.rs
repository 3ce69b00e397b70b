//! The interrupt controller, with more interrupts than it has list registers.

use crate::tests::prelude::*;

pub(super) const DISTRIBUTOR: u64 = 0x0800_0000;
/// The first processor's redistributor: its frame of SGIs and PPIs.
const PRIVATE: u64 = 0x080b_0000;

const GROUP: u64 = 0x080;
const SET_ENABLE: u64 = 0x100;
const CLEAR_ENABLE: u64 = 0x180;
const SET_PENDING: u64 = 0x200;
const CLEAR_PENDING: u64 = 0x280;
const ROUTER: u64 = 0x6000;

/// Unused SPIs from 32 to 63, a bit for each.
const SPIS: u32 = 0x0fff_ff00;
/// Number of rounds for which the processor continues with them.
const ROUNDS: u32 = 2000;

pub(super) fn read(offset: u64) -> u32 {
    // SAFETY: a register of the interrupt controller.
    unsafe { ((DISTRIBUTOR + offset) as *const u32).read_volatile() }
}

pub(super) fn write(offset: u64, value: u32) {
    // SAFETY: as above; enabled interrupts are not admitted.
    unsafe { ((DISTRIBUTOR + offset) as *mut u32).write_volatile(value) };
}

pub(super) fn is_pending(ppi: u32) -> bool {
    // SAFETY: a register of the interrupt controller.
    let word = unsafe { ((PRIVATE + SET_PENDING) as *const u32).read_volatile() };
    word >> ppi & 1 != 0
}

pub(super) fn enable(ppi: u32) {
    // SAFETY: a register of the interrupt controller; interrupts are masked.
    unsafe { ((PRIVATE + SET_ENABLE) as *mut u32).write_volatile(1 << ppi) };
}

/// Sets which groups are open: ICC_IGRPEN0_EL1 and ICC_IGRPEN1_EL1.
fn open_groups(group0: u64, group1: u64) {
    // SAFETY: interrupts are masked.
    unsafe {
        asm!(
            "msr s3_0_c12_c12_6, {}", "msr s3_0_c12_c12_7, {}", "isb",
            in(reg) group0, in(reg) group1, options(nostack, preserves_flags),
        );
    }
}

/// Group 0 is open and group 1 closed, and more interrupts of group 1 wait than there are list
/// registers: the processor makes progress.
pub(super) fn maintenance(_: &Orders<'_>) -> Verdict {
    let word = 4;
    open_groups(1, 0);
    write(GROUP + word, u32::MAX);
    for spi in (32..64_u64).filter(|spi| SPIS >> (spi - 32) & 1 != 0) {
        // SAFETY: as in `write`: routed to the first processor.
        unsafe { ((DISTRIBUTOR + ROUTER + 8 * spi) as *mut u64).write_volatile(0) };
    }
    write(SET_ENABLE + word, SPIS);
    write(SET_PENDING + word, SPIS);
    // Without progress not even this loop finishes.
    for _ in 0..ROUNDS {
        clock::relax();
    }
    let pending = read(SET_PENDING + word) & SPIS;
    write(CLEAR_ENABLE + word, SPIS);
    write(CLEAR_PENDING + word, SPIS);
    open_groups(0, 1);
    ensure!(pending == SPIS, "of {SPIS:#x} there are {pending:#x} left");
    Ok(())
}
