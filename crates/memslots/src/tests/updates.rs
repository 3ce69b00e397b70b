//! Random updates of two spaces against lists and maps, with the translations that faults would
//! make meanwhile.

use std::ops::Range;

use paging::{Permissions, PhysAddr};
use proptest::prelude::*;

use super::{Backing, PAGE, receipt, slot, stamp};
use crate::sync::AtomicU64;
use crate::{
    DirtyLog, Gpa, Memslots, Resolution, Retired, Slot, SlotChange, SlotError, SlotFlags, SlotId, SpaceId,
    Treatment,
};

/// Guest pages of a space, pages behind slots, and logs of one word.
const PAGES: u64 = 40;
const BACKING_PAGES: u64 = 64;
const LOGS: usize = 3;
const BITS: u32 = 18;

#[derive(Clone, Debug)]
enum Op {
    Add { id: u16, page: u64, page_count: u64, host_page: u64 },
    Remove { id: u16 },
    Move { id: u16, page: u64 },
    SetReadOnly { id: u16, is_read_only: bool },
    SetLog { id: u16, log: Option<usize> },
}

fn op() -> impl Strategy<Value = Op> {
    let id = || 0..5u16;
    prop_oneof![
        3 => (id(), 0..PAGES + 30, 0..10u64, prop_oneof![Just(7), 0..BACKING_PAGES - 10])
            .prop_map(|(id, page, page_count, host_page)| Op::Add { id, page, page_count, host_page }),
        1 => id().prop_map(|id| Op::Remove { id }),
        2 => (id(), 0..PAGES + 30).prop_map(|(id, page)| Op::Move { id, page }),
        2 => (id(), any::<bool>()).prop_map(|(id, is_read_only)| Op::SetReadOnly { id, is_read_only }),
        2 => (id(), prop::option::of(0..LOGS)).prop_map(|(id, log)| Op::SetLog { id, log }),
    ]
}

/// A slot and its log.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Entry {
    space: SpaceId,
    slot: Slot,
    log: Option<usize>,
}

/// All translations of a slot: one page, or a large one and pieces.
#[derive(Clone, Debug)]
struct Leaf {
    space: SpaceId,
    gpas: Range<u64>,
    pa: PhysAddr,
    is_writable: bool,
    is_small: bool,
    /// No store through it goes unnoticed: it is not writable, or its dirty bit is clear.
    is_clean: bool,
}

struct Model {
    memslots: Memslots<2>,
    backing: Backing,
    logs: [DirtyLog; LOGS],
    entries: Vec<Entry>,
    leaves: Vec<Leaf>,
    /// The marked pages of each log.
    marked: [u64; LOGS],
}

impl Model {
    fn new(words: &[AtomicU64; LOGS]) -> Self {
        Self {
            memslots: Memslots::with_spaces(BITS),
            backing: Backing::new(BACKING_PAGES),
            logs: [0, 1, 2].map(|index| DirtyLog::new(&words[index..=index])),
            entries: Vec::new(),
            leaves: Vec::new(),
            marked: [0; LOGS],
        }
    }

    fn position(entries: &[Entry], space: SpaceId, id: u16) -> Result<usize, SlotError> {
        let is_it = |entry: &Entry| entry.space == space && entry.slot.id == SlotId(id);
        entries.iter().position(is_it).ok_or(SlotError::UnknownId)
    }

    /// Whether a slot fits in the space.
    fn check_place(entries: &[Entry], space: SpaceId, slot: &Slot) -> Result<(), SlotError> {
        if slot.gpa.0 + slot.size > 1 << BITS {
            return Err(SlotError::TooHigh);
        }
        let overlaps = |entry: &&Entry| {
            let other = entry.slot.range();
            entry.space == space
                && entry.slot.id != slot.id
                && (slot.gpa.0..slot.gpa.0 + slot.size).any(|gpa| other.contains(&gpa))
        };
        let first = entries.iter().filter(overlaps).min_by_key(|entry| entry.slot.gpa);
        first.map_or(Ok(()), |entry| Err(SlotError::Overlap(entry.slot.id)))
    }

