//! INIT for a processor whose GIF is 0, and for one that runs a guest: APM volume 2, sections 15.17
//! and 15.21.

use core::sync::atomic::{AtomicU32, Ordering};

use x86_64::instructions::nop;

use super::block::*;
use super::clauses::{breaks, clause, skip};
use super::l2::{self, Code, L2, RBX, clgi, code, stgi};
use crate::clock;
use crate::processors::{self, PATIENCE_MS, SECOND};
use crate::report::{Verdict, ensure};

const ROUNDS: u32 = 20;

/// What the second processor has come to: it spins, is told to go on, is about to set GIF, has.
static PHASE: AtomicU32 = AtomicU32::new(0);
const SPINS: u32 = 1;
const GOES_ON: u32 = 2;
const ENDS: u32 = 3;
const IS_PAST: u32 = 4;
/// Turns that it has made meanwhile, and the exit of its guest.
static TURNS: AtomicU32 = AtomicU32::new(0);
static EXIT: AtomicU32 = AtomicU32::new(0);

fn now(phase: u32) {
    PHASE.store(phase, Ordering::Release);
}

fn is_now(phase: u32) -> bool {
    PHASE.load(Ordering::Acquire) == phase
}

/// INIT that waits is taken here.
fn end() {
    now(ENDS);
    stgi();
    (0..1000).for_each(|_| nop());
    now(IS_PAST);
}

fn without_gif(_: usize) {
    if l2::enable().is_err() {
        return;
    }
    clgi();
    now(SPINS);
    while is_now(SPINS) {
        TURNS.fetch_add(1, Ordering::Relaxed);
    }
    end();
}

/// A guest that counts turns.
fn in_guest(is_intercepted: bool) {
    if l2::enable().is_err() {
        return;
    }
    let at: Code = code!("5:"; "inc dword ptr [rbx]"; "jmp 5b");
    let mut l2 = L2::new(at);
    l2.registers.general[RBX] = TURNS.as_ptr().addr() as u64;
    if is_intercepted {
        l2.block.intercept(exit::INIT);
    }
    clgi();
    now(SPINS);
    EXIT.store(l2.run_held(), Ordering::Relaxed);
    end();
}

/// The second processor does `job`, and gets INIT when it has made some turns of it.
fn reset_in(job: fn(usize)) -> Verdict {
    processors::start(SECOND)?;
    now(0);
    EXIT.store(0, Ordering::Relaxed);
    processors::give(SECOND, job);
    ensure!(turns(), "the second processor makes no turns");
    processors::reset(SECOND);
    Ok(())
}

/// Whether it makes some turns more.
fn turns() -> bool {
    let before = TURNS.load(Ordering::Relaxed);
    clock::wait_until(PATIENCE_MS, || TURNS.load(Ordering::Relaxed).wrapping_sub(before) > 100)
}

/// INIT waits while GIF is 0. It ends a guest by an exit and waits then, or is taken.
pub(super) fn init() -> Verdict {
    for _ in 0..ROUNDS {
        if breaks("init-waits-for-gif") {
            skip("init-waits-for-gif", "the processor is reset at once");
            break;
        }
        reset_in(without_gif)?;
        clause!("init-waits-for-gif", turns(), "it makes no turns any more");
        now(GOES_ON);
        is_taken_behind_stgi("init-taken-with-gif");
    }
    for _ in 0..ROUNDS {
        if breaks("init-exits") {
            skip("init-exits", "the processor is reset at once");
            break;
        }
        reset_in(|_| in_guest(true))?;
        is_taken_behind_stgi("init-waits-behind-exit");
        let code = EXIT.load(Ordering::Relaxed);
        clause!("init-exits", code == exit::INIT, "exit {code:#x}");
    }
    for _ in 0..ROUNDS {
        reset_in(|_| in_guest(false))?;
        let has_ended = clock::wait_until(PATIENCE_MS, || {
            let before = TURNS.load(Ordering::Relaxed);
            clock::wait_until(1, || false);
            TURNS.load(Ordering::Relaxed) == before
        });
        clause!("init-ends-guest", has_ended && is_now(SPINS), "it goes on");
    }
    processors::run(SECOND, |_| ())
}

fn is_taken_behind_stgi(name: &str) {
    let comes = clock::wait_until(PATIENCE_MS, || is_now(ENDS) || is_now(IS_PAST));
    clock::wait_until(10, || false);
    clause!(name, comes && is_now(ENDS), "phase {}", PHASE.load(Ordering::Relaxed));
}
