//! Processors: guest mode, and the accesses of a guest.

use super::cache::{Context, Invalidation};
use super::format::{Arch, Format, Stage};
use super::instruction::Pending;
use super::iommu::Iommu;
use super::lives::Presence;
use super::marks::ASSIST_BUDGET;
use super::memory::Memory;
use super::walk::{Fault, FramePlace, Nested, Step, Translation, Walker};
use crate::rng::Rng;

/// How many times one access may go back in time.
const BUDGET: u32 = 4;

/// Address space tag: an ASID on AMD64, a VMID on Arm64.
pub(crate) type Tag = u32;

/// Roots of the tables that a CPU uses for its guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Roots {
    /// Of the nested tables: a physical address.
    pub nested: u64,
    /// Of the guest's tables: a guest physical address.
    pub guest: u64,
}

#[derive(Debug, Default)]
struct Cpu {
    contexts: Vec<(Tag, Context)>,
    /// The tag that is in use, and whether the guest runs.
    tag: Option<Tag>,
    in_guest: bool,
    interrupt: bool,
    /// Requested invalidations that no barrier has completed yet.
    pending: Vec<Pending>,
}

/// A completed access of a guest.
#[derive(Clone, Debug)]
pub(crate) struct Accessed {
    pub translation: Translation,
    /// The addresses that the processor has stored to: the data, and entries of the guest's tables
    /// whose bits it has set.
    pub stored: Vec<u64>,
}

/// The processors and their memory.
#[derive(Debug)]
pub(crate) struct Hw {
    pub memory: Memory,
    /// Determines the processors' behaviour.
    pub rng: Rng,
    /// Entries that the last access depended on.
    pub steps: Vec<Step>,
    arch: Arch,
    /// Guests use PCIDs, one for each root: loading a root drops nothing.
    pub pcid: bool,
    /// A flush of a tag drops what depends on the guest's tables. What depends on the nested tables
    /// alone has an instruction of its own.
    pub two_flushes: bool,
    cpus: Vec<Cpu>,
    pub iommu: Iommu,
    /// Room for walkers.
    pub(super) words: Vec<u64>,
    pub(super) turns: Vec<u64>,
}

impl Hw {
    pub(crate) fn new(arch: Arch, cpus: usize, memory: Memory, rng: Rng) -> Self {
        let cpus = (0..cpus).map(|_| Cpu::default()).collect();
        Self {
            memory,
            rng,
            steps: Vec::new(),
            arch,
            pcid: false,
            two_flushes: false,
            cpus,
            iommu: Iommu::default(),
            words: Vec::new(),
            turns: Vec::new(),
        }
    }

    pub(crate) fn arch(&self) -> Arch {
        self.arch
    }

    pub(crate) fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    pub(crate) fn format(&self, stage: Stage) -> Format {
        Format { arch: self.arch, stage }
    }

    fn context_mut(&mut self, cpu: usize, tag: Tag) -> &mut Context {
        let contexts = &mut self.cpus[cpu].contexts;
        let index = contexts.iter().position(|(other, _)| *other == tag).unwrap_or_else(|| {
            contexts.push((tag, Context::default()));
            contexts.len() - 1
        });
        &mut contexts[index].1
    }

    /// Removes the entries under `tag` on `cpu`.
    pub(super) fn invalidate(&mut self, cpu: usize, tag: Tag, what: Invalidation) {
        let time = self.memory.tick();
        self.context_mut(cpu, tag).invalidate(time, what);
    }

    /// Removes the entries under any tag on `cpu`.
    pub(super) fn invalidate_all(&mut self, cpu: usize) {
        let time = self.memory.tick();
        for (_, context) in &mut self.cpus[cpu].contexts {
            context.invalidate(time, Invalidation::All);
        }
    }

    /// Removes the entries under `tag` on `cpu` that were loaded under one of the guest's roots,
    /// without knowing which one: so it is not known which entries are removed.
    pub(super) fn invalidate_any_root(&mut self, cpu: usize, tag: Tag, what: Invalidation) {
        let time = self.memory.tick();
        let roots = self.context_mut(cpu, tag).roots();
        let root = roots.get(self.rng.below(roots.len().max(1))).copied();
        self.context_mut(cpu, tag).invalidate_of(time, what, root);
    }

    pub(super) fn pending_mut(&mut self, cpu: usize) -> &mut Vec<Pending> {
        &mut self.cpus[cpu].pending
    }

    /// Makes this the only tag in use: a write to VTTBR_EL2. From now on the processor may walk for
    /// it.
    pub(crate) fn load(&mut self, cpu: usize, tag: Tag, roots: Roots) {
        self.put_away_tag(cpu);
        let time = self.memory.tick();
        self.context_mut(cpu, tag).enter(time, roots.nested, roots.guest);
        self.cpus[cpu].tag = Some(tag);
    }

