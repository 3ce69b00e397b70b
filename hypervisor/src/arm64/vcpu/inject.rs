//! Exceptions that the hypervisor injects into the guest.
//!
//! Source: Arm DDI 0487, D1.3.5 "Exception entry", and ESR_EL1.

use super::exchanged::Register;
use crate::arm64::processor::{Processor, Registers};

/// SPSR's field M, and its values for AArch64.
pub(super) const MODE: u64 = 0x1f;
pub(super) const EL0: u64 = 0b0_0000;
pub(super) const EL1T: u64 = 0b0_0100;
pub(super) const EL1H: u64 = 0b0_0101;
/// SPSR bit: AArch32. Without other bits, its EL0.
pub const AARCH32: u64 = 1 << 4;
/// NZCV, which an exception preserves; and DIT.
const KEPT: u64 = 0xf << 28 | 1 << 24;
const PAN: u64 = 1 << 22;
const SSBS: u64 = 1 << 12;
/// D, A, I, F.
const MASKS: u64 = 0xf << 6;

const CLASS_UNKNOWN: u64 = 0x00;
const CLASS_INSTRUCTION_ABORT_LOWER: u64 = 0x20;
const CLASS_INSTRUCTION_ABORT: u64 = 0x21;
const CLASS_DATA_ABORT_LOWER: u64 = 0x24;
const CLASS_DATA_ABORT: u64 = 0x25;
/// The instruction had 32 bits.
const LONG: u64 = 1 << 25;

/// Whether the guest is at EL0.
pub const fn is_from_el0(registers: &Registers) -> bool {
    registers.pstate & MODE == EL0 || registers.pstate & AARCH32 != 0
}

/// Whether SP is SP_EL1 for the guest.
pub const fn uses_own_stack(registers: &Registers) -> bool {
    registers.pstate & MODE == EL1H
}

fn take<P: Processor>(registers: &mut Registers, syndrome: u64) {
    let former = registers.pstate;
    // Vectors: current EL with SP0, with SPx; lower EL of AArch64, of AArch32.
    let offset = match former & MODE {
        EL1T => 0x000,
        EL1H => 0x200,
        mode if mode & AARCH32 != 0 => 0x600,
        _ => 0x400,
    };
    let control = P::read(Register::Sctlr);
    // SCTLR_EL1.SPAN: 0 sets PAN at each exception. DSSBS gives the new SSBS.
    let pan = if control & 1 << 23 == 0 { PAN } else { former & PAN };
    let ssbs = if control >> 44 & 1 != 0 { SSBS } else { 0 };
    P::write(Register::Elr, registers.pc);
    P::write(Register::Spsr, former);
    P::write(Register::Esr, syndrome);
    let vectors = P::read(Register::Vbar) & !0x7ff;
    registers.pc = vectors.wrapping_add(offset);
    registers.pstate =
        former & KEPT & !(if former & AARCH32 != 0 { 1 << 24 } else { 0 }) | pan | ssbs | MASKS | EL1H;
}

/// Injects an undefined instruction exception.
pub fn undefined<P: Processor>(registers: &mut Registers) {
    take::<P>(registers, CLASS_UNKNOWN << 26 | LONG);
}

/// Injects an external abort for an access to `address`; `details` is the syndrome without the
/// class.
pub fn external_abort<P: Processor>(registers: &mut Registers, address: u64, is_fetch: bool, details: u64) {
    let class = match (is_fetch, is_from_el0(registers)) {
        (true, true) => CLASS_INSTRUCTION_ABORT_LOWER,
        (true, false) => CLASS_INSTRUCTION_ABORT,
        (false, true) => CLASS_DATA_ABORT_LOWER,
        (false, false) => CLASS_DATA_ABORT,
    };
    P::write(Register::Far, address);
    take::<P>(registers, class << 26 | LONG | details);
}
