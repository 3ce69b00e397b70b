//! Decoding of optional features: XMM registers, interrupts, large pages.

use crate::CallCode;
use std::cell::Cell;
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::{PAGE_WORDS, PageRange, XMM_WORDS};

const FULL: Profile = Profile::FULL;
const STRICT: Profile = Profile { empty_targets: EmptyTargets::Strict, ..FULL };

const FAST: u64 = 1 << 16;

/// The same words in memory and in registers.
struct Guest {
    words: Vec<u64>,
    xmm_reads: Cell<usize>,
}

impl Guest {
    fn new(words: &[u64]) -> Self {
        let mut words = words.to_vec();
        words.resize(PAGE_WORDS, 0);
        Self { words, xmm_reads: Cell::new(0) }
    }

    /// Decodes a call by memory or, if the control word says so, by registers.
    fn call<'p>(&self, control: u64, page: &'p mut InputPage, profile: &Profile) -> Result<Call<'p>, Reject> {
        let fast = Control::from_bits(control).fast();
        let (input, output) = if fast { (self.words[0], self.words[1]) } else { (0x1000, !0) };
        decode(CallRegisters { control, input, output }, self, page, profile)
    }
}

impl InputSource for Guest {
    fn read(&self, gpa: u64, into: &mut [u8]) -> Result<(), InputError> {
        assert_eq!(gpa, 0x1000, "a fast call reads no memory");
        into.copy_from_slice(&self.words.as_bytes()[..into.len()]);
        Ok(())
    }

    fn xmm_words(&self) -> [u64; XMM_WORDS] {
        self.xmm_reads.set(self.xmm_reads.get() + 1);
        self.words[FAST_WORDS..XMM_FAST_WORDS].try_into().unwrap()
    }
}

fn status(control: u64, words: &[u64], profile: &Profile) -> Status {
    match Guest::new(words).call(control, &mut InputPage::new(), profile) {
        Ok(_) => Status::SUCCESS,
        Err(Reject::Failed(result)) => result.status(),
        Err(other) => panic!("{other:?}"),
    }
}

fn banks(count: u64) -> u64 {
    count << 17
}

fn reps(count: u64) -> u64 {
    count << 32
}

#[test]
fn h15_xmm_registers_are_read_by_calls_that_need_them_alone() {
    let words = [0x20, 1, 1, 1, 0x5000];
    for (control, reads) in [
        (0x02, 0),
        (0x02 | FAST, 1),
        (0x03 | reps(1) | FAST, 1),
        (0x03 | reps(12) | FAST, 0),
        (0x02 | reps(1) | FAST, 0),
        (0x08 | FAST, 0),
        (0x0b | FAST, 0),
        (0x0b, 0),
    ] {
        let guest = Guest::new(&words);
        let _ = guest.call(control, &mut InputPage::new(), &FULL);
        assert_eq!(guest.xmm_reads.get(), reads, "{control:#x}");
    }
}

#[test]
fn h29_the_list_that_windows_sends() {
    // Fast, four elements, every flag: 4 KiB pages, two large pages, one of 1 GiB.
    let words = [0, 0xf, 0, 0x5001, 0xffff_8000_0020_0801, 0x4000_0000 | 0x1800, 0x7000];
    let guest = Guest::new(&words);
    let mut page = InputPage::new();
    let Ok(Call::Flush(flush)) = guest.call(3 | FAST | reps(4), &mut page, &FULL) else { panic!() };
    let FlushScope::List(list) = flush.scope else { panic!("{flush:?}") };
    let expected = [(0x5000, 2), (0xffff_8000_0020_0000, 1024), (0x4000_0000, 1 << 18), (0x7000, 1)];
    assert!(list.ranges().eq(expected.map(|(start, pages)| PageRange { start, pages })));
    assert_eq!(flush.targets, Targets::All);
    assert!(flush.flags.extended_ranges() && flush.flags.non_global_only());
}

#[test]
fn h22_the_extended_flag_changes_the_format_and_needs_its_offer() {
    let words = [0, 8, 1, 0x20_0804];
    let plain = Profile { extended_ranges: false, ..FULL };
    for control in [0x03 | reps(1), 0x02] {
        assert_eq!(status(control, &words, &plain), Status::INVALID_PARAMETER);
        assert_eq!(status(control, &words, &FULL), Status::SUCCESS);
    }
    for (flags, pages) in [(8, 5 * 512), (0, 0x805)] {
        let guest = Guest::new(&[0, flags, 1, 0x20_0804]);
        let mut page = InputPage::new();
        let Ok(Call::Flush(flush)) = guest.call(0x03 | reps(1), &mut page, &FULL) else { panic!() };
        let FlushScope::List(list) = flush.scope else { panic!("{flush:?}") };
        assert!(list.ranges().eq([PageRange { start: 0x20_0000, pages }]));
        assert_eq!(list.is_extended(), flags == 8);
    }
}

