//! Registers of devices, accessed by instructions that the syndrome does not describe.

use baremetal::aarch64::guarded::{Cause, Fault};

use super::controller::{DISTRIBUTOR, read, write};
use crate::tests::prelude::*;

/// GICD_CTLR and GICD_TYPER, which are adjacent; priorities and routes of unused SPIs.
const CONTROL: u64 = 0;
const TYPER: u64 = 4;
const PRIORITIES: u64 = 0x440;
const ROUTES: u64 = 0x6000 + 8 * 64;
/// An unused address.
const NOTHING: u64 = 0x0a00_0000;
const EXTERNAL: u8 = 0x10;

/// Executes an instruction with x0 and x1 as data and x2 as the address; returns all three.
macro_rules! access {
    ($instruction:literal, $x0:expr, $x1:expr, $x2:expr) => {{
        let (mut x0, mut x1, mut x2): (u64, u64, u64) = ($x0, $x1, $x2);
        // SAFETY: the registers affect interrupts that are not in use; a fault is guarded.
        let done = unsafe { guarded_asm!($instruction; inout("x0") x0, inout("x1") x1, inout("x2") x2,) };
        done.map(|()| (x0, x1, x2)).map_err(Fault::cause)
    }};
}

/// Pairs, write-back before and after, signs, and accesses that are refused.
pub(super) fn device_accesses(_: &Orders<'_>) -> Verdict {
    let (control, typer) = (u64::from(read(CONTROL)), u64::from(read(TYPER)));
    let at = DISTRIBUTOR;
    let cases = [
        ("ldp w", access!("ldp w0, w1, [x2]", 0, 0, at), (control, typer, at)),
        ("ldp w, back", access!("ldp w0, w1, [x2], #16", 0, 0, at), (control, typer, at + 16)),
        ("ldpsw", access!("ldpsw x0, x1, [x2]", 9, 9, at), (sign(control), sign(typer), at)),
        ("ldr, back", access!("ldr w0, [x2], #4", 0, 7, at), (control, 7, at + 4)),
        ("ldr, forth", access!("ldr w0, [x2, #4]!", 0, 7, at), (typer, 7, at + 4)),
        ("ldrb, forth", access!("ldrb w0, [x2, #0x440]", 0, 7, at), (0, 7, at)),
    ];
    for (name, found, expected) in cases {
        ensure!(found == Ok(expected), "{name}: {found:x?} and not {expected:x?}");
    }
    let stores = [
        ("stp w", access!("stp w0, w1, [x2]", 0x1020_3040, 0x5060_7080, at + PRIORITIES), 0),
        ("stp w, forth", access!("stp w0, w1, [x2, #8]!", 0x1020_3040, 0x5060_7080, at + PRIORITIES), 8),
    ];
    for (name, found, change) in stores {
        let expected = (0x1020_3040, 0x5060_7080, at + PRIORITIES + change);
        ensure!(found == Ok(expected), "{name}: {found:x?}");
        let words = [read(PRIORITIES + change), read(PRIORITIES + change + 4)];
        // Five bits of each.
        ensure!(words == [0x1020_3040, 0x5060_7080], "{name} has left {words:x?}");
        [0, 4].into_iter().for_each(|word| write(PRIORITIES + change + word, 0));
    }
    routes(at)?;
    refused(at)
}

fn sign(value: u64) -> u64 {
    value as u32 as i32 as i64 as u64
}

/// Registers of 64 bits.
fn routes(at: u64) -> Verdict {
    let found = access!("stp x0, x1, [x2], #-16", 1, 0, at + ROUTES);
    ensure!(found == Ok((1, 0, at + ROUTES - 16)), "stp x: {found:x?}");
    let found = access!("ldp x0, x1, [x2]", 9, 9, at + ROUTES);
    ensure!(found == Ok((1, 0, at + ROUTES)), "ldp x: {found:x?}");
    let found = access!("str xzr, [x2, #8]!", 9, 9, at + ROUTES - 8);
    ensure!(found == Ok((9, 9, at + ROUTES)), "str xzr: {found:x?}");
    ensure!(read(ROUTES) == 0, "str xzr has left {:#x}", read(ROUTES));
    Ok(())
}

/// An instruction that is not a device access becomes an abort, and changes nothing.
fn refused(at: u64) -> Verdict {
    let nothing = access!("ldp w0, w1, [x2], #16", 0, 0, NOTHING);
    let over = access!("ldp w0, w1, [x2], #16", 0, 0, at + 0xffc);
    let exclusive = access!("ldxp x0, x1, [x2]", 0, 0, at);
    for (name, found) in [("nothing there", nothing), ("over a page's end", over), ("exclusive", exclusive)] {
        ensure!(found == Err(Cause::Other(EXTERNAL)), "{name}: {found:x?}");
    }
    Ok(())
}
