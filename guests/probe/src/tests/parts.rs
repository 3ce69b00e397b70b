//! Lists that are processed in parts.

use super::prelude::*;
use crate::interrupts::interrupted_calls;

/// Elements of the list: the number that is cheaper page by page where the limit is 1000 pages.
const ELEMENTS: usize = 400;
/// Calls during which an interrupt must arrive, and maximum number of calls made for that.
const INTERRUPTED: u32 = 20;
const CALLS_MAX: u32 = 1000;
/// Maximum delay from before a call to the interrupt.
const DELAY_MAX_US: u64 = 500;

/// The caller takes interrupts between the parts of a call, and then continues it: a handler sees
/// the call's own instruction with a rep start index in its control word, and the call ends with
/// all elements done.
pub(super) fn list_in_parts() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    // In guest mode all the time, so that each part must wait for it.
    let spin = |_| {
        while !processors::is_over() {
            core::hint::spin_loop();
        }
    };
    let result = processors::beside(SECOND, spin, || interrupted(mask));
    apic::write(apic::LVT_TIMER, LVT_MASKED);
    result
}

fn interrupted(mask: u64) -> Verdict {
    let control =
        Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST.0).with_rep_count(ELEMENTS as u16);
    let mut words = [0; 3 + ELEMENTS];
    words[..3].copy_from_slice(&[paging::space(), 0, mask]);
    for (index, word) in words[3..].iter_mut().enumerate() {
        *word = index as u64 * 2 * PAGE;
    }
    apic::write(apic::LVT_TIMER, LVT_TSC_DEADLINE | u64::from(VECTOR_TEST));
    let mut calls = 0;
    while calls < CALLS_MAX && interrupted_calls() < INTERRUPTED {
        let delay = u64::from(calls) * 37 % DELAY_MAX_US;
        apic::write(apic::TSC_DEADLINE, clock::now() + clock::ticks(delay + 20));
        interrupts::enable();
        let result = call_with(control, &words);
        interrupts::disable();
        calls += 1;
        let good = result == Ok(HvResult::of(Status::SUCCESS, ELEMENTS as u16));
        ensure!(good, "a list of {ELEMENTS}: {result:?}");
    }
    let interrupted = interrupted_calls();
    ensure!(interrupted >= INTERRUPTED, "only {interrupted} of {calls} calls were interrupted in the middle");
    Ok(())
}
