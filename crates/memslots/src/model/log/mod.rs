//! A dirty log, vCPUs that store to the only page of a slot, the hypervisor that stores on their
//! behalf, and fetches.
//!
//! A vCPU holds the lock of its TLB while it runs or handles a fault, and a flush takes it. That is
//! exactly the flush engine's guarantee for guest mode and sections. Memory is otherwise relaxed.
//! The fetcher copies the page if it is in the result; at the end, the copy must equal the page.

mod mutants;

use loom::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use loom::sync::atomic::{AtomicBool, AtomicU64};
use loom::sync::{Arc, Mutex};
use quell_coherence::explored;
use quell_coherence::interleave::on_a_thread;

use super::relax;
use crate::dirty::{DirtyLog, Marks};
use crate::support::{PAGE, receipt, slot, stamp};
use crate::{Memslots, SlotId};

/// The leaf, in the table or a TLB, allows stores.
const WRITABLE: u64 = 1 << 0;
/// There has been a store through it since the bit was cleared.
const DIRTY: u64 = 1 << 1;

/// How the processor's stores are detected.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Leaves are not writable until a fault has marked the page.
    Protect,
    /// The processor sets the bit in the leaf.
    DirtyBits,
}

struct ModelState {
    mode: Mode,
    slots: Memslots,
    words: Arc<[AtomicU64; 1]>,
    leaf: AtomicU64,
    page: AtomicU64,
    copy: AtomicU64,
    tlbs: [Mutex<u64>; 2],
}

impl ModelState {
    fn new(mode: Mode) -> Self {
        let mut slots = Memslots::new(48);
        // SAFETY: the scenarios only look the slot up.
        unsafe { slots.add(slot(1, 0, 1, 0)) }.unwrap();
        let words = Arc::new([AtomicU64::new(0)]);
        let mut update = slots.begin_update().unwrap();
        // SAFETY: the words live as long as the slots, in the machine.
        unsafe { update.set_log(SlotId(1), Some(DirtyLog::new(&*words))) }.unwrap();
        let mut quiesced = update.publish().wait(relax).unwrap();
        assert!(quiesced.settle(crate::SpaceId::FIRST, &receipt(), stamp()));
        quiesced.finish(|_| ()).unwrap();
        let leaf = AtomicU64::new(if mode == Mode::Protect { 0 } else { WRITABLE });
        let [page, copy] = [(); 2].map(|()| AtomicU64::new(0));
        Self { mode, slots, words, leaf, page, copy, tlbs: [(); 2].map(|()| Mutex::new(0)) }
    }

    fn marks(&self) -> Marks<'_> {
        Marks(&*self.words)
    }

    /// A vCPU's store, retried as long as it faults.
    fn store<P: Protocol>(&self, vcpu: usize, value: u64) {
        while !self.try_store(vcpu, value) {
            let section = self.tlbs[vcpu].lock().unwrap();
            P::fault(self);
            drop(section);
        }
    }

    /// A vCPU's store, unless it faults.
    fn try_store(&self, vcpu: usize, value: u64) -> bool {
        let mut cached = self.tlbs[vcpu].lock().unwrap();
        if *cached & WRITABLE == 0 {
            *cached = self.leaf.load(Relaxed);
        }
        if *cached & WRITABLE == 0 {
            return false;
        }
        if self.mode == Mode::DirtyBits && *cached & DIRTY == 0 {
            self.leaf.fetch_or(DIRTY, Relaxed);
            *cached |= DIRTY;
        }
        self.page.store(value, Relaxed);
        true
    }

    /// B: protects or cleans the leaf; returns the dirty pages.
    fn protect(&self, dirty: u64) -> u64 {
        match self.mode {
            Mode::Protect if dirty == 0 => 0,
            Mode::Protect => {
                self.leaf.fetch_and(!WRITABLE, Relaxed);
                dirty
            }
            Mode::DirtyBits => dirty | u64::from(self.leaf.fetch_and(!DIRTY, Relaxed) & DIRTY != 0),
        }
    }

    /// C.
    fn flush(&self) {
        for tlb in &self.tlbs {
            *tlb.lock().unwrap() = 0;
        }
    }

    /// A fetch with its copy. Returns whether the page was in the result.
    fn fetch<P: Protocol>(&self) -> bool {
        let is_dirty = P::fetch(self) != 0;
        if is_dirty {
            self.copy.store(self.page.load(Relaxed), Relaxed);
        }
        is_dirty
    }

    /// The last fetch, when there are no more stores.
    fn check<P: Protocol>(&self) {
        self.fetch::<P>();
        assert_eq!(self.copy.load(Relaxed), self.page.load(Relaxed), "a store was lost");
    }
}

