//! SMAP: accesses to ring 3's pages that ring 0 may not make, including those made on its behalf.

use super::prelude::*;
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;

const CR4_SMAP: u64 = 1 << 21;
/// The first serial port's scratch register.
const SCRATCH: u16 = 0x3ff;
const BEFORE: u64 = 0x5a5a_5a5a_5a5a_5a5a;

static PAGE: Page = Page::new();

/// A string instruction whose memory is a page of ring 3, with RFLAGS.AC clear or set.
macro_rules! supervisor {
    ($ac:literal, $instruction:literal, $source:expr) => {{
        let (fault, error): (u64, u64);
        // SAFETY: it moves a byte or four between the page, which is the test's, and a device.
        unsafe {
            asm!(
                $ac, guarded!($instruction), "clac",
                in("dx") SCRATCH, inout("rsi") $source => _, inout("rdi") WINDOW => _,
                inout("r11") 0u64 => fault, inout("r10") 0u64 => error,
            );
        }
        Fault::check(fault, error)
    }};
}

/// Ring 0 may not read a device into, or write it from, a page of ring 3 unless AC is set.
pub(super) fn smap() -> Verdict {
    const EBX_SMAP: u32 = 1 << 20;
    ensure!(__cpuid_count(7, 0).ebx & EBX_SMAP != 0, "there is no SMAP to test");
    PAGE.write(&[BEFORE; 512]);
    paging::map(0, Some(&PAGE));
    let (own, before) = (paging::space(), Cr4::read_raw());
    paging::enter_space(paging::kernel_space());
    // SAFETY: everything except the window belongs to ring 0 in that space.
    let on = unsafe { write_cr4(before | CR4_SMAP) };
    let result = match on {
        Ok(()) => accesses(),
        Err(_) => Ok(()),
    };
    // SAFETY: the value before the test.
    let off = unsafe { write_cr4(before) };
    paging::enter_space(own);
    paging::map(0, None);
    ensure!(on.is_ok() && off.is_ok(), "CR4.SMAP: {on:?}, {off:?}");
    result
}

fn word() -> u64 {
    PAGE.words()[0].load(core::sync::atomic::Ordering::Relaxed)
}

fn accesses() -> Verdict {
    /// Present, and a read or a write.
    const READ: Fault = Fault::page(0b01);
    const WRITE: Fault = Fault::page(0b11);
    let refused = [
        ("INSB", supervisor!("clac", "insb", 0u64), WRITE),
        ("OUTSB", supervisor!("clac", "outsb", WINDOW), READ),
        ("MOVSD from a device", supervisor!("clac", "movsd", IOAPIC), WRITE),
    ];
    let after = word();
    for (name, result, wanted) in refused {
        ensure!(result == Err(wanted), "{name} with AC = 0: {result:x?}");
    }
    ensure!(after == BEFORE, "what was refused has left {after:#x}");
    let out = supervisor!("stac", "outsb", WINDOW);
    let into = supervisor!("stac", "insb", 0u64);
    let moved = supervisor!("stac", "movsd", IOAPIC);
    ensure!((out, into, moved) == (Ok(()), Ok(()), Ok(())), "with AC = 1: {out:x?}, {into:x?}, {moved:x?}");
    ensure!(word() != BEFORE, "with AC = 1 nothing was stored");
    Ok(())
}
