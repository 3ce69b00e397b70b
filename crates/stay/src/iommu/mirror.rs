//! Tables by which an SMMU translates for a guest's devices, by stage 1.
//!
//! They map what the guest's slots of memory are, and nothing else: no registers of devices. They
//! are filled when the guest's memory is mapped ahead, and follow the slots in each flush: what no
//! slot has any more is unmapped, and the SMMU drops it before the flush is over. So the memory of
//! a slot is free only when no device reaches it.
//!
//! ```text
//! CPU that removes a slot                      CPU that fills the mirror
//! A  the slot is not in the list any more      P  lock; read the list
//! B  lock; unmap what is not in the list       Q  map what is in it; unlock
//! C  commands to the SMMU; wait; free
//! ```
//!
//! Q before B, and it is unmapped; or B before P, and A before B before P: it is not mapped again.
//! Tables stay in their place, empty, until the guest goes: nothing is freed in between.
//!
//! An SMMU with stage 2 could use the guest's own, as AMD-Vi uses nested tables. But Arm replaces
//! entries by break-before-make: in between, a vCPU's access faults and is repeated, and a device's
//! is aborted. The break would have to reach the SMMU, too. Nothing is replaced here.

use arrayvec::ArrayVec;
use memslots::{SLOTS_MAX, Slot};
use paging::{
    Arm64Stage1, FlushRange, Gather, Invalidation, Level, MapError, PageTable, Permissions, PhysAddr,
    Progress, TableMemory, Tables,
};

use crate::{Mistake, Mistakes};

/// Bytes that are mapped in a step.
const STEP: u64 = 64 << 20;

/// Ranges that are unmapped.
pub type Stale = ArrayVec<FlushRange, SLOTS_MAX>;
/// The slots of memory, without those of devices.
pub type Slots = ArrayVec<Slot, SLOTS_MAX>;

/// The tables, under a lock. The owner drops them after the SMMU has blocked all devices that
/// translate by them. `T` is what there is to wait for after SMMUs were told something; its default
/// is nothing.
#[derive(Debug)]
pub struct Mirror<M: TableMemory, T> {
    tables: PageTable<Arm64Stage1, M>,
    parts: ArrayVec<Part, SLOTS_MAX>,
    /// The slots at the last look. Here, because they are too large for the stack.
    slots: Slots,
    /// What the last [`follow`](Self::follow) has unmapped.
    stale: Stale,
    /// What the SMMUs were told last. Every flush waits for it, since it may be another CPU that
    /// has unmapped what this one frees.
    last: T,
}

/// A slot, and how much of it is mapped.
#[derive(Debug)]
struct Part {
    slot: Slot,
    mapped: u64,
}

impl<M: TableMemory, T: Clone + Default> Mirror<M, T> {
    /// Nothing is mapped. `None` without memory for tables, whose
    /// [`publish`](TableMemory::publish) makes stores visible to the SMMU's walks.
    pub fn new(memory: M) -> Option<Self> {
        let tables = PageTable::new(memory).ok()?;
        let (parts, slots, stale) = (ArrayVec::new(), Slots::new(), Stale::new());
        Some(Self { tables, parts, slots, stale, last: T::default() })
    }

    /// The root.
    pub fn root(&self) -> u64 {
        self.tables.root().0
    }

    /// Maps some more of the slots that `look_up` finds (P); `Done` if everything is mapped (Q).
    ///
    /// # Errors
    ///
    /// [`MapError`] if there is no memory for tables: the devices do not reach all of the guest's.
    pub fn fill(&mut self, look_up: impl FnOnce(&mut Slots)) -> Result<Progress, MapError> {
        self.slots.clear();
        look_up(&mut self.slots);
        for slot in &self.slots {
            let known = self.parts.iter().position(|part| part.slot == *slot);
            let index = known.unwrap_or(self.parts.len());
            if known.is_none() && self.parts.try_push(Part { slot: *slot, mapped: 0 }).is_err() {
                // Former ones go first: in the flush that is still to come.
                return Ok(Progress::Waiting);
            }
            let Some(part) = self.parts.get_mut(index) else { continue };
            let (from, to) = (part.mapped, part.mapped.saturating_add(STEP).min(slot.size));
            if from == to {
                continue;
            }
            // First, so that what was mapped before an error is unmapped as well.
            part.mapped = to;
            let rights = if slot.is_read_only() { Permissions::R } else { Permissions::RW };
            let range = slot.gpa.0 + from..slot.gpa.0 + to;
            // Devices' accesses are unprivileged.
            let rights = rights | Permissions::USER;
            self.tables.map(range, PhysAddr(slot.host.0 + from), rights, Level::Page1G)?;
            return Ok(Progress::More);
        }
        Ok(Progress::Done)
    }

