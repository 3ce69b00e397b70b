//! All other processors check some words all the time, and report if one is wrong.
//!
//! | first processor | each watching one |
//! |---|---|
//! | a: change the tables, flush | |
//! | b: EXPECTED, VALUE | |
//! | c: STEP = n | d: s = STEP |
//! | | e: ISB |
//! | | f: check, by b's values |
//! | g: wait for all CHECKED = n | h: CHECKED = s |
//!
//! If d sees n of c, then the flush of a is complete, and with e none of the old translations are
//! left; so f must find b's values. b before the next c waits for g, so f reads the values of its
//! own step. Between h and the next d it keeps checking, so that its TLB holds the translations. A
//! mismatch there counts only where no other value may ever be found ([`Expected::Kept`]). It has
//! no timer and causes no exits of its own; interrupts are off.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baremetal::aarch64::guarded::{self, Cause, Fault};
use baremetal::aarch64::{clock, processors::MAX_PROCESSORS};
use spin::Mutex;
use tlbcheck::ensure;
use tlbcheck::report::{Stop, Verdict, skip};

use super::{machine, tlbi, window};

/// Rounds without a flush, one of which must be noticed.
const TRIES: u64 = 50;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(super) enum Expected {
    /// Nothing is mapped.
    Gone,
    /// The value.
    Value,
    /// At word `n` the value plus `n`; between two steps this or nothing.
    Kept,
    /// The value, which is read-only.
    ReadOnly,
    /// A writable word: the value is stored there.
    Writable,
}

impl Expected {
    /// By number.
    const ALL: [Self; 5] = [Self::Gone, Self::Value, Self::Kept, Self::ReadOnly, Self::Writable];
}

/// The words to check, and how.
#[derive(Clone, Copy)]
pub(super) struct What {
    /// The first of the words.
    pub(super) address: u64,
    /// Number of words, and distance between them.
    pub(super) words: u64,
    pub(super) every: u64,
    /// Distance between one processor's words and the next one's; 0 if all check the same.
    pub(super) each: u64,
    /// The value of TTBR0_EL1.
    pub(super) space: u64,
    /// Bits of TCR_EL1 that are set meanwhile.
    pub(super) control: u64,
}

static WHAT: Mutex<What> = Mutex::new(What { address: 0, words: 0, every: 0, each: 0, space: 0, control: 0 });
static EXPECTED: AtomicU64 = AtomicU64::new(0);
static VALUE: AtomicU64 = AtomicU64::new(0);
static STEP: AtomicU64 = AtomicU64::new(0);
static ENDS: AtomicBool = AtomicBool::new(false);
static WRONG: AtomicU64 = AtomicU64::new(0);
static CHECKED: [AtomicU64; MAX_PROCESSORS] = [const { AtomicU64::new(0) }; MAX_PROCESSORS];

pub(super) fn is_translation_fault(result: Result<u64, Fault>) -> bool {
    result.is_err_and(|fault| matches!(fault.cause(), Cause::Translation(_)))
}

/// Counts the wrong words of processor `number`. `is_step` is false between two steps.
#[inline(always)]
fn look(what: &What, number: usize, is_step: bool) -> u64 {
    let address = what.address + number as u64 * what.each;
    // Stored after the value, and therefore loaded before it.
    let expected = Expected::ALL[EXPECTED.load(Ordering::Acquire) as usize % Expected::ALL.len()];
    let value = VALUE.load(Ordering::Relaxed);
    let mut wrong = 0;
    for word in 0..what.words {
        let place = address + word * what.every;
        let is_right = match expected {
            Expected::Gone => is_translation_fault(guarded::load(place)),
            Expected::Value => guarded::load(place) == Ok(value),
            Expected::Kept => {
                let found = guarded::load(place);
                found == Ok(value + word) || (!is_step && is_translation_fault(found))
            }
            Expected::ReadOnly => {
                // SAFETY: the rows map pages there that are not otherwise in use.
                let stored = unsafe { guarded::store(place, !value) };
                let is_refused = stored.is_err_and(|fault| matches!(fault.cause(), Cause::Permission(_)));
                is_refused && guarded::load(place) == Ok(value)
            }
            // SAFETY: as above.
            Expected::Writable => unsafe { guarded::store(place, value) }.is_ok(),
        };
        wrong += u64::from(!is_right && (is_step || expected == Expected::Kept));
    }
    wrong
}