/// The operations that scenarios use. Provided methods are the real ones.
trait Protocol: 'static {
    /// A write fault, in a section: a, b.
    fn fault(machine: &ModelState) {
        let memory = machine.slots.memory();
        machine.leaf.fetch_or(WRITABLE, Relaxed);
        memory.mark_dirty(0..1);
    }

    /// A store of the hypervisor: t, u.
    fn emulate(machine: &ModelState, value: u64) {
        let memory = machine.slots.memory();
        machine.page.store(value, Relaxed);
        memory.mark_dirty(0..1);
    }

    fn fetch(machine: &ModelState) -> u64 {
        let mut words = [0];
        let mut fetch = machine.slots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap();
        let is_marked = fetch.next_run(paging::Gpa(0)).is_some();
        if machine.protect(u64::from(is_marked)) != 0 {
            fetch.add(0..PAGE);
        }
        machine.flush();
        fetch.finish(&receipt(), stamp()).unwrap();
        words[0]
    }

    fn give_up(machine: &ModelState) {
        let mut words = [0];
        drop(machine.slots.memory().fetch_dirty(SlotId(1), 0, &mut words).unwrap());
    }
}

struct Real;

impl Protocol for Real {}

fn beside<P: Protocol>(
    machine: ModelState,
    act: impl FnOnce(&ModelState) + Send + 'static,
    fetch: impl FnOnce(&ModelState),
) {
    let machine = Arc::new(machine);
    let other = on_a_thread(&machine, act);
    fetch(&machine);
    other.join().unwrap();
    machine.check::<P>();
}

/// A vCPU stores twice, and must fault each time if there was a fetch in between.
fn faulting<P: Protocol>() {
    let store = |machine: &ModelState| (1..=2).for_each(|value| machine.store::<P>(0, value));
    beside::<P>(ModelState::new(Mode::Protect), store, |machine| _ = machine.fetch::<P>());
}

/// As [`faulting`], with dirty bits.
fn tracking<P: Protocol>() {
    let store = |machine: &ModelState| (1..=2).for_each(|value| machine.store::<P>(0, value));
    beside::<P>(ModelState::new(Mode::DirtyBits), store, |machine| _ = machine.fetch::<P>());
}

/// The hypervisor stores twice.
fn emulating<P: Protocol>() {
    let store = |machine: &ModelState| (1..=2).for_each(|value| P::emulate(machine, value));
    beside::<P>(ModelState::new(Mode::Protect), store, |machine| _ = machine.fetch::<P>());
}

/// A fetch is abandoned while the hypervisor stores.
fn giving_up<P: Protocol>() {
    let store = |machine: &ModelState| (1..=2).for_each(|value| P::emulate(machine, value));
    beside::<P>(ModelState::new(Mode::Protect), store, |machine| P::give_up(machine));
}

/// A vCPU stores through the leaf that another vCPU's fault has just made writable. A fetch that
/// begins after the store has the page, whether or not the fault has marked it yet.
fn following<P: Protocol>() {
    let shared = Arc::new((ModelState::new(Mode::Protect), AtomicBool::new(false)));
    let (machine, has_stored) = &*shared;
    let fault = on_a_thread(&shared, |(machine, _)| machine.store::<P>(0, 1));
    let follow = on_a_thread(&shared, |(machine, has_stored)| {
        has_stored.store(machine.try_store(1, 2), Release);
    });
    if has_stored.load(Acquire) {
        assert!(machine.fetch::<P>(), "a store that was visible is not in the result");
    }
    fault.join().unwrap();
    follow.join().unwrap();
    machine.check::<P>();
}

explored! {
    p14_stores_that_fault_are_fetched: Some(3) => faulting::<Real>;
    p14_stores_that_set_dirty_bits_are_fetched: Some(3) => tracking::<Real>;
    p14_stores_of_the_hypervisor_are_fetched: Some(3) => emulating::<Real>;
    p14_stores_are_fetched_after_a_fetch_was_given_up: Some(3) => giving_up::<Real>;
    p14_a_store_that_is_visible_before_the_fetch_is_in_it: Some(3) => following::<Real>;
}
