//! Many runs: on two processors, of blocks that change meanwhile, and of random ones.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use baremetal::random::Random;
use baremetal::x86_64::apic;
use baremetal::x86_64::processors::id as processor_id;
use x86_64::instructions::{interrupts, nop};

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::interrupts::MASKING;
use super::l2::{self, CODE_64, FLAGS, IF, L2, clgi, code, features, host_state, set_nxe, stgi};
use super::tags::{Reader, space};
use super::world::*;
use crate::interrupts::{VECTOR_TEST, count, nmi_count};
use crate::paging::{NO_EXECUTE, PAGE, Page, RIGHTS, WINDOW, WRITABLE};
use crate::processors::{self, SECOND};
use crate::report::{Verdict, ensure, failure, say};

static ROUNDS: AtomicU32 = AtomicU32::new(100_000);

/// Sets the number of runs of the storms.
pub(crate) fn set_count(count: u32) {
    ROUNDS.store(count, Ordering::Relaxed);
}

/// Reads of the second processor that were wrong, and all.
static WRONG: AtomicU64 = AtomicU64::new(0);
static READ: AtomicU64 = AtomicU64::new(0);

fn read_on_second(_: usize) {
    let mut reader = l2::enable().map(|()| Reader::new(1, 5));
    // The ASID may have been another guest's here.
    let _ = reader.as_mut().map(|reader| reader.read(1));
    while !processors::is_over() {
        let Ok(reader) = &mut reader else { break };
        reader.map(2);
        let found = reader.read(0);
        WRONG.fetch_add((found != 2).into(), Ordering::Relaxed);
        READ.fetch_add(1, Ordering::Relaxed);
    }
}

/// One ASID on two processors is two.
pub(super) fn processors_apart() -> Verdict {
    processors::start(SECOND)?;
    let mut reader = Reader::new(0, 5);
    reader.map(1);
    ensure!(reader.read(1) == 1, "the first processor's guest does not read");
    READ.store(0, Ordering::Relaxed);
    processors::beside(SECOND, read_on_second, || {
        let mut rounds = 0;
        while READ.load(Ordering::Relaxed) < 2000 || rounds < 2000 {
            let found = reader.read(0);
            clause!("processors-apart", found == 1, "the first processor's guest finds {found:#x}");
            rounds += 1;
        }
        Ok(())
    })?;
    let (wrong, read) = (WRONG.load(Ordering::Relaxed), READ.load(Ordering::Relaxed));
    clause!("processors-apart", wrong == 0, "{wrong} of {read} reads of the second processor's guest");
    Ok(())
}

/// Interrupts and NMIs that the second processor sends.
const SENT: u32 = 100;

fn taken() -> [u32; 2] {
    [count(VECTOR_TEST), nmi_count()]
}

/// Runs that have begun, or will with GIF = 0.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// Sends one for each run.
fn send_on_second(_: usize) {
    let first = processor_id(0);
    for number in 0..SENT {
        while RUNS.load(Ordering::Acquire) <= number {
            core::hint::spin_loop();
        }
        match number % 2 {
            0 => apic::send_fixed(first, VECTOR_TEST),
            _ => apic::send_nmi(first),
        }
    }
}

/// Each interrupt and NMI that arrives while a guest runs ends it, and is taken once.
pub(super) fn interrupted() -> Verdict {
    processors::start(SECOND)?;
    let first = taken();
    RUNS.store(0, Ordering::Relaxed);
    let mut exits = [0u32; 2];
    let mut l2 = L2::new(code!("5:"; "jmp 5b"));
    l2.block.intercept(exit::INTR);
    l2.block.intercept(exit::NMI);
    l2.block.set(INT_CTL, MASKING);
    l2.flags = FLAGS | IF;
    processors::beside(SECOND, send_on_second, || {
        for _ in 0..SENT {
            clgi();
            // Pairs with the sender's.
            RUNS.fetch_add(1, Ordering::Release);
            match l2.run_held() {
                exit::INTR => exits[0] += 1,
                exit::NMI => exits[1] += 1,
                code => return Err(failure(format_args!("exit {code:#x}"))),
            }
            stgi();
            interrupts::enable();
            interrupts::disable();
        }
        Ok(())
    })?;
    let after = taken();
    let each = [after[0] - first[0], after[1] - first[1]];
    clause!("each-taken-once", each == [SENT / 2; 2], "{each:?} of {} each are taken", SENT / 2);
    clause!("each-exits-once", exits == each, "{exits:?} exits for {each:?}");
    Ok(())
}

