//! One CPU: the space that it has loaded, its record of other spaces, and how it serves requests.

use core::ops::Deref;

use crate::flush::Ledger;
use crate::shootdown::range::{PageRange, RangeCell};
use crate::shootdown::remote::{Elsewhere, Tag, Tlb};
use crate::shootdown::slot::{Change, CpuSlot, LEN_MAX, List, Request};
use crate::shootdown::space::{AddressSpace, NO_SPACE};

/// PCIDs have 12 bits.
const TAGS_MAX: usize = 1 << 12;

/// All CPUs of a kernel: their slots, and the cells for the lists that initiators lend.
#[derive(Clone, Copy, Debug)]
pub struct Cpus<'m> {
    slots: &'m [CpuSlot],
    cells: &'m [RangeCell],
}

impl<'m> Cpus<'m> {
    /// CPU `i` has `slots[i]`. The cells are divided evenly: a CPU lends lists of up to
    /// `cells.len() / slots.len()` ranges, and requests a flush of everything for longer lists.
    pub const fn new(slots: &'m [CpuSlot], cells: &'m [RangeCell]) -> Self {
        Self { slots, cells }
    }

    /// Makes the caller CPU `index`, with nothing loaded and no tag in use, whatever its TLB holds.
    /// `None` if that CPU is already claimed, if there is no such slot, or if address spaces of
    /// `BANKS` banks have no place for it.
    ///
    /// Use the result (e.g. [`LocalCpu::switch_to`]) on that CPU only, with interrupts off.
    pub fn claim<S, const BANKS: usize, const TAGS: usize>(
        self,
        index: usize,
    ) -> Option<LocalCpu<'m, S, BANKS, TAGS>> {
        const { assert!(TAGS > 0 && TAGS <= TAGS_MAX, "a tag is a PCID, and what is loaded has one") };
        let slot = self.slots.get(index).filter(|_| index < BANKS * 64)?;
        slot.claim().then(|| LocalCpu {
            cpus: self,
            slot,
            index,
            loaded: None,
            tag: 0,
            known: [Known { space: NO_SPACE, clean_to: 0 }; TAGS],
            newest_tag: 0,
            is_lazy: false,
            is_lent: false,
            ledger: Ledger::new(),
        })
    }

    /// The slot of CPU `index`.
    pub(super) fn slot(&self, index: usize) -> Option<&'m CpuSlot> {
        self.slots.get(index)
    }

    /// The cells that CPU `index` lends.
    pub(super) fn cells(&self, index: usize) -> &'m [RangeCell] {
        let each = (self.cells.len() / self.slots.len().max(1)).min(LEN_MAX);
        self.cells.get(index * each..(index + 1) * each).unwrap_or_default()
    }
}

/// A CPU's record of one of its tags.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    /// The space whose translations are under it.
    pub(super) space: u64,
    /// They are those of this generation, or later ones.
    pub(super) clean_to: u64,
}

/// A CPU as it sees itself: held by that CPU, and used with interrupts off.
///
/// `S` is how the kernel refers to an address space: a reference, or a counted one; it is kept for
/// as long as the space is loaded. `TAGS` is the number of PCIDs in use, 1 for a CPU without PCIDs.
///
/// While [`flush`](Self::flush) borrows the CPU and waits, it serves the requests of others itself:
/// CPUs may flush each other at once (O13, O14).
#[derive(Debug)]
pub struct LocalCpu<'m, S, const BANKS: usize, const TAGS: usize> {
    pub(super) cpus: Cpus<'m>,
    pub(super) slot: &'m CpuSlot,
    pub(super) index: usize,
    pub(super) loaded: Option<S>,
    /// The tag under which `loaded` is loaded.
    pub(super) tag: usize,
    pub(super) known: [Known; TAGS],
    newest_tag: usize,
    pub(super) is_lazy: bool,
    /// A flush was abandoned: a target may read the cells at any time.
    pub(super) is_lent: bool,
    pub(super) ledger: Ledger<BANKS>,
}

