//! All possible system registers, compared with the table of those that may exist.

use baremetal::aarch64::guarded::Fault;
use baremetal::aarch64::processors;
use hostile::allowed::sysregs::{self, ROWS, Row};

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
fn open_floating_point() {
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
    let [op0, op1, crn, crm, op2] = sysregs::fields(name.0);
    findings.tell(format_args!("S{op0}_{op1}_C{crn}_C{crm}_{op2} {what} ({value:#x})"));
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

/// What the second processor finds in each row's register; the second time in the second half.
static SEEN: [AtomicU64; 2 * ROWS_MAX] = [const { AtomicU64::new(0) }; 2 * ROWS_MAX];
/// Number of own registers, each by its encoding.
const ROWS_MAX: usize = SLOTS;

/// Encodings of registers that belong to a vCPU, and the bits that may be changed.
fn own() -> impl Iterator<Item = (Name, u64)> + Clone {
    let rows = ROWS.iter().filter_map(|row| match row.kind {
        Kind::Own(mask) if mask != 0 => Some((row, mask)),
        _ => None,
    });
    rows.flat_map(|(row, mask)| row.encodings().map(move |name| (Name(name), mask))).take(ROWS_MAX)
}

fn look(half: usize) {
    open_floating_point();
    for (batch, first) in (0..ROWS_MAX).step_by(SLOTS).enumerate() {
        code::put(own().skip(first).map(|(name, _)| code::read(name)));
        for (slot, _) in own().skip(first).take(SLOTS).enumerate() {
            // SAFETY: reading these has no effect.
            let value = unsafe { code::execute(slot, 0) }.unwrap_or(0);
            SEEN[half * ROWS_MAX + batch * SLOTS + slot].store(value, Ordering::Release);
        }
    }
}

/// Makes the second processor check, while the first waits asleep: both may share one CPU.
fn look_elsewhere(job: processors::Job) {
    processors::give(1, job);
    machine::await_end(1);
}

/// A value that one vCPU writes is neither read by another one, nor lost after that one has run.
pub(super) fn crossing(_: &Orders<'_>) -> Verdict {
    open_floating_point();
    // Twice: after that, the state left by faults does not change any more.
    look_elsewhere(|_| look(0));
    look_elsewhere(|_| look(0));
    let (mut findings, mut held) = (Findings::default(), 0);
    for (index, (name, mask)) in own().enumerate() {
        // Both instructions, again for each register: the second processor has its own page.
        code::put([code::read(name), code::write(name)].into_iter());
        // SAFETY: reading these has no effect.
        let Ok(old) = (unsafe { code::execute(0, 0) }) else { continue };
        // SAFETY: rows say which writes the program can cope with.
        let Ok(_) = (unsafe { code::execute(1, old ^ mask) }) else { continue };
        // SAFETY: as above.
        let new = unsafe { code::execute(0, 0) }.unwrap_or(old);
        look_elsewhere(|_| look(1));
        let before = SEEN[index].load(Ordering::Acquire);
        let after = SEEN[ROWS_MAX + index].load(Ordering::Acquire);
        // SAFETY: as above.
        let left = unsafe { code::execute(0, 0) }.unwrap_or(old);
        // SAFETY: it is the previous value.
        let _ = unsafe { code::execute(1, old) };
        held += u32::from(new != old);
        if before != after {
            tell(&mut findings, name, "of another vCPU has changed", after);
        }
        if left != new {
            tell(&mut findings, name, "is not as it was left", left);
        }
    }
    findings.verdict(held, 20)
}