    /// The expected effect of an operation on a list.
    fn expect(&self, entries: &mut Vec<Entry>, space: SpaceId, op: &Op) -> Result<(), SlotError> {
        match *op {
            Op::Add { id, .. } => {
                let slot = self.slot(op);
                if slot.size == 0 {
                    return Err(SlotError::Empty);
                }
                if slot.gpa.0 + slot.size > 1 << BITS {
                    return Err(SlotError::TooHigh);
                }
                if Self::position(entries, space, id).is_ok() {
                    return Err(SlotError::DuplicateId);
                }
                Self::check_place(entries, space, &slot)?;
                entries.push(Entry { space, slot, log: None });
            }
            Op::Remove { id } => {
                entries.remove(Self::position(entries, space, id)?);
            }
            Op::Move { id, page } => {
                let index = Self::position(entries, space, id)?;
                let moved = Slot { gpa: Gpa(page * PAGE), ..entries[index].slot };
                Self::check_place(entries, space, &moved)?;
                entries[index].slot = moved;
            }
            Op::SetReadOnly { id, is_read_only } => {
                let index = Self::position(entries, space, id)?;
                entries[index].slot.flags.set(SlotFlags::READ_ONLY, is_read_only);
            }
            Op::SetLog { id, log } => {
                let index = Self::position(entries, space, id)?;
                entries[index].slot.flags.set(SlotFlags::LOG_DIRTY, log.is_some());
                entries[index].log = log;
            }
        }
        Ok(())
    }

    fn slot(&self, op: &Op) -> Slot {
        let &Op::Add { id, page, page_count, host_page } = op else { panic!("not added") };
        let base = self.backing.slot(0, 0).host.0;
        slot(id, page, page_count, base + host_page * PAGE)
    }

    fn update(&mut self, ops: &[(SpaceId, Op)]) -> Result<(), TestCaseError> {
        let before = self.entries.clone();
        let mut entries = before.clone();
        let mut update = self.memslots.begin_update().unwrap();
        for (space, op) in ops {
            let expected = self.expect(&mut entries, *space, op);
            let mut edit = update.space(*space).unwrap();
            let done = match *op {
                // SAFETY: the backing lives as long as the slots.
                Op::Add { .. } => unsafe { edit.add(self.slot(op)) },
                Op::Remove { id } => edit.remove(SlotId(id)),
                Op::Move { id, page } => edit.move_to(SlotId(id), Gpa(page * PAGE)),
                Op::SetReadOnly { id, is_read_only } => {
                    let entry = Self::position(&entries, *space, id).map(|index| entries[index]);
                    let mut flags = entry.map_or(SlotFlags::empty(), |entry| entry.slot.flags);
                    flags.set(SlotFlags::READ_ONLY, is_read_only);
                    edit.set_flags(SlotId(id), flags)
                }
                Op::SetLog { id, log } => {
                    let log = log.map(|index| self.logs[index]);
                    // SAFETY: the words live as long as the slots.
                    unsafe { edit.set_log(SlotId(id), log) }
                }
            };
            prop_assert_eq!(done, expected, "{:?} of {:?}", op, space);
        }
        let mut quiesced = update.publish().wait(|| false).unwrap();
        let mut changes = Vec::new();
        quiesced.for_each_change(|change| changes.push(*change));
        prop_assert!((0..).map_while(|index| quiesced.change(index)).eq(changes.iter().copied()));
        for change in &changes {
            self.leaves.retain_mut(|leaf| treat(leaf, change));
        }
        for space in self.memslots.spaces() {
            let is_flushed =
                changes.iter().any(|change| change.space == space && change.treatment.needs_receipt());
            prop_assert_eq!(quiesced.needs_receipt(space), is_flushed);
            prop_assert!(!is_flushed || quiesced.settle(space, &receipt(), stamp()));
        }
        let mut retired = Vec::new();
        quiesced.finish(|what| retired.push(what)).unwrap();
        self.entries = entries;
        self.check_changes(&before, &changes)?;
        self.check_retired(&before, &retired)?;
        self.check_leaves(&before)
    }

