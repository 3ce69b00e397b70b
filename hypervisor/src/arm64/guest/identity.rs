//! The ID registers that a guest sees: the processor's, restricted to features that guests get.
//!
//! Reads are trapped (HCR_EL2.TID3). A field is shown only if it is listed here. New fields are
//! not, because they may come with registers that are not switched between vCPUs. Source: Arm DDI
//! 0487, D24.2, the ID registers' fields.

use core::sync::atomic::{AtomicBool, Ordering};
use migration::{Archive, Flaw};
use spin::Mutex;

use crate::arm64::processor::Processor;

/// The registers of which a guest sees something, by CRm and op2.
#[rustfmt::skip]
const SHOWN: [(u32, u32, &str); 33] = [
    (1, 0, "ID_PFR0_EL1"), (1, 1, "ID_PFR1_EL1"), (1, 2, "ID_DFR0_EL1"), (1, 3, "ID_AFR0_EL1"),
    (1, 4, "ID_MMFR0_EL1"), (1, 5, "ID_MMFR1_EL1"), (1, 6, "ID_MMFR2_EL1"), (1, 7, "ID_MMFR3_EL1"),
    (2, 0, "ID_ISAR0_EL1"), (2, 1, "ID_ISAR1_EL1"), (2, 2, "ID_ISAR2_EL1"), (2, 3, "ID_ISAR3_EL1"),
    (2, 4, "ID_ISAR4_EL1"), (2, 5, "ID_ISAR5_EL1"), (2, 6, "ID_MMFR4_EL1"), (2, 7, "ID_ISAR6_EL1"),
    (3, 0, "MVFR0_EL1"), (3, 1, "MVFR1_EL1"), (3, 2, "MVFR2_EL1"), (3, 3, "S3_0_C0_C3_3"),
    (3, 4, "ID_PFR2_EL1"), (3, 5, "ID_DFR1_EL1"), (3, 6, "ID_MMFR5_EL1"), (3, 7, "S3_0_C0_C3_7"),
    (4, 0, "ID_AA64PFR0_EL1"), (4, 1, "ID_AA64PFR1_EL1"), (5, 0, "ID_AA64DFR0_EL1"),
    (6, 0, "ID_AA64ISAR0_EL1"), (6, 1, "ID_AA64ISAR1_EL1"), (6, 2, "ID_AA64ISAR2_EL1"),
    (7, 0, "ID_AA64MMFR0_EL1"), (7, 1, "ID_AA64MMFR1_EL1"), (7, 2, "ID_AA64MMFR2_EL1"),
];

/// The ID registers of a guest that has come from a processor with less than this one.
#[derive(Debug)]
pub struct Former {
    /// There are some. Relaxed: no vCPU runs while it changes.
    is_less: AtomicBool,
    values: Mutex<[u64; SHOWN.len()]>,
}

/// A guest's ID register S3_0_C0_C`crm`_`op2`.
#[inline(always)] // As the processor's.
pub fn visible<P: Processor>(former: &Former, crm: u32, op2: u32) -> u64 {
    if former.is_less.load(Ordering::Relaxed) {
        former.register(crm, op2)
    } else {
        shown(crm, op2, P::identification(crm, op2))
    }
}

impl Default for Former {
    /// There are none.
    fn default() -> Self {
        Self { is_less: AtomicBool::new(false), values: Mutex::new([0; SHOWN.len()]) }
    }
}

impl Former {
    #[cold]
    fn register(&self, crm: u32, op2: u32) -> u64 {
        let values = *self.values.lock();
        let found = SHOWN.iter().zip(values).find(|((its, op, _), _)| (*its, *op) == (crm, op2));
        found.map_or(0, |(_, value)| value)
    }
}

/// Compares all that a guest sees of the processor, and has it see what it has seen, if that is
/// part of what is here.
///
/// # Errors
///
/// The register that differs, or that it cannot be read.
pub fn compare<P: Processor>(former: &Former, archive: &mut Archive<'_>) -> Result<(), Flaw> {
    let processor = P::description();
    archive.same("MIDR_EL1", processor.midr)?;
    archive.same("REVIDR_EL1", P::identification(0, 6))?;
    archive.same("ACTLR_EL1", P::auxiliary_control())?;
    archive.same("CTR_EL0", processor.ctr)?;
    archive.same("DCZID_EL0", processor.dczid)?;
    let (mut values, mut is_less) = ([0; SHOWN.len()], false);
    for (&(crm, op2, name), value) in SHOWN.iter().zip(&mut values) {
        let here = register::<P>(if archive.is_reading() { None } else { Some(former) }, crm, op2);
        *value = archive.other(here)?;
        if !has(crm, op2, here, *value) {
            return Err(Flaw::Differs(name, here, *value));
        }
        is_less |= *value != here;
    }
    if is_less {
        *former.values.lock() = values;
    }
    if archive.is_reading() {
        former.is_less.store(is_less, Ordering::Relaxed);
    }
    Ok(())
}

