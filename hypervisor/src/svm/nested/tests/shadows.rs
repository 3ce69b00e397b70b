//! L2 by nested tables of L1's.

use paging::Invalidation;

use super::*;
use crate::x86::EFER_NXE;

/// L1's nested tables, one a level, and pages of L1's for the tables of L2, which lead to the first
/// 2 MiB.
pub(super) const NESTED: u64 = DATA + 0x6_0000;
const THEIR_TABLES: u64 = DATA + 0x7_0000;
/// L2's physical addresses: of its tables, of its code, of a page of data, of a device and of
/// nothing.
pub(super) const ROOT: u64 = 0x10_0000;
pub(super) const TEXT: u64 = 0x10_4000;
pub(super) const PAGE: u64 = 0x10_5000;
const APIC: u64 = 0x10_6000;
pub(super) const ABSENT: u64 = 0x10_7000;
/// Where L1 has the page of data.
pub(super) const BACKING: u64 = DATA + 0x8_0000;
/// The local APIC's registers in L1.
const L1_APIC: u64 = 0xfee0_0000;
pub(super) const FAULT: u64 = 0x400;
pub(super) const IN_ACCESS: u64 = 1 << 32;
const IN_WALK: u64 = 1 << 33;
const A: u64 = 1 << 5;
const D: u64 = 1 << 6;
const NX: u64 = 1 << 63;

/// The last entry for an address.
pub(super) fn entry(address: u64) -> u64 {
    NESTED + 0x3000 + (address >> 12 & 0x1ff) * 8
}

pub(super) fn set(guest: &Guest<'_, '_>, at: u64, value: u64) {
    guest.0.vm.space.slots().memory().write(Gpa(at), &value.to_le_bytes()).expect("is memory");
}

pub(super) fn get(guest: &Guest<'_, '_>, at: u64) -> u64 {
    guest.0.vm.space.slots().memory().read_u64(Gpa(at)).expect("is memory")
}

/// L2 runs by nested tables. None of its pages is at L1's address.
pub(super) fn with_tables<R>(act: impl FnOnce(&mut Guest<'_, '_>, Box<Vmcb>) -> R) -> R {
    with_l1(|guest| {
        for level in 0..3 {
            set(guest, NESTED + level * 0x1000, (NESTED + (level + 1) * 0x1000) | 7);
        }
        for level in 0..3 {
            set(guest, entry(ROOT + level * 0x1000), (THEIR_TABLES + level * 0x1000) | 7);
        }
        set(guest, entry(PAGE), BACKING | 7);
        set(guest, entry(TEXT), INNER_CODE | 7);
        set(guest, entry(APIC), L1_APIC | 7);
        set(guest, THEIR_TABLES, (ROOT + 0x1000) | 7);
        set(guest, THEIR_TABLES + 0x1000, (ROOT + 0x2000) | 7);
        set(guest, THEIR_TABLES + 0x2000, 0x87);
        let mut block = plain();
        (block.nested_control, block.nested_cr3, block.pat) = (1, NESTED, 0x0007_0406_0007_0406);
        (block.cr3, block.rip) = (ROOT, TEXT);
        act(guest, block)
    })
}

pub(super) fn fault(guest: &mut Guest<'_, '_>, info: u64, address: u64) {
    leaves(guest, [FAULT, info, address]);
}

/// What L1 was told, if L2 was left.
pub(super) fn told(guest: &Guest<'_, '_>) -> Option<[u64; 3]> {
    let left = vmcb12(guest);
    (!is_inside(guest)).then_some([left.exit_code, left.exit_info_1, left.exit_info_2])
}

/// Where the shadow leads, if it has the page.
pub(super) fn leads(guest: &mut Guest<'_, '_>, page: u64) -> Option<(u64, bool)> {
    let nested = guest.0.state.own.nested.as_deref_mut()?;
    let mut found = None;
    let context = nested.inside.as_ref()?.context;
    nested.shadows[nested.contexts.shadow(context)].as_ref()?.for_each(|at, pa, rights| {
        if at == page {
            found = Some((pa.0, rights.contains(paging::Permissions::WRITE)));
        }
    });
    found
}

