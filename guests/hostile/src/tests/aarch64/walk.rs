//! All possible system registers, compared with the table of those that may exist.

use baremetal::aarch64::guarded::Fault;
use hostile::allowed::sysregs::{self, Row};

use super::code::{self, Name, SLOTS};
use crate::tests::findings::Findings;
use crate::tests::prelude::*;

/// Number of registers of one op0.
const COUNT: u32 = 1 << 14;
/// Exception classes of an undefined instruction, and of a trapped access to a register: with
/// FEAT_IDST a missing ID register raises the latter (DDI 0487 M.b, D24.3.1).
const CLASS_UNKNOWN: u8 = 0;
const CLASS_TRAPPED: u8 = 0x18;

/// Whether the fault means that there is no register of this name.
fn is_undefined(name: Name, fault: Fault) -> bool {
    let [op0, _, crn, ..] = sysregs::fields(name.0);
    fault.class() == CLASS_UNKNOWN || (op0 == 3 && crn == 0 && fault.class() == CLASS_TRAPPED)
}

/// Calls `act` for each register of this op0, with the slots of an MRS and an MSR.
fn each(op0: u32, mut act: impl FnMut(Name, usize, usize)) {
    const BATCH: u32 = SLOTS as u32 / 2;
    for first in (0..COUNT).step_by(BATCH as usize) {
        let names = (first..first + BATCH).map(|number| Name::of(op0, number));
        code::put(names.clone().flat_map(|name| [code::read(name), code::write(name)]));
        for (index, name) in names.enumerate() {
            act(name, 2 * index, 2 * index + 1);
        }
    }
}

/// Lets the program use registers of floating point and vectors, where they exist.
pub(super) fn open_floating_point() {
    // SAFETY: CPACR_EL1: FPEN, ZEN and SMEN; the program has no such instructions.
    unsafe { asm!("msr cpacr_el1, {}", "isb", in(reg) 0x0333_0000u64, options(nostack, preserves_flags)) };
}

/// The value to write to a row's register, based on its present value.
const fn changed(row: &Row, value: u64) -> u64 {
    match row.kind {
        Kind::Own(mask) => value ^ mask,
        Kind::Written(value) => value,
        Kind::Constant => !value,
        Kind::Kept | Kind::Moves | Kind::Instruction => value,
    }
}

fn tell(findings: &mut Findings, name: Name, what: &str, value: u64) {
    findings.tell(format_args!("{name} {what} ({value:#x})"));
}

/// Each register is in the table or undefined, for reads and writes; constant ones do not change.
pub(super) fn registers(_: &Orders<'_>) -> Verdict {
    open_floating_point();
    let (mut findings, mut found) = (Findings::default(), 0);
    for op0 in [2, 3] {
        each(op0, |name, read, write| {
            let row = sysregs::find(name.0);
            // SAFETY: reading a register has no effect that the program cannot cope with: there are
            // no interrupts that an acknowledgement would take.
            let old = unsafe { code::execute(read, 0) };
            match (old, row) {
                (Ok(value), None) => tell(&mut findings, name, "is read, and not in the table", value),
                (Err(fault), _) if !is_undefined(name, fault) => {
                    tell(&mut findings, name, "faults when it is read, but not so", fault.syndrome);
                }
                (Ok(_), Some(_)) => found += 1,
                _ => {}
            }
            let value = old.unwrap_or(0);
            if row.is_some_and(|row| row.kind == Kind::Moves) {
                return;
            }
            // SAFETY: rows say which writes the program can cope with; a register without a row has
            // no effect, or the test fails.
            let written = unsafe { code::execute(write, row.map_or(value, |row| changed(row, value))) };
            if written.is_ok() && row.is_none() {
                tell(&mut findings, name, "is written to, and not in the table", value);
            }
            if written.is_ok_and(|_| row.is_some_and(|row| row.kind != Kind::Kept)) {
                // SAFETY: as above.
                let new = unsafe { code::execute(read, 0) };
                if row.is_some_and(|row| row.kind == Kind::Constant) && new != old {
                    tell(&mut findings, name, "is to be constant, and is not", new.unwrap_or(0));
                }
                if let (Some(Row { kind: Kind::Own(_), .. }), Ok(old)) = (row, old) {
                    // SAFETY: it is the previous value.
                    let _ = unsafe { code::execute(write, old) };
                }
            }
        });
    }
    findings.verdict(found, 50)
}

/// The target of instructions on addresses.
static SCRATCH: Page = Page::new();

/// Each system instruction is in the table or undefined, with a result (SYSL) or without (SYS).
pub(super) fn instructions(_: &Orders<'_>) -> Verdict {
    let (mut findings, mut found) = (Findings::default(), 0);
    each(1, |name, read, write| {
        for slot in [read, write] {
            // SAFETY: instructions in the table are maintenance, of our own page where it can
            // change anything; instructions not in it have no effect, or the test fails.
            match unsafe { code::execute(slot, SCRATCH.address()) } {
                Ok(_) if sysregs::find(name.0).is_some() => found += 1,
                Ok(_) => tell(&mut findings, name, "is done, and not in the table", (slot == read).into()),
                Err(fault) if is_undefined(name, fault) => {}
                Err(fault) => tell(&mut findings, name, "faults, but not so", fault.syndrome),
            }
        }
    });
    findings.verdict(found, 20)
}