    fn now(&self, former: &Entry) -> Option<Entry> {
        let is_same = |entry: &&Entry| entry.space == former.space && entry.slot.id == former.slot.id;
        self.entries.iter().find(is_same).copied()
    }

    fn check_changes(&self, before: &[Entry], changes: &[SlotChange]) -> Result<(), TestCaseError> {
        let mut expected: Vec<_> =
            before.iter().filter(|former| self.now(former) != Some(**former)).collect();
        expected.sort_by_key(|entry| (entry.space, entry.slot.gpa));
        let seen: Vec<_> = changes.iter().map(|change| (change.space, change.former)).collect();
        prop_assert_eq!(seen, expected.iter().map(|entry| (entry.space, entry.slot)).collect::<Vec<_>>());
        for (change, former) in changes.iter().zip(expected) {
            let now = self.now(former);
            prop_assert_eq!(change.current, now.map(|entry| entry.slot));
            let keeps_log = former.log.is_some() && now.is_some_and(|now| now.log == former.log);
            prop_assert_eq!(change.keeps_log, keeps_log);
        }
        Ok(())
    }

    fn check_retired(&self, before: &[Entry], retired: &[Retired]) -> Result<(), TestCaseError> {
        let mut count = 0;
        for former in before {
            let &Entry { space, slot, log } = former;
            let now = self.now(former);
            let keeps_memory =
                now.is_some_and(|now| (now.slot.host, now.slot.size) == (slot.host, slot.size));
            let is_back = retired.contains(&Retired::Memory { space, slot });
            prop_assert_eq!(is_back, !keeps_memory);
            count += usize::from(is_back);
            let keeps_log = now.is_some_and(|now| now.log == log);
            let log = log.map(|index| self.logs[index]);
            let is_back = log.is_some_and(|log| retired.contains(&Retired::Log { space, slot, log }));
            prop_assert_eq!(is_back, log.is_some() && !keeps_log);
            count += usize::from(is_back);
        }
        prop_assert_eq!(retired.len(), count);
        Ok(())
    }

    /// Remaining translations are right by the current slots; faults then add the missing ones.
    fn check_leaves(&mut self, before: &[Entry]) -> Result<(), TestCaseError> {
        for leaf in &self.leaves {
            let memory = self.memslots.memory_of(leaf.space);
            let permissions = if leaf.is_writable { Permissions::RWX } else { Permissions::RX };
            let len = if leaf.is_small { PAGE } else { leaf.gpas.end - leaf.gpas.start };
            for start in leaf.gpas.clone().step_by(len as usize) {
                let pa = PhysAddr(leaf.pa.0 + (start - leaf.gpas.start));
                prop_assert_eq!(memory.audit(start..start + len, pa, permissions), Ok(()), "{:?}", leaf);
            }
            let entry = self.entries.iter().find(|entry| is_of(leaf, entry.space, &entry.slot)).unwrap();
            let was = before.iter().find(|entry| is_of(leaf, entry.space, &entry.slot)).unwrap();
            let begins = entry.log.is_some() && entry.log != was.log;
            prop_assert!(leaf.is_clean || !begins, "stores through {:?} are not logged", leaf);
        }
        self.leaves.clear();
        for Entry { space, slot, .. } in &self.entries {
            let (gpas, is_writable, is_small) = (slot.range(), !slot.is_read_only(), slot.is_logged());
            let leaf =
                Leaf { space: *space, gpas, pa: slot.host, is_writable, is_small, is_clean: !is_writable };
            self.leaves.push(leaf);
        }
        Ok(())
    }

    fn check_lookups(&self) -> Result<(), TestCaseError> {
        for space in self.memslots.spaces() {
            let memory = self.memslots.memory_of(space);
            for page in 0..PAGES + 42 {
                let gpa = Gpa(page * PAGE + page);
                let of_page = |entry: &&Entry| entry.space == space && entry.slot.contains(gpa);
                let expected = self.entries.iter().find(of_page).map(|entry| entry.slot);
                let place = expected.map(|slot| (slot, PhysAddr(slot.host.0 + (gpa.0 - slot.gpa.0))));
                prop_assert_eq!(memory.find(gpa), expected);
                let resolved = match memory.resolve(gpa) {
                    Resolution::Ram { slot, host, .. } => Some((slot, host)),
                    Resolution::Mmio => None,
                };
                prop_assert_eq!(resolved, place);
            }
        }
        Ok(())
    }

