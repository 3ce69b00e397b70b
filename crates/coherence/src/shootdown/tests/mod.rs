//! Flushes where one CPU does one thing at a time.

use super::*;
use crate::TargetSet;
use core::cell::RefCell;
use core::ops::ControlFlow;
use std::vec::Vec;

mod batches;
mod direct;
mod random;

type SmallSpace = AddressSpace<4>;
type Cpu<'m> = LocalCpu<'m, &'m SmallSpace, 4, 2>;

/// An operation requested of a TLB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Load { root: u64, tag: u16, keep: bool },
    LoadNone,
    Everything,
    Range(PageRange, bool),
}

/// A TLB that records the requested operations, and gives up after so many turns of waiting.
#[derive(Default)]
struct Log(Vec<Op>, u64);

impl Log {
    fn take(&mut self) -> Vec<Op> {
        core::mem::take(&mut self.0)
    }
}

impl Tlb for Log {
    fn load(&mut self, root: u64, tag: Tag, keep: bool) {
        self.0.push(Op::Load { root, tag: tag.0, keep });
    }

    fn load_none(&mut self) {
        self.0.push(Op::LoadNone);
    }

    fn flush_everything(&mut self) {
        self.0.push(Op::Everything);
    }

    fn flush_range(&mut self, range: PageRange, tables: bool) {
        self.0.push(Op::Range(range, tables));
    }

