//! Page tables, CPUs with TLBs, and interrupt lines, in atomics that loom schedules.

use core::ops::ControlFlow;
use std::boxed::Box;
use std::vec::Vec;

use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::protocol::Protocol;
use crate::{CpuId, GvaRange, Hardware, Notify, Owner, Scope, Target};

/// Virtual pages that a guest touches.
pub(super) const PAGES: usize = 2;

/// Page-table entry: the page that the initiator removes.
const OLD: u64 = 0;
/// Page-table entry: its replacement.
const NEW: u64 = 1;

/// The range that is only page `page`.
pub(super) fn range(page: usize) -> GvaRange {
    GvaRange { first: page as u64 * 0x1000, pages: 1 }
}

/// The state that the CPUs share.
pub(super) struct ModelState {
    pub(super) targets: Vec<Target>,
    page_table: [AtomicU64; PAGES],
    /// The nested table's entry for the old page's frame, where there is one: without it, that is
    /// [`OLD`] forever.
    nested_table: Option<AtomicU64>,
    /// The nested table's stamp: how many changes owe a flush.
    pub(super) stamp: AtomicU64,
    /// Accesses to each page's old frame. An access is a read-modify-write, so it is never
    /// overlooked; the count is read by a relaxed load, which is stale unless the protocol ordered
    /// it (G2).
    old_frame: [AtomicU64; PAGES],
    interrupt: Vec<AtomicU64>,
    /// Number of initiators that report when they have finished.
    initiators: u64,
    /// How many of them have finished. After the last one, guests need not wait for a kick.
    finished: AtomicU64,
}

impl ModelState {
    pub(super) fn new(cpus: usize) -> Self {
        Self {
            targets: (0..cpus).map(|_| Target::new()).collect(),
            page_table: core::array::from_fn(|_| AtomicU64::new(OLD)),
            nested_table: None,
            stamp: AtomicU64::new(0),
            old_frame: core::array::from_fn(|_| AtomicU64::new(0)),
            interrupt: (0..cpus).map(|_| AtomicU64::new(0)).collect(),
            initiators: 1,
            finished: AtomicU64::new(0),
        }
    }

    /// The same for `initiators` that finish, instead of one.
    pub(super) fn under(self, initiators: u64) -> Self {
        Self { initiators, ..self }
    }

    /// The same with a nested table.
    pub(super) fn with_nested_table(self) -> Self {
        Self { nested_table: Some(AtomicU64::new(OLD)), ..self }
    }

    /// Points the nested table's entry elsewhere, runs `flush`, and frees the old frame.
    pub(super) fn replace_nested(&self, flush: impl FnOnce()) -> Freed {
        self.nested_table.as_ref().expect("there is one").store(NEW, Relaxed);
        flush();
        Freed { page: 0, accesses: self.old_frame[0].load(Relaxed) }
    }

    /// Points the page elsewhere, runs `flush`, and frees the old frame: the count of accesses that
    /// the initiator sees at that moment must be the final one.
    pub(super) fn replace(&self, page: usize, flush: impl FnOnce()) -> Freed {
        self.page_table[page].store(NEW, Relaxed);
        flush();
        Freed { page, accesses: self.old_frame[page].load(Relaxed) }
    }

    /// Called after all CPUs have stopped. `Relaxed` suffices: they were joined.
    pub(super) fn check(&self, freed: Freed) {
        let accesses = self.old_frame[freed.page].load(Relaxed);
        assert_eq!(freed.accesses, accesses, "frame used after it was freed");
    }

    pub(super) fn finish(&self) {
        self.finished.fetch_add(1, Relaxed);
    }

    /// A read-modify-write, because a relaxed load may be stale forever.
    fn has_finished(&self) -> bool {
        self.finished.fetch_or(0, Relaxed) >= self.initiators
    }

    /// Posts an event and does the poster's part, except for waking.
    pub(super) fn post_event<P: Protocol>(&self, index: usize) -> Notify {
        let notify = P::post_event(&self.targets[index]);
        if let Notify::Kick(cpu) = notify {
            self.kick(cpu);
        }
        notify
    }
}

impl Hardware for ModelState {
    fn kick(&self, cpu: CpuId) {
        // A read-modify-write, because loom may delay a relaxed store forever.
        self.interrupt[cpu.0 as usize].swap(1, Relaxed);
    }

    fn relax(&self, turns: u64) -> ControlFlow<()> {
        idle(turns);
        ControlFlow::Continue(())
    }
}

/// An idle turn. Whatever others do after several idle turns, they also do after one in another
/// execution. So this execution is only run to its end, fairly, and not branched any further:
/// otherwise two waiting threads would yield to each other forever.
pub(crate) fn idle(turns: u64) {
    const EXPLORED_TURNS: u64 = 2;
    if turns >= EXPLORED_TURNS {
        loom::skip_branch();
    }
    loom::thread::yield_now();
}

/// A frame that was returned to the allocator.
#[must_use]
pub(super) struct Freed {
    page: usize,
    accesses: u64,
}

/// When a guest stops by itself.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stay {
    /// After one round of accesses.
    Briefly,
    /// Never: it must be kicked, unless the initiators have finished.
    UntilKicked,
}

