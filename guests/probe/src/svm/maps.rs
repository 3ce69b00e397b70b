//! The maps of ports and MSRs: which bits an access looks at, and what the exit says of it.

use super::block::*;
use super::clauses::clause;
use super::l2::{Code, L2, RCX, RDI, RDX, RSI, code};
use crate::paging::Page;
use crate::report::Verdict;

fn set_bit(pages: &[Page], bit: usize, value: bool) {
    let word = &pages[bit / (8 * 4096)].words()[bit / 64 % 512];
    let old = word.load(core::sync::atomic::Ordering::Relaxed);
    word.store(
        old & !(1 << (bit % 64)) | u64::from(value) << (bit % 64),
        core::sync::atomic::Ordering::Relaxed,
    );
}

/// An access to ports: its code, size in bytes, and bits 6:0 of EXITINFO1 but the size.
#[derive(Clone, Copy)]
struct Access {
    at: Code,
    bytes: usize,
    kind: u64,
}

const IN: u64 = 1;
const STRING: u64 = 4;
const REPEATED: u64 = 8;

fn accesses() -> [Access; 11] {
    let access = |at, bytes, kind| Access { at, bytes, kind };
    [
        access(code!("in al, dx"), 1, IN),
        access(code!("in ax, dx"), 2, IN),
        access(code!("in eax, dx"), 4, IN),
        access(code!("out dx, al"), 1, 0),
        access(code!("out dx, ax"), 2, 0),
        access(code!("out dx, eax"), 4, 0),
        access(code!("insb"), 1, IN | STRING),
        access(code!("rep insw"), 2, IN | STRING | REPEATED),
        access(code!("insd"), 4, IN | STRING),
        access(code!("outsb"), 1, STRING),
        access(code!("rep outsd"), 4, STRING | REPEATED),
    ]
}

/// A guest that accesses `port`, and asks for the map of ports.
fn at_port(access: Access, port: usize) -> L2 {
    let mut l2 = L2::new(access.at);
    l2.block.intercept(exit::IO);
    l2.registers.general[RDX] = port as u64;
    l2.registers.general[RCX] = 1;
    l2.registers.general[RDI] = l2.pages.data[0].address();
    l2.registers.general[RSI] = l2.pages.data[0].address();
    l2
}

/// A port that has no effect, at a boundary of a byte of the map but for one.
const FREE: usize = 0x87;

/// An access exits if the bit of any of its ports is set, also across bytes and pages of the map,
/// and beyond the last port.
pub(super) fn ports() -> Verdict {
    for access in accesses() {
        for port in [0x80, FREE, 0x7ffd, 0x7fff, 0xfffd, 0xffff] {
            for byte in 0..access.bytes {
                let mut l2 = at_port(access, port);
                set_bit(&l2.pages.io, port + byte, true);
                let code = l2.run();
                let is_io = code == exit::IO && l2.block.get(RIP) == access.at.at;
                clause!("port-exits", is_io, "port {port:#x} + {byte}: exit {code:#x}");
                described(&l2, access, port);
            }
        }
        neighbours(access);
    }
    literals();
    Ok(())
}

fn described(l2: &L2, access: Access, port: usize) {
    if l2.block.exit_code() != exit::IO {
        return;
    }
    let (info, next) = (l2.block.get(INFO_1), l2.block.get(INFO_2));
    let wanted = (port as u64) << 16 | (access.bytes as u64) << 4 | access.kind;
    clause!("port-info", info & 0xffff_007f == wanted, "EXITINFO1 {info:#x}, not {wanted:#x}");
    let is_right = access.kind & STRING == 0 || info & 0x380 == 0x200;
    clause!("port-address-size", is_right, "EXITINFO1 {info:#x}: addresses have 64 bits");
    clause!("port-next-rip", next == access.at.next, "EXITINFO2 {next:#x}, not {:#x}", access.at.next);
}

