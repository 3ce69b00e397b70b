//! The events that a guest exits on by bitmaps: exceptions, ports, MSRs.

use crate::pages::Pages;
use crate::x86::processor::X86;
use crate::x86::vcpu::{event, msr};

/// Exceptions that a guest always exits on, as on every processor.
pub const EXCEPTIONS: u32 = event::INTERCEPTED;

/// Pages of the two maps of ports, one bit each, all of which cause exits (25.6.4).
const PORT_MAP_PAGES: usize = 2;
/// Offset of the map of writes behind that of reads, each with two ranges of 8192 MSRs (25.6.9).
const WRITES: usize = 0x800;
const HIGH: usize = 0x400;

pub(super) fn permission_maps<A: X86>() -> [Pages; 2] {
    [Pages::filled(PORT_MAP_PAGES, |map| map.fill(0xff)), Pages::filled(1, fill_msr_map::<A>)]
}

/// Fills in a map of zeros: exits for all MSRs except those that [pass](msr::passing).
pub(super) fn fill_msr_map<A: X86>(map: &mut [u8]) {
    map.fill(0xff);
    for (number, is_checked) in msr::passing::<A>() {
        let range = if number < 0xc000_0000 { 0 } else { HIGH };
        let (byte, bit) = (range + (number & 0x1fff) as usize / 8, number % 8);
        let written = if is_checked { None } else { Some(WRITES + byte) };
        for byte in [Some(byte), written].into_iter().flatten() {
            if let Some(byte) = map.get_mut(byte) {
                *byte &= !(1 << bit);
            }
        }
    }
}
