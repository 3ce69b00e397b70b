//! Decoding of whole calls.

mod random;

use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use super::*;
use crate::{PageRange, XMM_WORDS};

/// One page of guest memory at [`BASE`], and how often it was read.
struct Memory {
    bytes: Vec<u8>,
    reads: Cell<usize>,
    read_len: Cell<usize>,
}

const BASE: u64 = 0x10_0000;

impl Memory {
    fn at(offset: usize, words: &[u64]) -> Self {
        let mut bytes = vec![0xa5; PAGE_SIZE];
        let end = (offset + words.len() * 8).min(PAGE_SIZE);
        bytes[offset..end].copy_from_slice(&words.as_bytes()[..end - offset]);
        Self { bytes, reads: Cell::new(0), read_len: Cell::new(0) }
    }

    fn new(words: &[u64]) -> Self {
        Self::at(0, words)
    }
}

impl InputSource for Memory {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        self.reads.set(self.reads.get() + 1);
        self.read_len.set(into.len());
        assert!(gpa.is_multiple_of(8) && gpa % 4096 + into.len() as u64 <= 4096, "{gpa:#x}+{}", into.len());
        let offset = gpa.checked_sub(BASE).ok_or(InputError::NotMemory)? as usize;
        let from = self.bytes.get(offset..offset + into.len()).ok_or(InputError::OutsideGpaSpace)?;
        into.copy_from_slice(from);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        panic!("XMM registers are read where they are not offered or not needed")
    }
}

const SPACE: u64 = 0x02;
const LIST: u64 = 0x03;
const SPIN: u64 = 0x08;
const SPACE_EX: u64 = 0x13;
const LIST_EX: u64 = 0x14;
const ALL_PROCESSORS: u64 = 1;
const LENIENT: Profile =
    Profile { xmm_input: false, cluster_ipi: false, extended_ranges: false, ..Profile::FULL };
const STRICT: Profile = Profile { empty_targets: EmptyTargets::Strict, ..LENIENT };

fn banks(count: u64) -> u64 {
    count << 17
}

fn reps(count: u64, start: u64) -> u64 {
    count << 32 | start << 48
}

