//! Page tables, CPUs with TLBs, interrupt lines and a hypervisor, in atomics that loom schedules.

use core::ops::ControlFlow;
use std::vec::Vec;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::sync::{Mutex, MutexGuard};

use crate::model::machine::idle;
use crate::shootdown::model::protocol::Protocol;
use crate::shootdown::{AddressSpace, CpuSlot, Cpus, LocalCpu, PageRange, RangeCell, Spaces, Tag, Tlb};

mod reach;

pub(super) use reach::Reach;

/// Pages of each space.
pub(super) const PAGES: usize = 2;
/// Address spaces.
const SPACES: usize = 2;
const TAGS: usize = 2;

/// Entry: not present.
pub(super) const NONE: u64 = 0;
/// Entry of a page: the frame that the initiator removes. Entry of a root: the table.
pub(super) const OLD: u64 = 1;
/// Entry of a page: the frame in its place.
pub(super) const NEW: u64 = 2;

/// Set in an entry of a page by the first store through it.
pub(super) const DIRTY: u64 = 1 << 8;

/// A CPU of the model.
pub(super) type Cpu<'m> = LocalCpu<'m, &'m AddressSpace<1>, 1, TAGS>;

/// A CPU with its TLB.
pub(super) type On<'m> = (Cpu<'m>, ModelTlb<'m>);

/// The range that is only page `page`.
pub(super) fn range(page: usize) -> PageRange {
    PageRange::small(page as u64 * 0x1000, 1)
}

/// One page-table tree: an entry for the table, and the table's entries.
struct Tree {
    root: AtomicU64,
    entries: [AtomicU64; PAGES],
}

/// The state that the CPUs share.
pub(super) struct ModelState {
    slots: Vec<CpuSlot>,
    cells: Vec<RangeCell>,
    pub(super) spaces: Vec<AddressSpace<1>>,
    trees: Vec<Tree>,
    /// Uses of each page's old frame, and of the first space's table. A use is a read-modify-write,
    /// so it is never overlooked; the count is read by a relaxed load, which is stale unless the
    /// protocol ordered it (G2).
    old_frame: [AtomicU64; PAGES],
    table: AtomicU64,
    /// Walks of the table are counted as well.
    has_table_uses: bool,
    /// Dropped entries return at once: CPUs fill their TLBs as they like.
    is_eager: bool,
    interrupt: Vec<AtomicU64>,
    tlbs: Vec<std::sync::Mutex<TlbState>>,
    /// Held by a CPU while it executes an instruction, and by the hypervisor while it has the CPU
    /// out of guest mode. Empty if there is no hypervisor.
    guest_mode: Vec<Mutex<()>>,
    initiators: u64,
    finished: AtomicU64,
}

/// A TLB: the entries under each tag, and the loaded tag.
#[derive(Default)]
struct TlbState {
    loaded: Option<usize>,
    tags: [Tagged; TAGS],
}

#[derive(Clone, Copy, Default)]
struct Tagged {
    tree: usize,
    /// The root's entry is cached: walks go to the table without looking.
    table: bool,
    entries: [Option<u64>; PAGES],
}

impl ModelState {
    pub(super) fn new(cpus: usize) -> Self {
        let spaces = Spaces::new();
        let tree =
            || Tree { root: AtomicU64::new(OLD), entries: core::array::from_fn(|_| AtomicU64::new(OLD)) };
        Self {
            slots: (0..cpus).map(|_| CpuSlot::new()).collect(),
            cells: (0..cpus).map(|_| RangeCell::new()).collect(),
            spaces: (0..SPACES).map(|root| spaces.create(root as u64)).collect(),
            trees: (0..SPACES).map(|_| tree()).collect(),
            old_frame: core::array::from_fn(|_| AtomicU64::new(0)),
            table: AtomicU64::new(0),
            has_table_uses: false,
            is_eager: false,
            interrupt: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            tlbs: (0..cpus).map(|_| std::sync::Mutex::default()).collect(),
            guest_mode: Vec::new(),
            initiators: 1,
            finished: AtomicU64::new(0),
        }
    }

    /// The same for `initiators` that finish, instead of one.
    pub(super) fn under(self, initiators: u64) -> Self {
        Self { initiators, ..self }
    }

    /// The same with a hypervisor below it.
    pub(super) fn on_hypervisor(self) -> Self {
        let guest_mode = self.slots.iter().map(|_| Mutex::new(())).collect();
        Self { guest_mode, ..self }
    }

