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

const CONTEXT: u64 = 0xf_edcb_a987_6540;

#[test]
fn abort_and_bypass() {
    check(StreamEntry::INVALID.0, &[]);
    check(StreamEntry::ABORT.0, &[(0, 0, 1), (3, 1, 0b000)]);
    check(StreamEntry::bypass(false).0, &[(0, 0, 1), (3, 1, 0b100)]);
    check(StreamEntry::bypass(true).0, &[(0, 0, 1), (3, 1, 0b100), (109, 108, 0b01)]);
}

#[test]
fn stage_1_field_by_field() {
    let always = [(0, 0, 1), (3, 1, 0b101), (5, 4, 0), (63, 59, 0), (65, 64, 0), (55, 6, CONTEXT >> 6)];
    let check = |reads, fields: &[_]| {
        check(StreamEntry::stage_1(CONTEXT, reads).unwrap().0, &[&always, fields].concat());
    };
    check(Reads::Coherent, &[(67, 66, 1), (69, 68, 1), (71, 70, 3)]);
    check(Reads::FromMemory, &[(69, 66, 0), (71, 70, 2)]);
}

const TABLES: Tables = Tables {
    asid: Asid(0xfedc),
    table: 0x1234_5678_9ab0,
    t0sz: 16,
    granule: Granule::Size64K,
    reads: Reads::Coherent,
    size: OutputSize::Bits48,
    mair: 0xff44_0c04_ffff_0001,
};

#[test]
fn descriptors_field_by_field() {
    let shape = [(5, 0, 16), (7, 6, 0b01), (9, 8, 1), (11, 10, 1), (13, 12, 3), (34, 32, 5)];
    // TTB1 off, valid, 64-bit format, faults recorded, abort, own ASIDs.
    let bits = [30, 31, 41, 45, 46, 47].map(|bit| (bit, bit, 1));
    let words = [(63, 48, 0xfedc), (115, 68, TABLES.table >> 4), (255, 192, TABLES.mair)];
    check(ContextDescriptor::new(&TABLES).unwrap().0, &[shape.as_slice(), &bits, &words].concat());
    check(ContextDescriptor::INVALID.0, &[]);
    let small = Tables { granule: Granule::Size16K, t0sz: 63, ..TABLES };
    let words = ContextDescriptor::new(&small).unwrap().0;
    assert_eq!((field(words, 7, 6), field(words, 5, 0)), (0b10, 63));
}

#[test]
fn addresses_that_do_not_fit_are_refused_and_not_truncated() {
    for context in [0x1020, 1 << 52, u64::MAX] {
        assert_eq!(StreamEntry::stage_1(context, Reads::Coherent), None, "{context:#x}");
    }
    for table in [0x1008, 1 << 52, u64::MAX] {
        assert_eq!(ContextDescriptor::new(&Tables { table, ..TABLES }), None, "{table:#x}");
    }
    assert_eq!(ContextDescriptor::new(&Tables { t0sz: 64, ..TABLES }), None);
    assert!(StreamEntry::stage_1(0, Reads::Coherent).is_some());
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
