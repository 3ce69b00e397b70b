//! Every form of every flush hypercall, for one page.

use super::prelude::*;
use tlbcheck::form::{Element, Flush, Kind, Targets, Via};
use tlfs::{FlushFlags, PAGE_WORDS};

/// One form.
#[derive(Clone, Copy, Debug)]
pub(super) struct Form {
    kind: Kind,
    via: Via,
    /// All processors instead of the named ones.
    all: bool,
    element: Element,
}

impl Form {
    pub(super) fn all() -> impl Iterator<Item = Self> + Clone {
        use Element::{Extended1G, Extended2M, Extended4K, Plain};
        let elements = |kind: Kind| match kind.is_list() {
            true => &[Plain, Extended4K, Extended2M, Extended1G][..],
            false => &[Plain],
        };
        let kinds = Kind::ALL.into_iter();
        let kinds = kinds.flat_map(move |kind| elements(kind).iter().map(move |element| (kind, *element)));
        let ways = [(Via::Memory, false), (Via::Memory, true), (Via::Xmm, false), (Via::Xmm, true)];
        kinds.flat_map(move |(kind, element)| ways.map(|(via, all)| Self { kind, via, all, element }))
    }

    /// One of each call: in memory, for named processors, with plain elements.
    pub(super) fn usual() -> impl Iterator<Item = Self> {
        let is_usual = |it: &Self| (it.via, it.all, it.element) == (Via::Memory, false, Element::Plain);
        Self::all().filter(is_usual)
    }

    pub(super) const fn is_list(&self) -> bool {
        self.kind.is_list()
    }

    /// Flushes the page at `address` of the current space, or more, on the processors of `mask`.
    pub(super) fn flush(&self, mask: u64, address: u64) -> Result<HvResult, Fault> {
        self.flush_with(mask, [address, paging::space(), 0])
    }

    /// The same for an address, an address space, and with flags.
    pub(super) fn flush_with(&self, mask: u64, of: [u64; 3]) -> Result<HvResult, Fault> {
        let [address, space, flags] = of;
        let Self { kind, via, all, element } = *self;
        let targets = if all { Targets::AllFlag } else { Targets::Mask(mask) };
        let flags = FlushFlags::from_bits(flags | element.flags().into_bits());
        let elements = &[element.word(address, 0)];
        let mut words = [0; PAGE_WORDS];
        let flush = Flush { kind, via, targets, space, flags, elements };
        let (control, used) = flush.encode(&mut words).expect("a few words fit");
        match via {
            Via::Xmm => call_fast(control, &words[..used]),
            Via::Memory => call_with(control, &words[..used]),
        }
    }

    /// The result of a successful call of this form.
    pub(super) const fn success(&self) -> HvResult {
        HvResult::of(Status::SUCCESS, if self.is_list() { 1 } else { 0 })
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
