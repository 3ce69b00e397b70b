mod dmar;

use core::ops::Range;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::capability::{Capabilities, Unusable};
use super::command::*;
use super::fault::Fault;
use super::interrupt::{InterruptEntry, LocalApics, message_address, redirection};
use super::registers::interrupt_table;
use super::table::*;
use crate::tests::{every_page_is_named, ranges};
use crate::{Command, Depth, DeviceId, DomainId, Invalidations};

const BY_PAGES: Commands = Commands { order_max: Some(18) };
const BY_DOMAINS: Commands = Commands { order_max: None };

/// The addresses that a descriptor for a domain's translations names, by the specification
/// (6.5.2.3).
fn named(Command([first, second]): Command) -> (u64, u64) {
    // Both drain bits, the domain, nothing reserved.
    assert_eq!(first & !0x30, 7 << 16 | 0xc2, "{first:#x}");
    match first >> 4 & 3 {
        2 => {
            assert_eq!(second, 0);
            (0, u64::MAX)
        }
        3 => {
            let order = second & 0x3f;
            assert!(order <= 18 && second & 0xf80 == 0, "{second:#x}");
            assert_eq!(second >> 12 & ((1 << order) - 1), 0, "it is aligned");
            (second & !0xfff, (second & !0xfff) + ((0x1000 << order) - 1))
        }
        other => panic!("granularity {other}"),
    }
}

fn blocks(range: Range<u64>, max: usize) -> Vec<(u64, u64)> {
    let mut blocks: Vec<_> = BY_PAGES.pages(DomainId(7), Depth::Leaves, range, max).map(named).collect();
    // A domain is named for each block that is too large.
    if blocks.contains(&(0, u64::MAX)) {
        blocks = [(0, u64::MAX)].into();
    }
    blocks
}

proptest! {
    #[test]
    fn p17_every_page_of_a_range_is_named((range, max) in ranges()) {
        every_page_is_named(&blocks(range.clone(), max), range, max)?;
    }

    /// With each distance that there can be between what was put in and what was reported.
    #[test]
    fn a_position_is_the_one_nearby(position in any::<u64>(), ahead in -(1i64 << 31)..1 << 31) {
        let near = position.wrapping_sub(ahead as u64);
        prop_assert_eq!(super::command::position(position as u32, near), position);
    }
}

#[test]
fn blocks_that_are_too_large_are_the_whole_domain() {
    assert_eq!(blocks(0x3000..0x6000, 4), [(0x3000, 0x3fff), (0x4000, 0x5fff)]);
    assert_eq!(blocks(0x3000..0x6000, 1), [(0, 0x7fff)]);
    assert_eq!(blocks(0..1 << 30, 1), [(0, (1 << 30) - 1)]);
    assert_eq!(blocks(0..1 << 31, 1), [(0, u64::MAX)]);
    assert_eq!(blocks(0..u64::MAX, 16), [(0, u64::MAX)]);
    assert_eq!(blocks(5..5, 4), []);
    let all = |range| BY_DOMAINS.pages(DomainId(7), Depth::Tables, range, 9).map(named).collect::<Vec<_>>();
    assert_eq!((all(0x3000..0x6000), all(1..1)), ([(0, u64::MAX)].into(), [].into()));
}

#[test]
fn descriptors_as_the_specification_draws_them() {
    let words = |Command(words)| words;
    assert_eq!(wait(0x1_2345_6784, 99), Some(Command([99 << 32 | 0x65, 0x1_2345_6784])));
    assert_eq!((wait(0x1002, 0), wait(1 << 52, 0)), (None, None));
    assert_eq!(words(BY_PAGES.device(DeviceId(0x1234), DomainId(9))), [0x1234 << 32 | 9 << 16 | 0x31, 0]);
    let page = |depth| BY_PAGES.pages(DomainId(0xff), depth, 0x5000..0x6000, 1).next().map(words);
    assert_eq!(page(Depth::Tables), Some([0xff << 16 | 0xf2, 0x5000]));
    assert_eq!(page(Depth::Leaves), Some([0xff << 16 | 0xf2, 0x5040]));
    assert_eq!(everything().map(words), [[0x11, 0], [0xd2, 0], [0x04, 0]]);
    assert_eq!(words(invalidate_interrupts(0x300, 8, 15)), [0x300 << 32 | 8 << 27 | 0x14, 0]);
    assert_eq!(words(invalidate_interrupts(0x300, 8, 7)), [4, 0], "all of them");
    let device = BY_PAGES.device_pages(DeviceId(0x1234), 5, 0x4000..0x8000).map(words);
    assert_eq!(device, Some([0x1234 << 32 | 5 << 16 | 3, 0x5001]));
    assert_eq!(BY_PAGES.device_pages(DeviceId(1), 0, 3..3), None);
}

#[test]
fn entries_as_the_specification_draws_them() {
    let entry = ContextEntry::translated(0x7_6543_2000, DomainId(9)).unwrap();
    assert_eq!(entry.0, [0x7_6543_2001, 9 << 8 | 2]);
    assert_eq!(entry.with_ats().0, [0x7_6543_2005, 9 << 8 | 2]);
    assert!(entry.is_translated() && !ContextEntry::BLOCKED.is_translated());
    assert_eq!(ContextEntry::translated(0x800, DomainId(9)), None);
    assert_eq!(ContextEntry::translated(1 << 52, DomainId(9)), None);
    assert_eq!(ContextEntry::translated(0x1000, DomainId(0)), None, "it is nobody's");
    assert_eq!([root_entry(0x3000), root_entry(0x3008), root_entry(1 << 52)], [Some(0x3001), None, None]);
    let table = |at, order| interrupt_table(at, order, LocalApics::Xapic);
    assert_eq!(table(0x10_0000, 16), Some(0x10_000f));
    assert_eq!(interrupt_table(0x10_0000, 16, LocalApics::X2apic), Some(0x10_080f));
    assert_eq!([(0x800, 16), (0, 0), (0, 17), (1 << 52, 1)].map(|(at, order)| table(at, order)), [None; 4]);
}

