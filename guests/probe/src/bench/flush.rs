//! `bench=flush`: the cost of flush hypercalls.

use tlfs::{CallCode, Control, HvResult, Status};

use super::{case, settle};
use crate::report::{Failure, Verdict, failure};
use crate::{clock, hypercall};

/// Numbers of idle targets.
const IDLE: [(&str, u32); 5] = [
    ("space-idle-1", 1),
    ("space-idle-8", 8),
    ("space-idle-64", 64),
    ("space-idle-128", 128),
    ("space-idle-254", 254),
];
/// Number of banks of 64 that they fit into.
const BANKS: usize = 4;

/// Flushes of everything for the VPs from 1 on, none of which runs: each case with at most
/// `targets_max` targets. The machine has at least one vCPU more, of which only the first has been
/// started.
pub(crate) fn flush(targets_max: u32) -> Verdict {
    hypercall::enable()?;
    settle();
    for (name, targets) in IDLE.into_iter().filter(|(_, targets)| *targets <= targets_max) {
        let control = space_call(targets);
        let input = hypercall::input_address();
        let mut last = Ok(HvResult::new());
        case(name, || last = hypercall::call(control, input, 0));
        let wanted = HvResult::of(Status::SUCCESS, 0);
        let check = |last| if last == Ok(wanted) { Ok(()) } else { Err(fails(name, last)) };
        check(last)?;
        // No timer should fire during a measurement.
        clock::wait_until(1, || false);
    }
    Ok(())
}

/// Writes the input of a flush of everything for the VPs from 1 to `targets`, in the form that
/// kernels use; returns the control word.
fn space_call(targets: u32) -> Control {
    let mut banks = [0; BANKS];
    (1..=targets).for_each(|vp| banks[vp as usize / 64] |= 1 << (vp % 64));
    if targets < 64 {
        // Address space, flags, processors.
        hypercall::input_page().write(&[0, 0, banks[0]]);
        return Control::new().with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE.0);
    }
    let count = targets as usize / 64 + 1;
    // Address space, flags, the sparse format, valid banks, banks.
    let [a, b, c, d] = banks;
    hypercall::input_page().write(&[0, 0, 0, (1 << count) - 1, a, b, c, d]);
    Control::new()
        .with_call_code(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX.0)
        .with_variable_header_words(count as u16)
}

fn fails(name: &str, result: Result<HvResult, crate::guarded::Fault>) -> Failure {
    failure(format_args!("{name}: the call ends with {result:?}"))
}