/// The bits before and behind make no exit, and neither does a map that nobody asks for.
fn neighbours(access: Access) {
    // What is written is read before: these ports belong to nothing, or show a number.
    for port in [0x80, FREE] {
        let mut l2 = at_port(access, port);
        set_bit(&l2.pages.io, port - 1, true);
        set_bit(&l2.pages.io, port + access.bytes, true);
        let code = l2.run();
        clause!("port-passes", code == exit::VMMCALL, "port {port:#x}: exit {code:#x}");
        let mut l2 = at_port(access, port);
        l2.block.pass(exit::IO);
        set_bit(&l2.pages.io, port, true);
        let code = l2.run();
        clause!("port-passes", code == exit::VMMCALL, "port {port:#x} without a map: exit {code:#x}");
    }
}

/// Ports that the instruction names.
fn literals() {
    for (at, kind) in [(code!("in al, 0x80"), IN), (code!("out 0x80, al"), 0)] {
        let access = Access { at, bytes: 1, kind };
        let mut l2 = at_port(access, 0);
        set_bit(&l2.pages.io, 0x80, true);
        let code = l2.run();
        clause!("port-exits", code == exit::IO, "port 0x80 by its number: exit {code:#x}");
        described(&l2, access, 0x80);
    }
}

/// The first bit of an MSR in the map; none outside of the three ranges.
fn msr_bit(msr: u32) -> Option<usize> {
    let base = match msr >> 13 {
        0 => 0,
        0x6_0000 => 0x800,
        0x6_0008 => 0x1000,
        _ => return None,
    };
    Some(base * 8 + (msr as usize & 0x1fff) * 2)
}

/// The ranges' edges, and what is beyond them. Some exist; none is changed.
const MSRS: [u32; 16] = [
    0, 0x10, 0x1fff, 0x2000, 0x4000_0000, 0xbfff_ffff, 0xc000_0000, 0xc000_0080, 0xc000_1fff, 0xc000_2000,
    0xc000_ffff, 0xc001_0000, 0xc001_1fff, 0xc001_2000, 0x8000_0000, 0xffff_ffff,
];

fn at_msr(at: Code, msr: u32, fill: u64) -> L2 {
    let mut l2 = L2::new(at);
    l2.block.intercept(exit::MSR);
    l2.pages.msrs.iter().for_each(|page| page.write(&[fill; 512]));
    l2.registers.general[RCX] = msr.into();
    l2.registers.general[RDX] = 0;
    l2
}

/// Each access to an MSR exits by its own bit and no other.
pub(super) fn msrs() -> Verdict {
    for msr in MSRS {
        for (is_write, at) in [(0, code!("rdmsr")), (1, code!("wrmsr"))] {
            let mut l2 = at_msr(at, msr, 0);
            if let Some(bit) = msr_bit(msr) {
                set_bit(&l2.pages.msrs, bit + is_write, true);
            }
            let code = l2.run();
            let info = l2.block.get(INFO_1);
            let is_exit = code == exit::MSR && l2.block.get(RIP) == at.at;
            clause!("msr-exits", is_exit, "{msr:#x}, write {is_write}: exit {code:#x}");
            let is_right = !is_exit || info == is_write as u64;
            clause!("msr-info", is_right, "{msr:#x}: EXITINFO1 {info:#x}, not {is_write}");
            // RCX's upper half is none of the number.
            l2.block.set(RIP, at.at);
            l2.registers.general[RCX] |= u64::MAX << 32;
            let code = l2.run();
            clause!("msr-upper-half", code == exit::MSR, "{msr:#x}, write {is_write}: exit {code:#x}");
        }
        // Without its own bit, and with all others, it is read, or is #GP.
        let Some(bit) = msr_bit(msr) else { continue };
        let mut l2 = at_msr(code!("rdmsr"), msr, u64::MAX);
        set_bit(&l2.pages.msrs, bit, false);
        let code = l2.run();
        let has_passed = code == exit::VMMCALL && l2.vector().is_none_or(|vector| vector == 13);
        clause!("msr-passes", has_passed, "{msr:#x}: exit {code:#x}, handler {:?}", l2.vector());
        let mut l2 = at_msr(code!("rdmsr"), msr, u64::MAX);
        l2.block.pass(exit::MSR);
        let code = l2.run();
        clause!("msr-passes", code == exit::VMMCALL, "{msr:#x} without a map: exit {code:#x}");
    }
    Ok(())
}
