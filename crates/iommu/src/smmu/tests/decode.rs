//! What an SMMU reads in a TLBI by address. Written after the manual, without the encoder's names.

use crate::Command;

/// The fields of a TLBI by address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tlbi {
    pub(super) opcode: u64,
    pub(super) vmid: u64,
    pub(super) asid: u64,
    pub(super) leaf: bool,
    pub(super) ttl: u64,
    /// Binary logarithm of the granule; `None` if TG is 0.
    pub(super) granule: Option<u32>,
    /// First byte, and the byte after the last; one granule of 4 KiB if TG is 0.
    pub(super) first: u64,
    pub(super) end: u64,
}

fn field(words: [u64; 2], high: usize, low: usize) -> u64 {
    let all = u128::from(words[0]) | u128::from(words[1]) << 64;
    (all >> low & ((1 << (high - low + 1)) - 1)) as u64
}

/// Reads a command as an SMMU with range invalidation and IDR5.DS = 0 does, and refuses what is
/// reserved or unpredictable there.
pub(super) fn tlbi(Command(words): Command) -> Tlbi {
    let field = |high, low| field(words, high, low);
    assert_eq!((field(11, 8), field(19, 17), field(31, 25), field(71, 65)), (0, 0, 0, 0), "reserved bits");
    let (num, scale, ttl) = (field(16, 12), field(24, 20), field(73, 72));
    let first = field(127, 76) << 12;
    let granule = match field(75, 74) {
        0 => None,
        code => Some(10 + 2 * code as u32),
    };
    let end = match granule {
        None => {
            assert_eq!((num, scale, ttl), (0, 0, 0), "reserved without a granule");
            first + 4096
        }
        Some(shift) => {
            assert!((num, scale, ttl) != (0, 0, 0), "CERROR_ILL");
            assert!(!(shift == 14 && ttl == 1), "reserved without IDR5.DS");
            let leaf = match ttl {
                0 => shift,
                level => shift + (3 - level as u32) * (shift - 3),
            };
            assert!(first.is_multiple_of(1 << leaf), "unpredictable: {first:#x} and level {ttl}");
            first + (((num + 1) << scale) << shift)
        }
    };
    Tlbi {
        opcode: field(7, 0),
        vmid: field(47, 32),
        asid: field(63, 48),
        leaf: field(64, 64) == 1,
        ttl,
        granule,
        first,
        end,
    }
}