    fn relax(&mut self, turns: u64) -> ControlFlow<()> {
        if turns == self.1 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// CPUs with their slots, and the spaces 0x1000 and 0x2000.
struct Kernel {
    slots: Vec<CpuSlot>,
    cells: Vec<RangeCell>,
    spaces: [SmallSpace; 2],
}

impl Kernel {
    /// CPUs that lend lists of 4 ranges.
    fn new(cpus: usize) -> Self {
        let spaces = Spaces::new();
        Self {
            slots: (0..cpus).map(|_| CpuSlot::new()).collect(),
            cells: (0..cpus * 4).map(|_| RangeCell::new()).collect(),
            spaces: [spaces.create(0x1000), spaces.create(0x2000)],
        }
    }

    fn cpu(&self, index: usize) -> (Cpu<'_>, Log) {
        let cpu = Cpus::new(&self.slots, &self.cells).claim(index).expect("each once");
        (cpu, Log::default())
    }

    /// A CPU that has the first space loaded.
    fn user(&self, index: usize) -> (Cpu<'_>, Log) {
        let (mut cpu, mut log) = self.cpu(index);
        assert!(cpu.switch_to(&self.spaces[0], &mut log).is_none());
        log.take();
        (cpu, log)
    }

    /// Flushes `ranges` of the first space from `from`. `to` serves when it is interrupted.
    fn flush<M: Mode<Pages>>(
        &self,
        (cpu, log): &mut (Cpu<'_>, Log),
        mode: M,
        ranges: &[PageRange],
        to: &mut (Cpu<'_>, Log),
    ) -> ShootdownOutcome {
        let mut room = [PageRange::default(); 8];
        let mut batch = self.spaces[0].batch(&mut room, ());
        ranges.iter().for_each(|range| batch.add(*range));
        let index = to.0.index();
        let mut remote = ByInterrupt(|set: &TargetSet<4>| {
            assert!(set.contains(index) && set.count() == 1);
            assert!(to.0.serve(&mut to.1));
        });
        let done = cpu.flush(batch, mode, &mut remote, log).expect("served at once");
        done.receipt.outcome()
    }
}

/// Pages that are not adjacent.
fn pages<const N: usize>() -> [PageRange; N] {
    core::array::from_fn(|page| PageRange::small(0x10_0000 + 0x2000 * page as u64, 1))
}

fn singly(ranges: &[PageRange]) -> Vec<Op> {
    ranges.iter().map(|range| Op::Range(*range, false)).collect()
}

/// Token of a kernel that has no user code.
fn no_user() -> Async {
    Async::new(NoUserAccess::of_a_model())
}

#[test]
fn ranges_reach_the_target_and_the_own_tlb_in_each_mode() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    for count in 1..=3 {
        let ranges = &pages::<3>()[..count];
        kernel.flush(&mut from, Serial, ranges, &mut to);
        kernel.flush(&mut from, Concurrent, ranges, &mut to);
        kernel.flush(&mut from, Inline, ranges, &mut to);
        let outcome = kernel.flush(&mut from, no_user(), ranges, &mut to);
        assert_eq!(outcome, ShootdownOutcome { targets: 1, interrupted: 1, ..ShootdownOutcome::default() });
        let expected = singly(ranges).repeat(4);
        assert_eq!((from.1.take(), to.1.take()), (expected.clone(), expected));
    }
}

#[test]
fn o9_list_that_a_request_has_no_room_for_becomes_everything() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let four = pages::<4>();
    kernel.flush(&mut from, Inline, &four, &mut to);
    assert_eq!((from.1.take(), to.1.take()), (singly(&four), [Op::Everything].into()));
    kernel.flush(&mut from, Concurrent, &four, &mut to);
    assert_eq!((from.1.take(), to.1.take()), (singly(&four), singly(&four)));
    kernel.flush(&mut from, Concurrent, &pages::<5>(), &mut to);
    assert_eq!((from.1.take(), to.1.take()), (singly(&pages::<5>()), [Op::Everything].into()));
    let outcome = kernel.flush(&mut from, Concurrent, &pages::<9>(), &mut to);
    assert!(outcome.everything, "the batch has room for 8");
    assert_eq!((from.1.take(), to.1.take()), ([Op::Everything].into(), [Op::Everything].into()));
}

#[test]
fn many_pages_become_everything_and_neighbours_one_range() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let thirty_two = [PageRange::small(0, 31), PageRange::small(31 << 12, 1)];
    kernel.flush(&mut from, Inline, &thirty_two, &mut to);
    assert_eq!(to.1.take(), [Op::Range(PageRange::small(0, 32), false)]);
    kernel.flush(&mut from, Inline, &[PageRange::large(0, 33)], &mut to);
    assert_eq!(to.1.take(), [Op::Everything]);
    kernel.flush(&mut from, Inline, &[PageRange::small(0, 4097)], &mut to);
    assert_eq!(to.1.take(), [Op::Everything], "no word counts that many");
}

#[test]
fn targets_beyond_the_first_bank_are_asked_once_each() {
    let kernel = Kernel::new(256);
    let mut cpu = kernel.user(1);
    let others: Vec<_> = [0, 63, 64, 127, 254, 255].map(|index| RefCell::new(kernel.user(index))).into();
    let _elsewhere = kernel.cpu(128).0.switch_to(&kernel.spaces[1], &mut Log::default());
    let mut asked = Vec::new();
    let mut remote = ByInterrupt(|set: &TargetSet<4>| {
        asked.extend(set.iter());
        for other in &others {
            let (other, log) = &mut *other.borrow_mut();
            assert!(other.serve(log) && !other.serve(log));
        }
    });
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add_everything();
    let done = cpu.0.flush(batch, Inline, &mut remote, &mut cpu.1).expect("served");
    assert_eq!(done.receipt.outcome().targets, 6);
    assert!(done.receipt.excludes_walkers());
    assert_eq!(asked, [0, 63, 64, 127, 254, 255]);
    assert!(others.iter().all(|other| other.borrow_mut().1.take() == [Op::Everything]));
}

#[test]
fn a_cpu_that_unloads_has_no_space() {
    let kernel = Kernel::new(128);
    let (mut cpu, mut log) = kernel.user(127);
    assert!(cpu.unload(&mut log).is_some() && cpu.unload(&mut log).is_none());
    assert_eq!(log.take(), [Op::LoadNone]);
    assert!(kernel.spaces[0].cpus().is_empty());
    cpu.enter_lazy();
    assert!(!kernel.slots[127].is_lazy(), "there is nothing that it could spare");
}

#[test]
fn each_space_keeps_its_tag_and_its_translations_while_there_are_tags() {
    let kernel = Kernel::new(1);
    let (mut cpu, mut log) = kernel.cpu(0);
    for space in [0, 1, 0] {
        cpu.switch_to(&kernel.spaces[space], &mut log);
    }
    kernel.spaces[1].bump();
    cpu.switch_to(&kernel.spaces[1], &mut log);
    let loads = [(0x1000, 1, false), (0x2000, 0, false), (0x1000, 1, true), (0x2000, 0, false)];
    assert_eq!(log.take(), loads.map(|(root, tag, keep)| Op::Load { root, tag, keep }));
}

#[test]
fn a_cpu_that_has_loaded_the_space_since_has_nothing_to_drop_and_nobody_waits_for_ever() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0, 1));
    from.1.1 = 7;
    let silent = &mut ByInterrupt(|_: &TargetSet<4>| ());
    let stalled = from.0.flush(batch, Inline, silent, &mut from.1).expect_err("nobody served");
    assert_eq!((stalled.cpu, stalled.outcome.turns), (1, 7));
    to.0.switch_to(&kernel.spaces[1], &mut to.1);
    to.0.switch_to(&kernel.spaces[0], &mut to.1);
    let [_, Op::Load { keep: false, .. }] = to.1.take()[..] else { panic!("it has changed") };
    assert!(to.0.serve(&mut to.1));
    assert_eq!(to.1.take(), []);
}

