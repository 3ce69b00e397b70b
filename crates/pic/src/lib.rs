//! Silences a PC's interrupt controllers as firmware leaves them: the two 8259s, the switch between
//! them and the local APIC, the pins of I/O APICs.
//!
//! Firmware routes the timer's interrupt, IRQ 0, to vector 8, where a processor in protected mode
//! reports double faults. The interrupt gets there in one of three ways: directly from the 8259s
//! (PIC mode), by LINT0 of the first processor's local APIC (virtual wire mode), or by a pin of an
//! I/O APIC (virtual wire mode by I/O APIC). So all three are closed before interrupts are enabled,
//! and the 8259s' vectors are moved: an interrupt already in transit, or a spurious one, then hits
//! no exception vector.
//!
//! The caller writes to ports; memory is accessed one to one.
//!
//! Sources: Intel 8259A data sheet (231468), "Programming the 8259A"; Intel MultiProcessor
//! Specification 1.4, sections 3.6.2 and 4.1; Intel 82093AA data sheet (290566), section 3.2.
#![cfg_attr(not(test), no_std)]

use core::ops::Range;

/// The new vectors of the 8259s' sixteen interrupts. Interrupts there need no end of interrupt at
/// the local APIC.
pub const VECTORS: Range<u8> = 0xe0..0xf0;

/// Command and data ports of the first and the second 8259.
const COMMAND: [u16; 2] = [0x20, 0xa0];
const DATA: [u16; 2] = [0x21, 0xa1];
/// ICW1: a sequence of four begins.
const INITIALISE: u8 = 0x11;
/// ICW3: the pin of the second one, for the first; its identity, for the second.
const CASCADE: [u8; 2] = [1 << 2, 2];
/// ICW4: 8086 mode, interrupts are ended by command.
const MODE_8086: u8 = 1;
const ALL: u8 = 0xff;

/// Register and data port of the interrupt mode configuration register (IMCR), its number, and the
/// value that connects the local APIC.
const IMCR_SELECT: u16 = 0x22;
const IMCR_DATA: u16 = 0x23;
const IMCR: u8 = 0x70;
const IMCR_APIC: u8 = 1;

/// Masks all interrupts of the 8259s, moves them to [`VECTORS`], and routes the processor's
/// interrupts from the local APIC if there is an IMCR for that. `out` writes to a port.
pub fn silence(has_imcr: bool, mut out: impl FnMut(u16, u8)) {
    for chip in 0..2 {
        out(DATA[chip], ALL);
    }
    for chip in 0..2 {
        out(COMMAND[chip], INITIALISE);
        out(DATA[chip], VECTORS.start + 8 * chip as u8);
        out(DATA[chip], CASCADE[chip]);
        out(DATA[chip], MODE_8086);
        // The initialisation sequence has cleared the mask.
        out(DATA[chip], ALL);
    }
    if has_imcr {
        out(IMCR_SELECT, IMCR);
        out(IMCR_DATA, IMCR_APIC);
    }
}

/// An I/O APIC's registers, by their numbers.
pub trait IoApic {
    /// Reads a register.
    fn read(&mut self, register: u32) -> u32;
    /// Writes a register.
    fn write(&mut self, register: u32, value: u32);
}

const REG_VERSION: u32 = 1;
const REG_PINS: u32 = 0x10;
const ENTRY_MASKED: u32 = 1 << 16;
const ENTRY_MODE: u32 = 7 << 8;
const ENTRY_SMI: u32 = 2 << 8;

/// Masks all pins of an I/O APIC except those that lead to the firmware itself.
pub fn mask_pins(io_apic: &mut impl IoApic) {
    let last = io_apic.read(REG_VERSION) >> 16 & 0xff;
    for register in (0..=last).map(|pin| REG_PINS + 2 * pin) {
        let entry = io_apic.read(register);
        if entry & ENTRY_MODE != ENTRY_SMI {
            io_apic.write(register, entry | ENTRY_MASKED);
        }
    }
}

