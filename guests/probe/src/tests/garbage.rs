//! Hypercalls with all kinds of nonsense: each ends in a status or a fault that is documented for
//! it, and changes nothing but what is documented to change.

use tlfs::{Profile, XMM_WORDS};

use super::hypercalls::space;
use super::prelude::*;
use crate::hypercall::{
    R8, R10, R11, RAX, RCX, RDX, Registers, announced, call_with_registers, expect_success, input_page,
    load_xmm,
};
use crate::interrupts::VECTOR_SPURIOUS;
use crate::report;

/// The hypercalls offered.
const PROFILE: Profile = Profile::FULL;

static COUNT: AtomicU32 = AtomicU32::new(20_000);

/// Has so many calls of each kind made.
pub(super) fn set_count(count: u32) {
    COUNT.store(count, Ordering::Relaxed);
}

/// The output address of calls; there is no output.
static OUTPUT: Page = Page::new();
static EXPECTED: Page = Page::new();
/// The contents of the output page, and of registers that a call does not use.
const PATTERN: u64 = 0x5afe_c0de_0bad_f00d;
/// Number of calls after which the pages are compared. A change persists until then.
const COMPARE_PERIOD: u32 = 256;

/// Maximum number of words of an input: those of a page, and a few that do not fit into it.
const WORDS_MAX: usize = 520;

struct Attempt {
    control: Control,
    input: u64,
    output: u64,
    /// Index of the first word that was written in the input page.
    first: usize,
    words: usize,
    /// The contents of XMM0 to XMM5.
    xmm: [u64; XMM_WORDS],
}

pub(super) fn garbage() -> Verdict {
    enable()?;
    ensure!(announced() == PROFILE, "{:?} is offered instead of everything", announced());
    for word in OUTPUT.words() {
        word.store(PATTERN, Ordering::Relaxed);
    }
    many("random", random)?;
    many("structured", structured)?;
    // Some calls have sent interrupts: they are taken here, and not in the next test.
    interrupts::enable();
    x86_64::instructions::nop();
    interrupts::disable();
    expect_success("space", call_with(space(), &[0, 2, 1]), 0)
}

fn many(kind: &str, make: fn(&mut Random, &mut [u64; WORDS_MAX]) -> Attempt) -> Verdict {
    let count = COUNT.load(Ordering::Relaxed);
    let mut random = Random::new(0x5eed);
    let mut words = [0; WORDS_MAX];
    let (mut succeeded, mut faulted, mut longest) = (0u32, 0u32, 0u64);
    for (slot, word) in EXPECTED.words().iter().zip(input_page().words()) {
        slot.store(word.load(Ordering::Relaxed), Ordering::Relaxed);
    }
    for number in 1..=count {
        let mut attempt = make(&mut random, &mut words);
        attempt.spare_exceptions(&words);
        load_xmm(&attempt.xmm);
        for page in [input_page(), &EXPECTED] {
            page.write_at(attempt.first, &words[..attempt.words]);
        }
        let begin = clock::now();
        let result = attempt.make(number)?;
        longest = longest.max(clock::now().wrapping_sub(begin));
        match result {
            Ok(result) => succeeded += u32::from(result.status() == Status::SUCCESS),
            Err(_) => faulted += 1,
        }
        if number.is_multiple_of(COMPARE_PERIOD) || number == count {
            compare(number)?;
        }
    }
    report::say(format_args!(
        "{kind}: {count} calls, {succeeded} successful, {faulted} faults, the longest of {} us",
        longest / clock::ticks(1).max(1)
    ));
    let enough = kind == "random" || succeeded > count / 100;
    ensure!(enough, "only {succeeded} {kind} calls went through: the garbage is too bad");
    Ok(())
}

/// Checks that no call has written to its input and output pages.
fn compare(number: u32) -> Verdict {
    let same = input_page().words().iter().zip(EXPECTED.words());
    let input = same.into_iter().all(|(is, was)| is.load(Ordering::Relaxed) == was.load(Ordering::Relaxed));
    ensure!(input, "the input page is changed after call {number}");
    let output = OUTPUT.words().iter().all(|word| word.load(Ordering::Relaxed) == PATTERN);
    ensure!(output, "the output page is changed after call {number}");
    Ok(())
}

