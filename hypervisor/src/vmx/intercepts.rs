//! The events that a guest exits on by bitmaps: exceptions, ports, MSRs.

use crate::devices::pc::lapic::msr::{EOI, IRR0, IRR7, ISR0, ISR7, PPR, SELF_IPI, TPR};
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

/// Offset of the map for guests whose local APIC is the processor's.
pub(super) const APIC_MAP: u64 = 0x1000;

/// The registers that the processor reads and writes in the virtual-APIC page.
fn of_apic() -> impl Iterator<Item = (u32, usize)> {
    let reads = [TPR, PPR].into_iter().chain(ISR0..=ISR7).chain(IRR0..=IRR7).map(|number| (number, 0));
    reads.chain([TPR, EOI, SELF_IPI].map(|number| (number, WRITES)))
}

pub(super) fn permission_maps<A: X86>() -> [Pages; 2] {
    let both = |maps: &mut [u8]| {
        let (usual, apic) = maps.split_at_mut(APIC_MAP as usize);
        fill_msr_map::<A>(usual);
        fill_msr_map::<A>(apic);
        of_apic().for_each(|(number, way)| pass(apic, number, way));
    };
    [Pages::filled(PORT_MAP_PAGES, |map| map.fill(0xff)), Pages::filled(2, both)]
}

/// Fills in a map of zeros: exits for all MSRs except those that [pass](msr::passing).
pub(super) fn fill_msr_map<A: X86>(map: &mut [u8]) {
    map.fill(0xff);
    for (number, is_checked) in msr::passing::<A>() {
        pass(map, number, 0);
        if !is_checked {
            pass(map, number, WRITES);
        }
    }
}

fn pass(map: &mut [u8], number: u32, way: usize) {
    let range = if number < 0xc000_0000 { 0 } else { HIGH };
    if let Some(byte) = map.get_mut(way + range + (number & 0x1fff) as usize / 8) {
        *byte &= !(1 << (number % 8));
    }
}
