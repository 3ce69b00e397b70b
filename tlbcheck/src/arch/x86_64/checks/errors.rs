//! Every rule on the caller and on the control word and contents of a call. TLFS, "Hypercall
//! Interface"; the numbers of the statuses are those of `tlfs::Status`. Where two rules are broken
//! at once, either status is accepted ("Ordering of Error Conditions").

use tlfs::CallCode;
use tlfs::msr::HypercallMsr;

use super::prelude::*;
use crate::arch::x86_64::hypercall::call_in_ring3;

const CODE: Status = Status::INVALID_HYPERCALL_CODE;
const INPUT: Status = Status::INVALID_HYPERCALL_INPUT;
const PARAMETER: Status = Status::INVALID_PARAMETER;

/// Each call must end with one of the statuses, and report no completed elements.
fn end_with(statuses: &[Status], calls: &[Control], words: &[u64]) -> Verdict {
    machine::flushes()?;
    for control in calls {
        let result = call_with(*control, words);
        let good = statuses.iter().any(|status| result == Ok(HvResult::of(*status, 0)));
        ensure!(good, "control word {:#x}: {result:x?}, wanted {statuses:x?}", control.into_bits());
    }
    Ok(())
}

/// Without the guest's identity the hypercall page cannot be enabled.
pub(super) fn before_identity() -> Verdict {
    machine::flushes()?;
    hypercall::set_identity(0)?;
    let asked = hypercall::ask_for_page();
    let value = rdmsr(msr::HYPERCALL).map(HypercallMsr::from_bits);
    hypercall::enable()?;
    asked?;
    ensure!(!value.is_ok_and(|page| page.enable()), "the page is there without an identity: {value:x?}");
    let spin = Control::new().with_call_code(CallCode::NOTIFY_LONG_SPIN_WAIT.0).with_fast(true);
    let result = call_with(spin, &[1]);
    ensure!(result == Ok(HvResult::of(Status::SUCCESS, 0)), "with an identity, a call ends with {result:x?}");
    Ok(())
}

/// A call must have raised #UD. That it did not is less than that it was carried out.
fn undefined(result: Result<HvResult, Fault>, how: &str) -> Verdict {
    match result {
        Err(Fault::UNDEFINED) => Ok(()),
        Err(fault) => Err(fail(format_args!("{fault:?} instead of #UD for a call {how}"))),
        Ok(done) if done.status() == Status::SUCCESS => {
            Err(fail(format_args!("a call {how} is carried out: {done:x?}")))
        }
        Ok(refused) => Err(fail(format_args!("no #UD for a call {how}, which is refused: {refused:x?}"))),
    }
}

/// Only ring 0 may make calls; elsewhere the instruction is undefined (H14).
pub(super) fn ring3() -> Verdict {
    machine::flushes()?;
    let spin = Control::new().with_call_code(CallCode::NOTIFY_LONG_SPIN_WAIT.0).with_fast(true);
    for control in [spin, control(Kind::Space)] {
        undefined(call_in_ring3(control), "from ring 3")?;
    }
    Ok(())
}

/// Calls that do not exist (H19).
pub(super) fn codes() -> Verdict {
    let calls = [0x0000, 0x7fff, 0xffff, 0x1_ffff].map(Control::from_bits);
    end_with(&[CODE], &calls, &[0, ALL_SPACES, 1])?;
    end_with(&[CODE, INPUT], &[Control::from_bits(0xf000_f000_f800_ffff)], &[0, ALL_SPACES, 1])
}

/// Bits of the control word that must be zero (H1).
pub(super) fn reserved() -> Verdict {
    // The nested bit is for guests with a hypervisor below them; here there is none.
    for bit in [27, 28, 29, 30, 44, 45, 46, 47, 60, 61, 62, 63] {
        let with_bit = |control: Control| Control::from_bits(control.into_bits() | 1 << bit);
        end_with(&[INPUT], &[with_bit(control(Kind::Space))], &[0, ALL_SPACES, 1])?;
        end_with(&[INPUT], &[with_bit(list(1))], &[0, ALL_SPACES, 1, 0])?;
    }
    Ok(())
}

/// Counts and indices of elements (H2).
pub(super) fn reps() -> Verdict {
    let space = control(Kind::Space);
    let calls = [
        space.with_rep_count(1),
        space.with_rep_start(1),
        list(0),
        list(0).with_rep_start(1),
        list(1).with_rep_start(1),
        list(5).with_rep_start(6),
        list(2).with_rep_start(0xfff),
    ];
    end_with(&[INPUT], &calls, &[0, ALL_SPACES, 1, 0, 0, 0, 0, 0])?;
    offers(Kind::ListEx, Via::Memory)?;
    let calls = [control(Kind::SpaceEx).with_rep_count(1), control(Kind::ListEx)];
    end_with(&[INPUT], &calls, &[0, ALL_SPACES, 0, 0, 0])
}

