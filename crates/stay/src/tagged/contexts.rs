//! Guests of a guest: each has a tag of its own, beside that of the vCPU's guest itself.
//!
//! A guest that is a hypervisor names its guests' translations by ASIDs of its own, which never
//! reach the processor. A vCPU has a few slots for them, which owe flushes as the vCPU's own slot
//! does. VMRUN and #VMEXIT drop nothing: each context has another tag (APM volume 2, section
//! 15.16).
//!
//! A guest of the guest with nested paging has a shadow as well, which is a TLB in memory
//! ([`memslots::space::Shadow`]): it is void when what it holds must not be used any more. A guest
//! may promise to tell by hypercall what it changes in its nested tables: then its flushes by ASID
//! are not about shadows, and one root has one shadow, whatever the ASID (TLFS, "Nested
//! Virtualization").
//!
//! | the guest does | the vCPU's slot | the slots of its guests | void is, unless the guest tells |
//! |---|---|---|---|
//! | VMRUN, `TLB_CONTROL` 1, or a reserved value | owes | all owe, and all are forgotten | each |
//! | 3, 7 | – | that of the ASID owes | that of the ASID |
//! | 0, the ASID is known, with the same root | – | – | – |
//! | 0, the ASID is known, with another root | – | it owes | its own |
//! | 0, the ASID is unknown | – | the one that was used longest ago becomes its own, and owes | its own |
//! | the vCPU takes a flush of the guest's translations | owes | all owe | – |
//! | the vCPU takes a flush of nested translations | owes | all owe | each, and those of which it tells |

use coherence::asid::AsidSlot;

/// What a guest of the guest is known by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The ASID that the guest has given it.
    pub asid: u32,
    /// The root of its nested tables, and what else their meaning depends on; 0 without.
    pub root: u64,
    /// The guest tells by hypercall what it changes in them.
    pub tells: bool,
}

impl Key {
    /// What its shadow is known by: where the guest tells, no ASID, which is never 0.
    const fn of_shadow(self) -> Self {
        Self { asid: if self.tells { 0 } else { self.asid }, ..self }
    }
}

#[derive(Debug, Default)]
struct Place {
    slot: AsidSlot,
    key: Option<Key>,
    /// The number of its shadow.
    shadow: usize,
    /// When it was last entered, in entries.
    used: u64,
}

/// What is known of a shadow.
#[derive(Debug, Default)]
struct Known {
    key: Option<Key>,
    is_void: bool,
    used: u64,
}

/// The slots of one vCPU for guests of its guest.
#[derive(Debug, Default)]
pub struct Contexts {
    places: [Place; Self::PLACES],
    shadows: [Known; Self::PLACES],
    entries: u64,
}

impl Contexts {
    /// Slots of one vCPU, and shadows.
    pub const PLACES: usize = 3;

    /// The guest runs a guest of its own, with this value of `TLB_CONTROL`; `own` is the vCPU's own
    /// slot. Returns the number of the slot to enter with.
    pub fn enter(&mut self, key: Key, control: u8, own: &mut AsidSlot) -> usize {
        let is_named = |its: Key| its.asid == key.asid;
        match control {
            0 => {}
            3 | 7 => {
                self.place(key.asid).into_iter().for_each(|place| place.slot.owe_flush());
                self.void(is_named);
            }
            _ => {
                own.owe_flush();
                self.owe_all();
                self.places.iter_mut().for_each(|place| place.key = None);
                self.void(|its| !its.tells);
            }
        }
        let known = self.places.iter().position(|place| place.key.is_some_and(is_named));
        let oldest = || (0..Self::PLACES).min_by_key(|&index| self.places[index].used).unwrap_or(0);
        let index = known.unwrap_or_else(oldest);
        if self.places[index].key != Some(key) {
            let shadow = self.shadow_of(index, key.of_shadow());
            let place = &mut self.places[index];
            place.slot.owe_flush();
            (place.key, place.shadow) = (Some(key), shadow);
        }
        self.entries += 1;
        let place = &mut self.places[index];
        place.used = self.entries;
        self.shadows[place.shadow].used = self.entries;
        index
    }

