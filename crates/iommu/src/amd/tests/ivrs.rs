//! IVRS tables, made by hand.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::DeviceId;
use crate::amd::ivrs::{Scope, Unit, firmware_memory, units};

/// A block for the IOMMU with this id.
fn block(kind: u8, device: u16, registers: u64, entries: &[u8]) -> Vec<u8> {
    let header = if kind == 0x10 { 24 } else { 40 };
    let mut block = vec![0; header];
    block[0] = kind;
    block[2..4].copy_from_slice(&((header + entries.len()) as u16).to_le_bytes());
    block[4..6].copy_from_slice(&device.to_le_bytes());
    block[8..16].copy_from_slice(&registers.to_le_bytes());
    block.extend(entries);
    block
}

fn table(blocks: &[Vec<u8>]) -> Vec<u8> {
    let mut table = vec![0; 48];
    blocks.iter().for_each(|block| table.extend(block));
    table
}

fn scopes(unit: &Unit<'_>) -> Vec<Scope> {
    unit.scopes().collect()
}

fn devices(first: u16, last: u16, alias: Option<u16>) -> Scope {
    Scope::Devices { first: DeviceId(first), last: DeviceId(last), alias: alias.map(DeviceId) }
}

#[test]
fn the_best_block_of_each_iommu_counts() {
    let blocks = [
        block(0x10, 2, 0xfed8_0000, &[2, 0x18, 0, 0]),
        block(0x11, 2, 0xfed8_0000, &[2, 0x20, 0, 0]),
        block(0x10, 0x4002, 0xfec8_0000, &[]),
        // A memory block is none of an IOMMU; nor is one that has nothing but its length.
        block(0x20, 2, 1, &[]),
        vec![0x99, 0, 4, 0],
        block(0x40, 2, 0xfed8_0000, &[2, 0x28, 0, 0]),
    ];
    let table = table(&blocks);
    let found: Vec<_> = units(&table).collect();
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].device, found[0].registers), (DeviceId(0x4002), 0xfec8_0000));
    assert_eq!((found[1].device, found[1].registers), (DeviceId(2), 0xfed8_0000));
    assert_eq!(scopes(&found[1]), [devices(0x28, 0x28, None)]);
}

#[test]
fn devices_of_all_kinds_of_entries() {
    let entries = [
        &[2, 0x10, 0, 0][..],
        &[3, 0x20, 0, 0, 4, 0x2f, 0, 0],
        &[0x42, 0x30, 0, 0, 0, 0x99, 0, 0],
        &[0x43, 0x00, 1, 0, 0, 0x08, 1, 0, 4, 0xff, 1, 0],
        // Padding of 4 and of 8 bytes, and a device of ACPI whose name has 3 letters.
        &[0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 0],
        &[0xf0, 0, 0, 0, b'A', 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 3, b'a', b'b', b'c'],
        // An I/O APIC of number 5 with the id 0xa0, and a timer.
        &[0x48, 0, 0, 0, 5, 0xa0, 0, 1, 0x48, 0, 0, 0, 0, 0xa1, 0, 2],
        // Kinds that nobody has defined, of 16 and of 32 bytes.
        &[0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[&[0xc0][..], &[0; 31]].concat(),
        &[1, 0, 0, 0],
    ]
    .concat();
    let table = table(&[block(0x10, 2, 0, &entries)]);
    let unit = units(&table).next().unwrap();
    let expected = [
        devices(0x10, 0x10, None),
        devices(0x20, 0x2f, None),
        devices(0x30, 0x30, Some(0x99)),
        devices(0x100, 0x1ff, Some(0x108)),
        Scope::IoApic { device: DeviceId(0xa0), number: 5 },
        Scope::Hpet { device: DeviceId(0xa1) },
        devices(0, 0xffff, None),
    ];
    assert_eq!(scopes(&unit), expected);
}

#[test]
fn requests_arrive_with_their_alias() {
    let entries = [1, 0, 0, 0, 0x42, 0x30, 0, 0, 0, 0x99, 0, 0];
    let table = table(&[block(0x10, 2, 0, &entries)]);
    let unit = units(&table).next().unwrap();
    assert_eq!(unit.requester(DeviceId(0x30)), Some(DeviceId(0x99)));
    assert_eq!(unit.requester(DeviceId(0x31)), Some(DeviceId(0x31)));
    let without = self::table(&[block(0x10, 2, 0, &[2, 0x10, 0, 0])]);
    assert_eq!(units(&without).next().unwrap().requester(DeviceId(0x11)), None);
}

#[test]
fn devices_with_memory_of_firmware() {
    let memory = |kind, first: u16, last: u16| {
        let mut block = block(kind, first, 0, &[]);
        block[6..8].copy_from_slice(&last.to_le_bytes());
        block
    };
    let found = |blocks: &[Vec<u8>]| -> Vec<_> {
        firmware_memory(&table(blocks)).map(|(first, last)| (first.0, last.0)).collect()
    };
    let all = [memory(0x21, 0x98, 0xfff), memory(0x22, 0x10, 0x17), block(0x10, 2, 0, &[])];
    assert_eq!(found(&all), [(0x98, 0x98), (0x10, 0x17)]);
    assert_eq!(found(&[memory(0x20, 7, 7)]), [(0, 0xffff)]);
    assert_eq!(found(&[memory(0x23, 7, 7)]), []);
}

proptest! {
    #[test]
    fn any_table_is_read_to_an_end(mut bytes in proptest::collection::vec(any::<u8>(), 0..400), kind in 0usize..3) {
        if let Some(first) = bytes.get_mut(48) {
            *first = [0x10, 0x11, 0x40][kind];
        }
        for unit in units(&bytes) {
            prop_assert!(unit.scopes().count() < 400);
        }
        prop_assert!(firmware_memory(&bytes).count() < 400);
    }
}