    /// Unmaps what the slots that `look_up` finds do not have (B), and has `tell` tell the SMMUs to
    /// drop it. Returns what there is to wait for (C).
    ///
    /// # Errors
    ///
    /// That of `tell`.
    pub fn follow<E>(
        &mut self,
        look_up: impl FnOnce(&mut Slots),
        mistakes: &impl Mistakes,
        tell: impl FnOnce(Invalidation<'_>) -> Result<T, E>,
    ) -> Result<T, E> {
        let Self { tables, parts, slots, stale, last } = self;
        slots.clear();
        look_up(slots);
        stale.clear();
        parts.retain(|part| {
            let is_there = slots.contains(&part.slot);
            if !is_there && part.mapped != 0 {
                let range = part.slot.gpa.0..part.slot.gpa.0 + part.mapped;
                let (start, len) = (range.start, part.mapped);
                if !mistakes.makes(Mistake::MirrorKept) {
                    // It holds no tables.
                    let _flushed_by_the_caller = tables.zap(range, Tables::Keep);
                }
                // There is a place for each part.
                let _ = stale.try_push(FlushRange { start, len, level: Level::Page4K, tables: false });
            }
            is_there
        });
        if !stale.is_empty() {
            *last = tell(Invalidation::Ranges(stale))?;
        } else if mistakes.makes(Mistake::MirrorNotWaited) {
            return Ok(T::default());
        }
        Ok(last.clone())
    }

    /// Takes the tables apart: no device translates by them any more.
    pub fn dismantle(self) -> Gather<M> {
        self.tables.dismantle()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::heap::Heap;
    use memslots::{Gpa, SlotFlags, SlotId};
    use std::vec::Vec;

    type TestMirror = Mirror<Heap, u32>;

    fn mirror() -> TestMirror {
        Mirror::new(Heap).expect("there is memory")
    }

    struct Faultless;

    impl Mistakes for Faultless {}

    fn slot(id: u16, gpa: u64, size: u64, host: u64, flags: SlotFlags) -> Slot {
        Slot { id: SlotId(id), gpa: Gpa(gpa), size, host: PhysAddr(host), flags }
    }

    fn filled(mirror: &mut TestMirror, slots: &[Slot]) {
        while mirror.fill(|found| found.extend(slots.iter().copied())).unwrap() != Progress::Done {}
    }

    /// What is stale when these slots are there.
    fn stale(mirror: &mut TestMirror, slots: &[Slot]) -> Stale {
        let told: Result<_, ()> =
            mirror.follow(|found| found.extend(slots.iter().copied()), &Faultless, |_| Ok(0));
        told.map(|_| mirror.stale.clone()).expect("nothing fails")
    }

    #[test]
    fn it_maps_what_the_slots_are_and_follows_them() {
        let mut mirror = mirror();
        let ram = slot(0, 0x4000_0000, 200 << 20, 0x8000_0000, SlotFlags::empty());
        let rom = slot(1, 0x1000_0000, 0x3000, 0x9000_1000, SlotFlags::READ_ONLY);
        filled(&mut mirror, &[ram, rom]);
        let to = |mirror: &TestMirror, at| {
            let mapping = mirror.tables.query(at)?;
            Some((mapping.pa.0, mapping.permissions.contains(Permissions::WRITE)))
        };
        assert_eq!(to(&mirror, 0x4000_0000), Some((0x8000_0000, true)));
        assert_eq!(to(&mirror, 0x4000_0000 + (200 << 20) - 1), Some((0x8c7f_ffff, true)));
        assert_eq!(to(&mirror, 0x4000_0000 + (200 << 20)), None);
        assert_eq!(to(&mirror, 0x1000_2fff), Some((0x9000_3fff, false)));
        assert!(mirror.tables.query(0x4000_0000).unwrap().permissions.contains(Permissions::USER));

        assert!(stale(&mut mirror, &[ram, rom]).is_empty());
        assert_eq!(
            stale(&mut mirror, &[rom]).as_slice(),
            [FlushRange { start: 0x4000_0000, len: 200 << 20, level: Level::Page4K, tables: false }]
        );
        assert_eq!(to(&mirror, 0x4000_0000), None);
        assert_eq!(to(&mirror, 0x1000_0000), Some((0x9000_1000, false)));
        // Other memory at the same place, in other pages than before.
        let moved = slot(0, 0x4000_0000, 2 << 20, 0x9000_5000, SlotFlags::empty());
        filled(&mut mirror, &[moved, rom]);
        assert_eq!(to(&mirror, 0x4000_0fff), Some((0x9000_5fff, true)));
        assert_eq!(to(&mirror, 0x4020_0000), None);
    }

    #[test]
    fn every_flush_waits_for_what_was_told_last() {
        let mut mirror = mirror();
        let page = slot(0, 0, 0x1000, 0x4000_0000, SlotFlags::empty());
        let follow = |mirror: &mut TestMirror, told| mirror.follow(|_| (), &Faultless, |_| told);
        filled(&mut mirror, &[page]);
        assert_eq!(follow(&mut mirror, Err(())), Err(()), "it is stuck");
        filled(&mut mirror, &[page]);
        assert_eq!(follow(&mut mirror, Ok(7)), Ok(7));
        // Another CPU, which may free the same.
        assert_eq!(follow(&mut mirror, Err(())), Ok(7));
    }

    #[test]
    fn only_what_was_mapped_is_stale() {
        let mut mirror = mirror();
        let large = slot(0, 0, 1 << 30, 0x4000_0000, SlotFlags::empty());
        assert_eq!(mirror.fill(|found| found.push(large)), Ok(Progress::More));
        let stale = stale(&mut mirror, &[]);
        assert_eq!(stale.iter().map(|range| (range.start, range.len)).collect::<Vec<_>>(), [(0, STEP)]);
    }
}
