//! Hypercalls, right and wrong.

use super::prelude::*;
use crate::hypercall::{call_that_only_returns, disable, expect_success, input_address};

/// The flag of a flush: all address spaces.
const ALL_SPACES: u64 = 2;

fn control(code: CallCode) -> Control {
    Control::new().with_call_code(code.0)
}

pub(super) fn space() -> Control {
    control(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE)
}

fn list(reps: u16) -> Control {
    control(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST).with_rep_count(reps)
}

fn space_ex(banks: u16) -> Control {
    control(CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX).with_variable_header_words(banks)
}

fn list_ex(banks: u16, reps: u16) -> Control {
    control(CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX).with_variable_header_words(banks).with_rep_count(reps)
}

/// Before the guest identifies itself, hypercalls are undefined.
pub(super) fn before_id() -> Verdict {
    disable()?;
    let result = call(space(), input_address(), 0);
    ensure!(result == Err(Fault::UNDEFINED), "without an identity: {result:?}");
    enable()?;
    let result = HvResult::from_bits(call_that_only_returns());
    ensure!(result == HvResult::of(Status::SUCCESS, 0), "with one, through the page: {result:?}");
    disable()?;
    let result = call(space(), input_address(), 0);
    ensure!(result == Err(Fault::UNDEFINED), "after taking it back: {result:?}");
    enable()
}

/// Every rule on the control word, the input's address, and its contents.
pub(super) fn errors() -> Verdict {
    const CODE: Status = Status::INVALID_HYPERCALL_CODE;
    const INPUT: Status = Status::INVALID_HYPERCALL_INPUT;
    enable()?;
    // Codes that there are not; reserved bits; fields that do not fit the call.
    let words: [(Status, &[u64]); 5] = [
        (CODE, &[0, 0xc, 0xaf, 0xffff, 0x1_ffff, 0xf000_f000_f800_ffff]),
        (INPUT, &[0x0800_0002, 0x4000_0002, 0x8000_0002, 0x1000_0000_0002, 0x1000_0000_0000_0002]),
        (INPUT, &[0x8000_0000_0000_0008, 0x1_0000_0002, 0x1_0000_0000_0002, 0x2_0002]),
        (INPUT, &[0x1_0002_0003, 3, 0x1_0001_0000_0003, 0x6_0005_0000_0003]),
        (INPUT, &[0x1_0000_0013, 0x82_0013, 0x14]),
    ];
    let each = words.into_iter().flat_map(|(status, words)| words.iter().map(move |word| (status, *word)));
    for (status, word) in each {
        let result = call_with(Control::from_bits(word), &[0, ALL_SPACES, 1, 0, 0]);
        ensure!(result == Ok(HvResult::of(status, 0)), "{word:#x}: {result:?}, wanted {status:?}");
    }
    places()?;
    contents()
}

fn places() -> Verdict {
    const MISPLACED: Result<HvResult, Fault> = Ok(HvResult::of(Status::INVALID_ALIGNMENT, 0));
    let page = input_address();
    // Odd, misaligned to half a word, across the end of the page, and beyond the maximum address.
    for gpa in [page + 1, page + 4, page + 4096 - 16, 1 << 52, u64::MAX - 7] {
        let result = call(space(), gpa, 0);
        ensure!(result == MISPLACED, "input at {gpa:#x}: {result:?}");
    }
    let result = call(list(510), page, 0);
    ensure!(result == MISPLACED, "513 words of input: {result:?}");
    // Addresses without memory.
    for gpa in [0xd000_0000, 0xfec0_0000, 1 << 38] {
        let result = call(space(), gpa, 0);
        ensure!(result == Err(Fault::PROTECTION), "input at {gpa:#x}: {result:?}");
    }
    // Register inputs: 11 ranges after a mask, 9 after a set of one bank.
    let fast = |control: Control| call_fast(control.with_fast(true), &[0, ALL_SPACES, 1, 1, 1]);
    for (control, status, reps) in [
        (list(11), Status::SUCCESS, 11),
        (list(12), Status::INVALID_HYPERCALL_INPUT, 0),
        (list_ex(1, 10), Status::INVALID_HYPERCALL_INPUT, 0),
    ] {
        let result = fast(control);
        ensure!(result == Ok(HvResult::of(status, reps)), "{:#x} fast: {result:?}", control.into_bits());
    }
    let result = call_fast(list_ex(1, 9).with_fast(true), &[0, ALL_SPACES, 0, 1, 1]);
    ensure!(result == Ok(HvResult::of(Status::SUCCESS, 9)), "a set and 9 ranges: {result:?}");
    Ok(())
}