/// An I/O APIC whose registers are in memory.
#[derive(Debug)]
pub struct Mapped {
    select: *mut u32,
    window: *mut u32,
}

impl Mapped {
    /// The I/O APIC at `base`.
    ///
    /// # Safety
    ///
    /// Its registers are mapped uncached there, and have no other user.
    pub unsafe fn new(base: u64) -> Self {
        Self { select: base as *mut u32, window: (base + 0x10) as *mut u32 }
    }
}

impl IoApic for Mapped {
    fn read(&mut self, register: u32) -> u32 {
        // SAFETY: the caller of `new` promised that these are its registers.
        unsafe {
            self.select.write_volatile(register);
            self.window.read_volatile()
        }
    }

    fn write(&mut self, register: u32, value: u32) {
        // SAFETY: as above.
        unsafe {
            self.select.write_volatile(register);
            self.window.write_volatile(value);
        }
    }
}

/// Whether the firmware's MP floating pointer structure says that there is an IMCR.
///
/// # Safety
///
/// The first MiB is mapped one to one, and nothing writes to the firmware's tables.
pub unsafe fn firmware_has_imcr() -> bool {
    // SAFETY: the caller's promise; every PC has the word.
    let segment = unsafe { (EBDA_SEGMENT as *const u16).read_volatile() };
    mp_places(segment).into_iter().filter(|place| !place.is_empty()).any(|place| {
        let length = (place.end - place.start) as usize;
        // SAFETY: the caller's promise.
        find_imcr(unsafe { core::slice::from_raw_parts(place.start as *const u8, length) }) == Some(true)
    })
}

/// Physical address of the BIOS data area's word that holds the segment of the extended one.
pub const EBDA_SEGMENT: u64 = 0x40e;

/// Where the MP floating pointer structure may be: the first KiB of the extended BIOS data area,
/// the last KiB of base memory, and the BIOS ROM. All are multiples of 16.
pub fn mp_places(ebda_segment: u16) -> [Range<u64>; 3] {
    let ebda = u64::from(ebda_segment) << 4;
    // A segment elsewhere is not such an area.
    let ebda = if (0x8_0000..0xa_0000).contains(&ebda) { ebda..ebda + 0x400 } else { 0..0 };
    [ebda, 0x9_fc00..0xa_0000, 0xf_0000..0x10_0000]
}

/// Length of the structure in paragraphs, and the offsets of its parts.
const MP_LENGTH: usize = 8;
const MP_FEATURE_2: usize = 12;
const MP_IMCR_PRESENT: u8 = 1 << 7;

