use paging::{Level, Permissions};

use super::{PAGE, slot, untouched, with};
use crate::{Gpa, Memslots, PhysAddr, Resolution, Slot, SlotError};

fn all(memslots: &Memslots) -> Vec<Slot> {
    let mut slots = Vec::new();
    memslots.memory().for_each(|slot| slots.push(*slot));
    slots
}

/// Adds a slot to slots 1 and 2, at pages 16..32 and 48..64, of a guest of 40 bits.
fn add(slot: Slot) -> Result<(), SlotError> {
    // SAFETY: the test only looks slots up.
    let mut memslots = unsafe { with(40, &[(1, 16), (2, 48)].map(|(id, page)| self::slot(id, page, 16, 0))) };
    let before = all(&memslots);
    // SAFETY: as above.
    let result = unsafe { memslots.add(slot) };
    assert!(result.is_ok() || all(&memslots) == before);
    assert!(!memslots.generation().is_in_progress(), "a refused slot leaves no update behind");
    result
}

#[test]
fn refuses_slots_that_are_empty_or_not_whole_pages() {
    assert_eq!(add(slot(3, 0, 0, 0)), Err(SlotError::Empty));
    let good = slot(3, 0, 2, 0);
    for bad in [
        Slot { gpa: Gpa(0x800), ..good },
        Slot { size: 0x1001, ..good },
        Slot { host: PhysAddr(0x10), ..good },
        Slot { gpa: Gpa(0x800), size: 0x1800, host: PhysAddr(0x800), ..good },
        Slot { gpa: Gpa(0x800), size: 0x1800, ..good },
        Slot { size: 0x1800, host: PhysAddr(0x800), ..good },
    ] {
        assert_eq!(add(bad), Err(SlotError::Unaligned), "{bad:?}");
    }
}

#[test]
fn h5_refuses_slots_beyond_the_physical_width_or_around_the_end() {
    let last = (1 << 28) - 1;
    assert_eq!(add(slot(3, last, 1, 0)), Ok(()));
    assert_eq!(add(slot(3, last, 2, 0)), Err(SlotError::TooHigh));
    assert_eq!(add(slot(3, last + 1, 1, 0)), Err(SlotError::TooHigh));
    assert_eq!(add(Slot { gpa: Gpa(!0xfff), size: 2 * PAGE, ..slot(3, 0, 1, 0) }), Err(SlotError::TooHigh));
    assert_eq!(add(Slot { size: !0xfff, ..slot(3, 1, 1, 0) }), Err(SlotError::TooHigh));
    assert_eq!(add(slot(3, 0, 2, !0xfff)), Err(SlotError::TooHigh), "the backing wraps");
    assert_eq!(add(slot(3, 0, 1, !0xfff)), Ok(()), "it ends with the address space");
    let widest = Memslots::new(u32::MAX);
    assert_eq!(widest.physical_bits(), crate::PHYSICAL_BITS_MAX);
}

#[test]
fn leaves_have_the_rights_of_their_slot() {
    use crate::SlotFlags as Flags;
    for (flags, expected) in [
        (Flags::empty(), Permissions::RWX),
        (Flags::READ_ONLY, Permissions::RX),
        (Flags::DEVICE, Permissions::RW | Permissions::DEVICE),
        (Flags::DEVICE | Flags::READ_ONLY, Permissions::R | Permissions::DEVICE),
    ] {
        assert_eq!(Slot { flags, ..slot(1, 0, 1, 0) }.rights(), expected, "{flags:?}");
    }
}

fn level(memslots: &Memslots, gpa: u64) -> Level {
    match memslots.memory().resolve(Gpa(gpa)) {
        Resolution::Ram { level, .. } => level,
        Resolution::Mmio => panic!("{gpa:#x} is MMIO"),
    }
}

#[test]
fn a_large_page_lies_in_its_slot_and_is_aligned_on_both_sides() {
    const M2: u64 = 2 << 20;
    let pages = |bytes: u64| bytes / PAGE;
    let memslots = untouched(&[
        // Starts and ends one page away from a large page's boundary.
        slot(1, pages(M2) - 1, pages(2 * M2) + 2, (1 << 32) + M2 - PAGE),
        // Guest and host address have different offsets in a large page.
        slot(2, pages(8 * M2), pages(4 * M2), (2 << 32) + PAGE),
        // Different offsets only in a huge page.
        slot(3, pages(1 << 30), pages(1 << 30), (3 << 32) + M2),
        slot(4, pages(4 << 30), pages(2 << 30), 16 << 30),
    ]);
    assert_eq!(level(&memslots, M2 - 1), Level::Page4K);
    assert_eq!(level(&memslots, M2), Level::Page2M);
    assert_eq!(level(&memslots, 3 * M2 - 1), Level::Page2M);
    assert_eq!(level(&memslots, 3 * M2), Level::Page4K);
    assert_eq!(level(&memslots, 9 * M2), Level::Page4K);
    assert_eq!(level(&memslots, (1 << 30) + 5), Level::Page2M);
    assert_eq!(level(&memslots, (4 << 30) + 5), Level::Page1G);
    assert_eq!(level(&memslots, (6 << 30) - 1), Level::Page1G);
}