    /// The number of the shadow for the slot with this number: the one with this key, if the guest
    /// tells, or the one that was used longest ago of those that no other slot has.
    fn shadow_of(&mut self, index: usize, key: Key) -> usize {
        let there = self.shadows.iter().position(|known| known.key == Some(key));
        if let Some(shadow) = there.filter(|_| key.tells) {
            return shadow;
        }
        let places = self.places.iter().enumerate();
        let others = places.filter(|&(other, place)| other != index && place.key.is_some());
        let taken = others.fold(0, |taken, (_, place)| taken | 1 << place.shadow);
        let free = (0..Self::PLACES).filter(|&shadow| taken >> shadow & 1 == 0);
        let shadow = free.min_by_key(|&shadow| self.shadows[shadow].used).unwrap_or(index);
        self.shadows[shadow] = Known { key: Some(key), is_void: true, used: 0 };
        shadow
    }

    /// Makes shadows void.
    fn void(&mut self, is_meant: impl Fn(Key) -> bool) {
        let meant = self.shadows.iter_mut().filter(|known| known.key.is_some_and(&is_meant));
        meant.for_each(|known| known.is_void = true);
    }

    /// The slot with this number.
    pub const fn slot(&mut self, index: usize) -> &mut AsidSlot {
        &mut self.places[index].slot
    }

