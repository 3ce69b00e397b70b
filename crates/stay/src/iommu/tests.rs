//! An IOMMU that does everything at once, unless it is broken; and what an SMMU is told by it.

use core::cell::RefCell;
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicU64, Ordering};
use std::rc::Rc;
use std::vec::Vec;

use super::smmu::{Smmu, Structure, Structures};
use super::*;
use ::iommu::Command;
use ::iommu::smmu::change::Words;
use ::iommu::smmu::{ContextDescriptor, StreamEntry, StreamId};

#[derive(Default)]
pub(super) struct AtOnce {
    tail: AtomicU64,
    is_broken: bool,
}

impl Mistakes for AtOnce {}

impl Port for AtOnce {
    fn set_tail(&self, position: u64) {
        self.tail.store(position, Ordering::Relaxed);
    }

    fn head(&self) -> u32 {
        if self.is_broken { 0 } else { self.tail.load(Ordering::Relaxed) as u32 }
    }

    fn sync(&self, position: u64) -> Command {
        ::iommu::amd::command::completion_wait(0, position).expect("an address below 2^52")
    }

    fn reported(&self) -> Option<u64> {
        Some(if self.is_broken { 0 } else { self.tail.load(Ordering::Relaxed) })
    }

    fn relax(&self, _: u64) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

pub(super) type TestQueue = Queue<AtOnce, Rc<[Entry]>>;

pub(super) fn queue(is_broken: bool) -> (TestQueue, Rc<[Entry]>) {
    let entries: Rc<[Entry]> = (0..64).map(|_| Entry::default()).collect();
    (Queue::new(AtOnce { is_broken, ..AtOnce::default() }, Rc::clone(&entries)), entries)
}

/// The commands that `act` puts in: the first words, and the second ones.
pub(super) fn put(act: impl FnOnce(&TestQueue)) -> Vec<(u64, u64)> {
    let (queue, entries) = queue(false);
    act(&queue);
    let count = queue.port().tail.load(Ordering::Relaxed) as usize;
    entries[..count].iter().map(|entry| entry.load().0.into()).collect()
}

/// Structures of streams 8 and 9, and of domain 7.
struct Three(RefCell<[(Structure, Words); 3]>);

impl Structures for Three {
    fn load(&self, of: Structure) -> Words {
        self.0.borrow().iter().find(|(it, _)| *it == of).map_or([0; 8], |(_, words)| *words)
    }

    fn store(&self, of: Structure, word: usize, value: u64) {
        let mut all = self.0.borrow_mut();
        all.iter_mut().find(|(it, _)| *it == of).expect("it exists").1[word] = value;
    }
}

const DOMAIN: DomainId = DomainId(7);
const DEVICES: [Device; 2] = [Device { id: DeviceId(8), ats: None }, Device { id: DeviceId(9), ats: None }];
const DESCRIPTOR: Words = [1 << 31, 0, 0, 0, 0, 0, 0, 0];
const ENTRY: Words = [0x4000 | 0b1011, 0, 0, 0, 0, 0, 0, 0];

/// What an SMMU is told, without what is the port's, and what its structures are then. Its devices
/// are attached, so that each structure is as it was already.
fn told(act: impl FnOnce(&Smmu<'_, AtOnce, Rc<[Entry]>, Three>)) -> (Vec<u64>, [Words; 3]) {
    let of = |id| Structure::Entry(StreamId(id));
    let all = [(of(8), ENTRY), (of(9), ENTRY), (Structure::Descriptor(DOMAIN), DESCRIPTOR)];
    let structures = Three(RefCell::new(all));
    let commands = put(|queue| act(&Smmu { queue, structures: &structures }));
    let first = commands.into_iter().map(|(first, _)| first).filter(|first| first >> 60 == 0);
    (first.collect(), structures.0.into_inner().map(|(_, words)| words))
}

const STE: u64 = 0x03;
const CD: u64 = 0x05;

#[test]
fn p16_a_stream_drops_the_descriptor_that_it_has_read_before_even_if_it_is_the_same() {
    let with = (StreamEntry(ENTRY), ContextDescriptor(DESCRIPTOR));
    let attached = told(|smmu| smmu.attach(DEVICES[0].id, DOMAIN, with).expect("it goes on"));
    assert_eq!(attached, ([8 << 32 | CD].into(), [ENTRY, ENTRY, DESCRIPTOR]));
}

#[test]
fn p16_the_asid_is_dropped_after_all_entries_and_the_descriptor_of_each_stream() {
    let domain = Domain { id: DOMAIN, devices: &DEVICES };
    let (mut commands, structures) = told(|smmu| smmu.detach(&domain).expect("it goes on"));
    commands.dedup();
    assert_eq!(commands, [8 << 32 | STE, 9 << 32 | STE, 8 << 32 | CD, 9 << 32 | CD, 7 << 48 | 0x11]);
    assert_eq!(structures, [StreamEntry::ABORT.0, StreamEntry::ABORT.0, ContextDescriptor::INVALID.0]);
}
