//! Flush calls.

use super::ranges::{Elements, Format};
use super::targets::TargetForm;
use super::{EncodedCall, Interface, VaRange, Writer};
use crate::{CallCode, Control, FlushFlags, PAGE_WORDS, PageSize, Targets, XMM_FAST_WORDS};

/// The processors to flush, and the translations to flush there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushRequest<'a> {
    /// The processors whose TLBs to flush. A set without members makes no call at all.
    pub targets: Targets<'a>,
    /// The address space, as in CR3; `None` for all address spaces.
    pub address_space: Option<u64>,
    /// Global mappings need not be flushed.
    pub non_global_only: bool,
}

/// The longest list for which naming addresses is worthwhile. A longer list is flushed as a whole:
/// the hypervisor's work grows with the pages, the number of calls with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimit {
    /// Total number of pages, in the page size that the list uses.
    pub pages: u64,
    /// Total number of list elements.
    pub elements: u64,
}

impl Default for ListLimit {
    /// As many elements as one call by memory with a 64-bit mask holds, whatever their length.
    fn default() -> Self {
        Self { pages: u64::MAX, elements: (PAGE_WORDS - MASK_HEADER_WORDS) as u64 }
    }
}

/// Address space, flags, mask.
const MASK_HEADER_WORDS: usize = 3;
/// Address space, flags, format, bank mask.
const SET_HEADER_WORDS: usize = 4;

/// The calls that make up a flush, one after the other.
#[derive(Clone, Debug)]
pub struct FlushCalls<'a, R> {
    /// `None` if there are no targets.
    targets: Option<TargetForm<'a>>,
    address_space: u64,
    flags: FlushFlags,
    xmm_input: bool,
    rest: Rest<R>,
}

/// The part that is not in a call yet.
#[derive(Clone, Debug)]
enum Rest<R> {
    Nothing,
    Everything,
    List(Elements<R>),
}

impl<'a> FlushCalls<'a, core::iter::Empty<VaRange>> {
    /// Flushes one address space completely, or all of them.
    pub fn space(request: FlushRequest<'a>, interface: Interface) -> Self {
        Self::new(request, interface, Rest::Everything)
    }
}

impl<'a, R: Iterator<Item = VaRange> + Clone> FlushCalls<'a, R> {
    /// Flushes the pages of `ranges`, or everything if the list would exceed `limit`. Ranges
    /// without an address make no call. `ranges` is iterated twice; the first time only up to the
    /// limit.
    ///
    /// Elements have the extended format if a range is mapped with large pages and `interface`
    /// offers it.
    pub fn list(request: FlushRequest<'a>, interface: Interface, ranges: R, limit: ListLimit) -> Self {
        let is_large = |range: VaRange| range.page_size != PageSize::Small;
        // No need to look at more ranges than the limit has elements: more of them are flushed as a
        // whole.
        let looked_at = usize::try_from(limit.elements).unwrap_or(usize::MAX);
        let extended = interface.extended_ranges && ranges.clone().take(looked_at).any(is_large);
        let format = if extended { Format::Extended } else { Format::Plain };
        let (mut pages, mut elements) = (0u64, 0u64);
        for range in ranges.clone() {
            let cost = format.cost(&range);
            pages = pages.saturating_add(cost.0);
            elements = elements.saturating_add(cost.1);
            if pages > limit.pages || elements > limit.elements {
                return Self::new(request, interface, Rest::Everything);
            }
        }
        let mut calls = Self::new(request, interface, Rest::List(Elements::new(ranges, format)));
        calls.flags.set_extended_ranges(extended);
        calls
    }

    fn new(request: FlushRequest<'a>, interface: Interface, rest: Rest<R>) -> Self {
        let targets = TargetForm::of(request.targets).map(|form| form.widened(interface));
        let flags = FlushFlags::new()
            .with_all_processors(matches!(targets, Some(TargetForm::All)))
            .with_all_address_spaces(request.address_space.is_none())
            .with_non_global_only(request.non_global_only);
        let address_space = request.address_space.unwrap_or_default();
        Self { targets, address_space, flags, xmm_input: interface.xmm_input, rest }
    }

    /// Writes the next call's input into `page` and returns how to make the call; `None` once
    /// nothing is left to flush. This overwrites the page, so the previous call must have
    /// completed.
    ///
    /// A call to all processors uses a mask: every hypervisor has that form, and it leaves the most
    /// room. Input that fits into registers is passed there if the interface offers it.
    pub fn next_into(&mut self, page: &mut [u64; PAGE_WORDS]) -> Option<EncodedCall> {
        let targets = self.targets?;
        let mut writer = Writer::new(page);
        self.write_header(&targets, &mut writer);
        let (plain, ex) = match &mut self.rest {
            Rest::Nothing => return None,
            Rest::Everything => {
                self.rest = Rest::Nothing;
                (CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE, CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX)
            }
            Rest::List(elements) => {
                // Taking one element too many would lose it.
                let room = writer.room();
                elements.by_ref().take(room).for_each(|element| writer.push(element));
                (CallCode::FLUSH_VIRTUAL_ADDRESS_LIST, CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX)
            }
        };
        let (code, header_words) = match targets {
            TargetForm::All | TargetForm::Mask(_) => (plain, MASK_HEADER_WORDS),
            TargetForm::Banks { .. } => (ex, SET_HEADER_WORDS + usize::from(targets.bank_count())),
        };
        let count = writer.count;
        let reps = count - header_words;
        if reps == 0 && matches!(self.rest, Rest::List(_)) {
            self.rest = Rest::Nothing;
            return None;
        }
        let control = Control::new()
            .with_call_code(code.0)
            .with_fast(self.xmm_input && count <= XMM_FAST_WORDS)
            .with_variable_header_words(targets.bank_count())
            .with_rep_count(reps as u16);
        Some(EncodedCall::new(control, count))
    }

    fn write_header(&self, targets: &TargetForm<'_>, writer: &mut Writer<'_>) {
        writer.push(self.address_space);
        writer.push(self.flags.into_bits());
        match targets {
            TargetForm::All => writer.push(0),
            TargetForm::Mask(mask) => writer.push(*mask),
            TargetForm::Banks { .. } => targets.write_set(writer),
        }
    }
}
