//! Every form of every flush hypercall, for one page.

use super::prelude::*;

/// The flag that names all processors, regardless of any other names.
const ALL_PROCESSORS: u64 = 1;
/// The flag that gives list elements the extended format.
const EXTENDED: u64 = 1 << 3;
/// The bits of such an element for pages of 2 MiB, and of 1 GiB.
const LARGE: u64 = 1 << 11;
const HUGE: u64 = 1 << 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Element {
    Plain,
    Extended4K,
    Extended2M,
    Extended1G,
}

impl Element {
    const ALL: [Self; 4] = [Self::Plain, Self::Extended4K, Self::Extended2M, Self::Extended1G];

    /// The element for the page at `address`, and the flag for its format.
    const fn word(self, address: u64) -> (u64, u64) {
        match self {
            Self::Plain => (address & !0xfff, 0),
            Self::Extended4K => (address & !0xfff, EXTENDED),
            Self::Extended2M => (address & !0x1f_ffff | LARGE, EXTENDED),
            Self::Extended1G => (address & !0x3fff_ffff | LARGE | HUGE, EXTENDED),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    code: CallCode,
    fast: bool,
    /// All processors instead of the named ones.
    all: bool,
    /// `None` for calls without a list.
    element: Option<Element>,
}

/// Maximum number of words of a form's input.
const WORDS: usize = 6;

impl Form {
    pub(super) fn all() -> impl Iterator<Item = Self> + Clone {
        let spaces = [CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE, CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX];
        let lists = [CallCode::FLUSH_VIRTUAL_ADDRESS_LIST, CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX];
        let lists = lists.into_iter().flat_map(|code| Element::ALL.map(|element| (code, Some(element))));
        let kinds = spaces.into_iter().map(|code| (code, None)).chain(lists);
        kinds.flat_map(|(code, element)| {
            [(false, false), (false, true), (true, false), (true, true)].map(|(fast, all)| Self {
                code,
                fast,
                all,
                element,
            })
        })
    }

    /// Whether processors are a VP set rather than a mask.
    fn is_ex(&self) -> bool {
        let ex = [CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX, CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX];
        ex.contains(&self.code)
    }

    /// One of each call: in memory, for named processors, with plain elements.
    pub(super) fn usual() -> impl Iterator<Item = Self> {
        Self::all()
            .filter(|form| !form.fast && !form.all && matches!(form.element, None | Some(Element::Plain)))
    }

    pub(super) const fn is_list(&self) -> bool {
        self.element.is_some()
    }

    /// Flushes the page at `address` of the current address space, or more, on the processors of
    /// `mask`.
    pub(super) fn flush(&self, mask: u64, address: u64) -> Result<HvResult, Fault> {
        self.flush_with(mask, address, paging::space(), 0)
    }

    /// The same for the address space `space`, with flags.
    pub(super) fn flush_with(
        &self,
        mask: u64,
        address: u64,
        space: u64,
        flags: u64,
    ) -> Result<HvResult, Fault> {
        let (element, format) = self.element.map_or((0, 0), |element| element.word(address));
        let flags = flags | format | if self.all { ALL_PROCESSORS } else { 0 };
        let mask = if self.all { 0 } else { mask };
        let mut control = Control::new().with_call_code(self.code.0).with_fast(self.fast);
        let mut words = [0; WORDS];
        words[..2].copy_from_slice(&[space, flags]);
        let mut used = 3;
        if self.is_ex() {
            words[2..5].copy_from_slice(&[0, 1, mask]);
            used = 5;
            control = control.with_variable_header_words(1);
        } else {
            words[2] = mask;
        }
        if self.element.is_some() {
            words[used] = element;
            used += 1;
            control = control.with_rep_count(1);
        }
        match self.fast {
            true => call_fast(control, &words[..used]),
            false => call_with(control, &words[..used]),
        }
    }

    /// The result of a successful call of this form.
    pub(super) const fn success(&self) -> HvResult {
        HvResult::of(Status::SUCCESS, if self.element.is_some() { 1 } else { 0 })
    }
}

const COMPARED: u32 = 3000;
const FAST_WORDS: usize = 14;

/// The same input in memory and in registers has the same result.
pub(super) fn fast_and_slow() -> Verdict {
    let mut random = Random::new(0xfa57);
    let mut succeeded = 0;
    for number in 0..COMPARED {
        let code = random.one_of([2, 3, 0x13, 0x14, 2, 3, 0x13, 0x14, 8, 0xb, 0x15]);
        let is_interrupt = matches!(code, 0xb | 0x15);
        let reps = if random.one_in(8) { 1 } else { u64::from(matches!(code, 3 | 0x14)) * random.below(7) };
        let start = if random.one_in(4) { random.below(4) } else { 0 };
        let banks = if matches!(code, 0x13..=0x15) { random.below(4) } else { random.below(16) / 15 };
        let control = Control::new()
            .with_call_code(code as u16)
            .with_variable_header_words(banks as u16)
            .with_rep_count(reps as u16)
            .with_rep_start(start as u16);
        let mut words = [0; FAST_WORDS];
        for word in &mut words {
            *word = random.word() & random.word();
        }
        // Nearly valid, otherwise the calls would all fail. Interrupts have no destination.
        words[0] = if is_interrupt { random.one_of([0x40, 0xf, 0x100, 0x1_0000_0040]) } else { words[0] };
        words[1] = if is_interrupt { 0 } else { random.below(20) };
        if code >= 0x13 {
            let format = random.one_of([0, 0, 0, 1, 2]);
            let set = [if is_interrupt { 0 } else { format }, random.one_of([0, 1, 3, 7])];
            let place = if is_interrupt { 1 } else { 2 };
            words[place..place + 2].copy_from_slice(&set);
            if is_interrupt {
                words[3..].fill(0);
            }
        }
        let slow = call_with(control, &words);
        let fast = call_fast(control.with_fast(true), &words);
        let word = control.into_bits();
        ensure!(slow == fast, "call {number}, {word:#x}: {slow:?} by memory, {fast:?} by registers");
        succeeded += u32::from(matches!(slow, Ok(result) if result.status() == Status::SUCCESS));
    }
    ensure!(succeeded > COMPARED / 10, "only {succeeded} of {COMPARED} calls went through");
    Ok(())
}
