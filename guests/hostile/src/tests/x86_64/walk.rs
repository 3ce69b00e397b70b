//! All possible MSRs, ports and leaves of CPUID, compared with the tables of those that may exist.

use core::arch::x86_64::__cpuid_count;

use crate::tests::findings::Findings;
use crate::tests::prelude::*;
use baremetal::x86_64::guarded::{Fault, rdmsr, wrmsr};
use hostile::allowed::msrs;
use hostile::allowed::msrs::Row;
use hostile::allowed::{cpuid as leaves, ports as port_table};
use x86_64::instructions::port::Port;

/// Where ranges of MSRs in permission maps, and the synthetic ones, start; and their length.
pub(super) const RANGES: [u32; 4] = [0, 0x4000_0000, 0xc000_0000, 0xc001_0000];
pub(super) const RANGE: u32 = 0x2000;
/// Start of the ranges of CPUID leaves that are in use, and the number of leaves checked in each.
const LEAVES: [u32; 5] = [0, 0x4000_0000, 0x8000_0000, 0xc000_0000, 0xffff_ff00];
const LEAF_COUNT: u32 = 0x100;
const SUBLEAVES: u32 = 64;
/// Each MSR is in the table or raises #GP, for reads and writes; constant ones do not change.
pub(super) fn msrs(_: &Orders<'_>) -> Verdict {
    let (mut findings, mut found) = (Findings::default(), 0);
    for number in RANGES.into_iter().flat_map(|first| first..first + RANGE) {
        let (old, row) = (rdmsr(number), msrs::find(number));
        match (old, row) {
            (Ok(value), None) => findings.tell(format_args!("MSR {number:#x} is read ({value:#x})")),
            (Ok(_), Some(_)) => found += 1,
            (Err(Fault::PROTECTION), _) => {}
            (Err(fault), _) => findings.tell(format_args!("MSR {number:#x} raises {fault:?}")),
        }
        let value = old.unwrap_or(0);
        let (write, holds) = match row.map(|row| row.what) {
            Some(Kind::Own(mask)) => (value ^ mask, false),
            Some(Kind::Constant) => (!value, true),
            Some(Kind::Written(written)) => (written, false),
            Some(Kind::Moves) => continue,
            Some(Kind::Kept | Kind::Instruction) | None => (value, false),
        };
        // SAFETY: rows say which writes are coped with; other MSRs have no effect, or it fails.
        match unsafe { wrmsr(number, write) } {
            Ok(()) if row.is_none() => findings.tell(format_args!("MSR {number:#x} is written to")),
            Ok(()) if holds && rdmsr(number) != old => findings.tell(format_args!("MSR {number:#x} changes")),
            Ok(()) | Err(Fault::PROTECTION) => {}
            Err(fault) => findings.tell(format_args!("MSR {number:#x} raises {fault:?}, written to")),
        }
        if let (Some(Row { what: Kind::Own(_), .. }), Ok(old)) = (row, old) {
            // SAFETY: it is the previous value.
            let _ = unsafe { wrmsr(number, old) };
        }
    }
    findings.verdict(found, 50)
}

/// Each port is in the table or reads as all ones, in each width.
pub(super) fn ports(_: &Orders<'_>) -> Verdict {
    let (mut findings, mut found) = (Findings::default(), 0);
    for port in 0..=u16::MAX {
        // SAFETY: reading a port has no effect that the program cannot cope with.
        let read: [(u16, u32, u32); 3] = unsafe {
            [
                (1, Port::<u8>::new(port).read().into(), 0xff),
                (2, Port::<u16>::new(port).read().into(), 0xffff),
                (4, Port::<u32>::new(port).read(), u32::MAX),
            ]
        };
        for (bytes, value, nothing) in read {
            match (value == nothing, port_table::find(port, bytes)) {
                (false, None) => findings.tell(format_args!("port {port:#x}, {bytes}: {value:#x}")),
                (false, Some(_)) => found += 1,
                (true, _) => {}
            }
        }
    }
    findings.verdict(found, 10)
}

/// Each leaf is in the table or all zeroes.
pub(super) fn cpuid(_: &Orders<'_>) -> Verdict {
    let (mut findings, mut found) = (Findings::default(), 0);
    for leaf in LEAVES.into_iter().flat_map(|first| first..=first + (LEAF_COUNT - 1)) {
        let allowed = leaves::find(leaf).map_or([0; 4], |row| row.what);
        for subleaf in (0..SUBLEAVES).chain([u32::MAX]) {
            let result = __cpuid_count(leaf, subleaf);
            let found_bits = [result.eax, result.ebx, result.ecx, result.edx];
            // Beyond the highest leaf EAX is a maximum: it may be any number up to that.
            let is_maximum = matches!(leaf, 0 | 0x4000_0000 | 0x8000_0000);
            let is_wrong = |(index, (bits, allowed)): (usize, (&u32, &u32))| match index {
                0 if is_maximum => bits > allowed,
                _ => bits & !allowed != 0,
            };
            if found_bits.iter().zip(&allowed).enumerate().any(is_wrong) {
                findings.tell(format_args!("leaf {leaf:#x}.{subleaf}: {found_bits:x?} of {allowed:x?}"));
            }
            found += u32::from(found_bits != [0; 4]);
        }
    }
    findings.verdict(found, 10)
}
