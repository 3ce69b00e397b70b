//! Guests of a guest: each has a tag of its own, beside that of the vCPU's guest itself.
//!
//! A guest that is a hypervisor names its guests' translations by ASIDs of its own, which never
//! reach the processor. A vCPU has a few slots for them, which owe flushes as the vCPU's own slot
//! does. VMRUN and #VMEXIT drop nothing: each context has another tag (APM volume 2, section
//! 15.16).
//!
//! A guest of the guest with nested paging has a shadow as well, which is a TLB in memory
//! ([`memslots::space::Shadow`]): it is void when what it holds must not be used any more.
//!
//! | the guest does | the vCPU's slot | the slots of its guests | void is |
//! |---|---|---|---|
//! | VMRUN, `TLB_CONTROL` 1, or a reserved value | owes | all owe, and all are forgotten | each |
//! | 3, 7 | – | that of the ASID owes | that of the ASID |
//! | 0, the ASID is known, with the same root | – | – | – |
//! | 0, the ASID is known, with another root | – | it owes | its own |
//! | 0, the ASID is unknown | – | the one that was used longest ago becomes its own, and owes | its own |
//! | the vCPU takes a flush of the guest's translations | owes | all owe | – |
//! | the vCPU takes a flush of nested translations | owes | all owe | each |

use coherence::asid::AsidSlot;

/// What a guest of the guest is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The ASID that the guest has given it.
    pub asid: u32,
    /// The root of its nested tables, and what else their meaning depends on; 0 without.
    pub root: u64,
}

#[derive(Debug, Default)]
struct Place {
    slot: AsidSlot,
    key: Option<Key>,
    /// When it was last entered, in entries.
    used: u64,
    is_void: bool,
}

/// The slots of one vCPU for guests of its guest.
#[derive(Debug, Default)]
pub struct Contexts {
    places: [Place; Self::PLACES],
    entries: u64,
}

impl Contexts {
    /// Slots of one vCPU.
    pub const PLACES: usize = 3;

    /// The guest runs a guest of its own, with this value of `TLB_CONTROL`; `own` is the vCPU's own
    /// slot. Returns the number of the slot to enter with.
    pub fn enter(&mut self, key: Key, control: u8, own: &mut AsidSlot) -> usize {
        match control {
            0 => {}
            3 | 7 => {
                if let Some(place) = self.place(key.asid) {
                    place.slot.owe_flush();
                    place.is_void = true;
                }
            }
            _ => {
                own.owe_flush();
                self.forget();
            }
        }
        let known = self.places.iter().position(|place| place.key.is_some_and(|its| its.asid == key.asid));
        let oldest = || (0..Self::PLACES).min_by_key(|&index| self.places[index].used).unwrap_or(0);
        let index = known.unwrap_or_else(oldest);
        self.entries += 1;
        let place = &mut self.places[index];
        if place.key != Some(key) {
            place.slot.owe_flush();
            place.is_void = true;
        }
        (place.key, place.used) = (Some(key), self.entries);
        index
    }

    /// The slot with this number.
    pub const fn slot(&mut self, index: usize) -> &mut AsidSlot {
        &mut self.places[index].slot
    }

    /// The slot of an ASID, and whether it has nested tables, if it is known.
    pub fn of(&mut self, asid: u32) -> Option<(&mut AsidSlot, bool)> {
        let place = self.place(asid)?;
        let has_tables = place.key.is_some_and(|key| key.root != 0);
        Some((&mut place.slot, has_tables))
    }

    fn place(&mut self, asid: u32) -> Option<&mut Place> {
        self.places.iter_mut().find(|place| place.key.is_some_and(|its| its.asid == asid))
    }

    /// Whether the shadow with this number is void: then it must be emptied now. Its slot owes a
    /// flush.
    pub fn take_void(&mut self, index: usize) -> bool {
        let Some(place) = self.places.get_mut(index) else { return false };
        if place.is_void {
            place.slot.owe_flush();
        }
        core::mem::take(&mut place.is_void)
    }

    /// The guest's translations have changed: each slot owes a flush.
    pub fn owe_all(&mut self) {
        self.places.iter_mut().for_each(|place| place.slot.owe_flush());
    }

    /// Nested translations have changed: each slot owes a flush, and each shadow is void.
    pub fn void_all(&mut self) {
        self.owe_all();
        self.places.iter_mut().for_each(|place| place.is_void = true);
    }

