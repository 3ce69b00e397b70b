use coherence::tlbi::Granule;

use crate::smmu::command::*;
use crate::smmu::stream::*;

/// A field by the manual's numbering: bits of the whole structure.
fn field(words: [u64; 8], high: usize, low: usize) -> u64 {
    assert_eq!(high / 64, low / 64);
    words[low / 64] >> (low % 64) & (u64::MAX >> (63 - (high - low)))
}

/// Checks all fields, and that nothing else is set.
fn check(words: [u64; 8], fields: &[(usize, usize, u64)]) {
    let mut rest = words;
    for &(high, low, expected) in fields {
        assert_eq!(field(words, high, low), expected, "bits {high}:{low}");
        rest[low / 64] &= !(expected << (low % 64));
    }
    assert_eq!(rest, [0; 8], "other bits");
}

const STAGE_1: Stage1 = Stage1 {
    context: 0xf_edcb_a987_6540,
    reads: Reads::COHERENT,
    vmid: Vmid(0x4321),
    el2: false,
    ats: false,
};

const STAGE_2: Stage2 = Stage2 {
    vmid: Vmid(0x8765),
    table: 0xf_edcb_a987_6550,
    vtcr: Vtcr::new(24, 1, Reads::COHERENT, Granule::Size16K, OutputSize::Bits44),
    forces_write_back: false,
    ignores_access_flag: true,
    faults: Faults::ABORT,
    ats: false,
    attributes_overridable: false,
};

#[test]
fn abort_and_bypass() {
    check(StreamEntry::INVALID.0, &[]);
    check(StreamEntry::ABORT.0, &[(0, 0, 1), (3, 1, 0b000)]);
    check(StreamEntry::bypass(false).0, &[(0, 0, 1), (3, 1, 0b100)]);
    check(StreamEntry::bypass(true).0, &[(0, 0, 1), (3, 1, 0b100), (109, 108, 0b01)]);
}

#[test]
fn stage_1_field_by_field() {
    let context = (55, 6, STAGE_1.context >> 6);
    let attributes = [(67, 66, 1), (69, 68, 1), (71, 70, 3)];
    let [inner, outer, shareability] = attributes;
    let always = [(0, 0, 1), (3, 1, 0b101), (5, 4, 0), (63, 59, 0), (65, 64, 0), context, (143, 128, 0x4321)];
    let with = |more: &[_]| [&always, more].concat();
    check(StreamEntry::stage_1(&STAGE_1).unwrap().0, &with(&attributes));
    let entry = StreamEntry::stage_1(&Stage1 { el2: true, ats: true, ..STAGE_1 }).unwrap();
    check(entry.0, &with(&[inner, outer, shareability, (93, 92, 0b01), (95, 94, 0b10)]));
    let entry = StreamEntry::stage_1(&Stage1 { reads: Reads::FROM_MEMORY, ..STAGE_1 }).unwrap();
    check(entry.0, &with(&[(69, 66, 0), (71, 70, 2)]));
}

#[test]
fn stage_2_field_by_field() {
    let vtcr = [(165, 160, 24), (167, 166, 1), (169, 168, 1), (171, 170, 1), (173, 172, 3), (175, 174, 2)];
    let always = [(0, 0, 1), (3, 1, 0b110), (143, 128, 0x8765), (178, 176, 4), (179, 179, 1)];
    let table = (247, 196, STAGE_2.table >> 4);
    let with = |more: &[_]| [always.as_slice(), &vtcr, &[table], more].concat();
    let (affd, stall, record) = ((181, 181, 1), (185, 185, 1), (186, 186, 1));
    check(StreamEntry::stage_2(&STAGE_2).unwrap().0, &with(&[affd, record]));
    let faults = Faults { are_recorded: false, stall: true };
    let other = Stage2 {
        faults,
        ignores_access_flag: false,
        forces_write_back: true,
        attributes_overridable: true,
        ..STAGE_2
    };
    let forced = [(89, 89, 1), (109, 108, 0b01)];
    check(StreamEntry::stage_2(&other).unwrap().0, &with(&[forced[0], forced[1], stall]));
    let entry = StreamEntry::stage_2(&Stage2 { ats: true, ..STAGE_2 }).unwrap();
    check(entry.0, &with(&[affd, record, (93, 92, 0b01)]));
    assert_eq!(StreamEntry::stage_2(&Stage2 { ats: true, ..other }), None, "ATS and stalls: illegal");
}

