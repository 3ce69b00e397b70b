//! The encodings of EPT, bit by bit, and those of entries that no processor follows.

use proptest::prelude::*;

use super::{R, RW, RWX, RX};
use crate::format::{frozen_after, frozen_until_after, is_frozen, link, linked};
use crate::{Amd64Nested, Arm64Stage2, Ept, Format, Level, Permissions, PhysAddr};

const PA: PhysAddr = PhysAddr(0x4000_0000);

#[test]
fn entries_have_the_bits_of_the_manual() {
    assert_eq!(Ept::leaf(PA, Level::Page4K, RWX), 0x4000_0337, "D, A, write-back, X, W, R");
    assert_eq!(Ept::leaf(PA, Level::Page2M, RX), 0x4000_01b5, "A, a leaf, no W");
    assert_eq!(Ept::leaf(PA, Level::Page1G, RW | Permissions::TRACKED), 0x4000_01b3, "no D");
    assert_eq!(Ept::leaf(PA, Level::Page4K, RW | Permissions::DEVICE), 0x4000_0303, "uncacheable");
    assert_eq!(Ept::table(PA, Level::Page1G), 0x4000_0107);
    assert_eq!(Ept::mark(0) & 0b111, 0b010, "stores alone: a misconfiguration");
    assert!(!Ept::admits(R | Permissions::USER) && !Ept::admits(Permissions::WRITE));
}

#[test]
fn the_root_is_given_to_a_processor_that_can_walk_the_tables() {
    const BOCHS: u64 = 0x0f01_0633_4141;
    assert_eq!(Ept::pointer(PA, BOCHS), Some(0x4000_005e), "dirty bits, 4 levels, write-back");
    for needed in [6, 14, 21] {
        assert_eq!(Ept::pointer(PA, BOCHS & !(1 << needed)), None, "bit {needed}");
    }
}

#[test]
fn i8_what_may_be_executed_is_in_small_pages_where_large_ones_stop_the_machine() {
    let [both, large, huge] = [0b11 << 16, 1 << 16, 1 << 17];
    assert_eq!([both, large, huge, 0].map(|offered| Ept::largest(offered, true)), {
        [Level::Page1G, Level::Page2M, Level::Page4K, Level::Page4K]
    });
    assert_eq!(Ept::largest(both, false), Level::Page4K);
}

/// The entries of a format that no processor follows, for numbers and addresses below `limit`.
fn unfollowed<F: Format>(number: u64, table: u64, limit: u64) {
    let (number, at) = (number % (limit >> 5), PhysAddr((table % limit) & !0xfff));
    let next = (at.0 != 0).then_some((at, Level::Page1G));
    let [mark, frozen, link] = [F::mark(number), frozen_until_after(number), link(next)];
    assert_eq!((F::marked(mark), frozen_after(frozen), linked(link)), (Some(number), number, next));
    assert!(is_frozen(frozen) && is_frozen(link) && !is_frozen(mark));
    assert_eq!((F::marked(frozen), F::marked(link)), (None, None));
    for entry in [mark, frozen, link] {
        assert!(!F::is_present(entry));
        assert!(entry & (2 * limit - 1) >= limit, "{entry:x} points to memory below {limit:x}");
    }
}

proptest! {
    /// I9: whatever the width of physical addresses, with memory in the lower half.
    #[test]
    fn i9_what_no_processor_follows_points_to_no_memory(
        number in any::<u64>(),
        table in any::<u64>(),
        width in 36..=52u32,
    ) {
        let limit = 1u64 << (width - 1);
        unfollowed::<Ept>(number, table, limit);
        unfollowed::<Amd64Nested>(number, table, limit);
        unfollowed::<Arm64Stage2<4>>(number, table, limit);
    }
}