    /// The same, counting walks of the table.
    pub(super) fn counting_walks(self) -> Self {
        Self { has_table_uses: true, ..self }
    }

    /// The same with CPUs that translate pages that nothing accesses.
    pub(super) fn eager(self) -> Self {
        Self { is_eager: true, ..self }
    }

    /// CPU `index`, and its TLB.
    pub(super) fn cpu(&self, index: usize) -> (Cpu<'_>, ModelTlb<'_>) {
        let cpu = Cpus::new(&self.slots, &self.cells).claim(index).expect("each once");
        (cpu, ModelTlb { machine: self, cpu: index })
    }

    /// The first space's entry of a page.
    pub(super) fn entry(&self, page: usize) -> &AtomicU64 {
        &self.trees[0].entries[page]
    }

    /// The first space's entry for its table.
    pub(super) fn root(&self) -> &AtomicU64 {
        &self.trees[0].root
    }

    /// Frees the page's old frame: the count of uses seen here must be the final one.
    pub(super) fn free(&self, page: usize) -> Freed {
        Freed { page: Some(page), uses: self.old_frame[page].load(Relaxed) }
    }

    /// As [`free`](Self::free), of the first space's table.
    pub(super) fn free_table(&self) -> Freed {
        Freed { page: None, uses: self.table.load(Relaxed) }
    }

    /// Called after all CPUs have stopped. `Relaxed` suffices: they were joined.
    pub(super) fn check(&self, freed: Freed) {
        let uses = freed.page.map_or(&self.table, |page| &self.old_frame[page]);
        assert_eq!(freed.uses, uses.load(Relaxed), "used after it was freed");
    }

    pub(super) fn finish(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// Read-modify-writes, because relaxed loads may be stale forever.
    fn has_finished(&self) -> bool {
        self.finished.fetch_or(0, Relaxed) >= self.initiators
    }

    /// Takes the CPU's interrupt, if there is one.
    pub(super) fn take_interrupt(&self, cpu: usize) -> bool {
        self.interrupt[cpu].swap(0, Relaxed) != 0
    }

    /// Interrupts the CPU.
    fn send_interrupt(&self, cpu: usize) {
        self.interrupt[cpu].swap(1, Relaxed);
    }

    /// Whether the CPU has an interrupt that it has not taken.
    pub(super) fn is_interrupt_pending(&self, cpu: usize) -> bool {
        self.interrupt[cpu].fetch_or(0, Relaxed) != 0
    }

    fn instruction(&self, cpu: usize) -> Option<MutexGuard<'_, ()>> {
        self.guest_mode.get(cpu).map(|mode| mode.lock().expect("nobody panics in it"))
    }
}

/// A frame or table that was returned to the allocator.
#[must_use]
pub(super) struct Freed {
    page: Option<usize>,
    uses: u64,
}

/// A CPU's TLB. It keeps everything that it is not told to drop.
pub(super) struct ModelTlb<'m> {
    pub(super) machine: &'m ModelState,
    cpu: usize,
}