    /// The guest starts to run on `cpu`: VMRUN, or ERET with the loaded tag.
    pub(crate) fn enter(&mut self, cpu: usize, tag: Tag, roots: Roots) {
        let is_loaded = self.arch == Arch::Arm64 && self.cpus[cpu].tag == Some(tag);
        let time = self.memory.tick();
        if is_loaded && self.context_mut(cpu, tag).is_at(time, roots.nested) {
            self.context_mut(cpu, tag).set_root(time, roots.guest);
        } else {
            self.load(cpu, tag, roots);
        }
        self.cpus[cpu].in_guest = true;
    }

    /// The guest stops. On Arm64 the tag stays in use: until another is loaded, the processor may
    /// continue to walk for it.
    pub(crate) fn leave(&mut self, cpu: usize) {
        self.cpus[cpu].in_guest = false;
        if self.arch == Arch::Amd64 {
            self.put_away_tag(cpu);
        }
    }

    fn put_away_tag(&mut self, cpu: usize) {
        if let Some(tag) = self.cpus[cpu].tag.take() {
            let time = self.memory.tick();
            self.context_mut(cpu, tag).exit(time);
        }
    }

    /// A CPU that may walk from this root of nested tables, because it has loaded it.
    pub(crate) fn walker_of(&self, nested_root: u64) -> Option<usize> {
        let now = self.memory.now();
        self.cpus.iter().position(|cpu| {
            let in_use = cpu.contexts.iter().find(|(tag, _)| Some(*tag) == cpu.tag);
            in_use.is_some_and(|(_, context)| context.is_at(now, nested_root))
        })
    }

    /// Sends an interrupt, which stays pending until it is taken.
    pub(crate) fn interrupt(&mut self, cpu: usize) {
        self.cpus[cpu].interrupt = true;
    }

    pub(crate) fn is_interrupted(&self, cpu: usize) -> bool {
        self.cpus[cpu].interrupt
    }

    pub(crate) fn take_interrupt(&mut self, cpu: usize) {
        self.cpus[cpu].interrupt = false;
    }

    /// The guest on `cpu` loads a root. On AMD64, without PCIDs, that drops the entries of its
    /// tables; on Arm64, and with PCIDs, the root has its own address space identifier.
    pub(crate) fn load_guest_root(&mut self, cpu: usize, root: u64) {
        let Some(tag) = self.cpus[cpu].tag else { return };
        if self.arch == Arch::Amd64 && !self.pcid {
            self.invalidate(cpu, tag, Invalidation::Guest);
        }
        let time = self.memory.tick();
        self.context_mut(cpu, tag).set_root(time, root);
    }

    /// The guest on `cpu` reloads its root, which drops the entries of these tables: MOV to CR3
    /// without bit 63.
    pub(crate) fn reload_guest_root(&mut self, cpu: usize, root: u64) {
        let Some(tag) = self.cpus[cpu].tag else { return };
        let of = self.pcid.then_some(root);
        let time = self.memory.tick();
        self.context_mut(cpu, tag).invalidate_of(time, Invalidation::Guest, of);
    }

    /// The guest on `cpu` drops its own translations of an address: INVLPG, or TLBI VAE1 on one
    /// CPU. The processor knows that it may hold a page of the guest in pieces.
    pub(crate) fn invalidate_own(&mut self, cpu: usize, va: u64) {
        if let Some(tag) = self.cpus[cpu].tag {
            let what = Invalidation::GuestPage { va, level: None, pieces: true, walk: true };
            let time = self.memory.tick();
            let context = self.context_mut(cpu, tag);
            let of = context.roots_at(time).map(|(_, root)| root);
            let of = if self.pcid { of } else { None };
            self.context_mut(cpu, tag).invalidate_of(time, what, of);
        }
    }

