//! A storm: every processor performs random operations; afterwards everything must be as before.
//!
//! Everything follows from the seed except the interleaving of the processors' actions. Operations
//! that would legitimately end the guest are left out; `operation` of each machine lists them.

use baremetal::arch::serial::CONSOLE;

use super::alive;

#[cfg(target_arch = "aarch64")]
pub(super) use super::aarch64::operation as own;
#[cfg(target_arch = "x86_64")]
pub(super) use super::x86_64::operation as own;
use crate::tests::prelude::*;

/// The default number of operations of each processor.
const COUNT: u64 = 2000;
/// Iterations of the first processor's loop without progress that count as a standstill. Each takes
/// some exits, so a processor that can make progress does so many times meanwhile.
const STANDSTILL: u64 = 1 << 19;
pub(super) const KINDS: u64 = 1 << KIND_BITS;
const KIND_BITS: u32 = 4;
/// The first processor wakes sleepers after this many of its own operations.
const PERIOD: u64 = 4;
/// Pages that are not written to meanwhile.
const CANARIES: usize = 64;

static CANARY: [Page; CANARIES] = [const { Page::new() }; CANARIES];
static SEED: AtomicU64 = AtomicU64::new(0);
static WANTED: AtomicU64 = AtomicU64::new(0);
/// The number of each processor's last operation, from 1 on, and its kind.
static LAST: [AtomicU64; processors::MAX_PROCESSORS] =
    [const { AtomicU64::new(0) }; processors::MAX_PROCESSORS];
static DONE: AtomicUsize = AtomicUsize::new(0);
static ORDERLY: AtomicUsize = AtomicUsize::new(0);

pub(super) fn random(seed: u64, number: usize) -> Random {
    let mut random = Random::new(seed ^ (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let _ = random.word();
    random
}

/// Any word, but often an edge value.
pub(super) fn value(random: &mut Random) -> u64 {
    let word = random.word();
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << (word % 64),
        3 => !(1 << (word % 64)),
        4 => word & 0xff,
        5 => word & 0xffff_ffff,
        _ => word,
    }
}

/// Performs the operations. Each is visible to other processors before it begins.
fn rage(number: usize) {
    let mut random = random(SEED.load(Ordering::Relaxed), number);
    for turn in 0..WANTED.load(Ordering::Relaxed) {
        let kind = random.below(KINDS);
        LAST[number].store((turn + 1) << KIND_BITS | kind, Ordering::Relaxed);
        own::operation(kind, &mut random, number);
        if number == 0 && turn % PERIOD == 0 {
            own::look_after_sleepers(false, turn);
        }
    }
    DONE.fetch_add(1, Ordering::AcqRel);
    // No processor takes interrupts before all have stopped causing them.
    await_all(&DONE, number);
    own::put_in_order(number);
    ORDERLY.fetch_add(1, Ordering::AcqRel);
    await_all(&ORDERLY, number);
}

/// The sum of all processors' last operations: while it changes, some processor makes progress.
fn progress() -> u64 {
    (0..machine::count()).fold(0, |sum, number| sum.wrapping_add(LAST[number].load(Ordering::Relaxed)))
}

/// Waits until all processors have been counted. If none of them makes progress for many
/// iterations, reports each one's last operation.
fn await_all(count: &AtomicUsize, number: usize) {
    let (mut seen, mut turns) = (progress(), 0u64);
    while count.load(Ordering::Acquire) < machine::count() {
        if number == 0 {
            own::look_after_sleepers(true, turns);
        }
        clock::relax();
        turns += 1;
        let now = progress();
        if now != seen {
            (seen, turns) = (now, 0);
        }
        if number == 0 && turns > STANDSTILL {
            // The storm may have changed its state.
            CONSOLE.set_up();
            (0..machine::count()).for_each(|number| {
                let last = LAST[number].load(Ordering::Relaxed);
                let (turn, kind) = (last >> KIND_BITS, last & (KINDS - 1));
                say(format_args!("processor {number} has last begun operation {turn}, of kind {kind}"));
            });
            let here = count.load(Ordering::Relaxed);
            report::abort(format_args!("nobody gets on, and {here} processors have come to the end"));
        }
    }
}

/// Lets the host act before this continues.
fn rest(orders: &Orders<'_>, event: &str) {
    report::event(event);
    while orders.rests && CONSOLE.receive().is_none() {
        clock::relax();
    }
}

/// Runs one storm after the other, and checks everything after each.
pub(crate) fn storm(orders: &Orders<'_>) -> Verdict {
    own::prepare();
    (0..orders.rounds).try_for_each(|round| one(orders, orders.seed.wrapping_add(round)))
}

fn one(orders: &Orders<'_>, seed: u64) -> Verdict {
    let count = orders.count.unwrap_or(COUNT);
    SEED.store(seed, Ordering::Relaxed);
    WANTED.store(count, Ordering::Relaxed);
    DONE.store(0, Ordering::Relaxed);
    ORDERLY.store(0, Ordering::Relaxed);
    let mut pattern = random(seed, usize::MAX - 1);
    let words = CANARY.iter().flat_map(|page| page.words());
    words.for_each(|word| word.store(pattern.word(), Ordering::Relaxed));
    rest(orders, "storm");
    machine::on_all(rage);
    say(format_args!("{count} operations on {} processors, seed {seed:#x}", machine::count()));
    rest(orders, "calm");
    let mut pattern = random(seed, usize::MAX - 1);
    let words = CANARY.iter().flat_map(|page| page.words());
    let changed = words.filter(|word| word.load(Ordering::Relaxed) != pattern.word()).count();
    ensure!(changed == 0, "{changed} words of memory have changed, seed {seed:#x}");
    alive::alive(orders)
}