/// Finds the MP floating pointer structure, and returns whether it says that there is an IMCR.
pub fn find_imcr(memory: &[u8]) -> Option<bool> {
    let is_valid = |structure: &&[u8]| {
        structure.starts_with(b"_MP_")
            && structure.get(MP_LENGTH) == Some(&1)
            && structure.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte)) == 0
    };
    let structure = memory.chunks_exact(16).find(is_valid)?;
    Some(structure.get(MP_FEATURE_2)? & MP_IMCR_PRESENT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn u27_no_interrupt_of_the_8259s_is_an_exception() {
        // The data sheet's order: masked; then of each chip ICW1 to ICW4, and masked again.
        let of_chip = |command, base, cascade| {
            [
                (command, 0x11),
                (command + 1, base),
                (command + 1, cascade),
                (command + 1, 1),
                (command + 1, 0xff),
            ]
        };
        let masked = [(0x21, 0xff), (0xa1, 0xff)];
        let both = [masked.as_slice(), &of_chip(0x20, 0xe0, 4), &of_chip(0xa0, 0xe8, 2)].concat();
        for (has_imcr, imcr) in [(false, [].as_slice()), (true, &[(0x22, 0x70), (0x23, 1)])] {
            let mut writes = Vec::new();
            silence(has_imcr, |port, value| writes.push((port, value)));
            assert_eq!(writes, [&both, imcr].concat());
        }
        assert_eq!(VECTORS, 0xe0..0xf0, "well above the exceptions");
    }

    #[test]
    fn a_mapped_io_apic_is_accessed_through_its_window() {
        let mut registers = [0_u32; 8];
        // SAFETY: these stand for registers, and have no other user.
        let mut mapped = unsafe { Mapped::new((&raw mut registers).expose_provenance() as u64) };
        mapped.write(0x12, 7);
        assert_eq!((mapped.select, registers), ((&raw mut registers).cast(), [0x12, 0, 0, 0, 7, 0, 0, 0]));
        assert_eq!(mapped.read(0x10), 7);
        assert_eq!(registers, [0x10, 0, 0, 0, 7, 0, 0, 0]);
    }

    struct Pins([u32; 0x40]);

    impl IoApic for Pins {
        fn read(&mut self, register: u32) -> u32 {
            self.0[register as usize]
        }

        fn write(&mut self, register: u32, value: u32) {
            self.0[register as usize] = value;
        }
    }

    #[test]
    fn u27_all_pins_are_masked_but_the_firmwares_own() {
        let mut pins = Pins([0; 0x40]);
        pins.0[1] = 23 << 16 | 0x20;
        // Virtual wire mode: pin 0 takes interrupts from the 8259s.
        pins.0[0x10] = 7 << 8;
        pins.0[0x10 + 2 * 5] = 2 << 8;
        pins.0[0x10 + 2 * 23] = 0x31;
        mask_pins(&mut pins);
        for pin in 0..24 {
            assert_eq!(pins.0[0x10 + 2 * pin] >> 16 & 1, u32::from(pin != 5), "pin {pin}");
        }
        assert_eq!(pins.0[0x10] & 0xffff, 7 << 8);
        assert!(pins.0[0x40 - 1] == 0 && pins.0[0x11] == 0);
    }

    fn structure(feature_2: u8) -> [u8; 16] {
        let mut bytes = *b"_MP_\0\0\x0f\0\x01\x04\0\0\0\0\0\0";
        bytes[12] = feature_2;
        bytes[10] = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_sub(*byte));
        bytes
    }

    #[test]
    fn u27_the_mp_structure_says_whether_there_is_an_imcr() {
        for (feature_2, expected) in [(0, Some(false)), (0x80, Some(true))] {
            let mut memory = [0; 256];
            memory[48..64].copy_from_slice(&structure(feature_2));
            assert_eq!(find_imcr(&memory), expected);
            memory[50] ^= 1;
            assert_eq!(find_imcr(&memory), None, "no signature");
            memory[50] ^= 1;
            memory[63] ^= 1;
            assert_eq!(find_imcr(&memory), None, "no checksum");
        }
        let mut memory = [0; 64];
        memory[8..24].copy_from_slice(&structure(0x80));
        assert_eq!(find_imcr(&memory), None, "not at a paragraph");
        assert_eq!(find_imcr(&structure(0x80)[..15]), None);
        // The length is 1, and the sum 0 all the same.
        let mut longer = structure(0x80);
        (longer[8], longer[10]) = (2, longer[10].wrapping_sub(1));
        assert_eq!(find_imcr(&longer), None);
    }

    #[test]
    fn u27_places_of_the_mp_structure_are_what_they_can_be() {
        assert_eq!(mp_places(0x9fc0), [0x9_fc00..0xa_0000, 0x9_fc00..0xa_0000, 0xf_0000..0x10_0000]);
        assert_eq!([0x8000, 0x9fff].map(|segment| mp_places(segment)[0].start), [0x8_0000, 0x9_fff0]);
        for nowhere in [0, 0x40, 0x7fff, 0xa000, 0xffff] {
            assert_eq!(mp_places(nowhere)[0], 0..0, "{nowhere:#x}");
        }
    }
}
