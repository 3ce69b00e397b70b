//! Translations of a guest with tables of its own, and which flush ends them: APM volume 2, section
//! 15.16. A processor that keeps none by tags has all of this for nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::pages::Arena;
use baremetal::walk;
use baremetal::x86_64::tables;

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::l2::{L2, RBX, RDI, code, features, host_state, invlpga};
use crate::clock;
use crate::guarded::load;
use crate::paging::{self, Page, RIGHTS, WINDOW};
use crate::report::{Verdict, say};

static ARENA: Arena<12> = Arena::new();
static ROOTS: [Page; 4] = [const { Page::new() }; 4];
static PLACES: [Page; 4] = [const { Page::new() }; 4];

/// The address that guests read.
const ADDRESS: u64 = WINDOW + 0x3_4000;
const ROUNDS: u64 = 32;

/// The page that holds this number.
fn place(number: usize) -> &'static Page {
    PLACES[number].write(&[number as u64]);
    &PLACES[number]
}

/// An address space with the probe's memory below the window: its root, and its entry for an
/// address above.
pub(super) fn space(number: usize, address: u64) -> (&'static Page, &'static AtomicU64) {
    let root = &ROOTS[number];
    root.write(&[tables::root().words()[0].load(Ordering::Relaxed)]);
    let new = || &ARENA.take(1, 1).expect("there are three for each root")[0];
    (root, walk::entry(root, address, 0, new))
}

/// A guest in that space, with the pages of the processor of that number, which reads the address.
pub(super) struct Reader {
    l2: L2,
    entry: &'static AtomicU64,
}

impl Reader {
    pub(super) fn new(number: usize, asid: u32) -> Self {
        let (root, entry) = space(number, ADDRESS);
        let l2 = L2::with_pages(number, code!("mov rbx, [rdi]"));
        l2.block.set(CR3, root.address());
        l2.block.set_field(ASID, 32, asid.into());
        Self { l2, entry }
    }

    pub(super) fn map(&self, number: usize) {
        self.entry.store(place(number).address() | RIGHTS, Ordering::SeqCst);
    }

    /// What it finds, if it is run with this TLB_CONTROL.
    pub(super) fn read(&mut self, control: u64) -> u64 {
        let at = code!("mov rbx, [rdi]");
        self.l2.block.set_field(TLB_CONTROL, 8, control);
        self.l2.registers.general[RDI] = ADDRESS;
        self.l2.registers.general[RBX] = u64::MAX;
        let code = self.l2.run_at(at);
        if code == exit::VMMCALL { self.l2.registers.general[RBX] } else { u64::from(code) << 32 }
    }
}

type Flush = (&'static str, fn(&mut Reader) -> u64);

const FLUSHES: [Flush; 6] = [
    ("tlb-control-1", |reader| reader.read(1)),
    ("tlb-control-3", |reader| reader.read(3)),
    ("invlpga", |reader| {
        invlpga(ADDRESS, reader.l2.block.field(ASID, 32) as u32);
        reader.read(0)
    }),
    ("new-asid", |reader| {
        // Nothing has had this one since the last flush of all.
        let asid = reader.l2.block.field(ASID, 32);
        reader.l2.block.set_field(ASID, 32, asid + 1);
        reader.read(0)
    }),
    ("own-invlpg", |reader| {
        reader.l2.block.set_field(TLB_CONTROL, 8, 0);
        reader.l2.run_at(code!("invlpg [rdi]"; "mov rbx, [rdi]"));
        reader.l2.registers.general[RBX]
    }),
    ("own-cr3", |reader| {
        reader.l2.block.set_field(TLB_CONTROL, 8, 0);
        reader.l2.run_at(code!("mov rax, cr3"; "mov cr3, rax"; "mov rbx, [rdi]"));
        reader.l2.registers.general[RBX]
    }),
];

/// What each flush owes, and that neither the probe's translations nor another tag's suffer.
pub(super) fn flushes() -> Verdict {
    paging::map(0x34, Some(place(3)));
    let mut other = Reader::new(1, 1);
    other.map(2);
    let mut stale = 0;
    for (name, flush) in FLUSHES {
        if name == "tlb-control-3" && !features().flush_by_asid() {
            skip(name, "CPUID has no flush by ASID");
            continue;
        }
        for round in 0..ROUNDS {
            let mut reader = Reader::new(0, 2);
            let (before, after) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
            reader.map(before);
            let first = reader.read(1);
            clause!("tag-fresh", first == before as u64, "{name}: {first:#x} behind a flush of all");
            clause!("tag-apart", other.read(0) == 2, "{name}: another tag's guest finds another page");
            reader.map(after);
            // Either is right; a processor with tags keeps what it had.
            let kept = reader.read(0);
            clause!("tag-either", kept <= 1, "{name}: {kept:#x}");
            stale += u32::from(kept == before as u64);
            let found = flush(&mut reader);
            clause!(name, found == after as u64, "round {round}: {found:#x}, not {after:#x}");
            let own = load(ADDRESS);
            clause!("tag-of-host", own == Ok(3), "{name}: the probe finds {own:x?}, not 3");
        }
    }
    say(format_args!(
        "  {stale} of {} translations were kept without a flush",
        FLUSHES.len() as u64 * ROUNDS
    ));
    of_host();
    paging::map(0x34, None);
    Ok(())
}

/// INVLPGA with ASID 0 is the probe's own INVLPG; with others, or elsewhere, it is nothing to it.
fn of_host() {
    let mut reader = Reader::new(0, 2);
    reader.map(0);
    clause!("tag-fresh", reader.read(1) == 0, "behind a flush of all");
    for number in [1, 3, 2] {
        let _ = load(ADDRESS);
        paging::entry(0x34).store(place(number).address() | RIGHTS, Ordering::SeqCst);
        invlpga(ADDRESS, 0);
        let found = load(ADDRESS);
        clause!("invlpga-of-host", found == Ok(number as u64), "{found:x?}, not {number}");
        clause!("tag-apart", reader.read(0) == 0, "the guest's translation went to the probe's page");
    }
    let state = host_state();
    invlpga(1 << 63, 2);
    if !breaks("invlpga-unknown") {
        [3, features().asids, u32::MAX].into_iter().for_each(|asid| invlpga(ADDRESS, asid));
    }
    invlpga(ADDRESS, 2);
    clause!("invlpga-anything", state == host_state() && reader.read(0) == 0, "INVLPGA of no address");
}

/// The guest's TSC is the probe's and the offset.
pub(super) fn tsc() -> Verdict {
    for offset in [0, 1 << 40, 1 << 63, u64::MAX << 44] {
        for (name, at) in
            [("tsc-offset", code!("rdtsc")), ("tsc-offset-msr", code!("mov ecx, 0x10"; "rdmsr"))]
        {
            let mut l2 = L2::new(at);
            l2.block.set(TSC_OFFSET, offset);
            let before = clock::now();
            let code = l2.run();
            let after = clock::now();
            let guests = l2.registers.general[2] << 32 | l2.block.get(RAX) & 0xffff_ffff;
            let passed = guests.wrapping_sub(offset);
            let is_between = code == exit::VMMCALL && before <= passed && passed <= after;
            clause!(name, is_between, "exit {code:#x}: {before:#x}, {passed:#x}, {after:#x}");
        }
    }
    Ok(())
}
