//! Loads and stores of general registers whose syndrome does not describe them: pairs, and those
//! with write-back.
//!
//! Only forms that may access a device's registers are decoded here: the others (exclusives,
//! atomics, vectors, tags) are for memory, and yield `None`. Forms that the architecture calls
//! constrained unpredictable yield `None`, too.
//!
//! Source: Arm DDI 0487, C4.1.94 "Loads and Stores": load/store register pair, and load/store
//! register (immediate and unscaled).

/// X31 in fields that name a stack pointer.
pub const STACK_POINTER: u8 = 31;

/// An access to one location, or to two adjacent ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadStore {
    /// The registers that are loaded or stored; 31 is zero.
    pub first: u8,
    /// The second one of a pair.
    pub second: Option<u8>,
    /// Size of each location in bytes: 1, 2, 4 or 8.
    pub bytes: u8,
    /// A load.
    pub is_load: bool,
    /// The loaded value is sign-extended.
    pub sign_extends: bool,
    /// The extension is to 64 bits.
    pub is_64bit: bool,
    /// The address register; [`STACK_POINTER`] is SP.
    pub base: u8,
    /// Added to it for the address.
    pub offset: i64,
    /// Added to it afterwards.
    pub write_back: Option<i64>,
}

const fn field(instruction: u32, shift: u32, bits: u32) -> u32 {
    instruction >> shift & ((1 << bits) - 1)
}

/// A field as a signed number.
const fn signed(instruction: u32, shift: u32, bits: u32) -> i64 {
    (((instruction << (32 - shift - bits)) as i32) >> (32 - bits)) as i64
}

/// Decodes an instruction.
pub fn decode(instruction: u32) -> Option<LoadStore> {
    // Bit 26: vectors.
    match (field(instruction, 27, 3), field(instruction, 26, 1)) {
        (0b101, 0) if field(instruction, 25, 1) == 0 => pair(instruction),
        (0b111, 0) => single(instruction),
        _ => None,
    }
}

/// Offset and write-back of the base register, from the mode field.
const fn indexed(mode: u32, immediate: i64) -> (i64, Option<i64>) {
    match mode {
        0b01 => (0, Some(immediate)),
        0b11 => (immediate, Some(immediate)),
        _ => (immediate, None),
    }
}

fn pair(instruction: u32) -> Option<LoadStore> {
    let is_load = field(instruction, 22, 1) != 0;
    let mode = field(instruction, 23, 2);
    let (bytes, sign_extends) = match field(instruction, 30, 2) {
        0b00 => (4, false),
        // LDPSW; it has no form without allocation, and its store is STGP.
        0b01 if is_load && mode != 0b00 => (4, true),
        0b10 => (8, false),
        _ => return None,
    };
    let (offset, write_back) = indexed(mode, signed(instruction, 15, 7) * i64::from(bytes));
    let (first, second) = (field(instruction, 0, 5) as u8, field(instruction, 10, 5) as u8);
    if is_load && first == second {
        return None;
    }
    checked(LoadStore {
        first,
        second: Some(second),
        bytes,
        is_load,
        sign_extends,
        is_64bit: bytes == 8 || sign_extends,
        base: field(instruction, 5, 5) as u8,
        offset,
        write_back,
    })
}

fn single(instruction: u32) -> Option<LoadStore> {
    let size = field(instruction, 30, 2);
    let bytes = 1_u8 << size;
    let (is_load, sign_extends, is_64bit) = match (field(instruction, 22, 2), size) {
        (0b00, _) => (false, false, size == 3),
        (0b01, _) => (true, false, size == 3),
        (0b10, 0..=2) => (true, true, true),
        (0b11, 0..=1) => (true, true, false),
        _ => return None,
    };
    let (offset, write_back) = match (field(instruction, 24, 2), field(instruction, 21, 1)) {
        // Scaled, without write-back.
        (0b01, _) => (i64::from(field(instruction, 10, 12)) * i64::from(bytes), None),
        // Bits 11:10 are 0 for unscaled, 2 for unprivileged forms.
        (0b00, 0) => indexed(field(instruction, 10, 2), signed(instruction, 12, 9)),
        // Register offset: the syndrome describes it.
        _ => return None,
    };
    checked(LoadStore {
        first: field(instruction, 0, 5) as u8,
        second: None,
        bytes,
        is_load,
        sign_extends,
        is_64bit,
        base: field(instruction, 5, 5) as u8,
        offset,
        write_back,
    })
}

/// `None` if the base is both written back and transferred.
fn checked(access: LoadStore) -> Option<LoadStore> {
    let is_transferred = access.first == access.base || access.second == Some(access.base);
    if access.write_back.is_some() && access.base != STACK_POINTER && is_transferred {
        None
    } else {
        Some(access)
    }
}

impl LoadStore {
    /// Total size in bytes.
    pub const fn size(&self) -> u64 {
        if self.second.is_some() { 2 * self.bytes as u64 } else { self.bytes as u64 }
    }

