//! A guest with nested paging whose other processor runs by the same tables: what is taken away on
//! one is out of use on the other, by each way to say so.

use core::arch::x86_64::__cpuid;
use core::sync::atomic::{AtomicU64, Ordering};

use baremetal::x86_64::apic;
use baremetal::x86_64::processors::id as processor_id;
use tlfs::cpuid::{LEAF_NESTED, LEAF_VENDOR, nested};
use tlfs::{CallCode, Control, HvResult, Status};
use x86_64::instructions::{interrupts, nop};

use super::block::*;
use super::clauses::clause;
use super::interrupts::MASKING;
use super::l2::{self, FLAGS, IF, RBX, RCX, RDI, RDX, RSI, code};
use super::world::{Access, DATA, Found, PROGRAM, TRIED, WINDOW_TABLE, WORD, World, flush_of_one, place};
use crate::clock;
use crate::hypercall::{self, input_page};
use crate::interrupts::VECTOR_TEST;
use crate::paging::{PAGE, Page, RIGHTS, WINDOW};
use crate::pci::{self, Rom};
use crate::processors::{self, SECOND};
use crate::report::{Verdict, ensure, measured};

/// Of the second processor's guest: its nested tables, if not its own; which bits a word there may
/// have; and what the block says to Quell.
static SPACE: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
/// The flushes that it is asked for, and has done or owes to its next run.
static ASKED: AtomicU64 = AtomicU64::new(0);
static DONE: AtomicU64 = AtomicU64::new(0);
/// Its runs that found a wrong word or ended in another way, and all.
static WRONG: AtomicU64 = AtomicU64::new(0);
static RUNS: AtomicU64 = AtomicU64::new(0);

/// What a block says to Quell, from 3E0h on: controls, the guest, and its page.
const CONTROLS: u64 = 0x3e0;
const DIRECT: u64 = 1 << 0;
const TABLES_ARE_TOLD: u64 = 1 << 2;
const PARTITION: u64 = 0x3f0;
/// The exit of a flush while the guest's page is locked.
const ENLIGHTENED: u32 = 0xf000_0000;

/// The assist page of the first processor, and that of the guest.
static ASSIST: [Page; 2] = [const { Page::new() }; 2];

