//! The control word against the text of the TLFS.

use super::*;

/// Call, rep, variable header: the TLFS's pages of the calls, written down a second time.
const KNOWN: [(u16, bool, bool); 9] = [
    (0x02, false, false),
    (0x03, true, false),
    (0x08, false, false),
    (0x0b, false, false),
    (0x13, false, true),
    (0x14, true, true),
    (0x15, false, true),
    (0xaf, false, false),
    (0xb0, true, false),
];

/// The rules for the control word as the text gives them, on bare bits.
fn oracle(word: u64, has_all: bool) -> Status {
    let field = |low: u32, high: u32| word >> low & ((1 << (high - low + 1)) - 1);
    let offered = |code: u16| has_all || !matches!(code, 0x0b | 0x15 | 0xaf | 0xb0);
    let known = |row: &&(u16, bool, bool)| u64::from(row.0) == field(0, 15) && offered(row.0);
    let Some((_, rep, variable)) = KNOWN.iter().find(known) else {
        return Status::INVALID_HYPERCALL_CODE;
    };
    let (header, count, start) = (field(17, 26), field(32, 43), field(48, 59));
    let wrong = [
        field(27, 30) != 0,
        field(31, 31) != 0,
        field(44, 47) != 0,
        field(60, 63) != 0,
        !variable && header != 0,
        *variable && header > 64,
        *rep && count == 0,
        *rep && start >= count,
        !rep && count != 0,
        !rep && start != 0,
    ];
    if wrong.contains(&true) { Status::INVALID_HYPERCALL_INPUT } else { Status::SUCCESS }
}

fn check(word: u64, has_all: bool) -> Status {
    let profile = if has_all { Profile::NESTED } else { Profile::default() };
    Control::from_bits(word).check(&profile).map_or_else(|status| status, |_| Status::SUCCESS)
}

#[test]
fn h1_h2_every_combination_of_fields_is_judged_by_the_text() {
    let codes = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x08, 0x0b, 0x12, 0x13, 0x14, 0x15, 0x16, 0xaf, 0xb0, 0xb1, 0x8001,
        0xffff,
    ];
    let counts = [0, 1, 2, 3, 509, 4094, 4095];
    let reserved = (27..=31).chain(44..=47).chain(60..=63).map(|bit| 1u64 << bit).chain([0]);
    let mut accepted = [0; 2];
    for bits in reserved {
        for code in codes {
            for header in [0u64, 1, 2, 63, 64, 65, 512, 1023] {
                for (count, start) in counts.iter().flat_map(|c| counts.map(|s| (*c, s))) {
                    for fast in [0, 1 << 16] {
                        let word = bits | code | fast | header << 17 | count << 32 | start << 48;
                        for has_all in [false, true] {
                            let status = check(word, has_all);
                            assert_eq!(status, oracle(word, has_all), "{word:#018x}");
                            accepted[usize::from(has_all)] += u32::from(status == Status::SUCCESS);
                        }
                    }
                }
            }
        }
    }
    // 2 fast × (2 fixed simple + 5 headers × variable simple + (1 + 5 headers) × 21 rep pairs)
    assert_eq!(accepted, [2 * (2 + 5 + 6 * 21), 2 * (4 + 2 * 5 + 7 * 21)]);
}

#[test]
fn h1_every_code_and_every_header_size() {
    let judged = |word: u64| assert_eq!(check(word, true), oracle(word, true), "{word:#018x}");
    for code in 0..=0xffff {
        for rest in [0, 1 << 17, 1 << 32] {
            judged(rest | code);
        }
    }
    for (code, ..) in KNOWN {
        for header in 0..1024 {
            for count in [0, 1, 509, 4095] {
                judged(count << 32 | header << 17 | u64::from(code));
            }
        }
    }
}
