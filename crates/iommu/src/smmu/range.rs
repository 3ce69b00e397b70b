//! The commands for what a change has made stale.
//!
//! A range command covers `(NUM + 1) << SCALE` granules from any granule on (IHI 0070, 4.4.1.1). So
//! a length is taken apart from its lowest bit: each command takes five of its binary digits. What
//! is left then begins and ends at a multiple of ever larger units, so a range of blocks stays
//! aligned to blocks in every piece. 48 bits of address take 8 commands at most.

use coherence::tlbi::{Granule, LeafLevel, Stale};

use super::command::{Asid, Depth, SCALE_MAX, Span, UNITS_MAX, tlbi_nh_asid, tlbi_nh_va};
use super::features::Features;
use crate::Command;

/// Properties that do not change while an SMMU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    /// Granule of the tables. Range commands drop only what was read from tables with this granule.
    pub granule: Granule,
    /// The SMMU has range commands and level hints: IDR3.RIL.
    pub has_ranges: bool,
    /// The number of commands up to which invalidating by address is worthwhile, compared with the
    /// loss of everything of the ASID. To be measured.
    pub commands_max: u32,
}

impl Setup {
    /// With range commands if the SMMU has them.
    pub const fn new(features: &Features, granule: Granule, commands_max: u32) -> Self {
        Self { granule, has_ranges: features.has_ranges, commands_max }
    }
}

/// Chooses the commands: by range if the SMMU can, else one per leaf; everything of the ASID beyond
/// the limit, and where addresses are beyond what tables can map. The tables set nG: dropping the
/// whole ASID leaves global translations where they are. A sync must follow.
///
/// The number of steps is bounded by the number of ranges and the limit.
pub fn plan<I>(setup: &Setup, asid: Asid, stale: I) -> Commands<I::IntoIter>
where
    I: IntoIterator<Item = Stale>,
    I::IntoIter: Clone,
{
    let stale = stale.into_iter();
    let rest = if is_within(setup, stale.clone()) { Rest::Each(stale) } else { Rest::Whole };
    Commands { setup: *setup, asid, rest, pieces: None }
}

/// Whether all of `stale` together takes at most [`Setup::commands_max`] commands.
fn is_within(setup: &Setup, stale: impl Iterator<Item = Stale>) -> bool {
    let mut left = u64::from(setup.commands_max);
    for stale in stale {
        match Pieces::new(setup, &stale).and_then(|pieces| left.checked_sub(pieces.count_left())) {
            Some(rest) => left = rest,
            None => return false,
        }
    }
    true
}

/// The commands that [`plan`] has chosen.
#[derive(Clone, Debug)]
#[must_use = "nothing is forgotten before the commands are in the queue"]
pub struct Commands<I> {
    setup: Setup,
    asid: Asid,
    rest: Rest<I>,
    pieces: Option<Pieces>,
}

#[derive(Clone, Debug)]
enum Rest<I> {
    Each(I),
    Whole,
    Nothing,
}

impl<I: Iterator<Item = Stale>> Iterator for Commands<I> {
    type Item = Command;

    fn next(&mut self) -> Option<Command> {
        loop {
            if let Some(span) = self.pieces.as_mut().and_then(Iterator::next) {
                return Some(tlbi_nh_va(self.asid, span));
            }
            let Rest::Each(stale) = &mut self.rest else {
                let rest = core::mem::replace(&mut self.rest, Rest::Nothing);
                return matches!(rest, Rest::Whole).then(|| tlbi_nh_asid(self.asid));
            };
            match stale.next() {
                Some(stale) => self.pieces = Pieces::new(&self.setup, &stale),
                None => self.rest = Rest::Nothing,
            }
        }
    }
}

/// Bits of an address that tables with this granule map.
const fn address_bits(granule: Granule) -> u32 {
    match granule {
        Granule::Size4K | Granule::Size16K => 48,
        Granule::Size64K => 52,
    }
}

/// The spans that together cover a range.
#[derive(Clone, Debug)]
struct Pieces {
    granule: Granule,
    /// The level that may be given as a hint, by range commands.
    hint: Option<LeafLevel>,
    depth: Depth,
    /// Binary logarithm of what one command covers; `None` for range commands.
    stride_shift: Option<u32>,
    /// In bytes: multiples of a leaf.
    next: u64,
    end: u64,
}

impl Pieces {
    /// `None` if the range ends beyond what tables map.
    fn new(setup: &Setup, stale: &Stale) -> Option<Self> {
        let &Setup { granule, has_ranges, .. } = setup;
        let end = stale.start.checked_add(stale.len).filter(|&end| end <= 1 << address_bits(granule))?;
        let shift = stale.leaf.unwrap_or(LeafLevel::Three).shift(granule);
        let next = stale.start >> shift << shift;
        Some(Self {
            granule,
            hint: stale.leaf.filter(|_| !stale.tables),
            depth: if stale.tables { Depth::All } else { Depth::Leaf },
            stride_shift: (!has_ranges).then_some(shift),
            next,
            end: if stale.len == 0 { next } else { end.next_multiple_of(1 << shift) },
        })
    }

    fn count_left(&self) -> u64 {
        match self.stride_shift {
            Some(shift) => (self.end - self.next) >> shift,
            None => self.clone().count() as u64,
        }
    }
}

impl Iterator for Pieces {
    type Item = Span;

    fn next(&mut self) -> Option<Span> {
        let (granule, start) = (self.granule, self.next);
        let rest = self.end.checked_sub(start).filter(|&rest| rest != 0)?;
        Some(match self.stride_shift {
            Some(shift) => {
                self.next += 1 << shift;
                Span::address(start, self.depth)
            }
            None => {
                let (scale, units) = piece(rest >> granule.shift());
                self.next += units << scale << granule.shift();
                Span::range(granule, start, scale, units, self.hint, self.depth)
            }
        })
    }
}

/// Scale and units of the next command for `rest` granules, which are not 0: the five binary digits
/// from the lowest 1 on.
fn piece(rest: u64) -> (u32, u64) {
    let scale = rest.trailing_zeros().min(SCALE_MAX);
    match rest >> scale & (UNITS_MAX - 1) {
        // The largest scale, and more of it than five digits: only `1 << 36` granules.
        0 => (scale, UNITS_MAX),
        units => (scale, units),
    }
}

const _: () = {
    let mut granule = [Granule::Size4K, Granule::Size16K, Granule::Size64K].as_slice();
    while let [first, rest @ ..] = granule {
        let granules = 1 << (address_bits(*first) - first.shift());
        assert!(granules <= UNITS_MAX << SCALE_MAX, "a command can cover the whole address space");
        granule = rest;
    }
};
