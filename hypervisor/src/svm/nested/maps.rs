//! L1's maps: which ports and MSRs of L2 cause exits to L1 (sections 15.10.1 and 15.11).

use core::sync::atomic::Ordering;
use memslots::{Gpa, GuestMemory};

use super::super::intercepts::{map_place, passing};
use crate::pages::Pages;
use crate::x86::processor::X86;
use crate::x86::vcpu::msr;

/// Whether one of these ports causes an exit to L1. The map has three bits more than there are
/// ports, for accesses to the last one.
pub(super) fn has_port(memory: &GuestMemory<'_>, map: u64, port: u16, size: u32) -> bool {
    let at = (map & !0xfff) + u64::from(port / 8);
    let bits = [at, at + 1].map(|at| {
        // What cannot be read causes exits.
        let mut byte = 0xff;
        let _ = memory.read(Gpa(at), core::slice::from_mut(&mut byte));
        byte
    });
    u16::from_le_bytes(bits) >> (port % 8) & ((1 << size) - 1) != 0
}

/// Whether a read or a write of an MSR causes an exit to L1: all do that are outside of the map.
pub(super) fn has_msr(memory: &GuestMemory<'_>, map: u64, number: u32, is_write: bool) -> bool {
    let Some((byte, bit)) = map_place(number) else { return true };
    let mut bits = [0xff];
    let _ = memory.read(Gpa((map & !0xfff) + byte as u64), &mut bits);
    bits[0] >> (bit + u32::from(is_write)) & 1 != 0
}

/// The MSRs that cause exits of L2, for a map of ones: ours, and L1's. L1's map is looked at for
/// those that cause none by ours; the others exit anyway.
pub(super) fn merge<A: X86>(into: &Pages, memory: &GuestMemory<'_>, map: Option<u64>) {
    let mut last = (usize::MAX, 0);
    for (number, is_checked) in msr::passing::<A>() {
        let Some((byte, bit)) = map_place(number) else { continue };
        if let Some(map) = map
            && last.0 != byte
        {
            let mut bits = [0xff];
            let _ = memory.read(Gpa((map & !0xfff) + byte as u64), &mut bits);
            last = (byte, bits[0]);
        }
        let theirs = if map.is_some() { last.1 >> bit } else { 0 };
        let exits = u64::from(!passing(is_checked) | theirs) & 3;
        let (word, shift) = (&into.words()[byte / 8], byte as u32 % 8 * 8 + bit);
        // Relaxed: the processor reads it at the entry, on this CPU.
        let others = word.load(Ordering::Relaxed) & !(3 << shift);
        word.store(others | exits << shift, Ordering::Relaxed);
    }
}