fn contents() -> Verdict {
    const OK: Status = Status::SUCCESS;
    const PARAMETER: Status = Status::INVALID_PARAMETER;
    const INPUT: Status = Status::INVALID_HYPERCALL_INPUT;
    let cases: [(&str, Control, &[u64], Status, u16); 8] = [
        ("reserved flag", space(), &[0, 1 << 4, 1], PARAMETER, 0),
        ("flag of another level", space(), &[0, 1 << 63, 1], PARAMETER, 0),
        ("set of unknown format", space_ex(0), &[0, 0, 2, 0], PARAMETER, 0),
        ("fewer banks than the mask", space_ex(1), &[0, 0, 0, 3, 1], INPUT, 0),
        ("more banks than the mask", space_ex(2), &[0, 0, 0, 1, 1, 1], INPUT, 0),
        ("wrong after 1 element", list(3).with_rep_start(1), &[0, 1 << 5, 1, 0, 0, 0], PARAMETER, 1),
        ("the last element", list(5).with_rep_start(4), &[0, ALL_SPACES, 1, 0, 0, 0, 0, 0], OK, 5),
        ("unknown processors", space_ex(1), &[0, ALL_SPACES, 0, 1 << 63, u64::MAX], OK, 0),
    ];
    for (name, control, words, status, reps) in cases {
        let result = call_with(control, words);
        ensure!(result == Ok(HvResult::of(status, reps)), "{name}: {result:?}");
    }
    Ok(())
}

/// Addresses that cannot have a translation are ignored.
pub(super) fn non_canonical_flush() -> Verdict {
    enable()?;
    let (low, high) = (0x7fff_ffff_ffff, 0xffff_7fff_ffff_ffff);
    let ranges = [0x8000_0000_0000, 0x1234_5678_9abc_d000, high, low, u64::MAX, 0];
    let mut input = [0; 9];
    input[..3].copy_from_slice(&[0, ALL_SPACES, 1]);
    input[3..].copy_from_slice(&ranges);
    expect_success("list", call_with(list(6), &input), 6)?;
    let mut input = [0; 11];
    input[..5].copy_from_slice(&[0, ALL_SPACES, 0, 1, 1]);
    input[5..].copy_from_slice(&ranges);
    expect_success("list, ex", call_with(list_ex(1, 6), &input), 6)
}

static SECOND_VP: AtomicU32 = AtomicU32::new(u32::MAX);

pub(super) fn second_vp() -> Result<u32, crate::report::Failure> {
    processors::run(SECOND, || {
        let index = rdmsr(msr::VP_INDEX).ok().and_then(|index| u32::try_from(index).ok());
        SECOND_VP.store(index.unwrap_or(u32::MAX), Ordering::Release);
    })?;
    let index = SECOND_VP.load(Ordering::Acquire);
    ensure!(index < 64, "the second processor's VP index is {index:#x}");
    Ok(index)
}

/// Each of the four flushes, of a processor in HLT.
pub(super) fn flush_idle() -> Verdict {
    enable()?;
    let mask = 1 << second_vp()?;
    for _ in 0..100 {
        expect_success("space", call_with(space(), &[0, ALL_SPACES, mask]), 0)?;
        expect_success("list", call_with(list(2), &[0, ALL_SPACES, mask, 0x1000, 0x20_0fff]), 2)?;
        expect_success("space ex", call_with(space_ex(1), &[0, ALL_SPACES, 0, 1, mask]), 0)?;
        expect_success("ex", call_with(list_ex(1, 2), &[0, ALL_SPACES, 0, 1, mask, 0x1000, 0x20_0fff]), 2)?;
    }
    expect_success("set of all", call_with(space_ex(0), &[0, ALL_SPACES, 1, 0]), 0)
}