#[inline(never)]
fn register<P: Processor>(former: Option<&Former>, crm: u32, op2: u32) -> u64 {
    match former {
        Some(former) => visible::<P>(former, crm, op2),
        None => shown(crm, op2, P::identification(crm, op2)),
    }
}

/// Whether a processor with `here` has all of `there`.
fn has(crm: u32, op2: u32, here: u64, there: u64) -> bool {
    let field = |value: u64, index: u32| value >> (4 * index) & 0xf;
    let is_part = (0..16).all(|index| field(here, index) >= field(there, index));
    (here ^ there) & !ascending(crm, op2) == 0 && is_part
}

/// The fields with larger numbers where there is more, and nothing else is different. All others
/// must be the same: those with signs, of sizes and of formats, and most of AArch32's.
fn ascending(crm: u32, op2: u32) -> u64 {
    match (crm, op2) {
        // Instructions: ID_ISAR5 and ID_ISAR6, ID_AA64ISAR0 to 2.
        (2, 5 | 7) | (6, 0..=2) => u64::MAX,
        (4, 0) => fields(&[48, 56, 60]),
        (4, 1) => fields(&[0, 4]),
        (7, 0) => fields(&[44]),
        (7, 1) => fields(&[0, 12, 20, 36, 44, 48, 52, 56, 60]),
        (7, 2) => fields(&[0, 4, 8, 12, 28, 32, 36, 48, 52, 60]),
        _ => 0,
    }
}

/// A guest's ID register S3_0_C0_C`crm`_`op2`; `value` is the processor's.
#[inline(always)] // As the processor's.
pub fn shown(crm: u32, op2: u32, value: u64) -> u64 {
    match (crm, op2) {
        // AArch32's ID_PFR0: without error records and activity monitors. ID_DFR0: without
        // performance monitor and trace.
        (1, 0) => value & fields(&[0, 4, 8, 12, 16, 24]),
        (1, 2) => value & fields(&[0, 4, 8]),
        // ID_PFR2: without error records.
        (3, 4) => value & fields(&[0, 4]),
        // The rest of AArch32's, including the reserved ones.
        (1..=3, _) => value,
        (4, 0) => features0(value),
        // Branch targets and speculative store bypass.
        (4, 1) => value & fields(&[0, 4]),
        (5, 0) => debug0(value),
        // Without transactions.
        (6, 0) => value & !fields(&[24]),
        // Without 64-byte accelerator stores.
        (6, 1) => value & !fields(&[60]),
        // Without WFIT, memory copies, 128-bit registers and instructions, and AT S1E1A.
        (6, 2) => value & fields(&[4, 8, 12, 20, 24, 28, 48, 52, 56]),
        (7, 0) => memory0(value),
        (7, 1) => memory1(value),
        (7, 2) => memory2(value),
        _ => 0,
    }
}

/// All bits of the fields that begin at these.
const fn fields(shifts: &[u32]) -> u64 {
    let mut mask = 0;
    let mut index = 0;
    while index < shifts.len() {
        mask |= 0xf << shifts[index];
        index += 1;
    }
    mask
}

const fn at_most(value: u64, shift: u32, most: u64) -> u64 {
    let field = value >> shift & 0xf;
    (if field < most { field } else { most }) << shift
}

/// ID_AA64PFR0_EL1: EL0 unchanged, EL1 in AArch64 only, floating point, the GIC's registers,
/// data-independent timing, and speculation control, of which only the first level is shown: the
/// next has its own registers.
const fn features0(value: u64) -> u64 {
    value & fields(&[0, 16, 20, 48, 60]) | 1 << 4 | 1 << 24 | at_most(value, 56, 1)
}

/// ID_AA64DFR0_EL1: the version up to ARMv8.8's, whose successor has more breakpoints in banks, and
/// the numbers of breakpoints and watchpoints. The double lock is reported as missing (15), and has
/// no effect.
const fn debug0(value: u64) -> u64 {
    value & fields(&[12, 20, 28]) | at_most(value, 0, 10) | 0xf << 36
}

/// ID_AA64MMFR0_EL1: at most 40 bits of physical address, no stage 2, no fine-grained traps, no
/// further counters.
const fn memory0(value: u64) -> u64 {
    value & fields(&[4, 8, 12, 16, 20, 24, 28, 44]) | at_most(value, 0, 2)
}

