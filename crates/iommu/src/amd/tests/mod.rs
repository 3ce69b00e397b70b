mod ivrs;

use core::ops::Range;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::Commands;
use super::command::*;
use super::event::Event;
use super::registers::*;
use super::table::*;
use crate::tests::{every_page_is_named, ranges};
use crate::{Command, Depth, DeviceId, DomainId, Invalidations};

/// The addresses that an operand names, read as the specification says it: the size follows from
/// the first zero above the offset in the page. The end is included.
fn named(operand: u64) -> (u64, u64) {
    let page = operand >> 12;
    if operand & 1 == 0 {
        return (page << 12, page << 12 | 0xfff);
    }
    let bits = page.trailing_ones() + 1;
    if bits >= 52 {
        return (0, u64::MAX);
    }
    let size = 1u64 << (12 + bits);
    let start = operand & !(size - 1);
    (start, start + (size - 1))
}

/// Domain, whether tables go, and addresses of an INVALIDATE_IOMMU_PAGES.
fn read(Command([first, operand]): Command) -> (u16, bool, (u64, u64)) {
    assert_eq!(first >> 60, 3);
    assert_eq!((first & 0xffff_ffff, first >> 48 & 0xfff, operand & 0xffc), (0, 0, 0), "reserved");
    ((first >> 32) as u16, operand & 2 != 0, named(operand))
}

fn blocks(range: Range<u64>, max: usize) -> Vec<(u64, u64)> {
    Commands
        .pages(DomainId(7), Depth::Leaves, range, max)
        .map(|command| {
            let (domain, has_tables, block) = read(command);
            assert_eq!((domain, has_tables), (7, false));
            block
        })
        .collect()
}

proptest! {
    #[test]
    fn p17_every_page_of_a_range_is_named((range, max) in ranges()) {
        let blocks = blocks(range.clone(), max);
        prop_assert!(blocks.iter().all(|(start, end)| end - start < 1 << 52 || *end == u64::MAX));
        every_page_is_named(&blocks, range, max)?;
    }

    #[test]
    fn one_command_names_no_more_than_the_smallest_block(page in 0..1u64 << 40, count in 1..1u64 << 20) {
        let (first, last) = (page << 12, (page + count - 1) << 12);
        let (start, end) = blocks(first..last + 1, 1)[0];
        let size = end - start + 1;
        prop_assert!(size.is_power_of_two() && start & (size - 1) == 0);
        // Neither half contains both.
        prop_assert!(size == 4096 || first & (size / 2) != last & (size / 2));
    }
}

#[test]
fn p17_the_ends_of_the_address_space() {
    assert_eq!(blocks(0..u64::MAX, 1), [(0, u64::MAX)]);
    assert_eq!(blocks(u64::MAX - 1..u64::MAX, 4), [(u64::MAX - 0xfff, u64::MAX)]);
    // Beyond 2^52 bytes the zero of a size would be among the bits that extend the sign.
    assert_eq!(blocks(0x8000_0000_0000_0000..u64::MAX, 8), [(0, u64::MAX)]);
    assert_eq!(blocks(0..1 << 53, 8), [(0, u64::MAX)]);
    assert_eq!(blocks((1 << 52) - 1..(1 << 52) + 1, 1), [(0, u64::MAX)]);
    assert_eq!(blocks(0..1 << 52, 1), [(0, (1 << 52) - 1)]);
    assert_eq!(blocks(5..5, 4), []);
    assert_eq!(blocks(0..1, 0), [(0, 0xfff)]);
}

#[test]
fn a_range_is_split_only_if_that_names_nothing_else() {
    assert_eq!(blocks(0x3000..0x6000, 4), [(0x3000, 0x3fff), (0x4000, 0x5fff)]);
    assert_eq!(blocks(0x3000..0x6000, 1), [(0, 0x7fff)]);
    // 2 MiB less a page at both ends takes 16 blocks.
    let range = 0x20_1000..0x3f_f000;
    assert_eq!((blocks(range.clone(), 16).len(), blocks(range, 15).len()), (16, 1));
}

#[test]
fn p16_a_device_with_ats_is_told_itself() {
    let Command([first, operand]) = Commands.device_pages(DeviceId(0x1234), 5, 0x4000..0x8000).unwrap();
    assert_eq!(first, 4 << 60 | 0x1234 << 32 | 5 << 24 | 0x1234);
    assert_eq!(named(operand), (0x4000, 0x7fff));
    let Command([first, _]) = Commands.device_pages(DeviceId(1), 0, 0..1).unwrap();
    assert_eq!(first >> 24 & 0xff, 32, "a depth of 0 is 32");
    assert_eq!(Commands.device_pages(DeviceId(1), 0, 3..3), None);
    let Command([_, operand]) = Commands.device_pages(DeviceId(1), 0, 0x3000..0x6000).unwrap();
    assert_eq!(named(operand), (0, 0x7fff), "one command");
}

#[test]
fn commands_as_the_specification_draws_them() {
    assert_eq!(completion_wait(0x1_2345_6788, 99), Some(Command([1 << 60 | 0x1_2345_6788 | 5, 99])));
    assert_eq!(completion_wait(0x1004, 0), None);
    assert_eq!(completion_wait(1 << 52, 0), None);
    assert_eq!(invalidate_device(DeviceId(0x10)), Command([2 << 60 | 0x10, 0]));
    assert_eq!(invalidate_interrupts(DeviceId(0x10)), Command([5 << 60 | 0x10, 0]));
    assert_eq!(invalidate_all(), Command([8 << 60, 0]));
    let tables = Commands.pages(DomainId(0xffff), Depth::Tables, 0..1, 1).next().unwrap();
    assert_eq!(tables, Command([3 << 60 | 0xffff << 32, 2]));
}