fn watch(number: usize) {
    let what = *WHAT.lock();
    window::enter(what.space);
    window::set_control(what.control, true);
    let mut last = 0;
    while !ENDS.load(Ordering::Acquire) {
        let step = STEP.load(Ordering::Acquire);
        tlbi::synchronise();
        let wrong = look(&what, number, step != last);
        // A step may have begun meanwhile, whose values were checked as those of the last one: only
        // `Kept` counts then, which is the same in both.
        if wrong != 0 {
            WRONG.fetch_add(wrong, Ordering::Relaxed);
        }
        if step != last {
            CHECKED[number].store(step, Ordering::Release);
            last = step;
        }
        clock::relax();
    }
    window::set_control(what.control, false);
    window::leave();
}

pub(super) struct Watch {
    what: What,
    step: u64,
}

/// Makes all other processors check while `steps` runs; the calling one is in the space, too.
/// Nothing is expected before the first step. Skips if there is no other processor.
pub(super) fn during(what: What, steps: impl FnOnce(&mut Watch) -> Verdict) -> Verdict {
    let others = machine::others()?;
    *WHAT.lock() = what;
    EXPECTED.store(Expected::Gone as u64, Ordering::Relaxed);
    STEP.store(0, Ordering::Relaxed);
    WRONG.store(0, Ordering::Relaxed);
    CHECKED.iter().for_each(|checked| checked.store(0, Ordering::Relaxed));
    ENDS.store(false, Ordering::Relaxed);
    window::enter(what.space);
    window::set_control(what.control, true);
    let begun = others.clone().try_for_each(|number| machine::give(number, watch));
    let result = begun.and_then(|()| steps(&mut Watch { what, step: 0 }));
    ENDS.store(true, Ordering::Release);
    let joined = others.map(machine::join).fold(Ok(()), Verdict::and);
    window::set_control(what.control, false);
    window::leave();
    result.and(joined)
}

impl Watch {
    /// Makes all processors check, including the calling one. Returns the number of wrong words.
    pub(super) fn step(&mut self, (expected, value): (Expected, u64)) -> Result<u64, Stop> {
        self.step += 1;
        VALUE.store(value, Ordering::Relaxed);
        EXPECTED.store(expected as u64, Ordering::Release);
        STEP.store(self.step, Ordering::Release);
        let own = look(&self.what, 0, true);
        let all = machine::others()?;
        let checked = |number: usize| CHECKED[number].load(Ordering::Acquire) == self.step;
        let done = machine::wait_until(|| all.clone().all(checked));
        ensure!(done, "a watching processor does not look in step {}", self.step);
        Ok(own + WRONG.swap(0, Ordering::Relaxed))
    }

    /// Fails unless the step finds everything as expected.
    pub(super) fn expect(&mut self, state: (Expected, u64)) -> Verdict {
        let wrong = self.step(state)?;
        ensure!(wrong == 0, "{wrong} words are not {:?} in step {}", state.0, self.step);
        Ok(())
    }

    /// Succeeds if an omitted flush is noticed: then steps that find no error are significant.
    /// `change` is a try's change without its flush; `restore` reverts it. Skips otherwise.
    pub(super) fn notices(
        &mut self,
        mut restore: impl FnMut(u64) -> (Expected, u64),
        mut change: impl FnMut(u64) -> (Expected, u64),
    ) -> Verdict {
        for round in 0..TRIES {
            let restored = restore(round);
            tlbi::settle();
            self.expect(restored)?;
            let changed = change(round);
            tlbi::order(tlbi::Scope::Inner);
            if self.step(changed)? != 0 {
                let restored = restore(round);
                tlbi::settle();
                return self.expect(restored);
            }
        }
        tlbi::settle();
        Err(skip(format_args!("no TLB here keeps what is replaced without a flush, in {TRIES} tries")))
    }
}
