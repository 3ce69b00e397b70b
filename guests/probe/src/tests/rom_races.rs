//! The ROM is added, removed and moved while other processors use it.

use hostlink::rom::{self, LEN, LINE};

use super::hypercalls;
use super::prelude::*;
use super::rom::{INPUT, PLACES};
use crate::pci::{place_rom, word};
use crate::processors::PROCESSORS;
use baremetal::x86_64::processors::Job;

/// Number of changes that each test makes, unless `count=` sets it.
static CHANGES: AtomicU64 = AtomicU64::new(500);
/// One of this many changes, to each place in turn, is followed by a wait for all to check.
const CHANGES_PER_WAIT: u64 = 7;
const CHANGES_PER_SPOT: u64 = 4;

/// The ROM's place, in the low bits; above them the number of the change.
static STATE: AtomicU64 = AtomicU64::new(AWAY);
/// Values of the low bits: it is away, or at the first or second place; or it is changing.
const AWAY: u64 = 0;
const MOVING: u64 = 3;
const PLACE_BITS: u64 = 3;

/// The observations of the processors that check the ROM, by processor.
struct Looks {
    /// While nothing changed: that it was absent, and that it was present.
    settled: [AtomicU64; 2],
    /// While it changed.
    amid: AtomicU64,
    /// Neither present nor absent.
    wrong: AtomicU64,
    /// While nothing changed, but different from the actual state.
    late: AtomicU64,
}

static LOOKS: [Looks; PROCESSORS] = [const {
    Looks {
        settled: [const { AtomicU64::new(0) }; 2],
        amid: AtomicU64::new(0),
        wrong: AtomicU64::new(0),
        late: AtomicU64::new(0),
    }
}; PROCESSORS];
impl Looks {
    /// Number of checks that counted.
    fn answers(&self) -> u64 {
        self.settled.iter().chain([&self.wrong, &self.late]).map(|count| count.load(Ordering::SeqCst)).sum()
    }
}

/// The location of a check: a place of the ROM, 1 or 2, and a word in it.
#[derive(Clone, Copy)]
struct Spot {
    place: u64,
    offset: u64,
}

impl Spot {
    fn any(random: &mut Random) -> Self {
        Self { place: random.below(2) + 1, offset: random.below(u64::from(LEN) / 8) * 8 }
    }

    fn base(self) -> u64 {
        PLACES[self.place as usize - 1].into()
    }
}

/// A way to check whether the ROM is at a place; `None` if it is neither present nor absent.
type Look = fn(Spot) -> Option<bool>;

/// By a load (P9, P10).
fn by_load(spot: Spot) -> Option<bool> {
    let line = rom::line(LEN, spot.offset as u32 / LINE);
    let expected = line.as_chunks().0[spot.offset as usize % LINE as usize / 8];
    match word(spot.base() + spot.offset) {
        u64::MAX => Some(false),
        seen if seen == u64::from_le_bytes(expected) => Some(true),
        _ => None,
    }
}

/// By a hypercall whose input is there (P12).
fn by_call(spot: Spot) -> Option<bool> {
    match call(hypercalls::space(), spot.base() + INPUT, 0) {
        Ok(result) if result == HvResult::of(Status::SUCCESS, 0) => Some(true),
        Err(Fault::PROTECTION) => Some(false),
        _ => None,
    }
}

fn changes_made() -> u64 {
    STATE.load(Ordering::Acquire) >> 2
}

/// Checks once, and counts the observation. The states before and after decide whether it counts.
fn look_once(look: Look, looks: &Looks, spot: Spot) {
    let before = STATE.load(Ordering::SeqCst);
    let seen = look(spot);
    let after = STATE.load(Ordering::SeqCst);
    let is_settled = before == after && before & PLACE_BITS != MOVING;
    let counter = match seen {
        None => &looks.wrong,
        Some(_) if !is_settled => &looks.amid,
        Some(is_there) if is_there == (before & PLACE_BITS == spot.place) => {
            &looks.settled[usize::from(is_there)]
        }
        Some(_) => &looks.late,
    };
    counter.fetch_add(1, Ordering::SeqCst);
}

/// Checks one spot after the other, each while the ROM changes several times. Between two changes
/// this happens without an exit, through a translation that only a flush can remove.
fn look_on(look: Look) {
    let id = apic::id();
    let mut random = Random::new(0x20d + id as u64);
    while !processors::is_over() {
        let spot = Spot::any(&mut random);
        let begin = changes_made();
        while changes_made() < begin + CHANGES_PER_SPOT && !processors::is_over() {
            look_once(look, &LOOKS[id], spot);
        }
    }
}

pub(super) fn set_count(count: u32) {
    CHANGES.store(count.into(), Ordering::Relaxed);
}

/// A ROM that is added and removed is present or absent, and nothing in between; after the write
/// only in the state that was written (P9, P10).
pub(super) fn rom_toggles() -> Verdict {
    race(|_| look_on(by_load), by_load, |number| number % 2)
}

/// A ROM that moves is at the new place alone when the write returns (P13).
pub(super) fn rom_moves() -> Verdict {
    race(|_| look_on(by_load), by_load, |number| number % 2 + 1)
}

/// Hypercalls with input in a ROM that comes, goes and moves find it, or are refused (P12).
pub(super) fn rom_under_calls() -> Verdict {
    enable()?;
    race(|_| look_on(by_call), by_call, |number| number % 3)
}

/// The first processor moves the ROM, and checks between changes; all others check always.
fn race(others: Job, look: Look, next: fn(u64) -> u64) -> Verdict {
    let changes = CHANGES.load(Ordering::Relaxed);
    let readers = processors::count() - 1;
    (1..=readers).try_for_each(processors::start)?;
    for looks in &LOOKS {
        let others = [&looks.amid, &looks.wrong, &looks.late];
        looks.settled.iter().chain(others).for_each(|counter| counter.store(0, Ordering::SeqCst));
    }
    let result = processors::beside(readers, others, || change(changes, readers, look, next));
    settle(AWAY, changes + 1);
    result
}

fn settle(place: u64, number: u64) {
    STATE.store(number << 2 | MOVING, Ordering::SeqCst);
    place_rom((place as usize).checked_sub(1).map(|index| PLACES[index]));
    STATE.store(number << 2 | place, Ordering::SeqCst);
}

fn change(changes: u64, readers: usize, look: Look, next: fn(u64) -> u64) -> Verdict {
    let mut random = Random::new(0x4a5);
    for number in 1..=changes {
        settle(next(number), number);
        look_once(look, &LOOKS[0], Spot::any(&mut random));
        look_once(look, &LOOKS[0], Spot::any(&mut random));
        if number % CHANGES_PER_WAIT == 0 {
            let before: [u64; PROCESSORS] = core::array::from_fn(|id| LOOKS[id].answers());
            let all_look = || (1..=readers).all(|id| LOOKS[id].answers() != before[id]);
            ensure!(clock::wait_until(PATIENCE_MS, all_look), "nobody looks after change {number}");
        }
    }
    for (id, looks) in LOOKS.iter().take(readers + 1).enumerate() {
        let [wrong, late] = [&looks.wrong, &looks.late].map(|count| count.load(Ordering::SeqCst));
        ensure!(wrong == 0, "processor {id} saw {wrong} times what was never there");
        ensure!(late == 0, "processor {id} saw {late} times what was there before the change");
        let seen = looks.settled.each_ref().map(|count| count.load(Ordering::SeqCst));
        ensure!(seen.iter().all(|count| *count > 0), "processor {id} looked {seen:?} times");
    }
    Ok(())
}
