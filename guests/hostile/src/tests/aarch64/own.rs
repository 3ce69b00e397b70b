//! Untrapped registers belong to one processor.

use crate::tests::prelude::*;
use baremetal::aarch64::{clock, processors};

/// Number of rounds in which all of them write theirs and check.
const ROUNDS: u32 = 10;

/// The wrong value that each has found: the register's number plus one, and the value.
static FOUND: [(AtomicU64, AtomicU64); processors::MAX_PROCESSORS] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; processors::MAX_PROCESSORS];

/// Registers of EL1 and EL0 that hold any value, or many of its bits, and that the program does not
/// use: index, name, encoding, and the shift of a processor's value: 64 for 0.
macro_rules! each {
    ($action:ident) => {
        $action! {
            0 "disr_el1" "s3_0_c12_c1_1" 0,
            1 "afsr0_el1" "s3_0_c5_c1_0" 64,
            2 "amair_el1" "s3_0_c10_c3_0" 64,
            3 "contextidr_el1" "s3_0_c13_c0_1" 0,
            4 "tpidrro_el0" "s3_3_c13_c0_3" 0,
            5 "tpidr_el0" "s3_3_c13_c0_2" 0,
            6 "par_el1" "s3_0_c7_c4_0" 12,
            7 "far_el1" "s3_0_c6_c0_0" 0,
            8 "dbgbvr1_el1" "s2_0_c0_c1_4" 4,
            9 "dbgwvr1_el1" "s2_0_c0_c1_6" 4,
            10 "cntp_cval_el0" "s3_3_c14_c2_2" 0,
            11 "csselr_el1" "s3_2_c0_c0_0" 1,
            12 "apiakeylo_el1" "s3_0_c2_c1_0" 0,
            13 "apgakeyhi_el1" "s3_0_c2_c3_1" 0,
            14 "esr_el1" "s3_0_c5_c2_0" 0,
        }
    };
}

/// A processor's value: small enough for each register once shifted.
const fn own(number: usize, shift: u32) -> u64 {
    if shift >= 64 { 0 } else { (number as u64 % 4 + 1) << shift }
}

fn write_own(number: usize) {
    macro_rules! write {
        ($($index:literal $name:literal $encoding:literal $shift:literal,)*) => {
            // SAFETY: registers that the program does not use while interrupts are masked.
            $(unsafe {
                asm!(concat!("msr ", $encoding, ", {}"), in(reg) own(number, $shift), options(nostack, preserves_flags));
            })*
        };
    }
    each!(write);
}

fn look(number: usize) {
    macro_rules! read {
        ($($index:literal $name:literal $encoding:literal $shift:literal,)*) => {
            $({
                let value: u64;
                // SAFETY: reading it changes nothing.
                unsafe {
                    asm!(concat!("mrs {}, ", $encoding), out(reg) value, options(nostack, preserves_flags));
                }
                if value != own(number, $shift) {
                    FOUND[number].1.store(value, Ordering::Relaxed);
                    FOUND[number].0.store($index + 1, Ordering::Release);
                }
            })*
        };
    }
    each!(read);
}

const fn name(index: u64) -> &'static str {
    macro_rules! names {
        ($($index:literal $name:literal $encoding:literal $shift:literal,)*) => {
            match index { $($index => $name,)* _ => "?" }
        };
    }
    each!(names)
}

/// Writes, lets other processors do the same on this CPU, and reads.
fn write_and_look(number: usize) {
    write_own(number);
    // The others run meanwhile: because there are more of them than CPUs, some run on this one.
    clock::delay(20_000);
    look(number);
}

/// All processors write their own values to all registers that they can write, and find them again.
pub(crate) fn registers_are_own(_: &Orders<'_>) -> Verdict {
    for round in 0..ROUNDS {
        machine::on_all(write_and_look);
        for (number, (index, value)) in FOUND.iter().enumerate().take(machine::count()) {
            let (index, value) = (index.load(Ordering::Acquire), value.load(Ordering::Relaxed));
            ensure!(index == 0, "round {round}: processor {number} finds {value:#x} in {}", name(index - 1));
        }
    }
    Ok(())
}
