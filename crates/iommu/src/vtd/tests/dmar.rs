//! DMAR tables, made by hand.

use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use crate::DeviceId;
use crate::scope::{is_machines_own, requester};
use crate::vtd::dmar::{Behind, Dmar, Scope};

/// A structure of this type, with 8 bytes behind the header, then a number, then what follows.
fn structure(kind: u16, flags: u8, segment: u16, base: u64, rest: &[&[u8]]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend([flags, 0]);
    bytes.extend(segment.to_le_bytes());
    bytes.extend(base.to_le_bytes());
    bytes.extend(rest.concat());
    let len = bytes.len() as u16;
    bytes[..2].copy_from_slice(&kind.to_le_bytes());
    bytes[2..4].copy_from_slice(&len.to_le_bytes());
    bytes
}

fn table(structures: &[Vec<u8>]) -> Vec<u8> {
    let mut table = vec![0; 48];
    table[37] = 1;
    table.extend(structures.concat());
    table
}

/// 00:1c.0 leads to bus 1, where 01:00.0 leads to buses 2 to 3.
fn bridges(device: DeviceId) -> Option<Behind> {
    match device.0 {
        0xe0 => Some(Behind { first: 1, last: 3 }),
        0x100 => Some(Behind { first: 2, last: 3 }),
        _ => None,
    }
}

fn devices(first: u16, last: u16) -> Scope {
    Scope::Devices { first: DeviceId(first), last: DeviceId(last), alias: None }
}

fn scopes(table: &[u8]) -> Vec<(u64, Vec<Scope>)> {
    Dmar::new(table, &bridges).units().map(|unit| (unit.registers, unit.scopes().collect())).collect()
}

#[test]
fn devices_are_found_by_the_way_to_them() {
    let entries: &[&[u8]] = &[
        &[1, 8, 0, 0, 0, 0, 2, 0],
        // By two bridges, and by one that is none.
        &[1, 12, 0, 0, 0, 0, 0x1c, 0, 0, 0, 5, 1],
        &[1, 10, 0, 0, 0, 0, 0x1d, 0, 0, 0],
        // A bridge, with what is behind.
        &[2, 8, 0, 0, 0, 0, 0x1c, 0],
        &[3, 8, 0, 0, 7, 0xff, 0, 0],
        &[4, 8, 0, 0, 0, 0xff, 0x1f, 1],
        // A device of ACPI without PCI.
        &[5, 8, 0, 0, 1, 0, 4, 0],
    ];
    let table = table(&[structure(0, 0, 0, 0xfed9_0000, entries)]);
    let expected = vec![
        devices(0x10, 0x10),
        devices(0x229, 0x229),
        devices(0xe0, 0xe0),
        devices(0x100, 0x3ff),
        Scope::IoApic { device: DeviceId(0xff00), number: 7 },
        Scope::Hpet { device: DeviceId(0xfff9) },
    ];
    assert_eq!(scopes(&table), [(0xfed9_0000, expected.clone())]);
    let own = [0xff00, 0xfff9, 0x10].map(|id| is_machines_own(expected.iter().copied(), DeviceId(id)));
    assert_eq!(own, [true, true, false]);
}

#[test]
fn u37_what_is_behind_another_iommu_is_not_behind_the_one_for_all_others() {
    let first = structure(0, 0, 0, 0x1000, &[&[1, 8, 0, 0, 0, 0, 2, 0]]);
    let elsewhere = structure(0, 0, 1, 0x3000, &[&[1, 8, 0, 0, 0, 0, 3, 0]]);
    let all = structure(0, 1, 0, 0x2000, &[&[3, 8, 0, 0, 0, 0xff, 0, 0]]);
    let table = table(&[first, elsewhere, structure(2, 0, 0, 0, &[]), all]);
    let found = scopes(&table);
    assert_eq!(found.iter().map(|(registers, _)| *registers).collect::<Vec<_>>(), [0x1000, 0x2000]);
    let known = |unit: usize, id| requester(found[unit].1.iter().copied(), DeviceId(id)).is_some();
    assert_eq!(
        [0x10, 0x18, 0xffff].map(|id| (known(0, id), known(1, id))),
        [(true, false), (false, true), (false, true)]
    );
}

#[test]
fn firmwares_memory_names_devices_and_flags_are_read() {
    let memory =
        structure(1, 0, 0, 0x7000_0000, &[&0x7000_ffffu64.to_le_bytes(), &[2, 8, 0, 0, 0, 0, 0x1c, 0]]);
    let mut table = table(&[memory]);
    let found: Vec<_> = Dmar::new(&table, &bridges).firmware_memory().collect();
    assert_eq!(found, [(DeviceId(0xe0), DeviceId(0xe0)), (DeviceId(0x100), DeviceId(0x3ff))]);
    assert!(Dmar::new(&table, &bridges).remaps_interrupts());
    table[37] = 2;
    assert!(!Dmar::new(&table, &bridges).remaps_interrupts());
    assert!(!Dmar::new(&[], &bridges).remaps_interrupts());
}

proptest! {
    #[test]
    fn no_table_is_read_beyond_its_end(bytes in proptest::collection::vec(0..6u8, 0..200)) {
        let table = [vec![0; 48], bytes].concat();
        for (_, scopes) in scopes(&table) {
            prop_assert!(scopes.len() < 200);
        }
        let _ = Dmar::new(&table, &bridges).firmware_memory().count();
    }
}