fn read_on_second(_: usize) {
    let Ok(mut world) = l2::enable().map(|()| World::new(1, 5)) else { return };
    world.map(TRIED, 17);
    let [root, allowed, controls] = SPACE.each_ref().map(|word| word.load(Ordering::Acquire));
    let l2 = &mut world.l2;
    if root != 0 {
        l2.block.set(NESTED_CR3, root);
    }
    l2.block.set(CONTROLS, controls);
    l2.block.set(PARTITION, ASSIST[1].address());
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

/// Has the second processor's guest read a page, by the same tables as the first one's or not,
/// while `take` puts one of two places there, in turn, and sees to it that no processor uses the
/// other one any more. Then the first one's is run with this TLB_CONTROL, and finds it as well.
fn taken_away(
    name: &'static str,
    is_shared: bool,
    controls: u64,
    control: u64,
    mut take: impl FnMut(&mut World, u64) -> Verdict,
) -> Verdict {
    let mut world = World::new(0, 5);
    world.l2.block.set(CONTROLS, controls);
    world.l2.block.set(PARTITION, ASSIST[1].address());
    [40, 41].into_iter().for_each(|number| world.map(number, number));
    world.map(TRIED, 40);
    let space = if is_shared { [world.l2.block.get(NESTED_CR3), 41, controls] } else { [0, 17, controls] };
    SPACE.iter().zip(space).for_each(|(word, value)| word.store(value, Ordering::Release));
    processors::beside(SECOND, read_on_second, || {
        for number in (0..100u64).map(|round| 40 + round % 2) {
            place(number);
            take(&mut world, number)?;
            let found = world.run(Access::Read, TRIED, control);
            clause!(name, found == Found::Value(number), "{found:x?}, not {number}");
            place(81 - number).write_at(WORD as usize / 8, &[u64::MAX]);
            let runs = RUNS.load(Ordering::Acquire);
            while RUNS.load(Ordering::Acquire) < runs + 2 {
                core::hint::spin_loop();
            }
        }
        Ok(())
    })?;
    let [wrong, runs] = [&WRONG, &RUNS].map(|count| count.swap(0, Ordering::AcqRel));
    clause!(name, wrong == 0, "{wrong} of {runs} runs of the second processor");
    Ok(())
}

/// The entry that is the way to the page, in the nested tables.
fn lead_to(world: &World, number: u64) {
    world.set(DATA + TRIED * PAGE, 0, place(number).address() | RIGHTS);
}

/// Two processors' guests of one ASID: with other nested tables nothing mixes; with the same ones a
/// page that has been taken away is out of use once the other processor says so.
pub(super) fn by_asking() -> Verdict {
    processors::start(SECOND)?;
    for (name, is_shared) in [("nested-processors-apart", false), ("nested-taken-away", true)] {
        taken_away(name, is_shared, 0, flush_of_one(), |world, number| {
            lead_to(world, number);
            let asked = ASKED.fetch_add(1, Ordering::AcqRel) + 1;
            apic::send_fixed(processor_id(SECOND), VECTOR_TEST);
            while DONE.load(Ordering::Acquire) != asked {
                core::hint::spin_loop();
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Whether Quell, or who else is below, is told by hypercall of nested tables.
pub(super) fn is_offered() -> bool {
    let has_leaf = __cpuid(1).ecx >> 31 == 1 && __cpuid(LEAF_VENDOR).eax >= LEAF_NESTED;
    has_leaf && __cpuid(LEAF_NESTED).eax & nested::ENLIGHTENED_TLB != 0
}

/// A hypercall of the probe's tells of a change of nested tables: there is no interrupt, and no
/// flush by ASID. Both with a block that says so and with one that does not.
pub(super) fn by_call() -> Verdict {
    hypercall::enable()?;
    processors::start(SECOND)?;
    let [all, list] =
        [CallCode::FLUSH_GUEST_PHYSICAL_ADDRESS_SPACE, CallCode::FLUSH_GUEST_PHYSICAL_ADDRESS_LIST]
            .map(|code| Control::new().with_call_code(code.0));
    let tell = |world: &World, control, reps| {
        let root = world.l2.block.get(NESTED_CR3);
        let result = hypercall::call_with(control, &[root, 0, (DATA + TRIED * PAGE) | 1]);
        hypercall::expect_success("a flush of nested tables", result, reps)
    };
    for controls in [0, TABLES_ARE_TOLD] {
        taken_away("nested-told", true, controls, 0, |world, number| {
            lead_to(world, number);
            let (control, reps) = if number == 40 { (all, 0) } else { (list.with_rep_count(1), 1) };
            tell(world, control, reps)
        })?;
    }
    // With such a block a flush of the ASID is about no entry of the nested tables' that is there
    // still, and a new entry needs none.
    let mut world = World::new(0, 6);
    tell(&world, all, 0)?;
    world.l2.block.set(CONTROLS, TABLES_ARE_TOLD);
    for (page, control, step) in [(0, 1, 0), (1, flush_of_one(), 0), (2, 0, 1), (3, 0, 0)] {
        world.l2.block.set_field(ASID, 32, 6 + step);
        let found = world.run(Access::Read, page, control);
        clause!("nested-told-asid", found == Found::Value(page), "page {page}: {found:x?}");
    }
    Ok(())
}

/// Leaves flushes of guests to Quell.
fn offer_direct() -> Verdict {
    ensure!(__cpuid(LEAF_NESTED).eax & nested::DIRECT_FLUSH != 0, "it is not offered");
    hypercall::enable()?;
    ASSIST.iter().for_each(|page| page.write(&[0; 512]));
    ASSIST[0].write_at(4, &[1]);
    hypercall::set_assist_page(&ASSIST[0])?;
    // All processors, of which the guest has no names.
    input_page().write(&[0, 3, 0]);
    Ok(())
}

/// Where the guest has the input page.
fn input() -> u64 {
    PROGRAM + input_page().address()
}

/// Has the guest flush everything this often.
fn flush_by_guest(world: &mut World, input: u64, count: u64) -> u32 {
    let control = Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE.0).into_bits();
    [(RCX, control), (RDX, input), (RSI, count)]
        .into_iter()
        .for_each(|(register, value)| world.l2.registers.general[register] = value);
    world.l2.run_at(code!("5:"; "vmmcall"; "mov rbx, rax"; "dec rsi"; "jnz 5b"; "xor ecx, ecx"))
}

/// `bench=direct`: the cost of such a flush. The other vCPU does not run.
pub(crate) fn bench() -> Verdict {
    const FLUSHES: u64 = 4000;
    l2::enable()?;
    offer_direct()?;
    let mut world = World::new(0, 5);
    world.l2.block.set(CONTROLS, DIRECT);
    world.l2.block.set(PARTITION, ASSIST[1].address());
    let mut ticks = 0;
    for _ in 0..2 {
        let start = clock::now();
        let code = flush_by_guest(&mut world, input(), FLUSHES);
        ticks = clock::now() - start;
        ensure!(code == exit::VMMCALL && world.l2.registers.general[RSI] == 0, "exit {code:#x}");
    }
    measured("space-idle-1", ticks / FLUSHES);
    Ok(())
}

/// The guest itself changes its own tables, and flushes by a hypercall that does not reach the
/// probe.
pub(super) fn by_guest() -> Verdict {
    offer_direct()?;
    processors::start(SECOND)?;
    taken_away("nested-direct", true, DIRECT, 0, |world, number| {
        world.own(WINDOW_TABLE, TRIED as usize, (DATA + number * PAGE) | RIGHTS);
        let code = flush_by_guest(world, input(), 1);
        let result = HvResult::from_bits(world.l2.registers.general[RBX]);
        let is_done = code == exit::VMMCALL && result == HvResult::of(Status::SUCCESS, 0);
        clause!("nested-direct-status", is_done, "exit {code:#x}, {result:?}");
        Ok(())
    })?;
    let mut world = World::new(0, 5);
    world.l2.block.set(CONTROLS, DIRECT);
    world.l2.block.set(PARTITION, ASSIST[1].address());
    let code = flush_by_guest(&mut world, DATA + 20 * PAGE, 1);
    let at = world.l2.block.get(INFO_2);
    clause!(
        "nested-direct-fault",
        (code, at) == (exit::NESTED_FAULT, DATA + 20 * PAGE),
        "{code:#x}, {at:#x}"
    );
    ASSIST[1].write(&[1]);
    let (code, why) = (flush_by_guest(&mut world, input(), 1), world.l2.block.get(INFO_1));
    clause!("nested-direct-lock", (code, why) == (ENLIGHTENED, 1), "{code:#x}, {why:#x}");
    world.l2.block.set(CONTROLS, 0);
    let code = flush_by_guest(&mut world, input(), 1);
    let is_probes = code == exit::VMMCALL && world.l2.registers.general[RCX] != 0;
    clause!("nested-direct-off", is_probes, "exit {code:#x}");
    Ok(())
}

/// What the second processor's guest has read last.
static LAST: AtomicU64 = AtomicU64::new(0);

fn look_on_second(_: usize) {
    let Ok(mut world) = l2::enable().map(|()| World::new(1, 5)) else { return };
    world.l2.block.set(NESTED_CR3, SPACE[0].load(Ordering::Acquire));
    while !processors::is_over() {
        let general = &mut world.l2.registers.general;
        (general[RDX], general[RDI]) = (100, WINDOW + TRIED * PAGE + WORD);
        let code = world.l2.run_at(code!("5:"; "mov rbx, [rdi]"; "dec rdx"; "jnz 5b"; "xor ecx, ecx"));
        let is_done = code == exit::VMMCALL;
        LAST.store(if is_done { world.l2.registers.general[RBX] } else { code.into() }, Ordering::Release);
        RUNS.fetch_add(1, Ordering::AcqRel);
    }
}

/// Memory of the probe's, a ROM, comes and goes while guests read it: by tables that stay.
pub(super) fn by_slot() -> Verdict {
    let rom = Rom::find()?;
    processors::start(SECOND)?;
    let mut world = World::new(0, 5);
    world.set(DATA + TRIED * PAGE, 0, pci::WINDOW | RIGHTS);
    SPACE[0].store(world.l2.block.get(NESTED_CR3), Ordering::Release);
    let mut control = 1;
    processors::beside(SECOND, look_on_second, || {
        for is_there in (0..60).map(|round| round % 2 == 0) {
            if is_there {
                rom.enable()
            } else {
                rom.disable()
            };
            let expected = if is_there { rom.expected(WORD) } else { u64::MAX };
            let found = world.run(Access::Read, TRIED, core::mem::take(&mut control));
            clause!("nested-slot", found == Found::Value(expected), "{found:x?}, not {expected:#x}");
            let runs = RUNS.load(Ordering::Acquire);
            while RUNS.load(Ordering::Acquire) < runs + 2 {
                core::hint::spin_loop();
            }
            let last = LAST.load(Ordering::Acquire);
            clause!("nested-slot-elsewhere", last == expected, "{last:#x}, not {expected:#x}");
        }
        Ok(())
    })
}