/// Decodes a call whose input is `words` and passes the result to `judge`.
fn with<R>(
    control: u64,
    words: &[u64],
    profile: &Profile,
    judge: impl FnOnce(Result<Call<'_>, Reject>) -> R,
) -> R {
    let registers = CallRegisters { control, input: BASE, output: 0x7 };
    judge(decode(registers, &Memory::new(words), &mut InputPage::new(), profile))
}

fn status(control: u64, words: &[u64], profile: &Profile) -> Status {
    with(control, words, profile, |call| match call {
        Ok(_) => Status::SUCCESS,
        Err(Reject::Failed(result)) => result.status(),
        Err(other) => panic!("{other:?}"),
    })
}

/// The members of a call's target set; `None` for all.
fn targets(control: u64, words: &[u64]) -> Option<Vec<u32>> {
    with(control, words, &Profile::default(), |call| match call {
        Ok(Call::Flush(FlushCall { targets: Targets::Set(set), .. })) => Some(set.iter().collect()),
        Ok(Call::Flush(FlushCall { targets: Targets::All, .. })) => None,
        other => panic!("{other:?}"),
    })
}

#[test]
fn h3_reps_complete_counts_from_rep_0() {
    with(LIST | reps(4, 3), &[0, 0, 1, 1 << 12, 2 << 12, 3 << 12, 4 << 12], &STRICT, |call| {
        let Ok(Call::Flush(flush)) = call else { panic!("{call:?}") };
        let FlushScope::List(list) = flush.scope else { panic!("{flush:?}") };
        assert!(list.ranges().eq([PageRange { start: 4 << 12, pages: 1 }]), "only what is left");
        assert_eq!(flush.completed().reps_complete(), 4);
    });
    // An error before element 3: elements 0 to 2 were done earlier.
    with(LIST | reps(4, 3), &[0, 1 << 40, 1, 0, 0, 0, 0], &STRICT, |call| {
        assert_eq!(call, Err(Reject::Failed(HvResult::of(Status::INVALID_PARAMETER, 3))));
    });
    with(LIST | reps(4, 4), &[0; 8], &STRICT, |call| {
        assert_eq!(call, Err(Reject::Failed(HvResult::of(Status::INVALID_HYPERCALL_INPUT, 0))));
    });
}

#[test]
fn h5_h6_where_the_input_is_not() {
    let memory = Memory::new(&[0, 0, 1]);
    let try_at = |input| {
        let registers = CallRegisters { control: SPACE, input, output: 0 };
        decode(registers, &memory, &mut InputPage::new(), &Profile::default()).err()
    };
    let misplaced = Some(Reject::Failed(HvResult::of(Status::INVALID_ALIGNMENT, 0)));
    assert_eq!(try_at(BASE), None);
    for low in 1..8 {
        assert_eq!(try_at(BASE + low), misplaced, "not a multiple of 8");
    }
    assert_eq!(try_at(BASE + 4096 - 16), misplaced, "crosses the page");
    assert_eq!(try_at(BASE + 4096), misplaced, "outside the address space");
    assert_eq!(try_at(u64::MAX - 7), misplaced, "the end of all addresses");
    assert_eq!(try_at(0x2000), Some(Reject::InputNotMemory { gpa: 0x2000 }));
}

#[test]
fn h7_input_is_copied_once_and_no_more_than_there_is() {
    for (control, words, expected) in [
        (SPACE, vec![0, 0, 1], 24),
        (LIST | reps(3, 2), vec![0, 0, 1], 48),
        (SPACE_EX | banks(1), vec![0, 0, 0, 1, 1], 40),
        (LIST_EX | banks(1) | reps(2, 0), vec![0, 0, 0, 1, 1], 56),
        (SPIN, vec![9], 8),
    ] {
        let memory = Memory::new(&words);
        let registers = CallRegisters { control, input: BASE, output: 0 };
        assert!(decode(registers, &memory, &mut InputPage::new(), &Profile::default()).is_ok());
        assert_eq!((memory.reads.get(), memory.read_len.get()), (1, expected), "{control:#x}");
    }
}

#[test]
fn h8_an_empty_mask_is_everyone_or_an_error() {
    assert_eq!(targets(SPACE, &[0, 0, 0]), None);
    assert_eq!(status(SPACE, &[0, 0, 0], &STRICT), Status::INVALID_PARAMETER);
    assert_eq!(status(SPACE, &[0, ALL_PROCESSORS, 0], &STRICT), Status::SUCCESS);
}

#[test]
fn h8_an_empty_set_is_nobody_or_an_error_and_never_everyone() {
    for (control, words) in [(SPACE_EX, vec![0, 0, 0, 0]), (SPACE_EX | banks(2), vec![0, 0, 0, 0b11, 0, 0])] {
        assert_eq!(targets(control, &words), Some(vec![]));
        assert_eq!(status(control, &words, &STRICT), Status::INVALID_PARAMETER);
    }
}

#[test]
fn h12_unknown_formats_are_refused_unless_the_set_does_not_matter() {
    for format in [2, 3, 1 << 32, u64::MAX] {
        assert_eq!(status(SPACE_EX, &[0, 0, format, 0], &STRICT), Status::INVALID_PARAMETER);
        assert_eq!(status(SPACE_EX, &[0, ALL_PROCESSORS, format, 0], &STRICT), Status::SUCCESS);
    }
}

#[test]
fn unknown_calls_read_nothing() {
    let memory = Memory::new(&[0; 8]);
    let registers = CallRegisters { control: 0x15, input: BASE, output: 0 };
    let mut page = InputPage::new();
    let call = decode(registers, &memory, &mut page, &STRICT);
    assert_eq!(call, Err(Reject::Failed(HvResult::of(Status::INVALID_HYPERCALL_CODE, 0))));
    assert_eq!(memory.reads.get(), 0);
}