impl Attempt {
    /// Makes the call, and checks all of its effects.
    fn make(&self, number: u32) -> Result<Result<HvResult, Fault>, report::Failure> {
        let mut before: Registers = core::array::from_fn(|index| PATTERN ^ index as u64);
        before[RCX] = self.control.into_bits();
        before[RDX] = self.input;
        before[R8] = self.output;
        let mut after = before;
        let outcome = call_with_registers(&mut after);

        // Documented to change: RAX, and the rep start index of a continued call.
        const REP_START: u64 = 0xfff << 48;
        let faulted = outcome.is_err();
        for (index, (before, after)) in before.iter().zip(after).enumerate() {
            let changed = match index {
                RAX if !faulted => 0,
                R11 => 0,
                R10 if faulted => 0,
                RCX => (before ^ after) & !REP_START,
                _ => before ^ after,
            };
            let word = self.control.into_bits();
            ensure!(changed == 0, "call {number}, {word:#x}: R{index} is {after:#x}, not {before:#x}");
        }
        let result = outcome.map(|()| HvResult::from_bits(after[RAX]));
        let (word, at) = (self.control.into_bits(), self.input);
        ensure!(self.may_end_with(result), "call {number}, {word:#x} at {at:#x}: {result:?}");
        Ok(result)
    }

    /// Whether the result is documented for such a call.
    fn may_end_with(&self, result: Result<HvResult, Fault>) -> bool {
        let Self { control, .. } = *self;
        // Calls that are not offered are as unknown as calls that do not exist.
        let known = PROFILE.shape(control.code());
        let result = match result {
            Ok(result) => result,
            Err(Fault::PROTECTION) => return known.is_some() && !control.fast(),
            Err(_) => return false,
        };
        let reps = result.reps_complete();
        let no_more = HvResult::of(result.status(), reps) == result;
        no_more
            && match (result.status(), known) {
                (Status::INVALID_HYPERCALL_CODE, None) => reps == 0,
                (_, None) | (Status::INVALID_HYPERCALL_CODE, _) => false,
                (Status::SUCCESS, Some(shape)) => reps == if shape.rep { control.rep_count() } else { 0 },
                (
                    Status::INVALID_HYPERCALL_INPUT | Status::INVALID_ALIGNMENT | Status::INVALID_PARAMETER,
                    _,
                ) => reps == 0 || reps == control.rep_start(),
                _ => false,
            }
    }
}

/// Random values, except that half of the codes are small.
fn random(random: &mut Random, words: &mut [u64; WORDS_MAX]) -> Attempt {
    let mut word = random.word();
    if random.one_in(2) {
        word &= !0xffe0;
    }
    for word in &mut words[..8] {
        *word = random.word();
    }
    Attempt {
        control: Control::from_bits(word & random.word()),
        input: random.word() >> random.below(64),
        output: random.word() >> random.below(64),
        first: random.below(PAGE / 8) as usize,
        words: 8,
        xmm: core::array::from_fn(|_| random.word()),
    }
}

/// A valid call, with up to three errors.
fn structured(random: &mut Random, words: &mut [u64; WORDS_MAX]) -> Attempt {
    let code = CallCode::ALL[random.below(CallCode::ALL.len() as u64) as usize];
    let mut control = Control::new().with_call_code(code.0);
    let used = match code {
        CallCode::NOTIFY_LONG_SPIN_WAIT => {
            words[0] = random.word();
            1
        }
        CallCode::SEND_SYNTHETIC_CLUSTER_IPI => {
            words[..2].copy_from_slice(&[vector(random), random.word()]);
            2
        }
        CallCode::SEND_SYNTHETIC_CLUSTER_IPI_EX => {
            words[..4].copy_from_slice(&[vector(random), random.one_of([0, 1]), 1, random.word()]);
            control = control.with_variable_header_words(1);
            4
        }
        _ => flush(random, code, &mut control, words),
    };
    // At the page's end in half of the cases.
    let room = (PAGE as usize / 8).saturating_sub(used);
    let first = if random.one_in(2) { room } else { random.below(room as u64 + 1) as usize };
    // In registers as far as they suffice, which is too short for some.
    let fast = random.one_in(4);
    control = control.with_fast(fast);
    let mut xmm = [0; XMM_WORDS];
    xmm.copy_from_slice(&words[2..2 + XMM_WORDS]);
    let page = input_page().address();
    let mut attempt = Attempt {
        control,
        input: if fast { words[0] } else { page + 8 * first as u64 },
        output: if fast { words[1] } else { OUTPUT.address() },
        first,
        words: used,
        xmm,
    };
    for _ in 0..random.below(4) {
        attempt.spoil(random, words);
    }
    attempt
}

fn vector(random: &mut Random) -> u64 {
    0x40 + random.below(0xbf)
}

