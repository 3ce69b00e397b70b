//! INVLPGA: dropping single translations of a guest, and what that costs.

use core::arch::asm;
use core::arch::x86_64::__cpuid;

use stay::{Cost, Measured};

use super::super::clock;
use crate::arch::Local;
use crate::vm::arch::Clock;

/// Repetitions of what is measured, and how often the whole is done: the least of these counts,
/// because interrupts and other disturbances only add.
const REPETITIONS: u64 = 64;
const TRIES: usize = 5;

/// Drops the calling CPU's translations of one page under `asid`, global ones and those of a large
/// page around it included (APM volume 3, INVLPGA).
pub(crate) fn invalidate_page(address: u64, asid: u32) {
    // SAFETY: SVM is on; the instruction drops cached translations, which is always allowed.
    unsafe { asm!("invlpga rax, ecx", in("rax") address, in("ecx") asid, options(nostack, preserves_flags)) };
}

/// Measures on the calling CPU. `asid` is one that no guest uses yet.
pub(crate) fn measure(asid: u32) -> Cost {
    let word = 0u64;
    let address = core::ptr::from_ref(&word);
    let read = || {
        // SAFETY: it is our own.
        unsafe { address.read_volatile() };
    };
    let drop_own = || {
        // SAFETY: drops our own translation of the page, which the next access walks for.
        unsafe { asm!("invlpg [{}]", in(reg) address, options(nostack, preserves_flags)) };
    };
    let page = least(|| invalidate_page(0x1000, asid));
    let (hit, drop) = (least(read), least(drop_own));
    let both = least(|| {
        drop_own();
        read();
    });
    Cost::new(Measured {
        page,
        miss: both.saturating_sub(hit + drop),
        entries: second_level_entries(),
        ticks_per_us: Local::ticks_of_us(1),
    })
}

/// Ticks that `operation` takes, without its loop.
fn least(operation: impl Fn()) -> u64 {
    let time = |operation: &dyn Fn()| {
        let start = clock::now();
        for _ in 0..REPETITIONS {
            operation();
        }
        (clock::now() - start) / REPETITIONS
    };
    let empty = (0..TRIES).map(|_| time(&|| {})).min().unwrap_or(0);
    (0..TRIES).map(|_| time(&operation)).min().unwrap_or(0).saturating_sub(empty)
}

/// Translations of 4 KiB pages that the second-level data TLB holds (CPUID
/// Fn8000_0006_EBX\[27:16\]).
fn second_level_entries() -> u64 {
    let highest = __cpuid(0x8000_0000).eax;
    if highest >= 0x8000_0006 { (__cpuid(0x8000_0006).ebx >> 16 & 0xfff).into() } else { 0 }
}
