//! Faults and MMIO caches while the slots of two address spaces change.
//!
//! Missing here, because the model checker never runs a read-modify-write ahead of an earlier load:
//! a generation that is read without acquire.

use loom::sync::Arc;
use loom::sync::atomic::AtomicBool;
use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use paging::{Gpa, PhysAddr};
use quell_coherence::interleave::on_a_thread;
use quell_coherence::{explored, mutants};

use super::relax;
use crate::support::{receipt, stamp};
use crate::{Generation, GuestMemory, Memslots, MmioCache, Slot, SlotFlags, SlotId, SpaceId, Update};

type Slots = Memslots<2>;

const HERE: SpaceId = SpaceId::FIRST;
const THERE: SpaceId = SpaceId(1);

const fn other(space: SpaceId) -> SpaceId {
    SpaceId(1 - space.0)
}

/// The only slot, in one space or the other.
const SLOT: Slot =
    Slot { id: SlotId(1), gpa: Gpa(0), size: 4096, host: PhysAddr(0), flags: SlotFlags::empty() };

/// The operations that scenarios use. Provided methods are the real ones.
trait Protocol: 'static {
    fn insert(_slots: &Slots, cache: &mut MmioCache<1>, generation: Generation) -> bool {
        cache.insert(Gpa(0), generation)
    }

    fn has(cache: &MmioCache<1>, generation: Generation) -> bool {
        cache.has(Gpa(0), generation)
    }

    /// A fault handler's installation, by the pinned slots.
    fn install(memory: GuestMemory<'_>, leaf: &AtomicBool) {
        leaf.store(true, Relaxed);
        drop(memory);
    }

    /// Moves the slot to the other space. `shown` is called when all readers must see the new
    /// slots, `zap` removes the translations of its former range.
    fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
        let published = carried(slots, from).publish();
        shown();
        let mut quiesced = published.wait(relax).unwrap();
        zap();
        assert!(quiesced.settle(from, &receipt(), stamp()));
        quiesced.finish(|_| ()).unwrap();
    }
}

struct Real;

impl Protocol for Real {}

fn with_slot(space: SpaceId) -> Slots {
    let slots = Slots::with_spaces(48);
    let mut update = slots.begin_update().unwrap();
    // SAFETY: the scenarios only look the slot up.
    unsafe { update.space(space).unwrap().add(SLOT) }.unwrap();
    update.publish().wait(relax).unwrap().finish(|_| ()).unwrap();
    slots
}

/// The draft that [`Protocol::carry_over`] publishes.
fn carried(slots: &Slots, from: SpaceId) -> Update<'_, 2> {
    let mut update = slots.begin_update().unwrap();
    update.space(from).unwrap().remove(SLOT.id).unwrap();
    // SAFETY: the scenarios only look the slot up.
    unsafe { update.space(other(from)).unwrap().add(SLOT) }.unwrap();
    update
}

/// P5: a fault by the old slots, and the deletion.
fn faulting<P: Protocol>() {
    faulting_in::<P>(HERE);
}

/// As [`faulting`], in the space that is published last.
fn faulting_there<P: Protocol>() {
    faulting_in::<P>(THERE);
}

fn faulting_in<P: Protocol>(space: SpaceId) {
    let shared = Arc::new((with_slot(space), AtomicBool::new(false)));
    let (slots, leaf) = &*shared;
    let fault = on_a_thread(&shared, move |(slots, leaf)| {
        let memory = slots.memory_of(space);
        if memory.find(Gpa(0)).is_some() {
            P::install(memory, leaf);
        }
    });
    // It skips absent entries.
    let zap = || {
        if leaf.load(Relaxed) {
            leaf.store(false, Relaxed);
        }
    };
    P::carry_over(slots, space, || (), zap);
    fault.join().unwrap();
    assert!(!leaf.load(Relaxed), "a leaf without a slot");
}

/// P10, P11: data cached from one space is not used once its new slots have been shown, together
/// with those of another.
fn keeping<P: Protocol>() {
    let shared = Arc::new((with_slot(HERE), AtomicBool::new(false)));
    let (slots, is_shown) = &*shared;
    let vcpu = on_a_thread(&shared, |(slots, is_shown)| {
        let mut cache = MmioCache::new();
        let memory = slots.memory_of(THERE);
        let (is_mmio, generation) = (memory.find(Gpa(0)).is_none(), memory.generation());
        drop(memory);
        if is_mmio {
            P::insert(slots, &mut cache, generation);
        }
        // An access observably after the change.
        if is_shown.load(Acquire) && P::has(&cache, slots.generation()) {
            panic!("memory was taken for MMIO");
        }
    });
    P::carry_over(slots, HERE, || is_shown.store(true, Release), || ());
    vcpu.join().unwrap();
    assert!(!slots.generation().is_in_progress());
}