    /// A store of 1 to 3 pages, and a fetch.
    fn store(&mut self, space: SpaceId, gpa: u64, len: usize) -> Result<(), TestCaseError> {
        let of_gpa = |gpa: u64| {
            let holds = |entry: &&Entry| entry.space == space && entry.slot.contains(Gpa(gpa));
            self.entries.iter().find(holds)
        };
        let range = gpa..gpa + len as u64;
        let is_writable = |gpa| of_gpa(gpa).is_some_and(|entry| !entry.slot.is_read_only());
        // The first byte, and the first of each further page.
        let starts = || range.clone().filter(|gpa| *gpa == range.start || gpa.is_multiple_of(PAGE));
        let is_done = starts().all(is_writable);
        let mut marked = self.marked;
        for gpa in starts().filter(|_| is_done) {
            if let Some((slot, log)) = of_gpa(gpa).and_then(|entry| Some((entry.slot, entry.log?))) {
                marked[log] |= 1 << ((gpa - slot.gpa.0) / PAGE);
            }
        }
        let result = self.memslots.memory_of(space).write(Gpa(gpa), &vec![1; len]);
        prop_assert_eq!(result.is_ok(), is_done, "{:?}", result);
        self.marked = marked;
        Ok(())
    }

    fn fetch(&mut self) -> Result<(), TestCaseError> {
        for Entry { space, slot, log } in &self.entries {
            let Some(log) = log else { continue };
            let mut words = [0];
            let fetch = self.memslots.memory_of(*space).fetch_dirty(slot.id, 0, &mut words).unwrap();
            fetch.finish(&receipt(), stamp()).unwrap();
            // Two slots may have one log; bits beyond the last page are dropped.
            let pages = (1 << (slot.size / PAGE)) - 1;
            prop_assert_eq!(words[0], self.marked[*log] & pages, "{:?}", slot);
            self.marked[*log] = 0;
        }
        Ok(())
    }
}

fn is_of(leaf: &Leaf, space: SpaceId, slot: &Slot) -> bool {
    leaf.space == space && leaf.gpas == slot.range()
}

/// Applies the treatment of its slot's change to a leaf; false if it is zapped.
fn treat(leaf: &mut Leaf, change: &SlotChange) -> bool {
    if !is_of(leaf, change.space, &change.former) {
        return true;
    }
    match change.treatment {
        Treatment::Nothing => {}
        Treatment::Collapse => leaf.is_small = false,
        Treatment::WriteProtect => (leaf.is_writable, leaf.is_clean) = (false, true),
        // By dirty bits, which keep write access.
        Treatment::StartLog => (leaf.is_small, leaf.is_clean) = (true, true),
        Treatment::Zap => return false,
    }
    true
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 4 } else { 256 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p8_updates_agree_with_lists_and_leave_no_wrong_translation(
        rounds in prop::collection::vec(
            (
                prop::collection::vec(((0..2u8).prop_map(SpaceId), op()), 0..6),
                prop::collection::vec(((0..2u8).prop_map(SpaceId), 0..PAGES * PAGE, 1..3 * PAGE as usize), 0..4),
                any::<bool>(),
            ),
            1..if cfg!(miri) { 4 } else { 12 },
        ),
    ) {
        let words = [const { AtomicU64::new(0) }; LOGS];
        let mut model = Model::new(&words);
        for (round, (ops, stores, is_fetched)) in (1..).zip(rounds) {
            model.update(&ops)?;
            prop_assert_eq!(model.memslots.generation().number(), round);
            model.check_lookups()?;
            for (space, gpa, len) in stores {
                model.store(space, gpa, len)?;
            }
            if is_fetched {
                model.fetch()?;
            }
        }
        model.fetch()?;
    }
}