#[test]
fn h24_h25_a_list_goes_on_where_it_stopped() {
    let mut words = vec![0, 0, 1];
    words.extend((0..100u64).map(|index| index << 12));
    words[3 + 41] = 1 << 63; // not canonical: named by index all the same
    let guest = Guest::new(&words);
    let mut registers = CallRegisters { control: 3 | reps(100), input: 0x1000, output: 0 };
    let (mut flushed, mut invocations) = (vec![], 0);
    let result = 'call: loop {
        invocations += 1;
        let mut page = InputPage::new();
        let Ok(Call::Flush(flush)) = decode(registers, &guest, &mut page, &STRICT) else { panic!() };
        let FlushScope::List(list) = flush.scope else { panic!("{flush:?}") };
        for (done, (index, range)) in list.elements().enumerate() {
            if done == 7 {
                assert_eq!(flush.completed_to(index).into_bits(), u64::from(index) << 32, "from element 0");
                registers = registers.resumed_at(index);
                continue 'call;
            }
            flushed.extend(range.map(|range| range.start >> 12));
        }
        break flush.completed();
    };
    assert_eq!(result, HvResult::of(Status::SUCCESS, 100));
    assert_eq!(invocations, 15);
    assert!(flushed.iter().copied().eq((0..100).filter(|index| *index != 41)), "each once, in order");
}

#[test]
fn h3_no_result_has_more_elements_than_there_are() {
    let guest = Guest::new(&[0, 0, 1]);
    let mut page = InputPage::new();
    let Ok(Call::Flush(flush)) = guest.call(3 | reps(9), &mut page, &STRICT) else { panic!() };
    for (done, complete) in [(1, 1), (8, 8), (9, 9), (10, 9), (u16::MAX, 9)] {
        assert_eq!(flush.completed_to(done), HvResult::of(Status::SUCCESS, complete));
    }
}

/// Vector and members of an interrupt; `None` for all members.
fn ipi(control: u64, words: &[u64]) -> (u8, Option<Vec<u32>>) {
    let mut page = InputPage::new();
    let call = Guest::new(words).call(control, &mut page, &FULL);
    let Ok(Call::ClusterIpi(ClusterIpi { vector, targets })) = call else { panic!("{call:?}") };
    assert_eq!(call.map(|call| call.completed()), Ok(HvResult::of(Status::SUCCESS, 0)));
    match targets {
        Targets::All => (vector, None),
        Targets::Set(set) => (vector, Some(set.iter().collect())),
    }
}

#[test]
fn h26_vectors_and_trust_levels() {
    for vector in (0u64..0x300).chain([1 << 16, 1 << 31, 0xffff_ff20]) {
        let expected =
            if (0x10..=0xff).contains(&vector) { Status::SUCCESS } else { Status::INVALID_PARAMETER };
        for (control, words) in [(0x0b, vec![vector, 1]), (0x15 | banks(1), vec![vector, 0, 1, 1])] {
            for fast in [0, FAST] {
                assert_eq!(status(control | fast, &words, &STRICT), expected, "{vector:#x}");
            }
        }
    }
    for level in 1..=0xff {
        assert_eq!(status(0x0b, &[level << 32 | 0x20, 1], &FULL), Status::INVALID_PARAMETER, "{level:#x}");
    }
    assert_eq!(ipi(0x0b, &[0xffff_ff00_0000_00e1, 1]), (0xe1, Some(vec![0])), "padding says nothing");
}

#[test]
fn h8_an_interrupt_to_nobody_is_never_one_to_everyone() {
    assert_eq!(ipi(0x0b, &[0x20, 0]).1, Some(vec![]));
    assert_eq!(ipi(0x15, &[0x20, 0, 0]).1, Some(vec![]));
    assert_eq!(status(0x0b, &[0x20, 0], &STRICT), Status::INVALID_PARAMETER);
    assert_eq!(status(0x15, &[0x20, 0, 0], &STRICT), Status::INVALID_PARAMETER);
}

proptest! {
    #[test]
    fn h16_registers_and_memory_say_the_same(
        code in prop::sample::select([0x02u64, 0x03, 0x0b, 0x13, 0x14, 0x15, 0x08].as_slice()),
        header in 0u64..4,
        count in 0u64..12,
        start in 0u64..4,
        words in prop::collection::vec(prop_oneof![0u64..4, 0x10u64..0x100, any::<u64>()], XMM_FAST_WORDS),
        strict in any::<bool>(),
    ) {
        let control = code | banks(header) | reps(count) | start << 48;
        let profile = if strict { STRICT } else { FULL };
        let guest = Guest::new(&words);
        let (mut slow_page, mut fast_page) = (InputPage::new(), InputPage::new());
        let slow = guest.call(control, &mut slow_page, &profile);
        let fast = guest.call(control | FAST, &mut fast_page, &profile);
        let shape = CallCode(code as u16).shape().unwrap();
        if Control::from_bits(control).input_words(shape) <= XMM_FAST_WORDS {
            prop_assert_eq!(slow, fast);
        } else {
            prop_assert!(fast.is_err());
        }
    }
}

/// N18: its ranges are not looked at, so that none is left out.
#[test]
fn n18_a_flush_of_nested_tables_names_their_root() {
    let root = 0x1234_5000;
    let list = [root, 0, 0x5001, !0];
    let calls = [(0xaf, 0), (0xaf | FAST, 0), (0xb0 | reps(2), 2), (0xb0 | reps(2) | 1 << 48, 2)];
    for (control, rep_count) in calls {
        let (guest, mut page) = (Guest::new(&list), InputPage::new());
        let call = guest.call(control, &mut page, &Profile::NESTED).unwrap();
        assert_eq!(call, Call::GuestPhysical { address_space: root, rep_count });
        assert_eq!(call.completed(), HvResult::of(Status::SUCCESS, rep_count));
        assert_eq!(status(control, &list, &FULL), Status::INVALID_HYPERCALL_CODE, "it is not offered");
        assert_eq!(status(control, &[root, 1], &Profile::NESTED), Status::INVALID_HYPERCALL_INPUT);
    }
}