/// Two updates of both spaces: one is refused, or follows the other and sees all that it did.
fn updating<P: Protocol>() {
    let slots = Arc::new(with_slot(HERE));
    let update = |slots: &Slots| {
        let Ok(mut update) = slots.begin_update() else { return 0 };
        update.space(HERE).unwrap().set_flags(SLOT.id, SlotFlags::empty()).unwrap();
        // SAFETY: the scenarios only look the slot up.
        let _second_is_refused = unsafe { update.space(THERE).unwrap().add(SLOT) };
        update.publish().wait(relax).unwrap().finish(|_| ()).unwrap();
        1
    };
    let beside = on_a_thread(&slots, move |slots| {
        if let Ok(mut taken_back) = slots.begin_update() {
            let _may_be_absent = taken_back.space(THERE).unwrap().remove(SLOT.id);
        }
        update(slots)
    });
    let count = update(&slots) + beside.join().unwrap();
    assert!(!slots.generation().is_in_progress());
    assert_eq!(slots.generation().number(), 1 + count);
    let is_there = [HERE, THERE].map(|space| slots.memory_of(space).find(Gpa(0)).is_some());
    assert_eq!(is_there, [true, count != 0]);
}

explored! {
    p5_no_fault_brings_back_a_slot_that_was_deleted: Some(3) => faulting::<Real>, Some(3) => faulting_there::<Real>;
    p10_a_kept_lookup_is_not_used_after_an_update: Some(3) => keeping::<Real>;
    /// The in-progress mark is a lock for all spaces: the next updater sees everything that the
    /// previous one did.
    p11_updaters_of_two_spaces_exclude_each_other: Some(3) => updating::<Real>;
}

mutants! {
    /// P5: the pin ends before the translation is installed.
    InstallUnpinned fails p5_leaf_installed_without_a_pin:
    faulting::<InstallUnpinned>, "a leaf without a slot", {
        fn install(memory: GuestMemory<'_>, leaf: &AtomicBool) {
            drop(memory);
            leaf.store(true, Relaxed);
        }
    }

    /// P5: translations are removed while readers of the former slots may still install some.
    ZapBeforeWait fails p5_zap_before_the_wait: faulting::<ZapBeforeWait>, "a leaf without a slot", {
        fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
            let published = carried(slots, from).publish();
            shown();
            zap();
            let mut quiesced = published.wait(relax).unwrap();
            assert!(quiesced.settle(from, &receipt(), stamp()));
            quiesced.finish(|_| ()).unwrap();
        }
    }

    /// P5: translations are removed before the slots change.
    ZapBeforePublish fails p5_zap_before_the_publication:
    faulting::<ZapBeforePublish>, "a leaf without a slot", {
        fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
            zap();
            let published = carried(slots, from).publish();
            shown();
            let mut quiesced = published.wait(relax).unwrap();
            assert!(quiesced.settle(from, &receipt(), stamp()));
            quiesced.finish(|_| ()).unwrap();
        }
    }
}

/// From here to there: publishes both spaces, and waits only for the readers of the first.
fn carry_over_by_hand(slots: &Slots, first: SpaceId, between: impl FnOnce(), zap: impl FnOnce()) {
    let publish = |space: SpaceId| {
        // SAFETY: the scenarios have one updater, and a space is published once.
        let mut draft = unsafe { slots.spaces[space.index()].begin() };
        draft.edit(|list| if space == HERE { list.remove(SLOT.id) } else { list.add(SLOT, 48) }).unwrap();
        draft.publish()
    };
    let drain = publish(first);
    between();
    let _unheeded = publish(if first == HERE { THERE } else { HERE });
    while !drain.is_drained() {
        relax();
    }
    zap();
}

mutants! {
    /// P5, P11: only the readers of the other space are waited for.
    OneSpaceAwaited fails p11_one_space_is_waited_for: faulting::<OneSpaceAwaited>, "a leaf without a slot", {
        fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
            assert_eq!(from, HERE);
            let mark = slots.current.begin().unwrap();
            carry_over_by_hand(slots, THERE, || (), zap);
            shown();
            mark.end();
        }
    }

    /// P11: the generation ends when one of the spaces is published.
    EndPerSpace fails p11_generation_ends_with_the_first_space: keeping::<EndPerSpace>, "taken for MMIO", {
        fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
            assert_eq!(from, HERE);
            let mark = slots.current.begin().unwrap();
            carry_over_by_hand(slots, HERE, || { mark.end(); }, zap);
            shown();
        }
    }

    /// P10: there is no mark: cached data remains in use until the update is over.
    MarkNever fails p10_update_without_a_mark: keeping::<MarkNever>, "taken for MMIO", {
        fn carry_over(slots: &Slots, from: SpaceId, shown: impl FnOnce(), zap: impl FnOnce()) {
            assert_eq!(from, HERE);
            carry_over_by_hand(slots, HERE, || (), zap);
            shown();
            slots.current.begin().unwrap().end();
        }
    }

    /// P10: the generation is read after the lookup.
    GenerationLate fails p10_generation_read_after_the_lookup: keeping::<GenerationLate>, "taken for MMIO", {
        fn insert(slots: &Slots, cache: &mut MmioCache<1>, _generation: Generation) -> bool {
            cache.insert(Gpa(0), slots.generation())
        }
    }

    /// P10: the result of a lookup during an update is kept.
    KeepInProgress fails p10_lookup_kept_during_an_update: keeping::<KeepInProgress>, "taken for MMIO", {
        fn insert(_slots: &Slots, cache: &mut MmioCache<1>, generation: Generation) -> bool {
            *cache = MmioCache { generation, pages: [0], next: 0 };
            true
        }
    }

    /// P9: the generation is not compared.
    HasRegardless fails p9_generation_not_compared: keeping::<HasRegardless>, "taken for MMIO", {
        fn has(cache: &MmioCache<1>, _generation: Generation) -> bool {
            cache.has(Gpa(0), cache.generation)
        }
    }
}
