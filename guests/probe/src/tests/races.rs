//! Concurrent calls of two processors, and calls whose input changes.

use super::prelude::*;
use crate::hypercall::{input_address, input_page};

static ENDS: AtomicBool = AtomicBool::new(false);

/// Minimum number of calls of each kind, and minimum number of them whose input has changed since
/// the previous call: the other processor may not run for thousands of calls.
const RACED: u32 = 1500;
const CHANGED: u32 = 100;

static CHANGES: AtomicU32 = AtomicU32::new(0);

/// Stores valid and invalid values into every word of the input all the time.
fn change_input() {
    let mut random = Random::new(0x7ace);
    let words = input_page().words();
    while !ENDS.load(Ordering::Acquire) {
        // Flags: none, all processors, all address spaces, and a reserved one.
        words[1].store(random.one_of([0, 1, 2, 1 << 4]), Ordering::Relaxed);
        // A mask, or the format of a set; 2 is invalid.
        words[2].store(random.one_of([0, 1, 2, u64::MAX]), Ordering::Relaxed);
        // The valid banks, or an element.
        words[3].store(random.one_of([0, 1, 3, 1 << 63]), Ordering::Relaxed);
        words[4].store(random.word(), Ordering::Relaxed);
        words[0].store(random.word(), Ordering::Relaxed);
        CHANGES.fetch_add(1, Ordering::Relaxed);
    }
}

/// A call whose input is changed meanwhile ends as with one of the inputs that existed (H7).
pub(super) fn changing_input() -> Verdict {
    enable()?;
    second_vp()?;
    ENDS.store(false, Ordering::Release);
    processors::give(SECOND, change_input);
    let result = call_meanwhile();
    ENDS.store(true, Ordering::Release);
    processors::join(SECOND)?;
    result
}

fn call_meanwhile() -> Verdict {
    let control = |code: CallCode| Control::new().with_call_code(code.0);
    let controls = [
        control(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE),
        control(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST).with_rep_count(2),
        control(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX).with_variable_header_words(1),
        control(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX).with_variable_header_words(1).with_rep_count(3),
    ];
    for control in controls {
        let success = HvResult::of(Status::SUCCESS, control.rep_count());
        let refusals = [Status::INVALID_PARAMETER, Status::INVALID_HYPERCALL_INPUT];
        let (mut succeeded, mut calls, mut changed, mut last) = (0, 0, 0, 0);
        let is_enough = |succeeded, calls, changed| {
            calls >= RACED && changed >= CHANGED && (1..calls).contains(&succeeded)
        };
        let end = clock::now() + clock::ticks(1000 * PATIENCE_MS);
        while !is_enough(succeeded, calls, changed) {
            let changes = CHANGES.load(Ordering::Relaxed);
            changed += u32::from(core::mem::replace(&mut last, changes) != changes);
            let result = call(control, input_address(), 0);
            let is_refused = refusals.iter().any(|status| result == Ok(HvResult::of(*status, 0)));
            let word = control.into_bits();
            ensure!(is_refused || result == Ok(success), "{word:#x} with changing input: {result:?}");
            succeeded += u32::from(!is_refused);
            calls += 1;
            ensure!(
                clock::now() < end,
                "{succeeded} of {calls} calls went through, and {changed} had another input than the one before"
            );
        }
    }
    Ok(())
}

/// Number of calls of each of the two.
const CALLS: u64 = 2000;

/// The data of each of the two: the page of its input, and two pages that alternate in the window.
static INPUTS: [Page; 2] = [const { Page::new() }; 2];
static PAGES: [[Page; 2]; 2] = [const { [const { Page::new() }; 2] }; 2];
/// Both as a mask of VPs; the number of processors at the start; the number of calls with a wrong
/// result, and of the caller's translations that outlived them.
static BOTH: AtomicU64 = AtomicU64::new(0);
static ARRIVALS: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
static STALE: AtomicU32 = AtomicU32::new(0);

/// Two processors flush each other and themselves, and both finish (O13); after each call the
/// caller sees no page that it has removed before (H27).
pub(super) fn mutual_flush() -> Verdict {
    enable()?;
    let other = 1 << second_vp()?;
    let own = rdmsr(msr::VP_INDEX).map(|index| 1 << index).unwrap_or(0);
    ensure!(own != 0 && own != other, "both processors have VP index mask {own:#x}");
    BOTH.store(own | other, Ordering::Relaxed);
    for counter in [&ARRIVALS, &FAILED, &STALE] {
        counter.store(0, Ordering::Relaxed);
    }
    processors::give(SECOND, flush_both);
    flush_both();
    processors::join(SECOND)?;
    let (failed, stale) = (FAILED.load(Ordering::Acquire), STALE.load(Ordering::Acquire));
    ensure!(failed == 0, "{failed} calls fail");
    ensure!(stale == 0, "{stale} times the caller saw what it had taken away");
    Ok(())
}

fn flush_both() {
    let me = apic::id() as usize % 2;
    let address = WINDOW + me as u64 * PAGE;
    let both = BOTH.load(Ordering::Acquire);
    ARRIVALS.fetch_add(1, Ordering::AcqRel);
    clock::wait_until(1000, || ARRIVALS.load(Ordering::Acquire) == 2);
    for number in 1..=CALLS {
        let page = &PAGES[me][(number % 2) as usize];
        page.write(&[number]);
        paging::exchange(me, Some(page));
        INPUTS[me].write(&[paging::space(), 0, both, address]);
        let is_list = number % 2 == 0;
        let (code, reps) = match is_list {
            true => (CallCode::FLUSH_VIRTUAL_ADDRESS_LIST, 1),
            false => (CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE, 0),
        };
        let control = Control::new().with_call_code(code.0).with_rep_count(reps);
        let result = call(control, INPUTS[me].address(), 0);
        if result != Ok(HvResult::of(Status::SUCCESS, reps)) {
            FAILED.fetch_add(1, Ordering::AcqRel);
        }
        // SAFETY: the page has just been mapped, by this processor.
        if unsafe { (address as *const u64).read_volatile() } != number {
            STALE.fetch_add(1, Ordering::AcqRel);
        }
    }
    paging::map(me, None);
}