#[test]
fn stage_2_has_the_shape_of_the_processors_tables() {
    // T0SZ 25, SL0 1, write-back, inner shareable, 4 KiB, 40 bits; VS, HA, RES1.
    let vtcr = 1 << 31 | 1 << 21 | 1 << 19 | 2 << 16 | 3 << 12 | 1 << 10 | 1 << 8 | 1 << 6 | 25;
    let expected = Vtcr::new(25, 1, Reads::COHERENT, Granule::Size4K, OutputSize::Bits40);
    assert_eq!(Vtcr::from_register(vtcr), expected);
    let largest = Vtcr::new(12, 2, Reads::COHERENT, Granule::Size64K, OutputSize::Bits52);
    let entry = StreamEntry::stage_2(&Stage2 { vtcr: largest, ..STAGE_2 }).unwrap().0;
    assert_eq!((field(entry, 175, 174), field(entry, 178, 176)), (0b01, 6));
    assert_eq!(Vtcr::new(25 + 64, 1 + 4, Reads::COHERENT, Granule::Size4K, OutputSize::Bits40), expected);
}

const TABLES: Tables = Tables {
    asid: Asid(0xfedc),
    table: 0x1234_5678_9ab0,
    t0sz: 16,
    granule: Granule::Size64K,
    reads: Reads::COHERENT,
    size: OutputSize::Bits48,
    mair: 0xff44_0c04_ffff_0001,
    faults: Faults::ABORT,
};

#[test]
fn descriptors_field_by_field() {
    let shape = [(5, 0, 16), (7, 6, 0b01), (9, 8, 1), (11, 10, 1), (13, 12, 3), (34, 32, 5)];
    // TTB1 off, valid, 64-bit format, abort, own ASIDs.
    let always = [(30, 30, 1), (31, 31, 1), (41, 41, 1), (46, 46, 1), (47, 47, 1), (63, 48, 0xfedc)];
    let words = [(115, 68, TABLES.table >> 4), (255, 192, TABLES.mair)];
    let with = |more: &[_]| [shape.as_slice(), &always, &words, more].concat();
    check(ContextDescriptor::new(&TABLES).unwrap().0, &with(&[(45, 45, 1)]));
    let faults = Faults { are_recorded: false, stall: true };
    let descriptor = ContextDescriptor::new(&Tables { faults, ..TABLES }).unwrap();
    check(descriptor.0, &with(&[(44, 44, 1)]));
    check(ContextDescriptor::INVALID.0, &[]);
    let small = Tables { granule: Granule::Size16K, t0sz: 63, ..TABLES };
    let words = ContextDescriptor::new(&small).unwrap().0;
    assert_eq!((field(words, 7, 6), field(words, 5, 0)), (0b10, 63));
}

#[test]
fn addresses_that_do_not_fit_are_refused_and_not_truncated() {
    for context in [0x1020, 1 << 52, u64::MAX] {
        assert_eq!(StreamEntry::stage_1(&Stage1 { context, ..STAGE_1 }), None, "{context:#x}");
    }
    for table in [0x1008, 1 << 52, u64::MAX] {
        assert_eq!(StreamEntry::stage_2(&Stage2 { table, ..STAGE_2 }), None, "{table:#x}");
        assert_eq!(ContextDescriptor::new(&Tables { table, ..TABLES }), None, "{table:#x}");
    }
    assert_eq!(ContextDescriptor::new(&Tables { t0sz: 64, ..TABLES }), None);
    assert!(StreamEntry::stage_1(&Stage1 { context: 0, ..STAGE_1 }).is_some());
}

#[test]
fn a_first_level_leads_to_tables_that_are_aligned() {
    let table = 0xf_edcb_a987_0000;
    assert_eq!(first_level(table, 10, Split::Bits10), Some(table | 11), "Span");
    assert_eq!(first_level(table, 0, Split::Bits6), Some(table | 1));
    assert_eq!(first_level(table, 7, Split::Bits6), None, "more than the split");
    assert_eq!(first_level(table + 0x800, 6, Split::Bits6), None, "not aligned to 64 entries");
    assert_eq!(first_level(1 << 52, 6, Split::Bits6), None);
}