impl<'m, S, const BANKS: usize, const TAGS: usize> LocalCpu<'m, S, BANKS, TAGS>
where
    S: Deref<Target = AddressSpace<BANKS>>,
{
    /// The CPU's number.
    pub const fn index(&self) -> usize {
        self.index
    }

    /// The loaded space.
    pub const fn loaded(&self) -> Option<&S> {
        self.loaded.as_ref()
    }

    /// Loads `space`, and returns the space that was loaded before. Translations of `space` that
    /// the CPU still has are kept if they are up to date. The CPU is not lazy after this.
    pub fn switch_to(&mut self, space: S, tlb: &mut impl Tlb) -> Option<S> {
        if self.loaded.as_deref().is_some_and(|loaded| loaded.id == space.id) {
            self.leave_lazy(tlb);
            return self.loaded.replace(space);
        }
        space.join(self.index); // a
        self.clear_lazy(); // b
        let generation = space.generation(); // c
        let elsewhere = self.load(&space, generation, tlb); // d
        let former = self.loaded.replace(space);
        self.catch_up(tlb); // h: a direct flush may have come between a and d, to what was loaded then
        if let Some(former) = &former {
            former.leave(self.index, elsewhere); // f
        }
        former
    }

    /// Loads no space, and returns the space that was loaded before.
    pub fn unload(&mut self, tlb: &mut impl Tlb) -> Option<S> {
        let former = self.loaded.take()?;
        former.leave(self.index, Elsewhere::by_loading_none(tlb)); // f
        Some(former)
    }

    /// Declares that the CPU uses no translations of the loaded space until
    /// [`leave_lazy`](Self::leave_lazy) or [`switch_to`](Self::switch_to): it idles, or runs a
    /// kernel thread. Flushes that free no tables skip it.
    pub fn enter_lazy(&mut self) {
        if !self.is_lazy && self.loaded.is_some() {
            self.is_lazy = true;
            self.slot.set_lazy();
        }
    }

    /// Declares that the CPU is about to use the loaded space again.
    pub fn leave_lazy(&mut self, tlb: &mut impl Tlb) {
        if self.is_lazy {
            self.clear_lazy(); // b
            self.catch_up(tlb); // h
        }
    }

    /// Carries out the pending requests of others: the body of the flush interrupt's handler.
    /// Returns true if there was a request. Harmless at other times, or without a request.
    pub fn serve(&mut self, tlb: &mut impl Tlb) -> bool {
        let Some(taken) = self.slot.take() else { return false };
        if !taken.is_late {
            self.slot.complete(taken.count); // L
        }
        match taken.request {
            Some(request) => self.carry_out(&request, tlb), // K
            None => self.catch_up(tlb),
        }
        if taken.is_late {
            self.slot.complete(taken.count); // L
        }
        true
    }

    pub(super) fn clear_lazy(&mut self) {
        if core::mem::take(&mut self.is_lazy) {
            self.slot.clear_lazy();
        }
    }

    /// d: loads a space as of `generation`, under its former tag or another.
    pub(super) fn load(
        &mut self,
        space: &AddressSpace<BANKS>,
        generation: u64,
        tlb: &mut impl Tlb,
    ) -> Elsewhere {
        let known = self.known.iter().position(|known| known.space == space.id);
        let tag = known.unwrap_or_else(|| {
            self.newest_tag = (self.newest_tag + 1) % TAGS;
            self.newest_tag
        });
        let keep = known.is_some_and(|tag| self.known[tag].clean_to == generation);
        // The tag is below TAGS_MAX.
        let elsewhere = Elsewhere::by_loading(tlb, space.root(), Tag(tag as u16), keep);
        self.tag = tag;
        self.known[tag] = Known { space: space.id, clean_to: generation };
        elsewhere
    }

    /// The CPU's record of the loaded space.
    fn known(&mut self) -> Option<&mut Known> {
        self.known.get_mut(self.tag)
    }

    /// h: drops everything of the loaded space if the space has changed. The generation is sampled
    /// before the flush (O8).
    pub(super) fn catch_up(&mut self, tlb: &mut impl Tlb) {
        let Some(generation) = self.loaded.as_deref().map(AddressSpace::generation) else { return };
        let Some(known) = self.known() else { return };
        if known.clean_to != generation {
            tlb.flush_everything();
            known.clean_to = generation;
        }
    }

    /// K: carries out a request of another CPU.
    pub(super) fn carry_out(&mut self, request: &Request, tlb: &mut impl Tlb) {
        let change = request.change;
        match &request.list {
            List::Inline { ranges, len } => self.drop_pages(change, ranges.iter().take(*len).copied(), tlb),
            List::Lent { cpu, len } => {
                let cells = self.cpus.cells(*cpu);
                self.drop_pages(change, cells.iter().take(*len).map(RangeCell::read), tlb);
            }
        }
    }

    /// Drops pages of the change's space, if it is loaded. If it is not, the CPU's record of it is
    /// out of date by its generation. If the CPU has missed more than this change, everything is
    /// dropped.
    pub(super) fn drop_pages(
        &mut self,
        change: Change,
        ranges: impl Iterator<Item = PageRange> + Clone,
        tlb: &mut impl Tlb,
    ) {
        let is_loaded = self.loaded.as_deref().is_some_and(|loaded| loaded.id == change.space);
        let Some(known) = self.known().filter(|_| is_loaded) else { return };
        if known.clean_to >= change.generation {
            return;
        }
        let pages = ranges.clone().fold(0u64, |pages, range| pages.saturating_add(range.pages));
        if known.clean_to + 1 != change.generation || pages > tlb.pages_max() {
            return self.catch_up(tlb);
        }
        ranges.for_each(|range| tlb.flush_range(range, change.tables));
        known.clean_to = change.generation;
    }
}
