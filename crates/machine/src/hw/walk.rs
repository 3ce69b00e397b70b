//! The translations that a processor may use at a moment: it picks one that it may hold, or walks.
//!
//! Everything is a walk as of some time. The times worth examining are known: those just before a
//! table changed. Using an entry loaded at an earlier time means walking as of that time, and
//! checking whether the result survived. Each such walk may itself begin with a walk cache entry
//! left by a still earlier one, and so on.

use paging::Level;

use super::cache::{Context, Item};
use super::format::{Arch, Entry, Format, ROOT};
use super::lives::Presence;
use super::memory::Memory;
use crate::rng::Rng;

/// An entry that a translation depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// The tables: the guest's or the nested ones.
    pub format: Format,
    /// The address that was being translated: virtual for the guest's tables, guest physical for
    /// nested ones.
    pub address: u64,
    pub level: Level,
    pub word: u64,
    /// Address of a guest's entry in its own view: guest physical.
    pub word_gpa: Option<u64>,
    pub entry: u64,
    /// The time of the value.
    pub time: u64,
}

/// The reason why there is no translation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The guest's tables have none, which is up to the guest.
    Guest,
    /// The nested tables have none.
    Nested {
        gpa: u64,
        /// The address is that of an entry of the guest's tables.
        in_walk: bool,
        store: bool,
    },
    /// The contents of a table at that time are not known any more.
    Unknown,
    /// An error: the walk reached freed or reused memory, or found two translations of one address.
    Forbidden(String),
}

/// A location, and the intended life of its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FramePlace {
    pub pa: u64,
    pub life: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Nested {
    pub place: FramePlace,
    pub level: Level,
    pub write: bool,
    /// The store need not be recorded any more.
    pub dirty: bool,
    /// Address of the leaf.
    pub word: u64,
    pub time: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Translation {
    pub gpa: u64,
    pub nested: Nested,
    /// The guest allows stores.
    pub write: bool,
    /// The store need not be recorded in the guest's tables any more.
    pub dirty: bool,
    /// Size of the guest's page.
    pub level: Level,
    /// The guest's root at the time of the load.
    pub guest_root: u64,
    /// The nested root at the time of the load.
    pub nested_root: u64,
}

/// The position of a walk of nested tables.
enum Reached {
    Table(FramePlace),
    Leaf(Nested),
}

/// A table of the guest, to be read next.
struct GuestTable {
    gpa: u64,
    level: Level,
    /// Its location, if that is from a walk cache.
    cached: Option<Nested>,
}

/// One search for a translation.
pub(crate) struct Walker<'a> {
    pub memory: &'a Memory,
    /// The entries that the CPU may hold of the guest's tables.
    pub context: &'a Context,
    /// Those of nested tables alone. On most processors it is the same.
    pub nested: &'a Context,
    /// The guest's pages are global.
    pub globals: bool,
    pub formats: [Format; 2],
    /// Entries of the guest's tables are tagged with the guest's own address space.
    pub by_space: bool,
    /// It sets accessed bits in the entries that it loads; an IOMMU does not.
    pub sets_bits: bool,
    pub rng: &'a mut Rng,
    /// Entries that the translation depends on.
    pub steps: &'a mut Vec<Step>,
    /// How many more times it may go back in time.
    pub budget: u32,
    /// The words that it has read, whatever their values.
    pub words: &'a mut Vec<u64>,
    /// Times before which something relevant to the address was different.
    pub turns: &'a mut Vec<u64>,
}