#[test]
fn device_entries() {
    let entry = DeviceEntry::translated(0x7_6543_2000, DomainId(9)).unwrap();
    assert_eq!(entry.0, [3 << 61 | 0x7_6543_2000 | 4 << 9 | 3, 9, 1, 0]);
    assert!(entry.is_translated() && !DeviceEntry::BLOCKED.is_translated());
    assert_eq!(entry.with_ats().0[1], 9 | 1 << 32);
    let table = InterruptTable { address: 0x4080, order: 8 };
    assert_eq!(entry.with_interrupts(table).unwrap().0[2], 2 << 60 | 0x4080 | 8 << 1 | 1);
    for bad in [InterruptTable { address: 0x40c0, order: 8 }, InterruptTable { address: 0, order: 12 }] {
        assert_eq!(entry.with_interrupts(bad), None);
    }
    assert_eq!(DeviceEntry::translated(0x800, DomainId(9)), None);
    assert_eq!(DeviceEntry::translated(1 << 52, DomainId(9)), None);
    assert_eq!(DeviceEntry::translated(0x1000, DomainId(0)), None, "it is nobody's");
}

/// Nested tables are the IOMMU's, too: what it reads is where the processor ignores it.
#[test]
fn bits_of_page_entries_are_ignored_by_the_processor() {
    let available = 7u64 << 9 | 0x7ff << 52;
    let entries = [NextLevel::One, NextLevel::Four].map(PageEntry::Table).into_iter();
    for entry in entries.chain([true, false].map(|is_writable| PageEntry::Leaf { is_writable })) {
        assert_eq!(page_bits(entry) & !available, 0, "{entry:?}");
    }
    assert_eq!(page_bits(PageEntry::Table(NextLevel::Two)), 3 << 61 | 2 << 9);
    assert_eq!(
        [false, true].map(|is_writable| page_bits(PageEntry::Leaf { is_writable })),
        [1 << 61, 3 << 61]
    );
}

#[test]
fn events_name_the_device_and_the_address() {
    let fault = Event::decode([2 << 60 | 1 << 53 | 1 << 52 | 9 << 32 | 0x0110, 0x1000]);
    let device = DeviceId(0x0110);
    assert_eq!(
        fault,
        Event::PageFault {
            device,
            domain: DomainId(9),
            address: 0x1000,
            is_write: true,
            is_present: true,
            is_malformed: false,
            is_interrupt: false
        }
    );
    assert_eq!(fault.device(), Some(device));
    assert_eq!(fault.to_string(), "device 01:02.0 wanted to write to address 0x1000, which it may not");
    let malformed = Event::decode([2 << 60 | 1 << 55 | 1 << 52 | 0x0110, 0x1000]).to_string();
    assert_eq!(malformed, "the translation of address 0x1000 for device 01:02.0 is malformed");
    let words = |code: u64| Event::decode([code << 60 | 0x0110, 0x40]).to_string();
    for (code, text) in [
        (1, "device 01:02.0 has an invalid entry; it wanted address 0x40"),
        (2, "device 01:02.0 used address 0x40: nothing is there"),
        (3, "a table for device 01:02.0 cannot be read at 0x40"),
        (4, "a table for device 01:02.0 cannot be read at 0x40"),
        (5, "the command at 0x40 is invalid"),
        (6, "the command at 0x40 cannot be read"),
        (7, "device 01:02.0 does not answer an invalidation of its translations"),
        (8, "device 01:02.0 made an invalid request for address 0x40"),
        (9, "unknown event 0x9000000000000110 0x0000000000000040"),
    ] {
        assert_eq!(words(code), text);
    }
    let interrupt = Event::decode([2 << 60 | 1 << 51 | 0x0110, 0xfee0_0000]);
    assert_eq!(interrupt.to_string(), "device 01:02.0 sent an interrupt that it must not: 0xfee00000");
    assert_eq!(Event::decode([5 << 60, 0]).device(), None);
}

#[test]
fn interrupts_pass_or_are_aborted_or_remapped() {
    // 2.2.2.1: IV, and IntCtl in bits 189:188.
    let control = |entry: DeviceEntry| (entry.0[2] & 1, entry.0[2] >> 60 & 3);
    assert_eq!(control(DeviceEntry::BLOCKED), (1, 0));
    assert_eq!(control(DeviceEntry::INTERRUPTS_PASS).0, 0);
    assert!(!DeviceEntry::BLOCKED.is_translated() && !DeviceEntry::INTERRUPTS_PASS.is_translated());
    assert_eq!(InterruptEntry::fixed(3, 0x41), InterruptEntry(0x41_0301));
    assert_eq!(InterruptEntry::BLOCKED.0 & 1, 0);
}

#[test]
fn bases_have_address_and_length() {
    assert_eq!(device_table(0x12_3000, 1), Some(0x12_3000));
    assert_eq!(device_table(0x12_3000, 512), Some(0x12_31ff), "2 MiB");
    assert_eq!(device_table(0x12_3000, 0), None);
    assert_eq!(device_table(0x12_3000, 513), None);
    assert_eq!(device_table(0x12_3800, 1), None);
    assert_eq!(ring(0xf_ffff_ffff_f000, 8), Some(0x080f_ffff_ffff_f000));
    assert_eq!(ring(0x1000, 15), Some(0x0f00_0000_0000_1000));
    assert_eq!(ring(0x1000, 7), None);
    assert_eq!(ring(0x1000, 16), None);
    assert_eq!(ring(1 << 52, 8), None);
}

#[test]
fn features_are_read() {
    assert!(has_invalidate_all(0x29d3) && !has_invalidate_all(!(1 << 6)));
}
