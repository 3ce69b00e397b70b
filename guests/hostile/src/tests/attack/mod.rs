//! Attacks on the other guests of the machine, on all processors, without an end: the host measures
//! meanwhile what another guest loses, and then ends the machine.
//!
//! An attack is a burst, which is repeated for ever. Some bursts never end.

#[cfg(target_arch = "aarch64")]
mod aarch64;
mod disk;
mod stops;
#[cfg(target_arch = "x86_64")]
mod x86_64;

use core::fmt::Write;
use core::hint::black_box;

use baremetal::arch::guarded;
use baremetal::arch::serial::CONSOLE;
use hostile::attacks::Attack;

use super::storm::own as storm;
use super::window;

use crate::tests::prelude::*;
#[cfg(target_arch = "aarch64")]
use aarch64 as own;
#[cfg(target_arch = "x86_64")]
use x86_64 as own;
#[cfg(target_arch = "x86_64")]
pub(super) use x86_64::{enable_calls, hypercall};

/// Operations of a burst, about.
const BURST: u64 = 256;
/// Kinds of a storm's operations that do not sleep.
const RESTLESS: u64 = 13;

/// The attack, by its place in the list.
static ATTACK: AtomicUsize = AtomicUsize::new(0);
static SEED: AtomicU64 = AtomicU64::new(0);

/// Attacks on all processors; does not return if there is such an attack.
pub(super) fn attack(orders: &Orders<'_>) -> Verdict {
    prepare(orders)?;
    report::event("attack");
    machine::on_all(rage);
    Ok(())
}

/// The same on all processors but the first one, which looks for times in which it does not run.
/// Where nothing but the emulator is below the program, the emulator has made them.
pub(super) fn stops(orders: &Orders<'_>) -> Verdict {
    prepare(orders)?;
    (1..machine::count()).for_each(|number| processors::give(number, rage));
    stops::measure(orders.count);
    Ok(())
}

fn prepare(orders: &Orders<'_>) -> Verdict {
    let Some(attack) = Attack::parse(orders.attack) else {
        return Err(failure(format_args!("there is no attack '{}'", orders.attack)));
    };
    ATTACK.store(attack as usize, Ordering::Relaxed);
    SEED.store(orders.seed, Ordering::Relaxed);
    window::open();
    storm::prepare();
    own::prepare()?;
    if attack.needs_disk() { disk::prepare() } else { Ok(()) }
}

/// What a processor does for ever.
fn rage(number: usize) {
    let mut random = super::storm::random(SEED.load(Ordering::Relaxed), number);
    let attack = Attack::ALL[ATTACK.load(Ordering::Relaxed)];
    loop {
        burst(attack, &mut random, number);
    }
}

/// Attacks that mixtures consist of: those from which a guest returns.
const MIXED: [Attack; 11] = {
    use Attack::*;
    [Compute, Exits, Calls, Flushes, Caches, Ipis, Timers, Pause, Memory, Devices, Console]
};

fn burst(attack: Attack, random: &mut Random, number: usize) {
    match attack {
        Attack::Halt => own::halt(),
        Attack::Compute => compute(random),
        Attack::Exits => repeat(|| own::exit(random)),
        Attack::Calls => repeat(|| own::call(random)),
        Attack::Flushes => own::flush(random, number),
        Attack::Caches => repeat(|| own::maintain_caches(random)),
        Attack::Ipis => own::send_to_all(random),
        Attack::Timers => repeat(|| own::expire(random)),
        Attack::Pause => (0..16 * BURST).for_each(|_| clock::relax()),
        Attack::Sleeps => own::sleep_briefly(number),
        Attack::Memory => memory(random),
        Attack::Devices => repeat(|| storm::operation(random.below(RESTLESS), random, number)),
        Attack::Disk => disk::read(number),
        Attack::Console => repeat(|| print(random)),
        Attack::Faults => own::fault_for_good(),
        Attack::Resets if number == 0 => own::reset(),
        Attack::Resets => compute(random),
        Attack::Mixture => {
            let chosen = MIXED[random.below(MIXED.len() as u64) as usize];
            burst(chosen, random, number);
            if matches!(chosen, Attack::Devices) {
                // What was written may have made the processor deaf.
                storm::put_in_order(number);
            }
        }
    }
}

fn repeat(mut operation: impl FnMut()) {
    (0..BURST).for_each(|_| operation());
}

/// Wants nothing but time.
fn compute(random: &mut Random) {
    (0..64 * BURST).for_each(|_| {
        black_box(random.word());
    });
}

/// Stores to each page of free memory, some of which it maps elsewhere for that.
fn memory(random: &mut Random) {
    let free = machine::free_memory();
    for page in free.clone().step_by(PAGE as usize) {
        // SAFETY: the program uses nothing there.
        let _ = unsafe { guarded::store(page + (random.word() & (PAGE - 8)), page) };
        if random.one_in(4) {
            let (index, other) =
                (random.below(window::PAGES), free.start + random.below(free.end - free.start));
            window::unmap(index);
            window::flush_here(window::address(index));
            window::map(index, other & !(PAGE - 1));
            // SAFETY: as above; another processor may have removed the page.
            let _ = unsafe { guarded::store(window::address(index), page) };
        }
    }
}

/// A line of text, or what looks like a report, or anything.
fn print(random: &mut Random) {
    let _ = match random.below(4) {
        0 => write!({ CONSOLE }, "{{\"event\":\"none of the others'\"}}\r\n"),
        1 => write!({ CONSOLE }, "\x1b[2J\x1b[{}A\u{1b}]0;", random.word()),
        _ => write!({ CONSOLE }, "{:064x}\r\n", random.word()),
    };
}