    /// Runs `search` with a walker for the guest on `cpu`.
    pub(super) fn walk<T>(
        &mut self,
        cpu: usize,
        budget: u32,
        search: impl FnOnce(&mut Walker<'_>) -> T,
    ) -> Option<T> {
        let formats = [self.format(Stage::Guest), self.format(Stage::Nested)];
        let by_space = self.arch == Arch::Arm64 || self.pcid;
        let Self { memory, rng, steps, cpus, words, turns, .. } = self;
        let tag = cpus[cpu].tag?;
        let (_, context) = cpus[cpu].contexts.iter().find(|(other, _)| *other == tag)?;
        let sets_bits = true;
        Some(search(&mut Walker {
            memory,
            context,
            formats,
            by_space,
            sets_bits,
            rng,
            steps,
            budget,
            words,
            turns,
        }))
    }

    /// The guest on `cpu` loads from or stores to `va`.
    ///
    /// # Errors
    ///
    /// [`Fault`]; only accessed bits have been stored then.
    pub(crate) fn access(&mut self, cpu: usize, va: u64, store: Option<u64>) -> Result<Accessed, Fault> {
        self.memory.tick();
        self.steps.clear();
        let mut stored = Vec::new();
        let is_store = store.is_some();
        let suits = |found: &Translation| !is_store || found.write && found.dirty && found.nested.write;
        let mut translation = self.walk(cpu, BUDGET, |walker| walker.translate(va)).ok_or(Fault::Guest)??;
        if !suits(&translation) || self.has_unused_steps() {
            // Whatever the processor holds, a fault and the setting of a bit result from a walk.
            self.steps.clear();
            translation =
                self.walk(cpu, ASSIST_BUDGET, |walker| walker.translate_anew(va)).ok_or(Fault::Guest)??;
            if is_store && !translation.write {
                return Err(Fault::Guest);
            }
            self.set_guest_bits(cpu, translation, is_store, &mut stored)?;
        }
        let gpa = translation.gpa;
        if is_store && !(translation.nested.write && translation.nested.dirty) {
            translation.nested = self.nested_for_store(cpu, gpa, false)?;
        }
        self.set_nested_bits();
        self.check(translation.nested.place)?;
        self.check_break(cpu, gpa, translation.nested)?;
        if let Some(value) = store {
            self.memory.store(translation.nested.place.pa, value);
            stored.push(translation.nested.place.pa);
        }
        Ok(Accessed { translation, stored })
    }

    /// The guest on `cpu` stores to `gpa` by a mapping of its own that never changes: a kernel's
    /// direct map. Returns the physical address.
    ///
    /// # Errors
    ///
    /// [`Fault`]; nothing has been stored then.
    pub(crate) fn store_direct(&mut self, cpu: usize, gpa: u64, value: u64) -> Result<u64, Fault> {
        self.memory.tick();
        self.steps.clear();
        let held = self.walk(cpu, BUDGET, |walker| walker.translate_nested(gpa)).ok_or(Fault::Guest)??;
        self.check_break(cpu, gpa, held)?;
        let nested = if held.write && held.dirty { held } else { self.nested_for_store(cpu, gpa, false)? };
        self.set_nested_bits();
        self.check(nested.place)?;
        self.memory.store(nested.place.pa, value);
        Ok(nested.place.pa)
    }

    /// The guest on `cpu` touches `gpa` by its direct map, without a change.
    ///
    /// # Errors
    ///
    /// [`Fault`].
    pub(crate) fn load_direct(&mut self, cpu: usize, gpa: u64) -> Result<Nested, Fault> {
        self.memory.tick();
        self.steps.clear();
        let held = self.walk(cpu, BUDGET, |walker| walker.translate_nested(gpa)).ok_or(Fault::Guest)??;
        self.set_nested_bits();
        self.check(held.place)?;
        self.check_break(cpu, gpa, held)?;
        Ok(held)
    }

    /// Whether the processor holds one translation of an address and would load a different one: on
    /// Arm64 that is an error, because it may then use either, or neither (break-before-make,
    /// D8.17.1).
    fn check_break(&mut self, cpu: usize, gpa: u64, held: Nested) -> Result<(), Fault> {
        let now = self.memory.now();
        if self.arch != Arch::Arm64 || held.time >= now {
            return Ok(());
        }
        let mark = self.steps.len();
        let current = self.walk(cpu, 0, |walker| walker.nested_walk(now, gpa, false));
        self.steps.truncate(mark);
        breaks(&self.memory, gpa, held, current.and_then(Result::ok))
    }

    /// Whether the target of a translation is still in use, in the intended life.
    pub(super) fn check(&self, place: FramePlace) -> Result<(), Fault> {
        match self.memory.presence(place.pa, self.memory.now()) {
            Presence::Alive(life) if life == place.life => Ok(()),
            _ => Err(Fault::Forbidden(format!(
                "an access reaches {}, which is free",
                self.memory.name(place.pa)
            ))),
        }
    }
}

/// Break-before-make: a translation that is held differs from the one in memory.
pub(super) fn breaks(memory: &Memory, gpa: u64, held: Nested, current: Option<Nested>) -> Result<(), Fault> {
    let page = |nested: &Nested| (nested.level, nested.place.pa);
    match current {
        Some(current) if page(&current) != page(&held) => Err(Fault::Forbidden(format!(
            "break-before-make: {gpa:#x} is held as {:?} in {} since {}, and memory has {:?} in {}",
            held.level,
            memory.name(held.place.pa),
            held.time,
            current.level,
            memory.name(current.place.pa)
        ))),
        _ => Ok(()),
    }
}
