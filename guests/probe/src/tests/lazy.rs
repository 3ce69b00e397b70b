//! Debug registers that another processor has used on the same CPU. Two processors, one CPU.

use super::prelude::*;
use core::arch::asm;

const VECTOR_DB: u8 = 1;
/// DR7: DR0's breakpoint is enabled, for instructions.
const ON: u64 = 0x401;
const OFF: u64 = 0x400;

/// Leaves addresses without code in the CPU's registers.
fn use_others() {
    // SAFETY: no breakpoint is enabled.
    unsafe {
        asm!(
            "mov dr0, {0}", "mov dr1, {0}", "mov dr2, {0}", "mov dr3, {0}", "mov dr7, {1}",
            in(reg) 0x7777_0000_0000u64, in(reg) OFF,
        );
    }
}

/// A breakpoint that is enabled by DR7's other name uses this processor's own address.
pub(super) fn debug_names() -> Verdict {
    let place: u64;
    // SAFETY: no breakpoint is enabled.
    unsafe {
        asm!(
            "lea {at}, [rip + 2f]", "mov dr0, {at}", "jmp 4f",
            // The breakpoint's location; the code below jumps here with R10 and R11 zero.
            guarded!("nop"),
            "jmp r9",
            "4:",
            at = out(reg) place,
        );
    }
    processors::run(SECOND, use_others)?;
    let (fault, error): (u64, u64);
    // SAFETY: CR4.DE is clear: DR5 is DR7. The instruction with the breakpoint is guarded.
    unsafe {
        asm!(
            "mov dr5, {on}", "lea r9, [rip + 5f]", "xor r10d, r10d", "xor r11d, r11d", "jmp {place}",
            "5:", "mov dr7, {off}",
            on = in(reg) ON, off = in(reg) OFF, place = in(reg) place,
            out("r9") _, out("r10") error, out("r11") fault,
        );
    }
    let hit = Fault::check(fault, error);
    ensure!(hit == Err(Fault { vector: VECTOR_DB, error: 0 }), "a breakpoint by DR5 leads to {hit:?}");
    Ok(())
}