impl Walker<'_> {
    /// A translation of `va` that the processor may use now.
    pub(crate) fn translate(&mut self, va: u64) -> Result<Translation, Fault> {
        let now = self.memory.now();
        self.look_back(|walker| drop(walker.guest_walk(now, va)));
        let held = self.earlier(self.context, now, |walker, loaded| {
            walker.demand_same_space(loaded, now)?;
            let found = walker.guest_walk(loaded, va)?;
            let (guest, nested, global) = (found.level, found.nested.level, walker.globals);
            Ok((found, Item::Combined { va, guest, nested, global }))
        })?;
        match held {
            Some(translation) => Ok(translation),
            None => self.guest_walk(now, va),
        }
    }

    /// The same for a guest physical address.
    pub(crate) fn translate_nested(&mut self, gpa: u64) -> Result<Nested, Fault> {
        let now = self.memory.now();
        self.look_back(|walker| drop(walker.nested_walk(now, gpa, false)));
        self.nested(now, gpa, false)
    }

    /// Determines when the entries changed that `walk` reads from memory.
    pub(super) fn look_back(&mut self, walk: impl FnOnce(&mut Self)) {
        self.turns.clear();
        if self.rng.one_in(2) {
            return;
        }
        self.words.clear();
        let budget = core::mem::take(&mut self.budget);
        walk(self);
        self.budget = budget;
        self.steps.clear();
        for &word in &*self.words {
            self.turns.extend(self.memory.changes_of(word));
        }
    }

    /// A translation of `va` from memory, but possibly by way of walk caches and the nested TLB.
    pub(crate) fn translate_anew(&mut self, va: u64) -> Result<Translation, Fault> {
        self.guest_walk(self.memory.now(), va)
    }

    /// On Arm64 entries of the guest's tables are tagged with the guest's own ASID, so they are
    /// usable only in their own space. The same holds on AMD64 with PCIDs, but not without.
    fn demand_same_space(&self, loaded: u64, time: u64) -> Result<(), Fault> {
        let root = |time| self.context.roots_at(time).map(|(_, root)| root);
        if self.by_space && root(loaded) != root(time) { Err(Fault::Unknown) } else { Ok(()) }
    }

    /// Possibly the result of `load` as of some time before `time`, if it survived in `context`. A
    /// result that was impossible at that time does not end the search; one that must never be
    /// possible does.
    pub(super) fn earlier<T>(
        &mut self,
        context: &Context,
        time: u64,
        load: impl FnOnce(&mut Self, u64) -> Result<(T, Item), Fault>,
    ) -> Result<Option<T>, Fault> {
        if self.budget == 0 || self.rng.one_in(2) {
            return Ok(None);
        }
        let moments = self.memory.moments();
        let moment = if !self.turns.is_empty() && !self.rng.one_in(4) {
            self.rng.pick(self.turns)
        } else if moments.is_empty() {
            return Ok(None);
        } else {
            // More often recent ones.
            let span = if self.rng.one_in(2) { moments.len() } else { moments.len().min(8) };
            moments[moments.len() - 1 - self.rng.below(span)]
        };
        let Some(loaded) = context.loadable(moment - 1).filter(|&loaded| loaded < time) else {
            return Ok(None);
        };
        self.budget -= 1;
        let mark = self.steps.len();
        match load(self, loaded) {
            Ok((found, item)) if context.survives(item, loaded, time) => return Ok(Some(found)),
            Err(Fault::Forbidden(what)) => return Err(Fault::Forbidden(what)),
            _ => self.steps.truncate(mark),
        }
        Ok(None)
    }

    /// Translates as of `time`, by walk caches or from the root.
    fn guest_walk(&mut self, time: u64, va: u64) -> Result<Translation, Fault> {
        let (_, guest_root) = self.context.roots_at(time).ok_or(Fault::Unknown)?;
        let cut = self.rng.pick(&[Level::Page512G, Level::Page1G, Level::Page2M]);
        let cached = self.earlier(self.context, time, |walker, loaded| {
            walker.demand_same_space(loaded, time)?;
            let (_, root) = walker.context.roots_at(loaded).ok_or(Fault::Unknown)?;
            let start = GuestTable { gpa: root, level: ROOT, cached: None };
            let mut table =
                walker.guest_walk_from(loaded, va, start, Some(cut))?.err().ok_or(Fault::Unknown)?;
            table.cached = Some(walker.nested_for_entry(loaded, table.gpa)?);
            Ok((table, Item::GuestWalk { va, level: cut }))
        })?;
        let root = GuestTable { gpa: guest_root, level: ROOT, cached: None };
        self.guest_walk_from(time, va, cached.unwrap_or(root), None)?.map_err(|_| Fault::Unknown)
    }

    /// Descends the guest's tables from `table`, to the table below `cut` (`Err`) or to the leaf
    /// (`Ok`).
    fn guest_walk_from(
        &mut self,
        time: u64,
        va: u64,
        mut table: GuestTable,
        cut: Option<Level>,
    ) -> Result<Result<Translation, GuestTable>, Fault> {
        let (nested_root, guest_root) = self.context.roots_at(time).ok_or(Fault::Unknown)?;
        let format = self.formats[0];
        loop {
            let level = table.level;
            let offset = level.index(va) as u64 * 8;
            let place = match table.cached {
                Some(cached) => FramePlace { pa: cached.place.pa + offset, ..cached.place },
                None => self.nested_for_entry(time, table.gpa + offset)?.place,
            };
            let at = (place, Some(table.gpa + offset));
            let entry = self.read(format, va, level, at, time)?;
            match entry {
                Entry::Absent => return Err(Fault::Guest),
                Entry::Table { next, .. } => {
                    let below = level.below().ok_or(Fault::Guest)?;
                    table = GuestTable { gpa: next, level: below, cached: None };
                    if cut == Some(level) {
                        return Ok(Err(table));
                    }
                }
                Entry::Leaf { page, write, dirty, .. } => {
                    let gpa = page | va & level.offset_mask();
                    let nested = self.nested(time, gpa, false)?;
                    let found = Translation { gpa, nested, write, dirty, level, guest_root, nested_root };
                    return Ok(Ok(found));
                }
            }
        }
    }

    /// The same for an entry of the guest's tables. On Intel64, with accessed and dirty bits in
    /// EPT, a load of it counts as a store (29.3.5).
    fn nested_for_entry(&mut self, time: u64, gpa: u64) -> Result<Nested, Fault> {
        let found = self.nested(time, gpa, true)?;
        let is_refused = self.formats[1].arch == Arch::Intel64 && !found.write;
        if is_refused { Err(Fault::Nested { gpa, in_walk: true, store: true }) } else { Ok(found) }
    }

    /// A nested translation that may be used at `time`, from the nested TLB or by a walk.
    pub(crate) fn nested(&mut self, time: u64, gpa: u64, in_walk: bool) -> Result<Nested, Fault> {
        let held = self.earlier(self.nested, time, |walker, loaded| {
            let found = walker.nested_walk(loaded, gpa, in_walk)?;
            Ok((found, Item::NestedLeaf { gpa, level: found.level }))
        })?;
        match held {
            Some(nested) => Ok(nested),
            None => self.nested_walk(time, gpa, in_walk),
        }
    }

    /// A nested translation as of `time`, by walk caches or from the root.
    pub(crate) fn nested_walk(&mut self, time: u64, gpa: u64, in_walk: bool) -> Result<Nested, Fault> {
        let cut = self.rng.pick(&[Level::Page512G, Level::Page1G, Level::Page2M]);
        let cached = self.earlier(self.nested, time, |walker, loaded| {
            let root = walker.nested_root(loaded)?;
            match walker.nested_walk_from(loaded, gpa, in_walk, (root, ROOT), Some(cut))? {
                Reached::Table(place) => Ok((place, Item::NestedWalk { gpa, level: cut })),
                Reached::Leaf(_) => Err(Fault::Unknown),
            }
        })?;
        let start = match (cached, cut.below()) {
            (Some(place), Some(below)) => (place, below),
            _ => (self.nested_root(time)?, ROOT),
        };
        match self.nested_walk_from(time, gpa, in_walk, start, None)? {
            Reached::Leaf(nested) => Ok(nested),
            Reached::Table(_) => Err(Fault::Unknown),
        }
    }

    /// A nested translation as of `time` from a root that the context does not have.
    pub(super) fn nested_walk_by(&mut self, time: u64, gpa: u64, root: u64) -> Result<Nested, Fault> {
        let root = self.place(root, time)?;
        match self.nested_walk_from(time, gpa, false, (root, ROOT), None)? {
            Reached::Leaf(nested) => Ok(nested),
            Reached::Table(_) => Err(Fault::Unknown),
        }
    }

    fn nested_root(&self, time: u64) -> Result<FramePlace, Fault> {
        let roots = self.context.roots_at(time).or_else(|| self.nested.roots_at(time));
        self.place(roots.ok_or(Fault::Unknown)?.0, time)
    }

    fn nested_walk_from(
        &mut self,
        time: u64,
        gpa: u64,
        in_walk: bool,
        (mut table, mut level): (FramePlace, Level),
        cut: Option<Level>,
    ) -> Result<Reached, Fault> {
        let format = self.formats[1];
        loop {
            let word = FramePlace { pa: table.pa + level.index(gpa) as u64 * 8, ..table };
            match self.read(format, gpa, level, (word, None), time)? {
                Entry::Absent => return Err(Fault::Nested { gpa, in_walk, store: false }),
                Entry::Table { next, .. } => {
                    table = self.place(next, time)?;
                    if cut == Some(level) {
                        return Ok(Reached::Table(table));
                    }
                    level = level.below().ok_or(Fault::Unknown)?;
                }
                Entry::Leaf { page, write, dirty, .. } => {
                    let place = self.place(page | gpa & level.offset_mask(), time)?;
                    return Ok(Reached::Leaf(Nested { place, level, write, dirty, word: word.pa, time }));
                }
            }
        }
    }

    /// The target of an entry, as of `time`.
    fn place(&self, pa: u64, time: u64) -> Result<FramePlace, Fault> {
        match self.memory.presence(pa, time) {
            Presence::Alive(life) => Ok(FramePlace { pa, life }),
            Presence::Unknown => Err(Fault::Unknown),
            Presence::Free => {
                Err(Fault::Forbidden(format!("an entry points to {}, which is free", self.memory.name(pa))))
            }
        }
    }

    /// Reads an entry as of `time`, in the intended life of the frame.
    fn read(
        &mut self,
        format: Format,
        address: u64,
        level: Level,
        (at, word_gpa): (FramePlace, Option<u64>),
        time: u64,
    ) -> Result<Entry, Fault> {
        match self.memory.presence(at.pa, time) {
            Presence::Alive(life) if life == at.life => {}
            Presence::Unknown => return Err(Fault::Unknown),
            _ => {
                return Err(Fault::Forbidden(format!(
                    "a walk reads {}, which is free",
                    self.memory.name(at.pa)
                )));
            }
        }
        self.words.push(at.pa);
        let entry = self.memory.value_at(at.pa, time).ok_or(Fault::Unknown)?;
        let meaning = format.decode(entry, level);
        let (Entry::Table { accessed, .. } | Entry::Leaf { accessed, .. }) = meaning else {
            return Ok(meaning);
        };
        // To load the entry, the processor would have set the bit then.
        if self.sets_bits && !accessed && time < self.memory.now() {
            return Err(Fault::Unknown);
        }
        self.steps.push(Step { format, address, level, word: at.pa, word_gpa, entry, time });
        Ok(meaning)
    }
}