#[test]
fn what_a_slot_is_told_is_what_its_cpu_takes() {
    let slot = CpuSlot::new();
    let inline = |ranges: &[PageRange]| slot::List::inline(ranges).expect("fits");
    let lent = slot::List::Lent { cpu: 5, len: 7 };
    let lists = [inline(&pages::<3>()), inline(&[PageRange::large(2 << 21, 5)]), lent, inline(&[])];
    for (count, (list, tables)) in (1..).zip(lists.into_iter().flat_map(|list| [(list, true), (list, false)]))
    {
        let change = slot::Change { space: count, generation: 9 * count, tables };
        let request = slot::Request { change, list };
        assert!(!slot.is_pending());
        assert_eq!(slot.post(Some(&request), tables), slot::Posted { count, is_first: true });
        assert!(slot.is_pending() && !slot.is_complete(count));
        let taken = slot::Taken { count, is_late: tables, request: Some(request) };
        assert_eq!(slot.take(), Some(taken));
        slot.complete(count);
        assert!(slot.is_complete(count));
    }
    // One that is pending already, and then one whose words are being written, are no single one.
    let change = slot::Change { space: 1, generation: 1, tables: false };
    let request = slot::Request { change, list: lent };
    assert!([true, false].map(|is_first| slot.post(Some(&request), false).is_first == is_first) == [true; 2]);
    assert_eq!(slot.take().expect("two").request, None);
    assert!(slot.begin() && !slot.begin());
    slot.post(Some(&request), false);
    assert_eq!(slot.take().expect("one").request, None);
}

#[test]
fn lazy_cpu_is_asked_only_when_tables_go_and_looks_afterwards() {
    let kernel = Kernel::new(2);
    let (mut from, mut to) = (kernel.user(0), kernel.user(1));
    to.0.enter_lazy();
    let mut room = pages::<1>();
    let mut batch = kernel.spaces[0].batch(&mut room, ());
    batch.add(PageRange::small(0, 1));
    let nobody = &mut ByInterrupt(|_: &TargetSet<4>| panic!("it is lazy"));
    let receipt = from.0.flush(batch, Inline, nobody, &mut from.1).expect("nobody to wait for").receipt;
    assert_eq!(receipt.outcome(), ShootdownOutcome { lazy: 1, ..ShootdownOutcome::default() });
    assert!(!receipt.excludes_walkers());
    assert!(to.1.take().is_empty());
    to.0.leave_lazy(&mut to.1);
    to.0.leave_lazy(&mut to.1);
    assert_eq!(to.1.take(), [Op::Everything], "once");
    to.0.enter_lazy();
    let mut batch = kernel.spaces[0].batch(&mut room, ()).freeing_tables();
    batch.add(PageRange::small(0, 1));
    let mut remote = ByInterrupt(|_: &TargetSet<4>| assert!(to.0.serve(&mut to.1)));
    let receipt = from.0.flush(batch, Inline, &mut remote, &mut from.1).expect("served").receipt;
    assert_eq!((receipt.outcome().targets, receipt.excludes_walkers()), (1, true));
    assert_eq!(to.1.take(), [Op::Range(PageRange::small(0, 1), true)]);
    to.0.leave_lazy(&mut to.1);
    assert!(to.1.take().is_empty(), "it has flushed");
}

#[test]
fn g7_request_that_wants_the_flush_first_makes_the_acknowledgement_late() {
    let slot = CpuSlot::new();
    let early = slot.post(None, false);
    let late = slot.post(None, true);
    let again = slot.post(None, false);
    assert!(early.is_first && !late.is_first && !again.is_first);
    let taken = slot.take().expect("three");
    assert!(taken.is_late && taken.count == again.count && taken.request.is_none());
    assert!(!slot.is_complete(early.count));
    slot.complete(taken.count);
    assert!(slot.is_complete(again.count) && slot.take().is_none());
    let early = slot.post(None, false);
    assert!(early.is_first && !slot.take().expect("one").is_late);
}

#[test]
fn a_cpu_is_claimed_once_and_only_where_there_is_room_for_it() {
    let kernel = Kernel::new(65);
    let cpus = Cpus::new(&kernel.slots, &kernel.cells);
    assert!(cpus.claim::<&SmallSpace, 4, 1>(64).is_some());
    assert!(cpus.claim::<&SmallSpace, 4, 1>(64).is_none(), "claimed");
    assert!(cpus.claim::<&SmallSpace, 4, 1>(65).is_none(), "no slot");
    let small = Kernel::new(65);
    let cpus = Cpus::new(&small.slots, &small.cells);
    assert!(cpus.claim::<&AddressSpace<1>, 1, 1>(64).is_none(), "no place in a set of one bank");
}

#[test]
#[should_panic(expected = "one of them")]
fn cpu_of_another_machine_is_not_passed_over() {
    let (kernel, larger) = (Kernel::new(1), Kernel::new(2));
    let (mut stranger, mut log) = larger.cpu(1);
    stranger.switch_to(&kernel.spaces[0], &mut log);
    let (mut cpu, mut log) = kernel.user(0);
    let mut batch = kernel.spaces[0].batch(&mut [], ());
    batch.add_everything();
    let nobody = &mut ByInterrupt(|_: &TargetSet<4>| ());
    assert!(cpu.flush(batch, Inline, nobody, &mut log).is_err(), "it cannot be asked");
}
