//! Translations of a guest with tables of its own, and which flush ends them: APM volume 2, section
//! 15.16. A processor that keeps none by tags has all of this for nothing.

use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::pages::Arena;
use baremetal::walk;
use baremetal::x86_64::processors::id as processor_id;
use baremetal::x86_64::{apic, tables};
use x86_64::instructions::{interrupts, nop};

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::interrupts::MASKING;
use super::l2::{self, FLAGS, IF, L2, RBX, RCX, RDI, RDX, code, features, host_state, invlpga};
use super::world::{self, Access, DATA, Found, TRIED, WORD, World, flush_of_one};
use crate::clock;
use crate::guarded::load;
use crate::interrupts::VECTOR_TEST;
use crate::paging::{self, PAGE, Page, RIGHTS, WINDOW};
use crate::processors::{self, SECOND};
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

/// The nested tables of the second processor's guest, if not its own, and which bits a word there
/// may have; and the flushes that it is asked for, and has done or owes to its next run.
static SPACE: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static ASKED: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);
/// Its runs that found a wrong word or ended in another way, and all.
static WRONG: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);

fn read_on_second(_: usize) {
    let Ok(mut world) = l2::enable().map(|()| World::new(1, 5)) else { return };
    world.map(TRIED, 17);
    let [root, allowed] = SPACE.each_ref().map(|word| word.load(Ordering::Acquire));
    let l2 = &mut world.l2;
    if root != 0 {
        l2.block.set(NESTED_CR3, root);
    }
    l2.block.intercept(exit::INTR);
    l2.block.set(INT_CTL, MASKING);
    l2.flags = FLAGS | IF;
    let (address, mut done) = (WINDOW + TRIED * PAGE + WORD, u64::MAX);
    while !processors::is_over() {
        // Pairs with the first one's: what asks for a flush comes before the interrupt, which waits
        // until the guest runs.
        let asked = ASKED.load(Ordering::Acquire);
        let control = if asked == done { 0 } else { flush_of_one() };
        l2.block.set_field(TLB_CONTROL, 8, control);
        done = asked;
        DONE.store(done, Ordering::Release);
        let general = &mut l2.registers.general;
        [(RBX, 0), (RCX, !allowed), (RDX, 500), (RDI, address)]
            .into_iter()
            .for_each(|(register, value)| general[register] = value);
        let code = l2.run_at(code!(
            "5:"; "mov rbx, [rdi]"; "test rbx, rcx"; "jnz 6f"; "dec rdx"; "jnz 5b"; "6:"
        ));
        interrupts::enable();
        (0..8).for_each(|_| nop());
        interrupts::disable();
        let is_word = l2.registers.general[RBX] & !allowed == 0;
        let is_right = is_word && [exit::INTR, exit::VMMCALL].contains(&code);
        WRONG.fetch_add((!is_right).into(), Ordering::AcqRel);
        RUNS.fetch_add(1, Ordering::AcqRel);
    }
}

/// Two processors' guests of one ASID: with other nested tables nothing mixes; with the same ones a
/// page that has been taken away is out of use once the other processor says so.
pub(super) fn nested_processors() -> Verdict {
    processors::start(SECOND)?;
    for is_shared in [false, true] {
        let name = if is_shared { "nested-taken-away" } else { "nested-processors-apart" };
        let mut world = World::new(0, 5);
        let leaf = world.nested(DATA + TRIED * PAGE, 0);
        leaf.store(world::place(40).address() | RIGHTS, Ordering::SeqCst);
        let root = world.l2.block.get(NESTED_CR3);
        let space = if is_shared { [root, 41] } else { [0, 17] };
        SPACE.iter().zip(space).for_each(|(word, value)| word.store(value, Ordering::Release));
        processors::beside(SECOND, read_on_second, || {
            for number in (0..100u64).map(|round| 40 + round % 2) {
                leaf.store(world::place(number).address() | RIGHTS, Ordering::SeqCst);
                let asked = ASKED.fetch_add(1, Ordering::AcqRel) + 1;
                apic::send_fixed(processor_id(SECOND), VECTOR_TEST);
                while DONE.load(Ordering::Acquire) != asked {
                    core::hint::spin_loop();
                }
                let found = world.run(Access::Read, TRIED, flush_of_one());
                clause!(name, found == Found::Value(number), "{found:x?}, not {number}");
                world::place(81 - number).write_at(WORD as usize / 8, &[u64::MAX]);
                let runs = RUNS.load(Ordering::Acquire);
                while RUNS.load(Ordering::Acquire) < runs + 2 {
                    core::hint::spin_loop();
                }
            }
            Ok(())
        })?;
        let [wrong, runs] = [&WRONG, &RUNS].map(|count| count.load(Ordering::Acquire));
        clause!(name, wrong == 0, "{wrong} of {runs} runs of the second processor");
    }
    Ok(())
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