impl ModelTlb<'_> {
    fn change<R>(&self, change: impl FnOnce(&mut TlbState) -> R) -> R {
        change(&mut self.machine.tlbs[self.cpu].lock().expect("nobody panics in it"))
    }

    /// The current state of the loaded tag. No loom operation may run while the state is locked.
    fn tagged(&self) -> Option<(usize, Tagged)> {
        self.change(|state| state.loaded.map(|tag| (tag, state.tags[tag])))
    }

    /// The CPU loads from a page, if it is present.
    pub(super) fn touch(&self, page: usize) {
        let _instruction = self.machine.instruction(self.cpu);
        if let Some((tree, entry)) = self.translate(page) {
            self.access(tree, page, entry);
        }
    }

    /// The CPU stores to a page, if it is present. The first store through a translation marks the
    /// page's entry.
    pub(super) fn store(&self, page: usize) {
        let _instruction = self.machine.instruction(self.cpu);
        let Some((tree, entry)) = self.translate(page) else { return };
        if entry & DIRTY == 0 {
            let mark = |now: u64| (now == entry).then_some(now | DIRTY);
            let marked = self.machine.trees[tree].entries[page].fetch_update(Relaxed, Relaxed, mark);
            assert!(marked.is_ok(), "scenarios with stores change nothing but the mark");
            self.change(|state| {
                let tag = state.loaded.expect("translated");
                state.tags[tag].entries[page] = Some(entry | DIRTY);
            });
        }
        self.access(tree, page, entry);
    }

    fn access(&self, tree: usize, page: usize, entry: u64) {
        if entry & !DIRTY == OLD && tree == 0 {
            self.machine.old_frame[page].fetch_add(1, Relaxed);
        }
    }

    /// The page's entry, from the TLB if it is there; `None` is a fault.
    fn translate(&self, page: usize) -> Option<(usize, u64)> {
        let (tag, mut tagged) = self.tagged()?;
        if let Some(entry) = tagged.entries[page] {
            return Some((tagged.tree, entry));
        }
        let tree = &self.machine.trees[tagged.tree];
        if !tagged.table && tree.root.load(Relaxed) == NONE {
            return None;
        }
        tagged.table = true;
        self.walk(&tagged);
        let entry = tree.entries[page].load(Relaxed);
        tagged.entries[page] = (entry != NONE).then_some(entry);
        self.change(|state| state.tags[tag] = tagged);
        tagged.entries[page].map(|entry| (tagged.tree, entry))
    }

    /// The CPU reads the table that it knows of.
    fn walk(&self, tagged: &Tagged) {
        if self.machine.has_table_uses && tagged.table && tagged.tree == 0 {
            self.machine.table.fetch_add(1, Relaxed);
        }
    }

    /// The CPU walks ahead, to addresses that no instruction may ever use.
    pub(super) fn speculate(&self) {
        if self.machine.has_table_uses
            && let Some((_, tagged)) = self.tagged()
        {
            self.walk(&tagged);
        }
    }

    /// The CPU translates all pages of the loaded space.
    fn prefetch(&self) {
        if self.machine.is_eager {
            for page in 0..PAGES {
                let _entry = self.translate(page);
            }
        }
    }

    /// Runs the CPU until the initiators have finished, serving interrupts.
    pub(super) fn serve_until_finished<P: Protocol>(&mut self, cpu: &mut Cpu<'_>) {
        for turn in 0.. {
            self.poll::<P>(cpu);
            if self.machine.has_finished() {
                return;
            }
            idle(turn);
        }
    }

    /// Takes a pending interrupt.
    pub(super) fn poll<P: Protocol>(&mut self, cpu: &mut Cpu<'_>) {
        if self.machine.take_interrupt(self.cpu) {
            P::serve(cpu, self);
        }
    }
}

impl Tlb for ModelTlb<'_> {
    fn load(&mut self, root: u64, tag: Tag, keep: bool) {
        let _instruction = self.machine.instruction(self.cpu);
        self.change(|state| {
            let (tag, tree) = (tag.0 as usize, root as usize);
            if !keep {
                state.tags[tag] = Tagged { tree, ..Tagged::default() };
            }
            assert_eq!(state.tags[tag].tree, tree, "kept what is another space's");
            state.loaded = Some(tag);
        });
        self.speculate();
    }

    fn load_none(&mut self) {
        let _instruction = self.machine.instruction(self.cpu);
        self.change(|state| state.loaded = None);
    }

    fn flush_everything(&mut self) {
        let _instruction = self.machine.instruction(self.cpu);
        self.speculate();
        self.change(|state| state.drop_pages(None, true));
        self.prefetch();
    }

    fn flush_range(&mut self, range: PageRange, tables: bool) {
        let _instruction = self.machine.instruction(self.cpu);
        self.speculate();
        self.change(|state| state.drop_pages(Some(&[range]), tables));
        self.prefetch();
    }

    fn relax(&mut self, turns: u64) -> ControlFlow<()> {
        idle(turns);
        ControlFlow::Continue(())
    }
}

impl TlbState {
    /// Drops entries of the loaded tag only. `None` stands for everything.
    fn drop_pages(&mut self, ranges: Option<&[PageRange]>, tables: bool) {
        let Some(tagged) = self.loaded.map(|tag| &mut self.tags[tag]) else { return };
        match ranges {
            None => tagged.entries = [None; PAGES],
            Some(ranges) => ranges
                .iter()
                .flat_map(|range| range.addresses())
                .for_each(|address| tagged.entries[address as usize / 0x1000] = None),
        }
        tagged.table &= !tables;
    }
}