#[test]
fn interrupts_name_entries_and_these_name_who_may_use_them() {
    let fixed = |apics| InterruptEntry::fixed(apics, 3, 0x41, DeviceId(0x1234));
    let entry = fixed(LocalApics::Xapic);
    assert_eq!(fixed(LocalApics::X2apic).0, [3 << 32 | 0x41 << 16 | 1, 1 << 18 | 0x1234]);
    assert_eq!(entry.0, [3 << 40 | 0x41 << 16 | 1, 1 << 18 | 0x1234]);
    assert_eq!(InterruptEntry::BLOCKED.0[0] & 1, 0);
    assert_eq!(message_address(0x0105), 0xfee0_0010 | 0x105 << 5);
    assert_eq!(message_address(0x8001), 0xfee0_0010 | 1 << 5 | 1 << 2);
    assert_eq!(redirection(0x0002, 0xf1), 2 << 49 | 1 << 48 | 0xf1);
    assert_eq!(redirection(0x8000, 0xf1), 1 << 48 | 1 << 11 | 0xf1);
}

/// QEMU's, with tables of four levels, in legacy mode: `hw/i386/intel_iommu.c`.
const FIRST: u64 = 6 | 4 << 8 | 47 << 16 | 0x22 << 24 | 3 << 34 | 1 << 39 | 18 << 48 | 3 << 54;
const SECOND: u64 = 1 << 1 | 1 << 3 | 0xf << 8 | 15 << 20;

#[test]
fn an_iommu_is_used_if_it_can_do_what_guests_need() {
    let apics = LocalApics::Xapic;
    let read = |first, second, emulated| Capabilities::read(0x10, [first, second], apics, emulated);
    let found = read(FIRST, SECOND, true).unwrap();
    assert_eq!((found.commands, found.interrupts_order_max), (BY_PAGES, 15));
    assert_eq!(found.faults, 0x220..0x230);
    assert_eq!(read(FIRST | 7 << 40, SECOND | 1, false).unwrap().faults, 0x220..0x2a0);
    assert_eq!(read(FIRST & !(1 << 39), SECOND, true).unwrap().commands, BY_DOMAINS);
    for (first, second, why) in [
        (FIRST | 1 << 7, SECOND, Unusable::KeepsAbsence),
        (FIRST | 1 << 4, SECOND, Unusable::WriteBuffer),
        (FIRST & !(4 << 8), SECOND, Unusable::Levels),
        (FIRST & !(1 << 34), SECOND, Unusable::LargePages),
        (FIRST & !(1 << 35), SECOND, Unusable::LargePages),
        (FIRST & !7 | 1, SECOND, Unusable::Domains),
        (FIRST & !(1 << 54), SECOND, Unusable::Drain),
        (FIRST & !(1 << 55), SECOND, Unusable::Drain),
        (FIRST, SECOND & !2, Unusable::NoQueue),
        (FIRST, SECOND & !8, Unusable::NoRemapping),
    ] {
        assert_eq!(read(first, second, true), Err(why));
        assert!(why.to_string().starts_with("it"), "{why}");
    }
    assert_eq!(read(FIRST, SECOND, false), Err(Unusable::Incoherent));
    assert!(Capabilities::read(0x20, [FIRST & !(3 << 54), SECOND], apics, true).is_ok(), "it drains always");
    let in_x2apic = |second| Capabilities::read(0x10, [FIRST, second], LocalApics::X2apic, true);
    assert_eq!(in_x2apic(SECOND), Err(Unusable::NoX2apic));
    assert!(in_x2apic(SECOND | 1 << 4).is_ok());
}

#[test]
fn faults_name_the_device_and_the_address() {
    let fault = |reason: u64| Fault::decode([0x1234_5fff, 1 << 63 | reason << 32 | 0x0110]).unwrap();
    let expected = Fault { device: DeviceId(0x0110), address: 0x1234_5000, is_write: true, reason: 5 };
    assert_eq!(fault(5), expected);
    assert_eq!(Fault::decode([0x1000, 3 << 62 | 6 << 32]).map(|fault| fault.is_write), Some(false));
    assert_eq!(Fault::decode([0x1000, 6 << 32]), None, "it holds none");
    for (reason, text) in [
        (2, "device 01:02.0 is blocked; it wanted address 0x12345000"),
        (4, "device 01:02.0 used address 0x12345000: nothing can be there"),
        (5, "device 01:02.0 wanted to write to address 0x12345000, which it may not"),
        (0x42, "device 01:02.0 caused fault 0x42 at address 0x12345000"),
    ] {
        assert_eq!(fault(reason).to_string(), text);
    }
    assert!(fault(12).to_string().contains("malformed or cannot be read (reason 0xc)"));
    let interrupt = Fault::decode([0x0103 << 48, 1 << 63 | 0x26 << 32 | 0x0110]).unwrap().to_string();
    assert_eq!(interrupt, "device 01:02.0 sent an interrupt that it must not: number 0x103 (reason 0x26)");
}
