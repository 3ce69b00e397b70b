//! Compares the table in `docs/arm-registers.md` with the code.

use super::{Name, Treatment};
use crate::arm64::controls::Control;
use crate::arm64::vcpu::exchanged;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("../../../../../docs/arm-registers.md");

/// A row: names, encodings, and the treatment.
struct Row {
    names: Vec<String>,
    encodings: Vec<String>,
    treatment: String,
}

/// The words in backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

fn rows() -> Vec<Row> {
    let lines = TABLE.lines().filter(|line| line.starts_with("| `"));
    let row = |line: &str| {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        assert_eq!(cells.len(), 4, "{line}");
        Row { names: quoted(cells[0]), encodings: quoted(cells[1]), treatment: cells[2].to_owned() }
    };
    let rows: Vec<Row> = lines.map(row).collect();
    assert!(rows.len() > 60, "{}", rows.len());
    rows
}

/// `S3_0_C1_C0_1` as numbers.
fn name(encoding: &str) -> Name {
    let digits = encoding.trim_start_matches(['S', 's']).replace(['C', 'c'], "");
    let parts: Vec<u32> = digits.split('_').map(|part| part.parse().expect(encoding)).collect();
    let [op0, op1, crn, crm, op2] = parts[..] else { panic!("{encoding}") };
    (op0, op1, crn, crm, op2)
}

#[test]
fn u8_the_table_says_what_is_done() {
    let mut seen = BTreeMap::new();
    for row in rows() {
        assert!(!row.names.is_empty(), "{:?}", row.encodings);
        for encoding in &row.encodings {
            let name = name(encoding);
            let is_emulated = [true, false]
                .map(|is_read| Treatment::of(name, is_read) != Treatment::Undefined)
                .contains(&true);
            match row.treatment.as_str() {
                "emulated" => assert!(is_emulated, "{:?} {encoding} is undefined", row.names),
                "hidden" | "exchanged" | "own" | "harmless" | "constant" => {
                    assert!(!is_emulated, "{:?} {encoding} is emulated", row.names);
                }
                other => panic!("{:?}: {other}", row.names),
            }
            let before = seen.insert(name, row.names.clone());
            assert!(before.is_none(), "{encoding}: {before:?} and {:?}", row.names);
        }
    }
    // And the reverse: everything that is emulated is in it.
    for op0 in 0..4 {
        for code in 0..1 << 14 {
            let name = (op0, code >> 11 & 7, code >> 7 & 15, code >> 3 & 15, code & 7);
            let is_emulated = [true, false]
                .map(|is_read| Treatment::of(name, is_read) != Treatment::Undefined)
                .contains(&true);
            let is_identification = matches!(name, (3, 0, 0, 1..=7, _));
            let is_point = matches!(name, (2, 0, 0, _, 4..=7));
            assert!(!is_emulated || is_identification || is_point || seen.contains_key(&name), "{name:?}");
        }
    }
}

#[test]
fn u8_all_that_vcpus_take_along_is_in_the_table() {
    let rows = rows();
    let listed = |wanted: &str| {
        let found = rows
            .iter()
            .find(|row| row.names.iter().chain(&row.encodings).any(|name| name.eq_ignore_ascii_case(wanted)));
        found.unwrap_or_else(|| panic!("{wanted} is not in the table")).treatment.clone()
    };
    for name in exchanged::COMMON.iter().chain(exchanged::KEYS).map(|register| register.name()) {
        assert_eq!(listed(name), "exchanged", "{name}");
    }
    assert_eq!(exchanged::DEFERRED, [exchanged::Register::Vdisr], "VDISR_EL2, which EL1 calls DISR_EL1");
    assert_eq!(listed("DISR_EL1"), "exchanged");
    assert_eq!(exchanged::MATRIX, [exchanged::Register::Tpidr2]);
    assert_eq!(listed("TPIDR2_EL0"), "exchanged");
    for control in Control::ALL {
        assert!(TABLE.contains(control.name()), "{} is not in the table", control.name());
    }
}

#[test]
fn u8_registers_that_were_open_are_a_vcpus_own_or_constant() {
    // ICC_SRE_EL1: constant, regardless of writes.
    assert_eq!(Treatment::of((3, 0, 12, 12, 5), true), Treatment::Constant(7));
    assert_eq!(Treatment::of((3, 0, 12, 12, 5), false), Treatment::Constant(7));
    // LORegions, error records, activity monitors, partitions: as on a processor without them.
    let hidden = [(3, 0, 10, 4, 0), (3, 0, 10, 4, 3), (3, 0, 10, 4, 7), (3, 0, 5, 3, 0), (3, 0, 5, 3, 1)];
    let more = [(3, 0, 5, 4, 0), (3, 0, 5, 5, 0), (3, 3, 13, 2, 0), (3, 0, 10, 5, 1), (3, 0, 10, 4, 4)];
    for name in hidden.into_iter().chain(more) {
        for is_read in [true, false] {
            assert_eq!(Treatment::of(name, is_read), Treatment::Undefined, "{name:?}");
        }
    }
    // ID registers cannot be written, SGIs cannot be read.
    assert_eq!(Treatment::of((3, 0, 0, 4, 0), false), Treatment::Undefined);
    assert_eq!(Treatment::of((3, 0, 12, 11, 5), true), Treatment::Undefined);
}

#[test]
fn u8_el0_reaches_the_debug_channel_at_most() {
    let channel = Treatment::of((2, 3, 0, 1, 0), true);
    assert_eq!((channel.at_el0(true), channel.at_el0(false)), (channel, Treatment::Undefined));
    for name in [(2, 0, 0, 2, 2), (3, 0, 0, 4, 0), (3, 0, 12, 11, 5), (1, 0, 7, 6, 2)] {
        for is_read in [true, false] {
            assert_eq!(Treatment::of(name, is_read).at_el0(true), Treatment::Undefined);
        }
    }
}
