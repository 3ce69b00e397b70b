use super::*;
use crate::physical::BarKind;
use proptest::prelude::*;
use std::vec::Vec;

fn bars(size: u64) -> [Option<Bar>; 6] {
    let bar = Bar { kind: BarKind::Memory64, is_prefetchable: false, address: 0, size };
    [Some(bar), None, Some(bar), None, None, None]
}

fn msix(vectors: u16, table: (u8, u32), pending: (u8, u32)) -> Msix {
    let place = |(bar, offset)| BarPlace { bar, offset };
    Msix { offset: 0x40, vectors, table: place(table), pending: place(pending) }
}

/// QEMU's NVMe.
fn nvme() -> Table {
    Table::new(&msix(65, (0, 0x2000), (0, 0x3000)), &bars(0x4000)).unwrap()
}

#[test]
fn pending_bits_are_read_from_the_function_and_never_written() {
    let mut table = nvme();
    for offset in [0x3000, 0x3008] {
        assert_eq!(table.read(0, offset, 8), Read::Elsewhere);
        assert_eq!(table.read(0, offset + 4, 4), Read::Elsewhere);
        assert_eq!(table.write(0, offset, 8, 1), Write::Ignored);
    }
    assert_eq!(table.read(0, 0x3010, 8), Read::Elsewhere, "65 bits are two words");
    assert_eq!(table.read(0, 0x3002, 2), Read::Value(0xffff));
}

#[test]
fn a_size_that_does_not_exist_is_not_a_shift_too_far() {
    let mut table = nvme();
    assert_eq!(table.read(0, 0x2000, 0), Read::Value(0xff));
    assert_eq!(table.read(0, 0x2000, 255), Read::Value(u64::MAX));
    assert_eq!(table.write(0, 0x3000, 255, 0), Write::Ignored);
}

#[test]
fn vectors_that_the_guest_does_not_see_are_not_forwarded() {
    let mut table = Table::new(&msix(2048, (0, 0), (2, 0)), &bars(0x8000)).unwrap();
    assert_eq!(table.vector_count(), 256);
    for offset in (256 * 16..2048 * 16).step_by(4) {
        assert_eq!(table.write(0, offset, 4, 0), Write::Ignored);
        assert_eq!(table.read(0, offset, 4), Read::Value(u64::from(offset % 16 == 12)));
    }
    assert_eq!(table.message(256), None);
    assert_eq!(table.pages()[0], Pages { bar: 0, offsets: 0..0x8000 }, "the whole table is trapped");
    assert_eq!(table.read(2, 0xf8, 8), Read::Elsewhere);
}

#[test]
fn trapped_pages_hold_all_of_table_and_bits() {
    let pages = |vectors, table, pending| {
        Table::new(&msix(vectors, table, pending), &bars(1 << 20))
            .unwrap()
            .pages()
            .into_iter()
            .collect::<Vec<_>>()
    };
    let of = |bar, offsets| Pages { bar, offsets };
    assert_eq!(pages(65, (0, 0x2000), (0, 0x3000)), [of(0, 0x2000..0x4000)], "neighbours");
    assert_eq!(pages(65, (0, 0x3000), (0, 0x2000)), [of(0, 0x2000..0x4000)], "the other way round");
    assert_eq!(pages(4, (0, 0), (0, 0x800)), [of(0, 0..0x1000)], "one page");
    assert_eq!(pages(65, (0, 0x2ff8), (0, 0x8000)), [of(0, 0x2000..0x4000), of(0, 0x8000..0x9000)]);
    assert_eq!(pages(65, (0, 0x2000), (2, 0x2000)), [of(0, 0x2000..0x3000), of(2, 0x2000..0x3000)]);
    assert_eq!(pages(257, (0, 0x2000), (0, 0xfff0))[0], of(0, 0x2000..0x4000));
    assert_eq!(pages(65, (0, 0x2000), (0, 0xfff8))[1], of(0, 0xf000..0x1_1000));
}

#[test]
fn places_outside_of_bars_are_refused() {
    let is_made = |table, pending| Table::new(&msix(64, table, pending), &bars(0x1000)).is_some();
    assert!(is_made((0, 0xc00), (2, 0xff8)));
    assert!(!is_made((0, 0xc08), (2, 0xff8)) && !is_made((0, 0xc00), (2, 0x1000)));
    assert!(!is_made((1, 0), (2, 0)) && !is_made((0, 0), (7, 0)) && !is_made((0, !7), (2, 0)));
    assert!(!is_made((0, 0), (0, 0x3f8)) && is_made((0, 0), (0, 0x400)) && is_made((0, 8), (0, 0)));
    let mut ports = bars(0x1000);
    ports[0] = ports[0].map(|bar| Bar { kind: BarKind::Io, ..bar });
    assert!(Table::new(&msix(64, (0, 0), (2, 0)), &ports).is_none());
}