/// How often the second processor has changed the first one's block.
static CHANGES: AtomicU64 = AtomicU64::new(0);

/// Fields, and what a good value has to be combined with to be refused.
const FLIPS: [(u64, u64); 7] = [
    (ASID, 1),
    (INTERCEPT_MISC + 4, 1 << 32),
    (MSR_MAP, 1 << 63),
    (IO_MAP, 1 << 63),
    (EVENT, 1 << 31 | 1 << 8),
    (CR4, 1 << 15),
    (EFER, 1 << 12),
];

fn flip_on_second(_: usize) {
    let block = l2::block_of_first();
    let mut random = Random::new(7);
    while !processors::is_over() {
        let (offset, bits) = FLIPS[random.below(FLIPS.len() as u64) as usize];
        let word = &block.0.words()[offset as usize / 8];
        word.fetch_xor(bits << (offset % 8 * 8), Ordering::Relaxed);
        (0..random.below(64)).for_each(|_| nop());
        word.fetch_xor(bits << (offset % 8 * 8), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

/// While another processor changes the block, a run is one of the good block, or refused.
pub(super) fn changed_meanwhile() -> Verdict {
    processors::start(SECOND)?;
    let at = code!("nop");
    let mut l2 = L2::new(at);
    let state: [_; 8] =
        [RIP, RSP, RAX, RFLAGS, CR0, CR4, EFER, EVENT].map(|offset| (offset, l2.block.get(offset)));
    let before = host_state();
    CHANGES.store(0, Ordering::Relaxed);
    let [mut good, mut refused] = [0u32; 2];
    processors::beside(SECOND, flip_on_second, || {
        while CHANGES.load(Ordering::Relaxed) == 0 {
            core::hint::spin_loop();
        }
        for _ in 0..ROUNDS.load(Ordering::Relaxed) {
            // What an exit has written is put back: the other's changes are lost then.
            state.iter().for_each(|&(offset, value)| l2.block.set(offset, value));
            let code = l2.run();
            match code {
                exit::INVALID => refused += 1,
                exit::VMMCALL if l2.block.get(RIP) == at.next => good += 1,
                _ => clause!("changed-meanwhile", false, "exit {code:#x} at {:#x}", l2.block.get(RIP)),
            }
            clause!("changed-keeps-host", l2.host_is_whole(), "{:x?}", l2.registers);
        }
        Ok(())
    })?;
    clause!("changed-keeps-host", before == host_state(), "{:x?}, not {before:x?}", host_state());
    clause!("changed-meanwhile", good > 0 && refused > 0, "{good} were good, {refused} refused");
    say(format_args!("  {good} good, {refused} refused, {} changes", CHANGES.load(Ordering::Relaxed)));
    Ok(())
}

/// Where random guests run: the only page that they have, full of VMMCALL, not writable.
const CODE: u64 = 0xffff_8000_0000_0000;
static CODE_PAGE: Page = Page::new();
const SEED: u64 = 0x51;

/// Random bits of a word; of the others few are random.
fn stir(random: &mut Random, value: u64) -> u64 {
    match random.below(12) {
        0 => value ^ 1 << random.below(64),
        1 => value ^ 1 << random.below(32),
        2 if random.one_in(8) => random.word(),
        _ => value,
    }
}

/// A block that is random but where its guest would have memory of the probe's, or its processor
/// for ever.
fn random_block(random: &mut Random, l2: &L2, root: u64) {
    let block = l2.block;
    for offset in (0x18..0xe0).chain(ES..FS).chain(GDTR..LDTR).chain(IDTR..TR).step_by(8) {
        block.set(offset, random.word());
    }
    for (offset, map) in [(IO_MAP, &l2.pages.io[0]), (MSR_MAP, &l2.pages.msrs[0])] {
        block.set(offset, stir(random, map.address()));
    }
    // All that can be intercepted is, but for VMRUN now and then.
    (0..3).for_each(|word| block.set(word * 8, u64::MAX));
    if random.one_in(16) {
        block.pass(exit::VMRUN);
    }
    // Nested paging stays off, which an emulator finds in more than one bit.
    block.set(NESTED, random.word() & if breaks("random-nested-bits") { !0xff } else { !1 });
    if breaks("random-clean-bits") {
        block.set_field(CLEAN, 32, 0);
    }
    block.set(EVENT, random.word() & !(u64::from(random.one_in(2)) << 31));
    block.set_field(ASID, 32, random.below(features().asids.into()));
    let control = if breaks("taken-tlb-control") { random.one_of([0, 1, 3, 1]) } else { random.below(256) };
    block.set_field(TLB_CONTROL, 8, control);
    block.set_segment(CS, 8, stir(random, CODE_64.into()) as u16, u32::MAX, 0);
    block.set_field(CPL, 8, random.below(4));
    let [cr0, cr4, efer] = [0x8001_0033, 0x620, 0x1d00].map(|value| stir(random, value));
    // Paging stays on and is never that of 32 bits: then other pages than the guest's are mapped.
    let pe = u64::from(breaks("refused-pe"));
    block.set(CR0, cr0 | 1 << 31 | pe);
    block.set(CR4, cr4 & !(1 << 12) | u64::from(efer & 1 << 8 == 0 || random.one_in(2)) << 5);
    block.set(EFER, efer);
    let wrong = u64::from(random.one_in(16) && !breaks("refused-cr3-high")) << 63;
    block.set(CR3, root | wrong);
    [DR6, DR7, RSP, RAX, CR2].into_iter().for_each(|offset| block.set(offset, random.word()));
    for offset in [DR6, DR7] {
        block.set(offset, block.get(offset) & 0xffff_ffff | u64::from(random.one_in(16)) << 40);
    }
    let flags = stir(random, FLAGS | IF);
    // A guest's trap would be the probe's, and VM in long mode is the end.
    let is_calm = breaks("random-flags");
    block.set(RFLAGS, if is_calm { flags & !(1 << 8 | 1 << 17) } else { flags });
    block.set(DR7, if is_calm { 0x400 } else { block.get(DR7) });
    let rip = CODE + random.below(3000);
    block.set(RIP, stir(random, rip));
}

/// Whatever the block says, the probe goes on, and its registers are its own.
pub(super) fn random_blocks() -> Verdict {
    let (root, entry) = space(3, CODE);
    root.write(&[0]);
    CODE_PAGE.write(&core::array::from_fn::<_, 512, _>(|word| {
        let bytes = [0x0f, 0x01, 0xd9];
        u64::from_le_bytes(core::array::from_fn(|byte| bytes[(word * 8 + byte) % 3]))
    }));
    entry.store(CODE_PAGE.address() | 1, Ordering::SeqCst);
    let mut random = Random::new(SEED);
    let before = host_state();
    let [mut run, mut refused] = [0u32; 2];
    let mut l2 = L2::new(code!());
    for round in 0..ROUNDS.load(Ordering::Relaxed) {
        random_block(&mut random, &l2, root.address());
        l2.flags = FLAGS | if random.one_in(2) { IF } else { 0 };
        let code = l2.run();
        *(if code == exit::INVALID { &mut refused } else { &mut run }) += 1;
        let is_whole = l2.host_is_whole() && (round % 64 != 0 || before == host_state());
        clause!("random-keeps-host", is_whole, "round {round} of seed {SEED:#x}, exit {code:#x}");
    }
    clause!("random-runs", run > 0 && refused > 0, "{run} were run, {refused} refused");
    say(format_args!("  seed {SEED:#x}: {run} were run, {refused} refused"));
    Ok(())
}

/// Random tables: 64 pages in four tables, and what an array says of them. What forbids more, or
/// goes elsewhere, is flushed; what forbids less is not.
pub(super) fn random_tables() -> Verdict {
    let steps = (ROUNDS.load(Ordering::Relaxed) / 20).max(5000);
    let at = |page: u64| DATA + page / 16 * MIB_2 + page % 16 * PAGE;
    let mut world = World::new(0, 2);
    let leaves: [_; 64] = core::array::from_fn(|page| world.nested(at(page as u64), 0));
    let tables: [_; 4] = core::array::from_fn(|table| world.nested(at(16 * table as u64), 1));
    let pointers = tables.map(|table| table.load(Ordering::SeqCst));
    (0..64).for_each(|page| world.own(WINDOW_TABLE, page as usize, at(page) | RIGHTS));
    // What a page is, what its leaf forbids, and what its table does: by the bits of an entry.
    let (mut targets, mut by_leaf, mut by_table) = ([0u64; 64], [PRESENT; 64], [0u64; 4]);
    let (mut random, mut asid, mut owes) = (Random::new(SEED), 2, true);
    leaves.iter().for_each(|leaf| leaf.store(0, Ordering::SeqCst));
    (0..64).for_each(|number| _ = place(number));
    set_nxe(true);
    for step in 0..steps {
        let page = random.below(64);
        let (own, table) = (page as usize, page as usize / 16);
        let forbids = random.word() & random.word() & random.word() & (RIGHTS | NO_EXECUTE);
        match random.below(4) {
            0 => {
                owes |= forbids & !by_table[table] != 0;
                by_table[table] = forbids;
                tables[table].store(pointers[table] ^ forbids, Ordering::SeqCst);
            }
            1 | 2 => {
                let target = random.one_of([random.clone().below(64), targets[own]]);
                owes |= forbids & !by_leaf[own] != 0 || target != targets[own];
                (by_leaf[own], targets[own]) = (forbids, target);
                leaves[own].store((place(target).address() | RIGHTS) ^ forbids, Ordering::SeqCst);
            }
            _ => {}
        }
        let mut control = 0;
        if core::mem::take(&mut owes) {
            control = random.one_of([1, flush_of_one(), 0]);
            if control == 0 {
                asid = if asid + 1 < features().asids.min(16) { asid + 1 } else { 2 };
                control = u64::from(asid == 2);
            }
            world.l2.block.set_field(ASID, 32, asid.into());
        }
        let access = ACCESSES[random.below(3) as usize];
        let (bits, good) = (access.bits(), found_in(targets[own], access, page));
        let forbids = by_leaf[own] | by_table[table];
        let needs = PRESENT | USER | [0, WRITABLE, NO_EXECUTE][access as usize];
        let fault = FINAL | bits | if forbids & PRESENT == 0 { PRESENT } else { 0 };
        let is_good = forbids & needs == 0;
        let expected = if is_good { good } else { Found::Fault(fault, at(page) + access.offset()) };
        let mut found = world.run(access, page, control);
        clause!("nested-random", found == expected, "step {step}: {found:x?}, not {expected:x?}");
        if !is_good && random.one_in(2) {
            leaves[own].store(place(targets[own]).address() | RIGHTS, Ordering::SeqCst);
            tables[table].store(pointers[table], Ordering::SeqCst);
            (by_leaf[own], by_table[table]) = (0, 0);
            found = world.resume();
            clause!("nested-random-mended", found == good, "step {step}: {found:x?}");
        }
        let is_written = access == Access::Write && found == good;
        let other = (0..64).find(|&number| {
            let is_it = is_written && number == targets[own];
            word(number) != if is_it { WINDOW + page * PAGE + WORD } else { number }
        });
        clause!("nested-random-memory", other.is_none(), "step {step}: {other:?} is wrong");
        place(targets[own]);
    }
    set_nxe(false);
    Ok(())
}

/// A halt of the guest's own is ended by an interrupt for the probe.
pub(super) fn halt() -> Verdict {
    for (name, guest_if) in [("halt-ends", IF), ("halt-ends-without-if", 0)] {
        if breaks(name) {
            skip(name, "the guest halts for ever");
            continue;
        }
        let mut l2 = L2::new(code!("5:"; "hlt"; "jmp 5b"));
        l2.block.intercept(exit::INTR);
        l2.block.set(INT_CTL, MASKING);
        l2.block.set(RFLAGS, FLAGS | guest_if);
        l2.flags = FLAGS | IF;
        let before = count(VECTOR_TEST);
        apic::unmask_timer(VECTOR_TEST, false);
        apic::set_timer_divider();
        apic::set_timer_ticks(10_000_000);
        let code = l2.run_held();
        let held = count(VECTOR_TEST) == before;
        stgi();
        interrupts::enable();
        interrupts::disable();
        apic::set_timer_ticks(0);
        let is_taken = held && count(VECTOR_TEST) == before + 1;
        clause!(name, code == exit::INTR && is_taken, "exit {code:#x}, held {held}, taken {is_taken}");
    }
    Ok(())
}
