//! Every form of every flush hypercall: its control word and its input.
//!
//! [`tlfs::encode`] selects the best form; here the caller selects, including unusual ones.

use tlfs::{
    CallCode, Control, ExtendedGvaEntry, FlushFlags, GvaEntry, HvResult, PAGE_WORDS, Status, XMM_FAST_WORDS,
};

/// The words of a call's input.
pub type Words = [u64; PAGE_WORDS];

/// One of the four calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// HvCallFlushVirtualAddressSpace.
    Space,
    /// HvCallFlushVirtualAddressList.
    List,
    /// HvCallFlushVirtualAddressSpaceEx.
    SpaceEx,
    /// HvCallFlushVirtualAddressListEx.
    ListEx,
}

impl Kind {
    /// All four.
    pub const ALL: [Self; 4] = [Self::Space, Self::List, Self::SpaceEx, Self::ListEx];

    /// The call's code.
    pub const fn code(self) -> CallCode {
        match self {
            Self::Space => CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE,
            Self::List => CallCode::FLUSH_VIRTUAL_ADDRESS_LIST,
            Self::SpaceEx => CallCode::FLUSH_VIRTUAL_ADDRESS_SPACE_EX,
            Self::ListEx => CallCode::FLUSH_VIRTUAL_ADDRESS_LIST_EX,
        }
    }

    /// Whether it names addresses.
    pub const fn is_list(self) -> bool {
        matches!(self, Self::List | Self::ListEx)
    }

    /// Whether it names its targets by a VP set.
    pub const fn is_ex(self) -> bool {
        matches!(self, Self::SpaceEx | Self::ListEx)
    }

    /// Maximum number of list elements in a call of this kind, with `banks` banks of targets.
    pub const fn elements_max(self, via: Via, banks: usize) -> usize {
        let words = match via {
            Via::Memory => PAGE_WORDS,
            Via::Xmm => XMM_FAST_WORDS,
        };
        words - if self.is_ex() { 4 + banks } else { 3 }
    }
}

/// How the input is passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Via {
    /// By its address.
    Memory,
    /// In RDX, R8 and XMM0 to XMM5.
    Xmm,
}

/// The processors to flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets<'a> {
    /// The flag for all processors, with an empty mask or set.
    AllFlag,
    /// The set format for all processors, with ignored banks. A call with a mask has none.
    AllFormat(&'a [u64]),
    /// VP indices below 64.
    Mask(u64),
    /// A sparse set: the mask of valid banks, and the contents of each.
    Sparse(u64, &'a [u64]),
}

/// A flush in one form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush<'a> {
    /// The call.
    pub kind: Kind,
    /// How its input is passed.
    pub via: Via,
    /// The processors to flush.
    pub targets: Targets<'a>,
    /// The address space, as in CR3.
    pub space: u64,
    /// Flags in addition to those that the targets need.
    pub flags: FlushFlags,
    /// The list; ignored for a call without one.
    pub elements: &'a [u64],
}

/// The sparse set of one VP: the mask of its bank, and the bank.
pub const fn sparse_of(vp: u32) -> (u64, [u64; 1]) {
    (1 << (vp / 64 % 64), [1 << (vp % 64)])
}

impl Flush<'_> {
    /// Writes the input to the beginning of `words`; returns the control word and the number of
    /// words. `None` if it is too long, or a mask cannot name the targets.
    pub fn encode(&self, words: &mut Words) -> Option<(Control, usize)> {
        let list = if self.kind.is_list() { self.elements } else { &[] };
        let flags = self.flags.with_all_processors(self.targets == Targets::AllFlag);
        let shape = (self.kind.is_ex(), self.targets);
        let (set, banks): ([u64; 2], &[u64]) = match shape {
            (_, Targets::AllFlag) => ([0, 0], &[]),
            (false, Targets::Mask(mask)) => ([mask, 0], &[]),
            (false, Targets::AllFormat(_) | Targets::Sparse(..)) => return None,
            (true, Targets::Mask(ref mask)) => ([0, 1], core::slice::from_ref(mask)),
            (true, Targets::Sparse(valid, banks)) => ([0, valid], banks),
            (true, Targets::AllFormat(banks)) => ([1, (1 << banks.len()) - 1], banks),
        };
        let set_words = if self.kind.is_ex() { 2 } else { 1 };
        let parts: [&[u64]; 4] = [&[self.space, flags.into_bits()], &set[..set_words], banks, list];
        let count: usize = parts.iter().map(|part| part.len()).sum();
        let room = if self.via == Via::Xmm { XMM_FAST_WORDS } else { PAGE_WORDS };
        if count > room {
            return None;
        }
        let all = parts.into_iter().flatten();
        words.iter_mut().zip(all).for_each(|(place, word)| *place = *word);
        let control = Control::new()
            .with_call_code(self.kind.code().0)
            .with_fast(self.via == Via::Xmm)
            .with_variable_header_words(banks.len() as u16)
            .with_rep_count(list.len() as u16);
        Some((control, count))
    }

    /// The result of a successful call of this form.
    pub const fn success(&self) -> HvResult {
        HvResult::of(Status::SUCCESS, if self.kind.is_list() { self.elements.len() as u16 } else { 0 })
    }
}

/// The format in which a list element names pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element {
    /// 1 to 4096 pages of 4 KiB.
    Plain,
    /// The extended format: 1 to 2048 pages of 4 KiB.
    Extended4K,
    /// Pages of 2 MiB.
    Extended2M,
    /// Pages of 1 GiB.
    Extended1G,
}

impl Element {
    /// Binary logarithm of the size of the counted pages.
    pub const fn shift(self) -> u32 {
        match self {
            Self::Plain | Self::Extended4K => 12,
            Self::Extended2M => 21,
            Self::Extended1G => 30,
        }
    }

    /// The flag for a list of them.
    pub const fn flags(self) -> FlushFlags {
        FlushFlags::new().with_extended_ranges(!matches!(self, Self::Plain))
    }

    /// The element for the page that contains `address`, and `additional` pages after it: at most
    /// 4095, or 2047 in the extended format.
    pub const fn word(self, address: u64, additional: u16) -> u64 {
        let start = address >> self.shift() << self.shift();
        let extended = ExtendedGvaEntry::from_bits(start).with_additional_pages(additional & 0x7ff);
        match self {
            Self::Plain => GvaEntry::from_bits(start).with_additional_pages(additional & 0xfff).into_bits(),
            Self::Extended4K => extended.into_bits(),
            Self::Extended2M => extended.with_large(true).into_bits(),
            Self::Extended1G => extended.with_large(true).with_huge(true).into_bits(),
        }
    }
}

#[cfg(test)]
mod tests;
