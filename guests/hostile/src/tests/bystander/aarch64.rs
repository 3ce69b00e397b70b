//! Arm64: the registers, and the flush by a broadcast.

use crate::tests::prelude::*;

/// V0 to V31.
const VECTORS: usize = 32;

/// Drops translations of the page at `address` on all processors.
pub(super) fn flush(address: u64) -> Result<(), Failure> {
    // SAFETY: it drops translations, which are reloaded from the tables.
    unsafe {
        asm!("dsb ishst", "tlbi vaae1is, {}", "dsb ish", "isb", in(reg) address >> 12 & ((1 << 44) - 1),
            options(nostack, preserves_flags));
    }
    Ok(())
}

pub(super) const fn prepare() -> Verdict {
    Ok(())
}

macro_rules! registers {
    ($($name:literal: $value:expr,)+) => {
        /// Unused system registers and their values; what is different on each processor is added.
        const SYSTEM: usize = [$($name),+].len();

        fn write_system(each: u64) {
            // SAFETY: the program uses none of these registers; no debug exception is enabled.
            unsafe {
                $(asm!(concat!("msr ", $name, ", {}"), in(reg) $value + each, options(nostack, preserves_flags));)+
                asm!("isb", options(nostack, preserves_flags));
            }
        }

        fn read_system() -> [u64; SYSTEM] {
            [$({
                let value: u64;
                // SAFETY: reading has no effect.
                unsafe { asm!(concat!("mrs {}, ", $name), out(reg) value, options(nostack, preserves_flags)) };
                value
            }),+]
        }
    };
}

registers! {
    "tpidr_el0": 0x1234_5678_9abc_0000u64,
    "tpidrro_el0": 0x8765_4321_0fed_0000u64,
    "contextidr_el1": 0x5555_0000u64,
    "afsr0_el1": 0x1111_0000u64,
    "afsr1_el1": 0x2222_0000u64,
    "amair_el1": 0x3333_0000u64,
    "csselr_el1": 0u64,
    "sp_el0": 0x7777_0000_0000u64,
    "ttbr1_el1": 0x4444_0000u64,
    "dbgbvr0_el1": 0x6666_0000u64,
    "dbgbvr1_el1": 0x6667_0000u64,
    "dbgwvr0_el1": 0x6668_0000u64,
    "dbgwvr1_el1": 0x6669_0000u64,
    "s3_3_c4_c4_0": 0u64, // FPCR
    "cntkctl_el1": 3u64,
}

pub(super) struct Registers {
    system: [u64; SYSTEM],
    vectors: [[u64; 2]; VECTORS],
    general: u64,
}

impl Registers {
    pub(super) fn load(number: usize) -> Self {
        let each = (number as u64) << 8;
        // SAFETY: CPACR_EL1.FPEN: nothing traps; the program is built without vector registers.
        unsafe {
            asm!("msr cpacr_el1, {}", "isb", in(reg) 3u64 << 20, options(nostack, preserves_flags));
        }
        write_system(each);
        let vectors =
            core::array::from_fn(|index| [index as u64 * 0x0101_0101 + each, !(index as u64) - each]);
        load_vectors(&vectors);
        // Some bits are not there: what is read at once is what has to stay.
        Self { system: read_system(), vectors, general: 0x0123_4567_89ab_cdef ^ each }
    }

    /// How many have changed.
    pub(super) fn check(&mut self) -> u64 {
        let system = read_system();
        let mut wrong = system.iter().zip(&self.system).filter(|(found, expected)| found != expected).count();
        let vectors = store_vectors();
        wrong += vectors.iter().zip(&self.vectors).filter(|(found, expected)| found != expected).count();
        self.general = self.general.rotate_left(1);
        wrong as u64 + general(self.general)
    }
}

macro_rules! vectors {
    ($text:literal, $array:expr) => {
        // SAFETY: the array has the size of the registers, which are not used otherwise.
        unsafe {
            asm!(
                ".arch_extension fp",
                ".arch_extension simd",
                ".irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31",
                $text,
                ".endr",
                ".arch_extension nosimd",
                ".arch_extension nofp",
                place = in(reg) $array, options(nostack, preserves_flags),
            );
        }
    };
}

fn load_vectors(vectors: &[[u64; 2]; VECTORS]) {
    vectors!("ldr q\\n, [{place}, #16 * \\n]", vectors.as_ptr());
}

fn store_vectors() -> [[u64; 2]; VECTORS] {
    let mut vectors = [[0; 2]; VECTORS];
    vectors!("str q\\n, [{place}, #16 * \\n]", vectors.as_mut_ptr());
    vectors
}

/// Keeps patterns in the general registers for a while; returns 1 if one of them has changed.
fn general(pattern: u64) -> u64 {
    let wrong: u64;
    // SAFETY: only the named registers are used.
    unsafe {
        asm!(
            ".irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27, 28",
            "add x\\n, x0, #\\n",
            ".endr",
            "2:",
            "subs x1, x1, #1",
            "b.ne 2b",
            ".irp n, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 20, 21, 22, 23, 24, 25, 26, 27, 28",
            "sub x\\n, x\\n, #\\n",
            "eor x\\n, x\\n, x0",
            "orr x1, x1, x\\n",
            ".endr",
            in("x0") pattern, inout("x1") 200u64 => wrong,
            out("x2") _, out("x3") _, out("x4") _, out("x5") _, out("x6") _, out("x7") _, out("x8") _, out("x9") _,
            out("x10") _, out("x11") _, out("x12") _, out("x13") _, out("x14") _, out("x15") _, out("x16") _,
            out("x17") _, out("x20") _, out("x21") _, out("x22") _, out("x23") _, out("x24") _, out("x25") _,
            out("x26") _, out("x27") _, out("x28") _,
        );
    }
    u64::from(wrong != 0)
}
