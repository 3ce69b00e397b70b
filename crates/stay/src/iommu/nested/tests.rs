use std::vec::Vec;

use super::super::tests::{put, queue};
use super::*;
use ::iommu::{DeviceId, amd, vtd};

const PLAIN: Device = Device { id: DeviceId(8), ats: None };
const WITH_ATS: Device = Device { id: DeviceId(9), ats: Some(3) };

/// Those of an IOMMU that invalidates blocks of 4 GiB at most.
const VTD: vtd::Commands = vtd::Commands { order_max: Some(20) };

fn dropped_by(
    commands: &impl Invalidations,
    devices: &[Device],
    invalidation: Invalidation<'_>,
) -> Vec<(u64, u64)> {
    let domain = Domain { id: DomainId(7), devices };
    put(|queue| finish(queue, begin(queue, commands, &domain, invalidation).unwrap()).unwrap())
}

fn dropped(devices: &[Device], invalidation: Invalidation<'_>) -> Vec<(u64, u64)> {
    dropped_by(&amd::Commands, devices, invalidation)
}

const fn range(start: u64, len: u64, tables: bool) -> FlushRange {
    FlushRange { start, len, level: Level::Page4K, tables }
}

const PAGES: u64 = 3 << 60 | 7 << 32;
const SYNC: u64 = 1 << 60 | 5;

#[test]
fn pages_of_the_domain_are_dropped_with_tables_where_one_was_cut_off() {
    let ranges = [range(0x5000, 0x1000, false), range(0x20_0000, 0x20_0000, true)];
    assert_eq!(
        dropped(&[PLAIN], Invalidation::Ranges(&ranges)),
        [(PAGES, 0x5000), (PAGES, 0x2f_f000 | 1 | 2), (SYNC, 3)]
    );
    assert_eq!(dropped(&[PLAIN], Invalidation::Nothing), []);
    assert_eq!(
        dropped(&[PLAIN], Invalidation::Everything),
        [(PAGES, 0x7fff_ffff_ffff_f000 | 1 | 2), (SYNC, 2)]
    );
    // The sync is the test's, and is AMD-Vi's.
    let of_domain = 7 << 16 | 0xc2;
    assert_eq!(
        dropped_by(&VTD, &[PLAIN], Invalidation::Ranges(&ranges)),
        [(of_domain | 0x30, 0x5040), (of_domain | 0x30, 0x20_0009), (SYNC, 3)]
    );
    let everything = dropped_by(&VTD, &[PLAIN], Invalidation::Everything);
    assert_eq!(everything, [(of_domain | 0x20, 0), (SYNC, 2)]);
}

#[test]
fn p16_a_device_with_ats_is_told_after_the_iommu_has_dropped() {
    let ranges = [range(0x5000, 0x1000, false)];
    let device = 4 << 60 | 9 << 32 | 3 << 24 | 9;
    assert_eq!(
        dropped(&[PLAIN, WITH_ATS], Invalidation::Ranges(&ranges)),
        [(PAGES, 0x5000), (SYNC, 2), (device, 0x5000), (SYNC, 4)]
    );
    let commands = dropped_by(&VTD, &[PLAIN, WITH_ATS], Invalidation::Ranges(&ranges));
    assert_eq!(commands[2], (9 << 32 | 3 << 16 | 3, 0x5000));
}

#[test]
fn p16_the_commands_for_one_change_are_bounded() {
    let blocks = dropped(&[], Invalidation::Ranges(&[range(0x1000, 0x1f_f000, false)]));
    assert_eq!(blocks.len(), 9 + 1, "1, 2, 4 to 256 pages");
    // A range whose exact blocks are many.
    let ragged = |number: u64| range((number << 30) + 0x1000, 0x3fff_e000, false);
    for count in 1..=40u64 {
        let ranges: Vec<_> = (0..count).map(ragged).collect();
        for commands in [
            dropped(&[], Invalidation::Ranges(&ranges)),
            dropped_by(&VTD, &[], Invalidation::Ranges(&ranges)),
        ] {
            assert!(commands.len() <= COMMANDS_MAX + 1, "{count}: {}", commands.len());
        }
    }
    let ranges: Vec<_> = (0..=COMMANDS_MAX as u64).map(ragged).collect();
    assert_eq!(dropped(&[], Invalidation::Ranges(&ranges)), dropped(&[], Invalidation::Everything));
}

#[test]
fn p16_a_domain_is_dropped_after_the_entries_of_its_devices() {
    let domain = Domain { id: DomainId(7), devices: &[PLAIN, WITH_ATS] };
    let commands = put(|queue| detach(queue, &amd::Commands, &domain, |_| {}).unwrap());
    let opcodes: Vec<_> = commands.iter().map(|(first, _)| first >> 60).collect();
    assert_eq!(opcodes, [2, 2, 1, 3, 1, 4, 1]);
    let commands = put(|queue| detach(queue, &VTD, &domain, |_| {}).unwrap());
    let entry = |device: u64| device << 32 | 7 << 16 | 0x31;
    assert_eq!([commands[0].0, commands[1].0, commands[3].0], [entry(8), entry(9), 7 << 16 | 0xe2]);
}

#[test]
fn an_iommu_that_does_not_go_on_is_an_error() {
    let (queue, _) = queue(true);
    let domain = Domain { id: DomainId(7), devices: &[PLAIN] };
    let begun = begin(&queue, &amd::Commands, &domain, Invalidation::Everything).unwrap();
    assert_eq!(finish(&queue, begun), Err(Stuck { head: 0, queued: 2 }));
    assert!(detach(&queue, &amd::Commands, &domain, |_| {}).is_err());
}
