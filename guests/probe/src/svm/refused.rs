//! States that VMRUN refuses, and some that it does not: APM volume 2, section 15.5.1.

use super::block::*;
use super::clauses::{breaks, clause};
use super::l2::{CODE_64, L2, code, features, host_state, memory_end, stgi};
use crate::interrupts::VECTOR_TEST;
use crate::report::Verdict;

const PE: u64 = 1;
const NW: u64 = 1 << 29;
const CD: u64 = 1 << 30;
const PAE: u64 = 1 << 5;
const VALID: u64 = 1 << 31;

fn clear(l2: &L2, offset: u64, bits: u64) {
    l2.block.set(offset, l2.block.get(offset) & !bits);
}

fn add(l2: &L2, offset: u64, bits: u64) {
    l2.block.set(offset, l2.block.get(offset) | bits);
}

/// A name, and what makes a good state a bad one.
type Change = (&'static str, fn(&L2));

const REFUSED: &[Change] = &[
    ("refused-svme", |l2| clear(l2, EFER, 1 << 12)),
    ("refused-cr0-nw", |l2| {
        clear(l2, CR0, CD);
        add(l2, CR0, NW);
    }),
    ("refused-cr0-high", |l2| add(l2, CR0, 1 << 32)),
    ("refused-cr0-high", |l2| add(l2, CR0, 1 << 63)),
    ("refused-cr3-high", |l2| add(l2, CR3, memory_end())),
    ("refused-cr3-high", |l2| add(l2, CR3, 1 << 63)),
    ("refused-cr4-high", |l2| add(l2, CR4, 1 << 32)),
    ("refused-cr4-reserved", |l2| add(l2, CR4, 1 << 15)),
    ("refused-cr4-vmxe", |l2| add(l2, CR4, 1 << 13)),
    ("refused-efer-high", |l2| add(l2, EFER, 1 << 32)),
    ("refused-efer-reserved", |l2| add(l2, EFER, 1 << 9)),
    ("refused-efer-reserved", |l2| add(l2, EFER, 2)),
    ("refused-dr6-high", |l2| add(l2, DR6, 1 << 32)),
    ("refused-dr7-high", |l2| add(l2, DR7, 1 << 63)),
    ("refused-pae", |l2| clear(l2, CR4, PAE)),
    ("refused-pe", |l2| clear(l2, CR0, PE)),
    ("refused-cs-d-l", |l2| l2.block.set_segment(CS, 8, CODE_64 | 0x400, u32::MAX, 0)),
    ("refused-no-vmrun", |l2| l2.block.pass(exit::VMRUN)),
    ("refused-msr-map-end", |l2| l2.block.set(MSR_MAP, memory_end() - 0x1000)),
    ("refused-msr-map", |l2| l2.block.set(MSR_MAP, memory_end())),
    ("refused-msr-map", |l2| l2.block.set(MSR_MAP, 1 << 63)),
    ("refused-io-map-end", |l2| l2.block.set(IO_MAP, memory_end() - 0x2000)),
    ("refused-io-map", |l2| l2.block.set(IO_MAP, memory_end())),
    ("refused-asid-0", |l2| l2.block.set_field(ASID, 32, 0)),
    ("refused-event-type", |l2| l2.block.set(EVENT, VALID | 1 << 8 | 0x40)),
    ("refused-event-type", |l2| l2.block.set(EVENT, VALID | 5 << 8 | 0x40)),
    ("refused-event-type", |l2| l2.block.set(EVENT, VALID | 7 << 8)),
    ("refused-event-nmi", |l2| l2.block.set(EVENT, VALID | 3 << 8 | 2)),
    ("refused-event-vector", |l2| l2.block.set(EVENT, VALID | 3 << 8 | 32)),
    ("refused-event-overflow", |l2| l2.block.set(EVENT, VALID | 3 << 8 | 4)),
    ("refused-event-bound", |l2| l2.block.set(EVENT, VALID | 3 << 8 | 5)),
];

const TAKEN: &[Change] = &[
    ("taken-cr0-cd", |l2| add(l2, CR0, CD | NW)),
    ("taken-map-offsets", |l2| {
        add(l2, IO_MAP, 0xfff);
        add(l2, MSR_MAP, 0xfff);
    }),
    ("taken-tlb-control", |l2| l2.block.set_field(TLB_CONTROL, 8, 2)),
    ("taken-asid-last", |l2| l2.block.set_field(ASID, 32, u64::from(features().asids) - 1)),
    ("taken-bases", |l2| {
        l2.block.set(ES + 8, 0x1234_8000_0000_0000);
        l2.block.set(DS + 8, 0x8000_0000_0000);
    }),
    ("taken-attributes", |l2| l2.block.set_segment(ES, 0, 0, 0, 0)),
    ("taken-invalid-event", |l2| l2.block.set(EVENT, 7 << 8 | 3)),
    ("taken-dr7", |l2| l2.block.set(DR7, 0)),
    ("taken-clean", |l2| l2.block.set_field(CLEAN, 32, 0)),
    ("taken-next-rip", |l2| l2.block.set(NEXT_RIP, u64::MAX)),
];

/// Each bad state is refused, whatever else is there, and the probe goes on with its own.
pub(super) fn refused() -> Verdict {
    for &(name, change) in REFUSED {
        if breaks(name) {
            continue;
        }
        let mut l2 = L2::new(code!());
        l2.block.set(EVENT, VALID | u64::from(VECTOR_TEST));
        change(&l2);
        let (before, registers) = (host_state(), l2.registers.general);
        let code = l2.run_held();
        let is_held = super::interrupts::self_is_held(&mut l2);
        let (after, wide) = (host_state(), l2.block.get(EXIT_CODE));
        clause!(name, code == exit::INVALID, "exit {wide:#x}");
        clause!("invalid-is-64-bits", code != exit::INVALID || wide == u64::MAX, "{wide:#x}");
        let event = l2.block.get(EVENT);
        clause!("invalid-clears-event", event & VALID == 0, "{name}: EVENTINJ {event:#x}");
        clause!("invalid-keeps-host", before == after && l2.host_is_whole(), "{name}: {after:x?}");
        clause!("invalid-keeps-registers", registers == l2.registers.general, "{name}: {:x?}", l2.registers);
        clause!("invalid-clears-gif", is_held, "{name}: an interrupt was taken before STGI");
    }
    Ok(())
}

/// States that look bad and are not.
pub(super) fn taken() -> Verdict {
    for &(name, change) in TAKEN {
        if breaks(name) {
            continue;
        }
        let mut l2 = L2::new(code!("nop"));
        change(&l2);
        let before = host_state();
        let code = l2.run();
        clause!(name, code == exit::VMMCALL, "exit {code:#x} at {:#x}", l2.block.get(RIP));
        clause!("taken-keeps-host", before == host_state() && l2.host_is_whole(), "{name}: another host");
    }
    // RIP is looked at when it is used.
    let mut l2 = L2::new(code!());
    l2.block.set(RIP, 1 << 63);
    l2.block.intercept(exit::EXCEPTION + 13);
    let code = l2.run();
    clause!("taken-rip", code == exit::EXCEPTION + 13, "RIP that is not canonical: exit {code:#x}");
    stgi();
    Ok(())
}