/// ID_AA64MMFR1_EL1: the access flag and dirty state by hardware, without tables' flags; no VMIDs,
/// no VHE, no LORegions, no traps of EL2's.
const fn memory1(value: u64) -> u64 {
    value & fields(&[12, 20, 36, 44, 48, 52, 56, 60]) | at_most(value, 0, 2)
}

/// ID_AA64MMFR2_EL1: without nested virtualization, forced write-back, and traps of EL2's;
/// addresses up to 52 bits.
const fn memory2(value: u64) -> u64 {
    value & fields(&[0, 4, 8, 12, 20, 28, 32, 36, 48, 52, 60]) | at_most(value, 16, 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By hand from the manual's fields (Arm ARM, D24.2): of a processor that has everything.
    #[test]
    fn u8_what_has_registers_that_nobody_exchanges_is_not_shown() {
        for ((crm, op2), expected, what) in [
            ((4, 0), 0xf10f_0000_01ff_001f, "no SVE, RAS, MPAM, AMU, RME, EL2, EL3; EL1 has no AArch32"),
            ((4, 1), 0xff, "no tagging, SME, non-maskable interrupts, GCS"),
            ((5, 0), 0x0000_00f0_f0f0_f00a, "no PMU, trace, profiling, filters, branch records"),
            ((6, 0), 0xffff_ffff_f0ff_ffff, "no transactions"),
            ((6, 1), 0x0fff_ffff_ffff_ffff, "no stores of 64 bytes to accelerators"),
            ((6, 2), 0x0fff_0000_fff0_fff0, "no WFIT, MOPS, SYSREG128, SYSINSTR128, ATS1A"),
            ((7, 0), 0x0000_f000_ffff_fff2, "40 bits; no stage 2, FGT, ECV"),
            ((7, 1), 0xffff_f0f0_00f0_f002, "no VMIDs, VHE, LORegions, XNX, TWED; no tables' access flag"),
            ((7, 2), 0xf0ff_00ff_f0f1_ffff, "no NV, FWB, EVT; addresses of 52 bits"),
            ((1, 0), 0x0f0f_ffff, "AArch32 without AMU, RAS"),
            ((1, 2), 0x0fff, "AArch32 without trace and PMU"),
            ((3, 4), 0xff, "AArch32 without RAS"),
        ] {
            assert_eq!(shown(crm, op2, u64::MAX), expected, "{crm} {op2}: {what}");
        }
        // Of one that has nothing.
        for crm in 0..16 {
            for op2 in 0..8 {
                let expected = match (crm, op2) {
                    (4, 0) => 1 << 4 | 1 << 24,
                    (5, 0) => 0xf << 36,
                    _ => 0,
                };
                assert_eq!(shown(crm, op2, 0), expected, "{crm} {op2}");
            }
        }
        assert_eq!(shown(5, 0, 0x0010_5006), 0xf0_0010_5006, "fewer than the most, and no double lock");
        assert_eq!((shown(7, 0, 1) & 0xf, shown(2, 0, 0x1234)), (1, 0x1234));
        for (crm, op2) in [(4, 4), (4, 5), (4, 2), (5, 1), (5, 4), (6, 3), (7, 3), (7, 4), (0, 0), (8, 0)] {
            assert_eq!(shown(crm, op2, u64::MAX), 0, "{crm} {op2}");
        }
    }

    /// By hand from the manual (D24.2): the fields of which a larger number is more.
    #[test]
    fn a_processor_has_what_another_has_field_by_field() {
        let all: [u32; 16] = core::array::from_fn(|index| 4 * index as u32);
        for ((crm, op2), growing) in [
            ((2, 5), &all[..]),
            ((2, 7), &all),
            ((2, 6), &[]),
            ((4, 0), &[48, 56, 60]),
            ((4, 1), &[0, 4]),
            ((5, 0), &[]),
            ((6, 0), &all),
            ((6, 1), &all),
            ((6, 2), &all),
            ((7, 0), &[44]),
            ((7, 1), &[0, 12, 20, 36, 44, 48, 52, 56, 60]),
            ((7, 2), &[0, 4, 8, 12, 28, 32, 36, 48, 52, 60]),
        ] {
            for at in all {
                let has = |here: u64, there: u64| has(crm, op2, here << at, there << at);
                let found = [has(1, 1), has(2, 1), has(9, 1), has(1, 2), has(1, 9)];
                let more = growing.contains(&at);
                assert_eq!(found, [true, more, more, false, false], "{crm} {op2}, bit {at}");
            }
        }
    }
}
