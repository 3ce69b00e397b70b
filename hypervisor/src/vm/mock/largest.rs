//! The largest use of nested tables that a configuration allows: all slots that there may be, each
//! across the edges of tables, all memory in small pages, marks wherever memory is missing, logs;
//! and all of it again while the tables that a change has cut off are not free yet.

use alloc::boxed::Box;
use alloc::vec::Vec;
use memslots::space::{Fault, LogWay};
use memslots::{Gpa, Slot, SlotError, SlotFlags, SlotId};
use paging::Progress;

use crate::vm::Vm;
use crate::vm::arch::Arch;
use crate::vm::space::{FlushScratch, MemoryJob, STEP_ENTRIES};

const PAGE: u64 = 4096;

/// Uses all twice, and returns the number of slots. Nothing is left of it.
///
/// # Panics
///
/// If there is a lack of tables, or one is lost.
pub(crate) fn use_all_twice<A: Arch>(vm: &'static Vm<A>) -> usize {
    let (before, memory) = (vm.tables.pages().0, vm.host.free.lock().total());
    let (mut most, mut left) = (0, Vec::new());
    for _ in 0..2 {
        let added = add_all(vm);
        most = slots(vm).len();
        fill(vm);
        finish(vm, log_first(vm));
        fill(vm);
        finish(vm, vm.space.stop_log(first(vm).id).expect("it has one"));
        for id in added {
            finish(vm, vm.space.remove(id).expect("it was added"));
        }
        // Those of the first slots, and empty ones at the edges of others.
        left.push(vm.tables.pages().0);
    }
    assert_eq!(left[0], left[1], "of {before}: what is lost is lost again");
    let mut free = vm.host.free.lock();
    while vm.memory_of_slots.lock().clean_some::<A>(&mut free) {}
    assert_eq!(free.total(), memory);
    drop(free);
    most
}

/// Logs stores to the first slot.
fn log_first<A: Arch>(vm: &'static Vm<A>) -> MemoryJob<'static, A> {
    let slot = first(vm);
    let log = vm.memory_of_slots.lock().make_log(&slot);
    // SAFETY: the log lives until the slot hands it back.
    unsafe { vm.space.start_log(slot.id, log, LogWay::WriteFaults) }.unwrap_or_else(|why| panic!("{why}"))
}

fn first<A: Arch>(vm: &Vm<A>) -> Slot {
    let (gpa, _) = slots(vm)[0];
    vm.space.slots().memory().find(Gpa(gpa)).expect("memory")
}

/// Address and size of each.
fn slots<A: Arch>(vm: &Vm<A>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    vm.space.slots().memory().for_each(|slot| found.push((slot.gpa.0, slot.size)));
    found
}

/// Adds slots, as requests do, until there may be no more: two pages each, on either side of a
/// boundary of the largest tables.
fn add_all<A: Arch>(vm: &'static Vm<A>) -> Vec<SlotId> {
    let stride = 1 << (A::physical_address_bits() - 7);
    let mut added = Vec::new();
    for number in 2.. {
        let (id, gpa) = (SlotId(100 + number), Gpa(u64::from(number) * stride - PAGE));
        let taken = {
            let (mut memory, mut free) = (vm.memory_of_slots.lock(), vm.host.free.lock());
            let mut covered = 2 * PAGE;
            vm.space.slots().memory().for_each(|slot| covered += slot.size);
            vm.tables.cover(&mut free, covered).expect("there is memory for tables");
            memory.take(&mut free, id, gpa, 2 * PAGE, SlotFlags::empty())
        };
        let mut taken = taken.expect("there is memory");
        while taken.ready().is_none() {
            taken.clear_some::<A>();
        }
        let slot = taken.ready().expect("it is cleared");
        // SAFETY: the memory was free, and is the slot's from here on.
        match unsafe { vm.space.add(slot) } {
            Ok(job) => finish(vm, job),
            Err(error) => {
                assert_eq!(error, SlotError::Full);
                vm.retire_memory(&slot);
                break;
            }
        }
        added.push(id);
    }
    added
}

/// Accesses each page, and many that are none.
fn fill<A: Arch>(vm: &Vm<A>) {
    let stored = |gpa| vm.space.fault(Gpa(gpa), true);
    for (start, size) in slots(vm) {
        for gpa in (start..start + size).step_by(PAGE as usize) {
            let fault = stored(gpa);
            assert_ne!(fault, Fault::OutOfTables, "{gpa:#x}, {:?} tables", vm.tables.pages());
        }
        stored(start + (3 << 30));
        stored(start ^ 1 << 36);
    }
}

/// Makes the change. All memory is used again while what it has cut off is still walked.
fn finish<A: Arch>(vm: &'static Vm<A>, mut job: MemoryJob<'static, A>) {
    let mut scratch = Box::new(FlushScratch::new());
    loop {
        let flush = |invalidation: paging::Invalidation<'_>| {
            fill(vm);
            vm.flush_space(invalidation, &mut scratch)
        };
        match stay::step(&mut job, STEP_ENTRIES, flush, |retired| vm.take_back(&retired)) {
            Progress::Done => return,
            progress => assert_ne!(progress, Progress::OutOfTables),
        }
    }
}