    /// The register's value after `value` has been loaded.
    pub const fn loaded(&self, value: u64) -> u64 {
        let unused = 64 - 8 * self.bytes as u32;
        let value = if self.sign_extends {
            ((value << unused) as i64 >> unused) as u64
        } else {
            value << unused >> unused
        };
        if self.is_64bit { value } else { value & 0xffff_ffff }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn plain(first: u8, second: Option<u8>, bytes: u8, is_load: bool, base: u8) -> LoadStore {
        LoadStore {
            first,
            second,
            bytes,
            is_load,
            sign_extends: false,
            is_64bit: bytes == 8,
            base,
            offset: 0,
            write_back: None,
        }
    }

    /// Encodings from the assembler.
    #[test]
    fn u26_loads_and_stores_are_understood() {
        let table = [
            // ldp x0, x1, [x2]; stp w3, w4, [x5, #8]; ldp x6, x7, [sp], #-16; stp x8, x9, [x10,
            // #-512]!
            (0xa940_0440, plain(0, Some(1), 8, true, 2)),
            (0x2901_10a3, LoadStore { offset: 8, ..plain(3, Some(4), 4, false, 5) }),
            (0xa8ff_1fe6, LoadStore { write_back: Some(-16), ..plain(6, Some(7), 8, true, 31) }),
            (
                0xa9a0_2548,
                LoadStore { offset: -512, write_back: Some(-512), ..plain(8, Some(9), 8, false, 10) },
            ),
            // ldnp w0, w1, [x2]; ldpsw x0, x1, [x2, #4]
            (0x2840_0440, plain(0, Some(1), 4, true, 2)),
            (
                0x6940_8440,
                LoadStore { offset: 4, sign_extends: true, is_64bit: true, ..plain(0, Some(1), 4, true, 2) },
            ),
            // ldr w0, [x1], #4; str w0, [x1, #-4]!; ldrb w3, [x4], #1; strh w5, [x6, #2]!
            (0xb840_4420, LoadStore { write_back: Some(4), ..plain(0, None, 4, true, 1) }),
            (0xb81f_cc20, LoadStore { offset: -4, write_back: Some(-4), ..plain(0, None, 4, false, 1) }),
            (0x3840_1483, LoadStore { write_back: Some(1), ..plain(3, None, 1, true, 4) }),
            (0x7800_2cc5, LoadStore { offset: 2, write_back: Some(2), ..plain(5, None, 2, false, 6) }),
            // ldrsb w0, [x1], #1; ldrsw x0, [x1], #4; str xzr, [x1, #8]; ldur x0, [x1, #-8]
            (
                0x38c0_1420,
                LoadStore { write_back: Some(1), sign_extends: true, ..plain(0, None, 1, true, 1) },
            ),
            (
                0xb880_4420,
                LoadStore {
                    write_back: Some(4),
                    sign_extends: true,
                    is_64bit: true,
                    ..plain(0, None, 4, true, 1)
                },
            ),
            (0xf900_043f, LoadStore { offset: 8, ..plain(31, None, 8, false, 1) }),
            (0xf85f_8020, LoadStore { offset: -8, ..plain(0, None, 8, true, 1) }),
        ];
        for (instruction, expected) in table {
            assert_eq!(decode(instruction), Some(expected), "{instruction:#010x}");
        }
    }

    #[test]
    fn u26_what_is_no_access_to_a_device_is_left_alone() {
        let others = [
            // ldp x0, x0, [x1]; ldp x0, x1, [x0], #16; ldr x1, [x1], #8; str x1, [x1, #8]!
            0xa940_0020, 0xa8c1_0400, 0xf840_8421, 0xf800_8c21,
            // ldp q0, q1, [x2]; ldr q0, [x1], #16; ldr d0, [x1]; stgp x0, x1, [x2]; ldxr x0, [x1];
            // ldadd x0, x1, [x2]
            0xad40_0440, 0x3cc1_0420, 0xfd40_0020, 0x6900_0440, 0xc85f_7c20, 0xf820_0041,
            // ldr x0, [x1, x2]; prfm pldl1keep, [x0]; ldr x0, label; nop; 0
            0xf862_6820, 0xf980_0000, 0x5800_0000, 0xd503_201f, 0,
        ];
        for instruction in others {
            assert_eq!(decode(instruction), None, "{instruction:#010x}");
        }
        // SP as the base and, as zero, also transferred: that is allowed.
        assert!(decode(0xf800_8fff).is_some(), "str xzr, [sp, #8]!");
    }

    #[test]
    fn u26_what_is_loaded_is_extended() {
        let signed =
            |bytes, is_64bit| LoadStore { sign_extends: true, is_64bit, ..plain(0, None, bytes, true, 1) };
        assert_eq!(signed(1, false).loaded(0x1_80), 0xffff_ff80);
        assert_eq!(signed(4, true).loaded(0x8000_0000), 0xffff_ffff_8000_0000);
        assert_eq!(signed(2, true).loaded(0x7fff), 0x7fff);
        assert_eq!(plain(0, None, 4, true, 1).loaded(u64::MAX), 0xffff_ffff);
        assert_eq!(plain(0, Some(1), 8, true, 1).loaded(u64::MAX), u64::MAX);
        assert_eq!((plain(0, Some(1), 8, true, 1).size(), plain(0, None, 2, true, 1).size()), (16, 2));
    }
}
