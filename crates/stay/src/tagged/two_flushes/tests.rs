//! The instructions that are executed, on a mock CPU.

use core::cell::{Cell, RefCell};
use core::num::NonZeroU32;
use std::vec::Vec;

use coherence::CpuId;
use coherence::asid::{AsidAllocator, AsidSlot};
use paging::{Amd64Nested, PageTable, Tables};

use super::*;
use crate::heap::Heap;

type Guest = PageTable<Amd64Nested, Heap>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Executed {
    Guests(Invvpid),
    Nested(Invept),
}

use Executed::{Guests, Nested};

/// A CPU with a guest's vCPU.
struct Mock {
    roots: Roots,
    guest: Guest,
    has_vpids: bool,
    debt: Cell<bool>,
    executed: RefCell<Vec<Executed>>,
}

impl Mistakes for Mock {}

impl TwoFlushes for Mock {
    fn has_vpids(&self) -> bool {
        self.has_vpids
    }

    fn invvpid(&self, named: Invvpid) {
        self.executed.borrow_mut().push(Guests(named));
    }

    fn invept(&self, named: Invept) {
        let holds_some = self.roots.known.iter().any(|[known, _]| known.load(Relaxed) != 0);
        assert!(named != Invept::All || holds_some, "it is not forgotten before");
        self.executed.borrow_mut().push(Nested(named));
    }

    fn nested_debt(&self) -> &Cell<bool> {
        &self.debt
    }

    fn roots(&self) -> &Roots {
        &self.roots
    }

    fn stamp(&self) -> Stamp {
        self.guest.stamp()
    }
}

fn guest() -> Guest {
    PageTable::new(Heap).expect("there is memory")
}

impl Mock {
    fn new(guests: usize, has_vpids: bool) -> Self {
        let roots = Roots::with_room_for(guests);
        Self { roots, guest: guest(), has_vpids, debt: Cell::new(false), executed: RefCell::default() }
    }

    fn root(&self) -> u64 {
        self.guest.root().0
    }

    /// The nested tables change, and owe a flush.
    fn change(&self) {
        let editor = self.guest.edit().expect("nobody else does");
        let _gather = editor.zap(0..1 << 30, Tables::Keep).into_gather();
    }

    /// One entry; returns what was executed before.
    fn enter(&self, asids: &mut AsidAllocator, slot: &mut AsidSlot) -> Vec<Executed> {
        let assignment = asids.assign(slot);
        let vpid = begin_entry(self, assignment.asid, assignment.control, assignment.changed);
        assert_eq!(vpid, if self.has_vpids { assignment.asid as u16 } else { 0 });
        asids.executed(slot, assignment);
        self.executed.take()
    }
}

fn asids(count: u32) -> AsidAllocator {
    let mut asids = AsidAllocator::new(CpuId(0), NonZeroU32::new(count).expect("some"), true);
    let first = asids.assign(&mut AsidSlot::new());
    asids.executed(&mut AsidSlot::new(), first);
    asids
}

#[test]
fn each_flush_is_its_own_instruction() {
    let (cpu, mut asids, mut slot) = (Mock::new(8, true), asids(9), AsidSlot::new());
    assert_eq!(cpu.enter(&mut asids, &mut slot), [], "a new VPID, and a root that it never had");
    slot.owe_flush();
    assert_eq!(cpu.enter(&mut asids, &mut slot), [Guests(Invvpid::Vpid(2))]);
    cpu.change();
    owe_nested(&cpu);
    assert_eq!(cpu.enter(&mut asids, &mut slot), [Nested(Invept::Root(cpu.root()))]);
    owe_nested(&cpu);
    assert_eq!(cpu.enter(&mut asids, &mut slot), [], "it has been dropped since the change");
    invalidate_page(&cpu, 0x7000, 2);
    assert_eq!(cpu.executed.take(), [Guests(Invvpid::Address { vpid: 2, address: 0x7000 })]);
}

#[test]
fn a3_who_arrives_drops_what_others_have_left_since_a_change() {
    let (cpu, mut asids) = (Mock::new(8, true), asids(9));
    let [mut first, mut second] = [AsidSlot::new(), AsidSlot::new()];
    cpu.enter(&mut asids, &mut first);
    assert_eq!(cpu.enter(&mut asids, &mut second), [], "nothing was changed");
    cpu.change();
    let mut third = AsidSlot::new();
    assert_eq!(cpu.enter(&mut asids, &mut third), [Nested(Invept::Root(cpu.root()))]);
    assert_eq!(cpu.enter(&mut asids, &mut second), [], "its own request tells it");
}

#[test]
fn a1_when_vpids_begin_again_all_are_dropped_and_nested_ones_stay() {
    let (cpu, mut asids) = (Mock::new(8, true), asids(2));
    cpu.enter(&mut asids, &mut AsidSlot::new());
    assert_eq!(cpu.enter(&mut asids, &mut AsidSlot::new()), [Guests(Invvpid::All)]);
}

#[test]
fn without_vpids_only_nested_tables_are_flushed() {
    let (cpu, mut asids, mut slot) = (Mock::new(8, false), asids(2), AsidSlot::new());
    slot.owe_flush();
    assert_eq!(cpu.enter(&mut asids, &mut slot), []);
    invalidate_page(&cpu, 0x7000, 1);
    cpu.change();
    owe_nested(&cpu);
    assert_eq!(cpu.enter(&mut asids, &mut slot), [Nested(Invept::Root(cpu.root()))]);
}

#[test]
fn p1_a_root_is_held_until_the_cpu_lets_go_of_it() {
    let mut cpu = Mock::new(2, true);
    let roots = [guest(), guest(), guest()].map(|guest| {
        cpu.guest = guest;
        drop_nested(&cpu);
        cpu.root()
    });
    assert_eq!(cpu.executed.take(), [Nested(Invept::All)], "there was no room for the third");
    assert_eq!(roots.map(|root| cpu.roots.holds(root)), [false, false, true]);
    cpu.roots.let_go(&cpu, |named| cpu.invept(named));
    assert_eq!(cpu.executed.take(), [Nested(Invept::All)]);
    assert!(!roots.iter().any(|&root| cpu.roots.holds(root)));
}

#[test]
fn who_comes_back_to_a_cpu_that_has_forgotten_its_root_is_met_again() {
    let (cpu, mut asids, mut slot) = (Mock::new(1, true), asids(9), AsidSlot::new());
    cpu.enter(&mut asids, &mut slot);
    cpu.roots.let_go(&cpu, |_| ());
    assert_eq!(cpu.enter(&mut asids, &mut slot), [], "it holds nothing by its root");
    cpu.change();
    owe_nested(&cpu);
    assert_eq!(cpu.enter(&mut asids, &mut slot), [Nested(Invept::Root(cpu.root()))], "it is known");
}