/// The valid input of a flush; returns its length in words.
fn flush(random: &mut Random, code: CallCode, control: &mut Control, words: &mut [u64; WORDS_MAX]) -> usize {
    let extended =
        matches!(code, CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX | CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX);
    let list = matches!(code, CallCode::FLUSH_VIRTUAL_ADDRESS_LIST | CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX);
    words[0] = random.word();
    words[1] = random.below(16);
    let mut used = 3;
    if extended {
        // A sparse set: the contents of the valid banks, one after the other.
        let banks = random.word() & random.word() & random.one_of([0, 1, 0xff, u64::MAX]);
        words[2] = random.one_of([0, 0, 0, 1]);
        words[3] = banks;
        used = 4 + banks.count_ones() as usize;
        for word in &mut words[4..used] {
            *word = random.word() & random.word();
        }
        *control = control.with_variable_header_words(banks.count_ones() as u16);
    } else {
        words[2] = random.one_of([1, 2, 3, u64::MAX]);
    }
    if list {
        let most = PAGE / 8 - used as u64;
        let wild = random.below(most) + 1;
        let reps = random.one_of([1, 2, 3, most, wild]);
        let start = if random.one_in(4) { random.below(reps) } else { 0 };
        *control = control.with_rep_count(reps as u16).with_rep_start(start as u16);
        for word in &mut words[used..used + reps as usize] {
            *word = range(random);
        }
        used += reps as usize;
    }
    used
}

/// A range of addresses: anywhere, or at one of the edges of canonical addresses.
fn range(random: &mut Random) -> u64 {
    const EDGES: [u64; 6] =
        [0, 0x7fff_ffff_f000, 0x8000_0000_0000, 0xffff_7fff_ffff_f000, 0xffff_8000_0000_0000, !0xfff];
    let wild = random.word();
    if random.one_in(2) {
        return wild;
    }
    let pages = random.below(9).wrapping_sub(4).wrapping_mul(PAGE);
    random.one_of(EDGES).wrapping_add(pages) | random.one_of([0, 1, 0xfff, wild & 0xfff])
}

impl Attempt {
    /// Replaces a call that would send an interrupt on a vector with a special handler: an
    /// exception, or a spurious interrupt, which must not be ended.
    fn spare_exceptions(&mut self, words: &[u64; WORDS_MAX]) {
        const IPI: [CallCode; 2] =
            [CallCode::SEND_SYNTHETIC_CLUSTER_IPI, CallCode::SEND_SYNTHETIC_CLUSTER_IPI_EX];
        if !IPI.contains(&self.control.code()) {
            return;
        }
        let offset = self.input.wrapping_sub(input_page().address());
        let sent = if self.control.fast() {
            Some(self.input)
        } else if offset < PAGE && offset.is_multiple_of(8) {
            let index = (offset / 8) as usize;
            let written = index.checked_sub(self.first).filter(|&at| at < self.words).map(|at| words[at]);
            Some(written.unwrap_or_else(|| input_page().words()[index].load(Ordering::Relaxed)))
        } else {
            None
        };
        // Bits above the vector are refused, or are padding.
        let vector = sent.map(|sent| sent as u8);
        if vector.is_some_and(|vector| (0x10..0x20).contains(&vector) || vector == VECTOR_SPURIOUS) {
            self.control = self.control.with_call_code(CallCode::NOTIFY_LONG_SPIN_WAIT.0);
        }
    }

    fn spoil(&mut self, random: &mut Random, words: &mut [u64; WORDS_MAX]) {
        let wild = random.word();
        let control = self.control;
        match random.below(8) {
            0 => self.control = Control::from_bits(control.into_bits() ^ 1 << (wild % 64)),
            1 => {
                self.control =
                    control.with_rep_count(random.one_of([0, 1, 509, 510, 4095, wild & 0xfff]) as u16)
            }
            2 => self.control = control.with_rep_start(random.one_of([0, 1, 508, 4095, wild & 0xfff]) as u16),
            3 => {
                let headers = random.one_of([0, 1, 63, 64, 65, wild & 0x3ff]);
                self.control = control.with_variable_header_words(headers as u16);
            }
            4 => words[random.below(4) as usize] = random.one_of([0, 1, 2, 1 << 63, wild, 1 << (wild % 64)]),
            5 => self.input = self.input.wrapping_add(random.one_of([1, 4, 8, 16, 4088, 4096, wild & 0xfff])),
            // Near the end of a memory of 64 MiB, in the devices' space, beyond all.
            6 => {
                let top = 64 << 20;
                let memory = [top - 8, top - 32, top, 0xd000_0000, 0xfec0_0000];
                let beyond = [(1 << 40) - 8, 1 << 52, u64::MAX - 7, wild & 0xffff_fff8, wild];
                let edges = if random.one_in(2) { memory } else { beyond };
                self.input = random.one_of(edges);
            }
            _ => self.output = random.one_of([0, 4, PAGE - 8, wild]).wrapping_add(self.output),
        }
    }
}