/// A variable header where none is allowed.
pub(super) fn header_size() -> Verdict {
    let calls = [(control(Kind::Space), 1), (list(1), 1), (list(1), 0x3ff)]
        .map(|(control, words)| control.with_variable_header_words(words));
    end_with(&[INPUT], &calls, &[0, ALL_SPACES, 1, 0, 0])
}

/// Flags that must be zero.
pub(super) fn flags() -> Verdict {
    let hyperv = machine::flushes()?;
    for bit in [5, 7, 10, 31, 32, 63] {
        let words = [0, ALL_SPACES | 1 << bit, 1, 0];
        end_with(&[PARAMETER], &[control(Kind::Space), list(1)], &words)?;
    }
    // The format of a list that is not offered must not be mistaken for the other one.
    if !hyperv.interface().extended_ranges {
        end_with(&[PARAMETER], &[list(1)], &[0, ALL_SPACES | 1 << 3, 1, 0])?;
    }
    Ok(())
}

/// Sets of unknown format (H12).
pub(super) fn set_format() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    for format in [2, 3, 1 << 32, u64::MAX] {
        end_with(&[PARAMETER], &[control(Kind::SpaceEx)], &[0, ALL_SPACES, format, 0])?;
    }
    Ok(())
}

/// Sets whose bank mask and number of banks differ (H10).
pub(super) fn bank_count() -> Verdict {
    offers(Kind::SpaceEx, Via::Memory)?;
    for (banks, valid) in [(1, 3), (2, 1), (0, 1), (1, 0), (63, u64::MAX)] {
        let mut words = [1; 68];
        words[..4].copy_from_slice(&[0, ALL_SPACES, 0, valid]);
        let call = control(Kind::SpaceEx).with_variable_header_words(banks);
        end_with(&[INPUT, PARAMETER], &[call], &words)?;
    }
    let call = control(Kind::SpaceEx).with_variable_header_words(65);
    end_with(&[INPUT, PARAMETER], &[call], &[0, ALL_SPACES, 0, u64::MAX])
}

/// Completed elements are counted from the list's first, whatever the start index (H3).
pub(super) fn reps_done() -> Verdict {
    machine::flushes()?;
    for start in 0..5u16 {
        let result = call_with(list(5).with_rep_start(start), &[0, ALL_SPACES, 1, 0, 0, 0, 0, 0]);
        ensure!(result == Ok(HvResult::of(Status::SUCCESS, 5)), "from element {start} of 5: {result:x?}");
    }
    Ok(())
}

/// Input is limited to the registers' capacity (H4).
pub(super) fn xmm_limit() -> Verdict {
    offers(Kind::List, Via::Xmm)?;
    let words = [0, ALL_SPACES, 1, 0, 0];
    let result = call_with(list(11).with_fast(true), &words);
    ensure!(result == Ok(HvResult::of(Status::SUCCESS, 11)), "11 elements: {result:x?}");
    end_with(&[INPUT], &[12, 0xfff].map(|reps| list(reps).with_fast(true)), &words)?;
    offers(Kind::ListEx, Via::Xmm)?;
    let ex = |reps| control(Kind::ListEx).with_variable_header_words(1).with_rep_count(reps).with_fast(true);
    let words = [0, ALL_SPACES, 0, 1, 1];
    let result = call_with(ex(9), &words);
    ensure!(result == Ok(HvResult::of(Status::SUCCESS, 9)), "9 elements beside a bank: {result:x?}");
    end_with(&[INPUT], &[ex(10)], &words)
}

/// If input in XMM registers is not offered, the instruction is undefined (H15).
pub(super) fn xmm_without_offer() -> Verdict {
    let hyperv = machine::flushes()?;
    needs!(!hyperv.interface().xmm_input, "input in XMM registers is offered");
    let result = call_with(control(Kind::Space).with_fast(true), &[0, ALL_SPACES, 1]);
    undefined(result, "with input in XMM registers")
}

/// An empty mask is an error or means all, and an empty set is an error or means none (H8).
pub(super) fn empty() -> Verdict {
    let either = [Status::SUCCESS, PARAMETER];
    end_with(&either, &[control(Kind::Space)], &[0, ALL_SPACES, 0])?;
    offers(Kind::SpaceEx, Via::Memory)?;
    end_with(&either, &[control(Kind::SpaceEx)], &[0, ALL_SPACES, 0, 0])?;
    let one = control(Kind::SpaceEx).with_variable_header_words(1);
    end_with(&either, &[one], &[0, ALL_SPACES, 0, 1, 0])
}