/// A CPU that runs one vCPU: its TLB, and the flush that its next VMRUN is to do.
pub(super) struct Cpu<'m> {
    machine: &'m ModelState,
    id: usize,
    /// Combined entries: from a page to a frame, by both tables.
    tlb: [Option<u64>; PAGES],
    /// The entry of the nested table, on its own: a flush of the guest's translations leaves it.
    nested_tlb: Option<u64>,
    /// The stamp up to which nothing of it is stale.
    dropped: u64,
    armed: Vec<Armed>,
    /// The address space that the guest is in, and the one that it switches to when it next runs.
    space: u64,
    next_space: u64,
}

/// A flush that VMRUN is to do.
struct Armed {
    /// `None` stands for everything.
    ranges: Option<Box<[GvaRange]>>,
    /// The nested table's entry, too.
    is_nested: bool,
}

impl<'m> Cpu<'m> {
    pub(super) fn new(machine: &'m ModelState, id: usize) -> Self {
        let (tlb, armed) = ([None; PAGES], Vec::new());
        Self { machine, id, tlb, nested_tlb: None, dropped: 0, armed, space: 0, next_space: 0 }
    }

    /// Takes a pending flush and records it.
    pub(super) fn absorb<P: Protocol>(&mut self, owner: &mut Owner<'_>) {
        let Some(work) = P::take_flush(owner) else { return };
        let ranges = match work.scope() {
            Scope::All => None,
            Scope::Ranges(ranges) => Some(ranges.into()),
        };
        self.armed.push(Armed { ranges, is_nested: work.is_nested() });
        P::complete(work);
    }

    /// One stay in guest mode that touches `pages` in order, after the steps required before entry.
    /// If an event is pending, takes that instead; true if there was none.
    pub(super) fn run<P: Protocol>(&mut self, owner: &mut Owner<'_>, stay: Stay, pages: &[usize]) -> bool {
        let cpu = CpuId(self.id as u32);
        let guest = loop {
            self.absorb::<P>(owner);
            if owner.take_events() {
                return false;
            }
            match P::try_enter(owner, cpu) {
                Ok(guest) => break guest,
                Err(pending) => assert!(pending.flush || pending.event),
            }
        };
        self.vmrun();
        if self.space != self.next_space {
            // The guest loads CR3.
            self.space = self.next_space;
            self.tlb = [None; PAGES];
        }
        for turn in 0.. {
            pages.iter().for_each(|&page| self.touch(page));
            let kicked = self.machine.interrupt[self.id].swap(0, Relaxed) != 0;
            if kicked || stay == Stay::Briefly || self.machine.has_finished() {
                break;
            }
            idle(turn);
        }
        P::leave(guest);
        true
    }

    /// A guest access by software, in a section of its own.
    pub(super) fn emulate<P: Protocol>(&mut self, owner: &mut Owner<'_>, page: usize) {
        let section = loop {
            self.absorb::<P>(owner);
            match P::begin_translation(owner) {
                Ok(section) => break section,
                Err(pending) => assert!(pending.flush),
            }
        };
        let entry = self.machine.page_table[page].load(Relaxed);
        self.machine.access(page, entry);
        section.end();
    }

    /// The guest switches to this address space first thing in its next stay.
    pub(super) fn switch_to(&mut self, space: u64) {
        self.next_space = space;
    }

    /// A vCPU arrives, with another tag, where nested entries have a tag of their own: it drops
    /// what is stale of them.
    pub(super) fn meet<P: Protocol>(&mut self) {
        self.tlb = [None; PAGES];
        let stamp = P::stamp(self.machine);
        if stamp != self.dropped {
            (self.nested_tlb, self.dropped) = (None, stamp);
        }
    }

    /// The vCPU is removed, and its record with it. The CPU's TLB stays as it is.
    pub(super) fn discard_record(&mut self) {
        self.armed.clear();
    }

    /// VMRUN: does the armed flush, and nothing else. The TLB keeps the rest forever.
    fn vmrun(&mut self) {
        for Armed { ranges, is_nested } in self.armed.drain(..) {
            if is_nested {
                self.nested_tlb = None;
            }
            match ranges {
                None => self.tlb = [None; PAGES],
                Some(ranges) => {
                    for range in &ranges {
                        self.tlb[(range.first / 0x1000) as usize] = None;
                    }
                }
            }
        }
    }

    /// A guest access, through the TLB.
    fn touch(&mut self, page: usize) {
        let (machine, nested_tlb) = (self.machine, &mut self.nested_tlb);
        let frame = *self.tlb[page].get_or_insert_with(|| {
            match (machine.page_table[page].load(Relaxed), &machine.nested_table) {
                (OLD, Some(table)) => *nested_tlb.get_or_insert_with(|| table.load(Relaxed)),
                (frame, _) => frame,
            }
        });
        machine.access(page, frame);
    }
}

impl ModelState {
    fn access(&self, page: usize, entry: u64) {
        if entry == OLD {
            self.old_frame[page].fetch_add(1, Relaxed);
        }
    }
}
