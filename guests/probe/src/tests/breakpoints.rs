//! Breakpoints: after a halt, and by the other name of their register.

use core::arch::asm;

use super::events::{Wait, deadline};
use super::prelude::*;

const VECTOR_DB: u8 = 1;
/// DR7: DR0's breakpoint is enabled, for instructions.
const ON: u64 = 0x401;
const OFF: u64 = 0x400;

/// Puts the breakpoint's location into DR0, and returns it. The breakpoint is not enabled.
fn set_place() -> u64 {
    let place: u64;
    // SAFETY: no breakpoint is enabled.
    unsafe {
        asm!(
            "lea {at}, [rip + 2f]", "mov dr0, {at}", "jmp 4f",
            // The location; `run_into` jumps here with R10 and R11 zero.
            guarded!("nop"),
            "jmp r9",
            "4:",
            at = out(reg) place,
        );
    }
    place
}

/// Jumps to the location with the breakpoint enabled by this name of DR7, and has the program fail
/// unless it is hit.
macro_rules! run_into {
    ($name:literal, $place:expr) => {{
        let (fault, error): (u64, u64);
        // SAFETY: CR4.DE is clear: DR5 is DR7. The instruction with the breakpoint is guarded, and
        // jumps back here.
        unsafe {
            asm!(
                concat!("mov ", $name, ", {on}"),
                "lea r9, [rip + 5f]", "xor r10d, r10d", "xor r11d, r11d", "jmp {place}",
                "5:", "mov dr7, {off}",
                on = in(reg) ON, off = in(reg) OFF, place = in(reg) $place,
                out("r9") _, out("r10") error, out("r11") fault,
            );
        }
        let hit = Fault::check(fault, error);
        ensure!(hit == Err(Fault { vector: VECTOR_DB, error: 0 }), "a breakpoint by {} leads to {hit:?}", $name);
    }};
}

/// Breakpoint addresses survive a halt, and a breakpoint that is enabled after one works.
pub(super) fn debug_registers() -> Verdict {
    const OTHERS: [u64; 3] = [0x1111_2222_3333, 0x4444_5555_6666, 0x7777_8888_9999];
    let place = set_place();
    let [one, two, three] = OTHERS;
    // SAFETY: no breakpoint is enabled.
    unsafe { asm!("mov dr1, {}", "mov dr2, {}", "mov dr3, {}", in(reg) one, in(reg) two, in(reg) three) };
    deadline(Wait::Halt)?;
    let mut read = [0u64; 4];
    // SAFETY: reading changes nothing.
    unsafe {
        asm!(
            "mov {}, dr0", "mov {}, dr1", "mov {}, dr2", "mov {}, dr3",
            out(reg) read[0], out(reg) read[1], out(reg) read[2], out(reg) read[3],
        );
    }
    let written = [place, one, two, three];
    ensure!(read == written, "after a halt {read:#x?} instead of {written:#x?}");
    deadline(Wait::Halt)?;
    run_into!("dr7", place);
    Ok(())
}

/// Leaves addresses without code in the CPU's registers.
fn use_others(_: usize) {
    // SAFETY: no breakpoint is enabled.
    unsafe {
        asm!(
            "mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}", "mov dr7, {1}",
            in(reg) 0x7777_0000_0000u64, in(reg) OFF,
        );
    }
}

/// A breakpoint that is enabled by DR7's other name uses this processor's own address, after
/// another processor has used the registers of the same CPU. Two processors, one CPU.
pub(super) fn debug_names() -> Verdict {
    let place = set_place();
    processors::run(SECOND, use_others)?;
    run_into!("dr5", place);
    Ok(())
}
