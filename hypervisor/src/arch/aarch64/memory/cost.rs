//! What invalidating a page costs here, against what a guest pays when all of its translations go.
//!
//! The model is the same as for AMD64's single pages ([`Cost`]); what is measured is IPAS2E1IS with its
//! completion, and a walk of the hypervisor's own tables.

use core::arch::asm;

use coherence::tlbi::Stage2Tlb;

use super::flush::Tlb;
use crate::arch::Local;
use crate::arch::aarch64::board::clock;
use crate::vm::arch::Clock;
use stay::{Cost, Measured};

/// Repetitions of what is measured, and how often the whole is done: the least of these counts. A time is that of all
/// repetitions, since the counter's ticks are coarse.
const REPETITIONS: u64 = 64;
const TRIES: usize = 5;

/// Translations that a second-level TLB holds. No register says; Cortex-A72 has 1,024 and Neoverse N1 1,280 (their
/// Technical Reference Manuals, "Memory Management Unit").
const ENTRIES: u64 = 1024;

/// Measures on the calling CPU, before the first guest.
pub(crate) fn measure() -> Cost {
    let word = 0u64;
    let address = core::ptr::from_ref(&word);
    let read = || {
        // SAFETY: it is our own.
        unsafe { address.read_volatile() };
    };
    let operand = address.addr() as u64 >> 12;
    let drop_own = || {
        // SAFETY: drops our own translation of the page on this CPU, which the next access walks for.
        unsafe { asm!("tlbi vae2, {}", "dsb nsh", in(reg) operand, options(nostack, preserves_flags)) };
    };
    let page = least(|| {
        Tlb.page(operand);
        Tlb.complete();
    });
    let (hit, drop) = (least(read), least(drop_own));
    let both = least(|| {
        drop_own();
        read();
    });
    Cost::new(Measured {
        page,
        miss: both.saturating_sub(hit + drop),
        entries: ENTRIES,
        ticks_per_us: Local::ticks_of_us(REPETITIONS),
    })
}

/// Ticks that all repetitions of `operation` take, without their loop.
fn least(operation: impl Fn()) -> u64 {
    let time = |operation: &dyn Fn()| {
        let start = clock::now();
        for _ in 0..REPETITIONS {
            operation();
        }
        clock::now() - start
    };
    let empty = (0..TRIES).map(|_| time(&|| {})).min().unwrap_or(0);
    (0..TRIES).map(|_| time(&operation)).min().unwrap_or(0).saturating_sub(empty)
}
