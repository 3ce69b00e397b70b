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

/// Address space tag: an ASID on AMD64, a VPID on Intel64, a VMID on Arm64.
pub(crate) type Tag = u32;

/// What entries are tagged with. On AMD64 and Arm64 that is a tag, whatever they depend on.
///
/// On Intel64 those that depend on the guest's tables have a tag and the root of the nested ones
/// (VPID and EP4TA), and those that depend on nested tables alone have the root alone. Each kind
/// has a record of its own, so an instruction that names a tag, or a root, drops all in the records
/// that have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    pub tag: Option<Tag>,
    pub root: Option<u64>,
}

impl Key {
    /// For entries of both kinds: by the guest's tables, and by nested tables alone.
    fn both(arch: Arch, tag: Tag, root: u64) -> [Self; 2] {
        match arch {
            Arch::Amd64 | Arch::Arm64 => [Self { tag: Some(tag), root: None }; 2],
            Arch::Intel64 => [Some(tag), None].map(|tag| Self { tag, root: Some(root) }),
        }
    }
}

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
    contexts: Vec<(Key, Context)>,
    /// What is in use, and whether the guest runs.
    in_use: Option<[Key; 2]>,
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
    /// All pages of guests are global: loading a root drops no translation.
    pub globals: bool,
    /// On Intel64, guests have tags. If not, they have 0, under which entry and exit drop all.
    pub has_vpids: bool,
    cpus: Vec<Cpu>,
    /// For each CPU the pages whose dirty bits it has set: guest physical addresses.
    pub(super) listed: Vec<Vec<u64>>,
    pub iommu: Iommu,
    /// Room for walkers.
    pub(super) words: Vec<u64>,
    pub(super) turns: Vec<u64>,
}

