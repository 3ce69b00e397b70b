//! Code that is replaced by other code: instruction fetches have their own TLB.

use core::arch::asm;

use baremetal::aarch64::processors::MAX_PROCESSORS;

use super::moving::pause;
use super::prelude::*;
use crate::arch::aarch64::window::code_entry;

/// Time limit of a row, and maximum number of its rounds.
const BUDGET_US: u64 = 300_000;
const ROUNDS: u64 = 2000;

/// `mov x0, #n` and `ret`: DDI 0487 M.b, C6.2, "MOVZ" and "RET".
const fn code(number: u64) -> u64 {
    const MOVE: u64 = 0xd280_0000;
    const RETURN: u64 = 0xd65f_03c0;
    MOVE | number << 5 | RETURN << 32
}

/// Pages, each with a function that returns its page's number.
static FUNCTIONS: [Page; 2] = [const { Page::new() }; 2];

/// Whether TLBIs are for all processors; number of times that an unmapped function ran.
static IS_BROADCAST: AtomicU32 = AtomicU32::new(0);
static WRONG: AtomicU32 = AtomicU32::new(0);

const fn place(number: usize) -> u64 {
    const _: () = assert!(MAX_PROCESSORS <= 512, "they have a table");
    WINDOW + (1 << 27) + number as u64 * PAGE
}

fn call(address: u64) -> u64 {
    let result;
    // SAFETY: one of `FUNCTIONS` is mapped there; they change X0 alone.
    unsafe {
        asm!("blr {address}", address = in(reg) address, out("x30") _, lateout("x0") result,
            options(nostack, preserves_flags));
    }
    result
}

/// Each processor's job: the two functions alternate at its own address.
fn take_turns(number: usize) {
    let space = TestSpace::shared();
    let (place, leaf) = (place(number), space.leaf(place(number)));
    let scope = if IS_BROADCAST.load(Ordering::Relaxed) != 0 { Scope::Inner } else { Scope::Local };
    window::enter(space.register());
    let end = clock::now() + clock::ticks(BUDGET_US);
    for round in (0..ROUNDS).take_while(|_| clock::now() <= end) {
        let wanted = round % 2;
        replace(leaf, 0);
        tlbi::flush(Form(scope, Kind::VaLast), TlbiOperand::page(place, space.asid()));
        pause(round + 1);
        write(leaf, code_entry(FUNCTIONS[wanted as usize].address()));
        // Twice: the first call caches the translation, and the processor may yield in between.
        let first = call(place);
        pause(round);
        if first != wanted || call(place) != wanted {
            WRONG.fetch_add(1, Ordering::AcqRel);
        }
    }
    replace(leaf, 0);
    window::leave();
}

/// After a flush no processor runs the previously mapped code, wherever it continues.
pub(super) fn replaced(scope: Scope) -> Verdict {
    for (page, number) in FUNCTIONS.iter().zip(0..) {
        page.write(&[code(number)]);
    }
    // Makes written instructions visible to all processors: cleans them to the point of
    // unification, then invalidates.
    for page in &FUNCTIONS {
        // SAFETY: it cleans and invalidates cache lines.
        unsafe { asm!("dc cvau, {0}", "dsb ish", in(reg) page.address(), options(nostack, preserves_flags)) };
    }
    // SAFETY: as above.
    unsafe { asm!("ic ialluis", "dsb ish", "isb", options(nostack, preserves_flags)) };
    IS_BROADCAST.store(u32::from(scope != Scope::Local), Ordering::Relaxed);
    WRONG.store(0, Ordering::Release);
    // The tables are created before there are several processors.
    (0..machine::get().processors).for_each(|number| replace(TestSpace::shared().leaf(place(number)), 0));
    let done = machine::on_all(take_turns);
    tlbi::settle();
    let wrong = WRONG.load(Ordering::Acquire);
    ensure!(wrong == 0, "{wrong} times a function ran that was no longer mapped");
    done
}
