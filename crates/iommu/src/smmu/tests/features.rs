use coherence::tlbi::Granule;

use crate::smmu::features::*;
use crate::smmu::registers::*;
use crate::smmu::stream::OutputSize;

fn features(idr0: u32, idr1: u32, idr3: u32, idr5: u32) -> Features {
    Features::read(|register| match register {
        IDR0 => idr0,
        IDR1 => idr1,
        IDR3 => idr3,
        IDR5 => idr5,
        other => panic!("{other:?} is not needed"),
    })
}

const NOTHING: Features = Features {
    stage_1: false,
    has_64_bit_tables: false,
    is_coherent: false,
    hears_broadcasts: false,
    has_el2: false,
    has_ats: false,
    asid_bits: 8,
    has_two_levels: false,
    stream_bits: 0,
    command_order_max: 0,
    event_order_max: 0,
    attributes_overridable: false,
    has_preset_places: false,
    has_ranges: false,
    output: Some(OutputSize::Bits32),
    granules: [false; 3],
};

#[test]
fn every_bit_of_the_identification_is_one_feature() {
    assert_eq!(features(0, 0, 0, 0), NOTHING);
    for (idr0, expected) in [
        (1 << 1, Features { stage_1: true, ..NOTHING }),
        (1 << 2, NOTHING),
        (1 << 3, Features { has_64_bit_tables: true, ..NOTHING }),
        (1 << 4, Features { is_coherent: true, ..NOTHING }),
        (1 << 5, Features { hears_broadcasts: true, ..NOTHING }),
        (1 << 9, Features { has_el2: true, ..NOTHING }),
        (1 << 10, Features { has_ats: true, ..NOTHING }),
        (1 << 12, Features { asid_bits: 16, ..NOTHING }),
        (1 << 27, Features { has_two_levels: true, ..NOTHING }),
        (2 << 27, NOTHING),
        (3 << 27, NOTHING),
        (5 << 27, Features { has_two_levels: true, ..NOTHING }),
    ] {
        assert_eq!(features(idr0, 0, 0, 0), expected, "IDR0 {idr0:#x}");
    }
    for (idr1, expected) in [
        (32, Features { stream_bits: 32, ..NOTHING }),
        (63, Features { stream_bits: 32, ..NOTHING }),
        (7 << 16, Features { event_order_max: 7, ..NOTHING }),
        (8 << 21, Features { command_order_max: 8, ..NOTHING }),
        (31 << 21, Features { command_order_max: 19, ..NOTHING }),
        (1 << 27, Features { attributes_overridable: true, ..NOTHING }),
        (1 << 29, Features { has_preset_places: true, ..NOTHING }),
        (1 << 30, Features { has_preset_places: true, ..NOTHING }),
        (1 << 31, NOTHING),
    ] {
        assert_eq!(features(0, idr1, 0, 0), expected, "IDR1 {idr1:#x}");
    }
    assert_eq!(features(0, 0, 1 << 10, 0), Features { has_ranges: true, ..NOTHING });
    for (bit, granules) in [(4, [true, false, false]), (5, [false, true, false]), (6, [false, false, true])] {
        let found = features(0, 0, 0, 1 << bit);
        assert_eq!(found, Features { granules, ..NOTHING }, "IDR5 bit {bit}");
        let all = [Granule::Size4K, Granule::Size16K, Granule::Size64K];
        assert_eq!(all.map(|granule| found.has_granule(granule)), granules);
    }
    let outputs = [0, 1, 2, 3, 4, 5, 6].map(|idr5| features(0, 0, 0, idr5).output.map(OutputSize::bits));
    assert_eq!(outputs, [32, 36, 40, 42, 44, 48, 52].map(Some));
    assert_eq!(features(0, 0, 0, 7), Features { output: None, ..NOTHING });
}

#[test]
fn the_reason_of_a_stop_is_in_the_head() {
    let error = |number: u32| CommandError::decode(number << 24 | 0x8000_1234);
    assert_eq!(error(0), CommandError::None);
    assert_eq!(error(1), CommandError::Illegal);
    assert_eq!(error(2), CommandError::Abort);
    assert_eq!(error(3), CommandError::AtcTimeout);
    assert_eq!(error(0x7f), CommandError::Other(0x7f));
}