#[test]
fn n13_a_fault_is_l1s_by_its_tables_as_they_are_or_fills_the_shadow() {
    with_tables(|guest, block| {
        vmrun(guest, &block);
        let root = guest.vmcb().nested_cr3;
        assert_ne!(root, guest.0.vm.space.root().0);
        fault(guest, IN_ACCESS | 4, PAGE + 0x123);
        let host = guest.0.vm.space.slots().memory().find(Gpa(BACKING)).expect("is memory");
        let host = host.host.0 + BACKING - host.gpa.0;
        assert_eq!((told(guest), leads(guest, PAGE)), (None, Some((host, false))), "its D bit is clear");
        assert_eq!(get(guest, entry(PAGE)) & (A | D), A);
        assert_eq!(get(guest, NESTED) & (A | D), A, "on the whole way");
        fault(guest, IN_ACCESS | 7, PAGE);
        assert_eq!((told(guest), leads(guest, PAGE)), (None, Some((host, true))));
        assert_eq!(get(guest, entry(PAGE)) & (A | D), A | D);
        assert_eq!((guest.count(Counter::InnerFills), guest.count(Counter::InnerExits)), (2, 0));
        fault(guest, IN_WALK | 7, ROOT + 0x1000);
        assert_eq!(told(guest), None);
        assert_eq!(get(guest, entry(ROOT + 0x1000)) & D, D, "a walk is a store");
        fault(guest, IN_WALK | 7, ABSENT);
        assert_eq!(told(guest), Some([FAULT, IN_WALK | 6, ABSENT]));
    });
    let cases = [
        (BACKING | 5, 7, 7),
        (BACKING | 3, 5, 5),
        (BACKING | 7 | NX, 0x15, 0x15),
        (BACKING | 7 | 1 << 51, 5, 0xd),
        (BACKING | 6, 7, 6),
    ];
    for (value, info, said) in cases {
        with_tables(|guest, block| {
            set(guest, entry(PAGE), value);
            guest.write(VMCB12, block.bytes());
            guest.begin(&[0x0f, 0x01, 0xd8]);
            guest.vmcb().efer |= EFER_NXE;
            guest.set(RAX, VMCB12);
            guest.exit(VMRUN, 0, 0);
            fault(guest, IN_ACCESS | info, PAGE);
            assert_eq!(told(guest), Some([FAULT, IN_ACCESS | said, PAGE]), "{value:#x}");
            assert_eq!(get(guest, entry(PAGE)), value, "neither A nor D");
        });
    }
    with_tables(|guest, block| {
        set(guest, NESTED + 0x2000, HOLE | 7);
        vmrun(guest, &block);
        fault(guest, IN_ACCESS | 5, PAGE);
        assert_eq!(told(guest), Some([FAULT, IN_ACCESS | 0xd, PAGE]), "no memory reads as ones");
    });
}

/// N13, N14: by TLB_CONTROL, by another root, and by a flush of what slots and logs have changed.
#[test]
fn n14_a_shadow_is_emptied_before_what_was_flushed_is_used() {
    let refill = |guest: &mut Guest<'_, '_>, block: &Vmcb| {
        if is_inside(guest) {
            leaves(guest, [INVALID, 0, 0]);
        }
        vmrun(guest, block);
        leaves(guest, [0x60, 0, 0]);
        leads(guest, PAGE).is_some()
    };
    with_tables(|guest, mut block| {
        refill(guest, &block);
        fault(guest, IN_ACCESS | 4, PAGE);
        assert!(refill(guest, &block), "an exit and VMRUN keep it");
        for control in [1, 3, 7, 0xff] {
            block.tlb_control = control;
            assert!(!refill(guest, &block), "TLB_CONTROL {control}");
            fault(guest, IN_ACCESS | 4, PAGE);
            block.tlb_control = 0;
            assert!(refill(guest, &block));
        }
        block.nested_cr3 = NESTED + 0x9000;
        refill(guest, &block);
        assert!(leads(guest, PAGE).is_none(), "another root");
        block.nested_cr3 = NESTED;
        refill(guest, &block);
        fault(guest, IN_ACCESS | 4, PAGE);
        leaves(guest, [INVALID, 0, 0]);
        flush(guest, &[]);
        assert!(refill(guest, &block));
        assert!(leads(guest, PAGE).is_some(), "L1's own flush is about no shadow");
        let emptied = guest.count(Counter::InnerEmptied);
        let _receipt = guest.0.vm.flush_space(Invalidation::Everything, &mut guest.0.workspace.scratch);
        assert!(!guest.enter(|_, _| panic!("a flush is due")));
        let (sender, seen) = std::sync::mpsc::channel();
        run(guest, move |b| {
            sender.send(b.tlb_control != 0 || b.asid != 0).expect("is heard");
            b.exit_code = 0x60;
        });
        assert!(seen.recv().expect("it has run"));
        assert!(leads(guest, PAGE).is_none(), "slots have changed");
        assert_eq!(guest.count(Counter::InnerEmptied), emptied + 1);
    });
}

/// What L1 does not ask for is served by L2's memory, through both levels.
#[test]
fn an_instruction_of_l2_is_read_through_both_levels() {
    with_tables(|guest, block| {
        guest.write(INNER_CODE, &[0x66, 0x0f, 0xa2]);
        vmrun(guest, &block);
        leaves(guest, [0x72, 0, 0]);
        assert_eq!((told(guest), guest.raised()), (None, None));
        assert_eq!(guest.vmcb().rip, TEXT + 3, "a prefix makes it longer");
        // Its own table is not there.
        set(guest, entry(ROOT + 0x1000), 0);
        leaves(guest, [0x72, 0, 0]);
        assert!(guest.enter(|_, _| {}), "L1 goes on");
        assert_eq!(told(guest), Some([FAULT, IN_WALK | 6, ROOT + 0x1000]));
        assert_eq!(vmcb12(guest).rip, TEXT + 3, "it is executed again");
    });
}

#[test]
fn an_address_of_l2_that_is_a_device_of_l1s_is_accessed_as_l1s() {
    with_tables(|guest, block| {
        // mov eax, [PAGE + 0x30 of the APIC's page]
        guest.write(INNER_CODE, &[0x8b, 0x04, 0x25, 0x30, 0x60, 0x10, 0x00]);
        vmrun(guest, &block);
        fault(guest, IN_ACCESS | 4, APIC + 0x30);
        assert_eq!((told(guest), guest.raised()), (None, None));
        assert_eq!((guest.get(RAX) & 0xff, guest.vmcb().rip), (0x14, TEXT + 7), "the APIC's version");
    });
}