#[test]
fn real_entries_have_the_layout_of_the_specification() {
    let message = Message { address: 0x1_fee0_2000, data: 0x4031 };
    assert_eq!(entry(Some(message)), [0xfee0_2000, 1, 0x4031, 0]);
    assert_eq!(entry(None), [0, 0, 0, 1]);
    let msix = msix(65, (0, 0x2000), (0, 0x3000));
    assert_eq!((entry_offset(&msix, 64), entry_offset(&msix, 65)), (Some(0x2400), None));
}

/// A table as bytes, with what the specification says of each.
struct Bytes(Vec<u8>);

impl Bytes {
    fn new(vectors: usize) -> Self {
        let mut bytes = std::vec![0; vectors * 16];
        (0..vectors).for_each(|vector| bytes[vector * 16 + 12] = 1);
        Self(bytes)
    }

    fn read(&self, at: usize, size: usize) -> u64 {
        (0..size).fold(0, |value, index| value | u64::from(self.0[at + index]) << (8 * index))
    }

    fn write(&mut self, at: usize, size: usize, value: u64) {
        for index in 0..size {
            let writable = match (at + index) % 16 {
                0 => 0xfc,
                12 => 1,
                13..16 => 0,
                _ => 0xff,
            };
            self.0[at + index] = (value >> (8 * index)) as u8 & writable;
        }
    }
}

/// Whether it is a write, the BAR, the offset, the size, and the value.
fn access() -> impl Strategy<Value = (bool, u8, u64, u8, u64)> {
    let value = prop_oneof![any::<u64>(), Just(0), Just(1), Just(u64::MAX)];
    let bar = prop_oneof![20 => Just(0), 1 => 1..7u8];
    let offset = prop_oneof![20 => 0u64..0x300, 1 => Just(u64::MAX)];
    (any::<bool>(), bar, offset, prop_oneof![4 => Just(4u8), 4 => Just(8), 1 => 1u8..=8], value)
}

proptest! {
    #[test]
    fn the_table_is_as_a_table_of_bytes(
        vectors in 1u16..33,
        start in 0u64..16,
        is_aligned in any::<bool>(),
        accesses in proptest::collection::vec(prop_oneof![50 => access().prop_map(Some), 1 => Just(None)], 1..200),
    ) {
        let start = start * 8;
        let mut table = Table::new(&msix(vectors, (0, start as u32), (2, 0x800)), &bars(0x1000)).unwrap();
        let mut bytes = Bytes::new(vectors.into());
        let end = start + u64::from(vectors) * 16;
        for access in accesses {
            let Some((is_write, bar, offset, size, value)) = access else {
                table.reset();
                bytes = Bytes::new(vectors.into());
                continue;
            };
            let offset = if is_aligned { offset / u64::from(size) * u64::from(size) } else { offset };
            let is_near = bar == 0 && offset < end && start < offset + u64::from(size);
            let is_valid = is_near && matches!(size, 4 | 8) && offset % u64::from(size) == 0;
            let at = offset.wrapping_sub(start) as usize;
            let ones = u64::MAX >> (64 - 8 * u32::from(size));
            if is_write {
                let expected = match (is_near, is_valid) {
                    (false, _) => Write::Elsewhere,
                    (true, false) => Write::Ignored,
                    (true, true) => Write::Vector((at / 16) as u16),
                };
                prop_assert_eq!(table.write(bar, offset, size, value), expected);
                if is_valid {
                    bytes.write(at, size.into(), value);
                }
            } else {
                let expected = match (is_near, is_valid) {
                    (false, _) => Read::Elsewhere,
                    (true, false) => Read::Value(ones),
                    (true, true) => Read::Value(bytes.read(at, size.into())),
                };
                prop_assert_eq!(table.read(bar, offset, size), expected);
            }
            for vector in 0..vectors {
                let at = usize::from(vector) * 16;
                let message = Message { address: bytes.read(at, 8), data: bytes.read(at + 8, 4) as u32 };
                let is_masked = bytes.0[at + 12] & 1 != 0;
                prop_assert_eq!(table.message(vector), (!is_masked).then_some(message));
            }
            prop_assert_eq!(table.message(vectors), None);
        }
    }
}