    /// No ASID is known any more; each slot owes a flush, and each shadow is void.
    pub fn forget(&mut self) {
        self.void_all();
        self.places.iter_mut().for_each(|place| place.key = None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use coherence::CpuId;
    use coherence::asid::{AsidAllocator, TlbControl};
    use core::num::NonZeroU32;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::vec::Vec;

    /// A processor that drops nothing that it is not told to drop: by tag, what was put there.
    struct Tlb<T> {
        allocator: AsidAllocator,
        entries: BTreeMap<u32, Vec<T>>,
    }

    /// By number: what a shadow holds.
    type Shadows = [Vec<(u32, u64, u32)>; Contexts::PLACES];

    impl<T: Copy + PartialEq> Tlb<T> {
        fn new(tags: u32) -> Self {
            let allocator = AsidAllocator::new(CpuId(0), NonZeroU32::new(tags).unwrap(), true);
            Self { allocator, entries: BTreeMap::new() }
        }

        /// Enters, and returns what is there, `new` included.
        fn run(&mut self, slot: &mut AsidSlot, new: T) -> Vec<T> {
            let assignment = self.allocator.assign(slot);
            match assignment.control {
                TlbControl::DoNothing => {}
                TlbControl::FlushAll => self.entries.clear(),
                TlbControl::FlushAsid => drop(self.entries.remove(&assignment.asid)),
            }
            let entries = self.entries.entry(assignment.asid).or_default();
            entries.push(new);
            let entries = entries.clone();
            self.allocator.executed(slot, assignment);
            entries
        }
    }

    proptest! {
        /// N6, N8, N10, N11: a guest that uses ASIDs as the manual has it never meets an entry of
        /// another one of its guests, of itself, nor one that it has had dropped.
        #[test]
        fn n11_no_context_meets_another_ones_entries(
            steps in prop::collection::vec((0u32..6, 0u64..2, 0u8..8, any::<bool>()), 1..200),
            tags in 2u32..6,
        ) {
            let (mut contexts, mut own, mut tlb) = (Contexts::default(), AsidSlot::new(), Tlb::new(tags));
            let mut shadows = Shadows::default();
            // By ASID: the root that its entries may be of, and how often they were dropped.
            let mut should = BTreeMap::<u32, (u64, u32)>::new();
            let mut dropped = 0;
            for (asid, root, control, runs_itself) in steps {
                if runs_itself {
                    // The guest itself, as ASID 0, which has no root.
                    let found = tlb.run(&mut own, (0, 0, dropped));
                    prop_assert!(found.iter().all(|&entry| entry == (0, 0, dropped)));
                    continue;
                }
                match control {
                    0 => {}
                    3 | 7 => should.entry(asid).or_default().1 += 1,
                    _ => {
                        dropped += 1;
                        should.values_mut().for_each(|(_, count)| *count += 1);
                    }
                }
                let its = should.entry(asid).or_default();
                *its = (root, its.1 + u32::from(its.0 != root));
                let entry = (asid + 1, root, its.1);
                let place = contexts.enter(Key { asid, root }, control, &mut own);
                if contexts.take_void(place) {
                    shadows[place].clear();
                }
                shadows[place].push(entry);
                prop_assert!(shadows[place].iter().all(|&held| held == entry), "{:?}", shadows[place]);
                let found = tlb.run(contexts.slot(place), entry);
                prop_assert!(found.iter().all(|&entry| entry == found[found.len() - 1]), "{found:?}");
            }
        }
    }

    #[test]
    fn n8_only_what_the_guest_names_is_dropped() {
        let (mut contexts, mut own, mut tlb) = (Contexts::default(), AsidSlot::new(), Tlb::new(8));
        let mut count = |contexts: &mut Contexts, own: &mut AsidSlot, asid, control| {
            let place = contexts.enter(Key { asid, root: 0 }, control, own);
            tlb.run(contexts.slot(place), asid).len()
        };
        let mut entries = |calls: &[(u32, u8)]| -> Vec<usize> {
            calls.iter().map(|&(asid, control)| count(&mut contexts, &mut own, asid, control)).collect()
        };
        assert_eq!(entries(&[(1, 0), (2, 0), (1, 0), (2, 0)]), [1, 1, 2, 2], "nothing");
        assert_eq!(entries(&[(1, 3), (2, 0), (1, 7), (2, 0)]), [1, 3, 1, 4], "the named one");
        assert_eq!(entries(&[(1, 0), (3, 0), (1, 0), (2, 0)]), [2, 1, 3, 5], "there is room for a third");
        assert_eq!(entries(&[(4, 0), (2, 0), (3, 0)]), [1, 6, 1], "the oldest went, and the next one");
        assert_eq!(entries(&[(2, 1), (4, 0), (4, 0)]), [1, 1, 2], "all");
        assert!(own.owes_flush(), "the guest's own, too");
    }

    #[test]
    fn n7_what_is_forgotten_is_owed() {
        let (mut contexts, mut own, mut tlb) = (Contexts::default(), AsidSlot::new(), Tlb::new(8));
        let key = Key { asid: 1, root: 0 };
        let place = contexts.enter(key, 0, &mut own);
        tlb.run(contexts.slot(place), 'a');
        contexts.owe_all();
        assert!(contexts.of(1).expect("is known").0.owes_flush() && contexts.of(2).is_none());
        assert_eq!(tlb.run(contexts.slot(place), 'b').len(), 1);
        contexts.forget();
        assert!(contexts.of(1).is_none() && !own.owes_flush());
        let place = contexts.enter(key, 0, &mut own);
        assert_eq!(tlb.run(contexts.slot(place), 'c').len(), 1);
    }
    #[test]
    fn n13_what_changes_nested_translations_empties_shadows() {
        let (mut contexts, mut own) = (Contexts::default(), AsidSlot::new());
        let voids = |contexts: &mut Contexts, own: &mut AsidSlot, asid, root, control| {
            let place = contexts.enter(Key { asid, root }, control, own);
            contexts.take_void(place)
        };
        assert!(voids(&mut contexts, &mut own, 1, 0x1000, 0), "it is new");
        assert!(!voids(&mut contexts, &mut own, 1, 0x1000, 0));
        contexts.owe_all();
        assert!(!voids(&mut contexts, &mut own, 1, 0x1000, 0), "the guest's own flush is about no shadow");
        assert!(voids(&mut contexts, &mut own, 1, 0x2000, 0), "another root");
        assert!(voids(&mut contexts, &mut own, 1, 0x2000, 3));
        contexts.void_all();
        assert!(voids(&mut contexts, &mut own, 1, 0x2000, 0), "slots have changed");
        assert!(voids(&mut contexts, &mut own, 2, 0x2000, 0));
        assert!(voids(&mut contexts, &mut own, 1, 0x2000, 1), "all, from the next on");
        assert!(voids(&mut contexts, &mut own, 2, 0x2000, 0));
    }
}