    /// The number of the shadow of the slot with this number.
    pub const fn shadow(&self, index: usize) -> usize {
        self.places[index].shadow
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

    /// Whether the shadow with this number is void: then it must be emptied now. The slots that
    /// have it owe a flush.
    pub fn take_void(&mut self, shadow: usize) -> bool {
        let Some(known) = self.shadows.get_mut(shadow) else { return false };
        let is_void = core::mem::take(&mut known.is_void);
        if is_void {
            let its = self.places.iter_mut().filter(|place| place.shadow == shadow);
            its.for_each(|place| place.slot.owe_flush());
        }
        is_void
    }

    /// The guest's translations have changed: each slot owes a flush.
    pub fn owe_all(&mut self) {
        self.places.iter_mut().for_each(|place| place.slot.owe_flush());
    }

    /// Nested translations have changed: each slot owes a flush, and each shadow is void.
    pub fn void_all(&mut self) {
        self.owe_all();
        self.shadows.iter_mut().for_each(|known| known.is_void = true);
    }

    /// Neither an ASID nor a shadow is known any more; each slot owes a flush, and each shadow is
    /// void.
    pub fn forget(&mut self) {
        self.void_all();
        self.places.iter_mut().for_each(|place| place.key = None);
        self.shadows.iter_mut().for_each(|known| known.key = None);
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

    /// By number: what a shadow holds. Of each the root; the ASID and how often it was flushed, or
    /// 0 and the count of calls where the guest tells.
    type Shadows = [Vec<(u64, u32, u32)>; Contexts::PLACES];

    /// Whose it is, by vCPU and ASID, or 0 for the guest itself; the root, and how often such were
    /// dropped before.
    type Entry = (usize, u32, u64, u32);

    impl<T: Copy + PartialEq> Tlb<T> {
        fn new(tags: u32) -> Self {
            Self::of_cpu(0, tags)
        }

        fn of_cpu(cpu: u32, tags: u32) -> Self {
            let allocator = AsidAllocator::new(CpuId(cpu), NonZeroU32::new(tags).unwrap(), true);
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
        /// N6, N8, N10, N11, N12: two vCPUs of a guest that uses ASIDs as the manual has it take
        /// turns on two processors, and none of their contexts meets an entry of another one, nor
        /// one that it has had dropped, here or elsewhere (N18: of its nested tables by calls, if
        /// it tells).
        #[test]
        fn n11_n12_n18_no_context_meets_another_ones_entries(
            steps in prop::collection::vec((0u32..7, 0u64..4, 0u8..8, 0usize..2, 0usize..2), 1..200),
            tags in 2u32..6,
        ) {
            #[derive(Default)]
            struct OnVcpu {
                contexts: Contexts,
                own: AsidSlot,
                shadows: Shadows,
                /// By ASID: the root that its entries may be of, and how often they were dropped.
                should: BTreeMap<u32, (u64, u32)>,
                dropped: u32,
                calls: u32,
            }
            let mut vcpus = [OnVcpu::default(), OnVcpu::default()];
            let mut cpus = [Tlb::<Entry>::of_cpu(0, tags), Tlb::of_cpu(1, tags)];
            for (asid, root, control, vcpu, cpu) in steps {
                let OnVcpu { contexts, own, shadows, should, dropped, calls } = &mut vcpus[vcpu];
                if asid == 0 {
                    // The guest itself.
                    let entry = (vcpu, 0, 0, *dropped);
                    prop_assert!(cpus[cpu].run(own, entry).iter().all(|&found| found == entry));
                    continue;
                }
                if asid == 6 {
                    (*calls, *dropped) = (*calls + 1, *dropped + 1);
                    contexts.void_all();
                    own.owe_flush();
                    should.values_mut().for_each(|(_, count)| *count += 1);
                    continue;
                }
                // Of four roots the guest tells of two.
                let tells = root >= 2;
                match control {
                    0 => {}
                    3 | 7 => should.entry(asid).or_default().1 += 1,
                    _ => {
                        *dropped += 1;
                        should.values_mut().for_each(|(_, count)| *count += 1);
                    }
                }
                let its = should.entry(asid).or_default();
                *its = (root, its.1 + u32::from(its.0 != root));
                let entry = (vcpu, asid, root, its.1);
                let place = contexts.enter(Key { asid, root, tells }, control, own);
                let shadow = contexts.shadow(place);
                if contexts.take_void(shadow) {
                    shadows[shadow].clear();
                }
                let leaf = if tells { (root, 0, *calls) } else { (root, asid, its.1) };
                shadows[shadow].push(leaf);
                prop_assert!(shadows[shadow].iter().all(|&held| held == leaf), "{:?}", shadows[shadow]);
                let found = cpus[cpu].run(contexts.slot(place), entry);
                prop_assert!(found.iter().all(|&found| found == entry), "{found:?}, not {entry:?}");
            }
        }
    }

    #[test]
    fn n8_only_what_the_guest_names_is_dropped() {
        let (mut contexts, mut own, mut tlb) = (Contexts::default(), AsidSlot::new(), Tlb::new(8));
        let mut count = |contexts: &mut Contexts, own: &mut AsidSlot, asid, control| {
            let place = contexts.enter(Key { asid, root: 0, tells: false }, control, own);
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
        let key = Key { asid: 1, root: 0, tells: false };
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
            let place = contexts.enter(Key { asid, root, tells: false }, control, own);
            contexts.take_void(contexts.shadow(place))
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

    /// N18: what a hypervisor that tells does with ASIDs keeps its shadows, and drops tags as ever.
    #[test]
    fn n18_asids_are_not_about_a_shadow_of_which_the_guest_tells() {
        let (mut contexts, mut own, mut tlb) = (Contexts::default(), AsidSlot::new(), Tlb::new(8));
        let mut run = |contexts: &mut Contexts, asid, root, tells, control| {
            let place = contexts.enter(Key { asid, root, tells }, control, &mut own);
            let shadow = contexts.shadow(place);
            let is_void = contexts.take_void(shadow);
            (shadow, is_void, tlb.run(contexts.slot(place), asid).len())
        };
        let first = run(&mut contexts, 1, 0x1000, true, 0);
        assert_eq!((first.1, first.2), (true, 1), "it is new");
        let kept = |entries| (first.0, false, entries);
        assert_eq!(run(&mut contexts, 1, 0x1000, true, 3), kept(1));
        assert_eq!(run(&mut contexts, 2, 0x1000, true, 0), kept(1), "another ASID");
        assert_eq!(run(&mut contexts, 1, 0x1000, true, 0), kept(2));
        assert_eq!(run(&mut contexts, 3, 0x1000, true, 1), kept(1), "all ASIDs start over");
        let other = run(&mut contexts, 4, 0x1000, false, 0);
        assert!(other.0 != first.0 && other.1, "one that does not tell has its own");
        assert!(run(&mut contexts, 4, 0x1000, false, 3).1);
        assert_eq!(run(&mut contexts, 3, 0x1000, true, 0), kept(2));
        contexts.void_all();
        assert_eq!(run(&mut contexts, 3, 0x1000, true, 0), (first.0, true, 1), "by a call");
        assert_eq!(run(&mut contexts, 5, 0x1000, true, 0), kept(1), "emptied once");
    }
}
