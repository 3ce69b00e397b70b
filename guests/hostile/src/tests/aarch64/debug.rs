//! Breakpoints and watchpoints at EL1.

use crate::tests::prelude::*;
use baremetal::aarch64::guarded::{self, Fault};
use baremetal::guarded;

/// Exception classes for the same exception level.
const BREAKPOINT: u8 = 0x31;
const WATCHPOINT: u8 = 0x35;
/// MDSCR_EL1: KDE and MDE.
const ON: u64 = 1 << 13 | 1 << 15;
/// At EL1, four bytes of code; at EL1, loads and stores of eight bytes.
const BREAK: u64 = 1 | 1 << 1 | 0xf << 5;
const WATCH: u64 = 1 | 1 << 1 | 3 << 3 | 0xff << 5;
const ROUNDS: u32 = 5;

static WORDS: [AtomicU64; processors::MAX_PROCESSORS] =
    [const { AtomicU64::new(0) }; processors::MAX_PROCESSORS];
/// The wrong result of each processor; 0 for none.
static WRONG: [AtomicU64; processors::MAX_PROCESSORS] =
    [const { AtomicU64::new(0) }; processors::MAX_PROCESSORS];

/// Sets a watchpoint on `address`, enables debug exceptions, and opens the OS lock.
fn watch(address: u64) {
    // SAFETY: guarded instructions access the watched word.
    unsafe {
        asm!(
            "msr oslar_el1, xzr", "msr dbgwvr0_el1, {}", "msr dbgwcr0_el1, {}", "msr mdscr_el1, {}", "isb",
            "msr daifclr, #8", in(reg) address, in(reg) WATCH, in(reg) ON, options(nostack, preserves_flags),
        );
    }
}

fn switch_off() {
    // SAFETY: nothing is watched any more.
    unsafe {
        asm!(
            "msr daifset, #8",
            "msr mdscr_el1, xzr",
            "msr dbgwcr0_el1, xzr",
            "msr dbgbcr0_el1, xzr",
            "isb",
            options(nostack, preserves_flags),
        );
    }
}

/// Executes an instruction with a breakpoint on it.
fn step_on_breakpoint() -> Option<Fault> {
    let (fault, at): (u64, u64);
    // SAFETY: the instruction does nothing, and its exception is guarded.
    unsafe {
        asm!(
            "msr oslar_el1, xzr",
            "adr {at}, 2f",
            "msr dbgbvr0_el1, {at}",
            "msr dbgbcr0_el1, {how}",
            "msr mdscr_el1, {on}",
            "isb",
            "msr daifclr, #8",
            guarded!("nop"),
            "msr daifset, #8",
            at = out(reg) _, how = in(reg) BREAK, on = in(reg) ON,
            inout("x16") 0u64 => fault, inout("x17") 0u64 => at,
            options(nostack),
        );
    }
    Fault::check(fault, at).err()
}

/// Each processor watches its own word, and reads all of them.
fn watch_own(number: usize) {
    watch(WORDS[number].as_ptr() as u64);
    clock::delay(20_000);
    for (other, word) in WORDS.iter().enumerate() {
        let class = guarded::load(word.as_ptr() as u64).err().map(Fault::class);
        let expected = (other == number).then_some(WATCHPOINT);
        if class != expected {
            WRONG[number]
                .store(1 << 32 | (other as u64) << 8 | u64::from(class.unwrap_or(0)), Ordering::Release);
        }
    }
    switch_off();
    if guarded::load(WORDS[number].as_ptr() as u64).is_err() {
        WRONG[number].store(2 << 32, Ordering::Release);
    }
}

/// A breakpoint and a watchpoint stop the processor that has set them, and no other.
pub(super) fn debug_registers(_: &Orders<'_>) -> Verdict {
    let class = step_on_breakpoint().map(Fault::class);
    switch_off();
    ensure!(class == Some(BREAKPOINT), "at a breakpoint there is exception class {class:x?}");
    for round in 0..ROUNDS {
        machine::on_all(watch_own);
        for (number, wrong) in WRONG.iter().enumerate().take(machine::count()) {
            let wrong = wrong.load(Ordering::Acquire);
            ensure!(wrong == 0, "round {round}: processor {number} meets {wrong:#x}");
        }
    }
    Ok(())
}