impl Hw {
    pub(crate) fn new(arch: Arch, cpus: usize, memory: Memory, rng: Rng) -> Self {
        let listed = vec![Vec::new(); cpus];
        let cpus = (0..cpus).map(|_| Cpu::default()).collect();
        Self {
            memory,
            rng,
            steps: Vec::new(),
            arch,
            pcid: false,
            globals: false,
            has_vpids: true,
            listed,
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

    pub(super) fn context_mut(&mut self, cpu: usize, key: Key) -> &mut Context {
        let contexts = &mut self.cpus[cpu].contexts;
        let index = contexts.iter().position(|(other, _)| *other == key).unwrap_or_else(|| {
            contexts.push((key, Context::default()));
            contexts.len() - 1
        });
        &mut contexts[index].1
    }

    /// The record of what depends on the guest's tables, under what is in use.
    pub(super) fn guest_context(&mut self, cpu: usize) -> Option<&mut Context> {
        let [key, _] = self.cpus[cpu].in_use?;
        Some(self.context_mut(cpu, key))
    }

    /// The records of what `cpu` holds under the keys that are named.
    pub(super) fn contexts_of(
        &mut self,
        cpu: usize,
        is_named: impl Fn(Key) -> bool,
    ) -> impl Iterator<Item = &mut Context> {
        let contexts = self.cpus[cpu].contexts.iter_mut();
        contexts.filter(move |(key, _)| is_named(*key)).map(|(_, context)| context)
    }

    /// The keys in use: of what depends on the guest's tables, and of nested tables alone.
    pub(super) fn in_use(&self, cpu: usize) -> Option<[Key; 2]> {
        self.cpus[cpu].in_use
    }

    pub(super) fn pending_mut(&mut self, cpu: usize) -> &mut Vec<Pending> {
        &mut self.cpus[cpu].pending
    }

    /// Makes this the only tag in use: a write to VTTBR_EL2. From now on the processor may walk for
    /// it.
    pub(crate) fn load(&mut self, cpu: usize, tag: Tag, roots: Roots) {
        self.put_away(cpu);
        let keys = Key::both(self.arch, tag, roots.nested);
        let time = self.memory.tick();
        self.context_mut(cpu, keys[0]).enter(time, roots.nested, roots.guest);
        if keys[1] != keys[0] {
            self.context_mut(cpu, keys[1]).enter(time, roots.nested, roots.guest);
        }
        self.cpus[cpu].in_use = Some(keys);
    }

    /// The guest starts to run on `cpu`: VMRUN, or ERET with the loaded tag.
    pub(crate) fn enter(&mut self, cpu: usize, tag: Tag, roots: Roots) {
        let keys = Key::both(self.arch, tag, roots.nested);
        let is_loaded = self.arch == Arch::Arm64 && self.cpus[cpu].in_use == Some(keys);
        let time = self.memory.tick();
        if is_loaded && self.context_mut(cpu, keys[0]).is_at(time, roots.nested) {
            self.context_mut(cpu, keys[0]).set_root(time, roots.guest);
        } else {
            self.drop_untagged(cpu);
            self.load(cpu, tag, roots);
        }
        self.cpus[cpu].in_guest = true;
    }

    /// The guest stops. On Arm64 the tag stays in use: until another is loaded, the processor may
    /// continue to walk for it.
    pub(crate) fn leave(&mut self, cpu: usize) {
        self.cpus[cpu].in_guest = false;
        if self.arch.is_x86() {
            self.put_away(cpu);
            self.drop_untagged(cpu);
        }
    }

    /// What entry and exit drop on Intel64 if guests have no tags.
    fn drop_untagged(&mut self, cpu: usize) {
        if !self.has_vpids {
            self.invalidate(cpu, 0, Invalidation::All);
        }
    }

    fn put_away(&mut self, cpu: usize) {
        for key in self.cpus[cpu].in_use.take().into_iter().flatten() {
            let time = self.memory.tick();
            self.context_mut(cpu, key).exit(time);
        }
    }

    /// A CPU that may walk from this root of nested tables, because it has loaded it.
    pub(crate) fn walker_of(&self, nested_root: u64) -> Option<usize> {
        let now = self.memory.now();
        self.cpus.iter().position(|cpu| {
            let is_in_use = |key| cpu.in_use.is_some_and(|in_use| in_use[0] == key);
            let in_use = cpu.contexts.iter().find(|(key, _)| is_in_use(*key));
            in_use.is_some_and(|(_, context)| context.is_at(now, nested_root))
        })
    }

    /// A CPU that may hold what is tagged with this root alone.
    pub(crate) fn holder_of(&self, nested_root: u64) -> Option<usize> {
        let key = Key { tag: None, root: Some(nested_root) };
        let holds = |cpu: &Cpu| cpu.contexts.iter().any(|(other, held)| *other == key && held.may_hold());
        self.cpus.iter().position(holds)
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

    /// Runs `search` with a walker for the guest on `cpu`.
    pub(super) fn walk<T>(
        &mut self,
        cpu: usize,
        budget: u32,
        search: impl FnOnce(&mut Walker<'_>) -> T,
    ) -> Option<T> {
        let formats = [self.format(Stage::Guest), self.format(Stage::Nested)];
        let by_space = self.arch == Arch::Arm64 || self.pcid;
        let Self { memory, rng, steps, cpus, words, turns, globals, .. } = self;
        let keys = cpus[cpu].in_use?;
        let of = |key| cpus[cpu].contexts.iter().find(|(other, _)| *other == key).map(|(_, context)| context);
        let (context, nested) = (of(keys[0])?, of(keys[1])?);
        let sets_bits = true;
        Some(search(&mut Walker {
            memory,
            context,
            nested,
            globals: *globals,
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
        if is_store && translation.write && self.is_refused(translation.nested) {
            return Err(Fault::Nested { gpa: translation.gpa, in_walk: false, store: true });
        }
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
        if self.is_refused(held) {
            return Err(Fault::Nested { gpa, in_walk: false, store: true });
        }
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

    /// Whether a store is refused by a translation that is held, although it might be allowed now:
    /// on Intel64 the processor may hold lesser rights until the violation drops them.
    fn is_refused(&mut self, held: Nested) -> bool {
        let is_held = self.arch == Arch::Intel64 && held.time < self.memory.now();
        is_held && !held.write && self.rng.one_in(2)
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
