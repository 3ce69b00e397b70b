//! P15: the changes that need a flush, and those that do not.

use super::{R, RW, RWX};
use crate::format::{ABSENT, needs_flush};
use crate::{Amd64Nested, Arm64Stage2, Ept, Format, Level, Permissions, PhysAddr};

const PA: PhysAddr = PhysAddr(0x4000_0000);

fn table<F: Format>() {
    let leaf = |permissions| F::leaf(PA, Level::Page4K, permissions);
    let clean = leaf(RW | Permissions::TRACKED);
    let rows = [
        (ABSENT, leaf(RW), false, "absence is not cached"),
        (F::mark(7), leaf(RW), false, "nor is a mark"),
        (leaf(RW), ABSENT, true, "gone"),
        (leaf(RW), F::mark(7), true, "gone, and noted"),
        (leaf(RW), leaf(R), true, "P14: W taken away"),
        (leaf(RWX), leaf(RW), true, "X taken away"),
        (leaf(R), leaf(RW), false, "W given: who holds the old leaf faults once more"),
        (leaf(R), leaf(RWX), false, "W and X given"),
        (leaf(RW), clean, true, "P14: D cleared: who holds the old leaf stores without setting it"),
        (clean, leaf(RW), false, "D set"),
        (clean, clean, false, "nothing"),
        (leaf(RW), F::leaf(PhysAddr(0x5000_0000), Level::Page4K, RW), true, "another page"),
        (leaf(RW), leaf(RW | Permissions::DEVICE), true, "another memory type"),
        (leaf(RW | Permissions::DEVICE), leaf(RW), true, "another memory type"),
    ];
    for (old, new, expected, what) in rows {
        assert_eq!(needs_flush::<F>(old, new, Level::Page4K), expected, "{what}");
    }
}

#[test]
fn p15_policy_of_flushes() {
    table::<Amd64Nested>();
    table::<Ept>();
    table::<Arm64Stage2<4>>();
}

#[test]
fn p15_losing_the_accessed_bit_needs_no_flush() {
    fn lost<F: Format>(accessed: u64) {
        let leaf = F::leaf(PA, Level::Page4K, RW);
        assert!(leaf & accessed != 0 && !needs_flush::<F>(leaf, leaf & !accessed, Level::Page4K));
    }
    lost::<Amd64Nested>(1 << 5);
    lost::<Ept>(1 << 8);
}
