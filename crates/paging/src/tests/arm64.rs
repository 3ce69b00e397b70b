//! The encodings of VMSAv8-64, bit by bit.

use super::arena::Arena;
use super::{R, RW, RWX, RX};
use crate::{Arm64Stage1, Arm64Stage2, Format, Level, Mapping, PageTable, Permissions, PhysAddr};

type Stage2 = Arm64Stage2<4>;

const PA: PhysAddr = PhysAddr(0x4000_0000);

#[test]
fn stage_2_entries_have_the_bits_of_the_manual() {
    // Valid, page, MemAttr 0b1111, S2AP 0b11, inner shareable, AF.
    assert_eq!(Stage2::leaf(PA, Level::Page4K, RWX), 0x4000_07ff);
    assert_eq!(Stage2::leaf(PA, Level::Page2M, RWX), 0x4000_07fd, "a block");
    assert_eq!(Stage2::leaf(PA, Level::Page1G, RX), 0x4000_077d, "S2AP 0b01");
    assert_eq!(Stage2::leaf(PA, Level::Page4K, RW), 0x0040_0000_4000_07ff, "XN");
    let tracked = RWX | Permissions::TRACKED;
    assert_eq!(Stage2::leaf(PA, Level::Page4K, tracked), 0x0008_0000_4000_077f, "DBM, S2AP 0b01");
    let device = RW | Permissions::DEVICE;
    assert_eq!(Stage2::leaf(PA, Level::Page4K, device), 0x0040_0000_4000_04c7, "Device-nGnRE");
    assert_eq!(Stage2::table(PA, Level::Page1G), 0x4000_0003);
    assert!(!Stage2::admits(R | Permissions::USER) && !Stage2::admits(Permissions::WRITE));
}

#[test]
fn p20_forced_write_back_has_its_own_memory_types() {
    type Forced = Arm64Stage2<4, true>;
    assert_eq!(Forced::leaf(PA, Level::Page4K, RWX), 0x4000_07db, "MemAttr 0b0110");
    let device = RW | Permissions::DEVICE;
    assert_eq!(Forced::leaf(PA, Level::Page4K, device), Stage2::leaf(PA, Level::Page4K, device), "0b0001");
    for permissions in [R, RX, RWX, device] {
        assert_eq!(Forced::permissions(Forced::leaf(PA, Level::Page2M, permissions)), permissions);
    }
}

#[test]
fn stage_1_entries_have_the_bits_of_the_manual() {
    let user = Permissions::USER;
    // Valid, page, AttrIndx 0, AP[2:1] 0b00, inner shareable, AF, nG, PXN, UXN.
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page4K, RW), 0x0060_0000_4000_0f03);
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page4K, R), 0x0060_0000_4000_0f83, "AP[2]");
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page4K, RX), 0x0040_0000_4000_0f83, "no PXN");
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page2M, RX | user), 0x0020_0000_4000_0fc1, "AP[1], no UXN");
    let global = RW | Permissions::GLOBAL | Permissions::DEVICE;
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page4K, global), 0x0060_0000_4000_0407, "AttrIndx 1");
    let tracked = RW | Permissions::TRACKED;
    assert_eq!(Arm64Stage1::leaf(PA, Level::Page4K, tracked), 0x0068_0000_4000_0f83, "DBM, AP[2]");
    assert_eq!(Arm64Stage1::table(PA, Level::Page1G), 0x4000_0003);
}

/// P14: the dirty state, through every operation on a leaf.
fn dirty_state<F: Format>() {
    for level in [Level::Page4K, Level::Page2M] {
        let leaf = F::leaf(PA, level, RW);
        assert!(F::is_dirty(leaf), "not tracked");
        let clean = F::cleaned(leaf);
        assert!(!F::is_dirty(clean));
        assert_eq!(F::permissions(clean), F::permissions(leaf), "stores are still allowed");
        assert_eq!(clean, F::leaf(PA, level, RW | Permissions::TRACKED));
        let dirty = F::dirtied(clean);
        assert!(F::is_dirty(dirty));
        assert_eq!(F::permissions(dirty), F::permissions(leaf));
        let protected = crate::format::repermitted::<F>(dirty, level, R);
        assert!(F::is_dirty(protected), "P14: what was stored before is known still");
        assert!(!F::permissions(protected).contains(Permissions::WRITE));
        let cleaned = F::cleaned(protected);
        assert_eq!(cleaned, F::leaf(PA, level, R));
        let again = crate::format::repermitted::<F>(protected, level, RW | Permissions::TRACKED);
        assert!(F::is_dirty(again));
        assert!(F::permissions(again).contains(Permissions::WRITE));
        assert!(!F::is_dirty(crate::format::repermitted::<F>(cleaned, level, RW | Permissions::TRACKED)));
    }
}

#[test]
fn p14_the_dirty_state_survives_and_can_be_cleared() {
    dirty_state::<Arm64Stage2<3>>();
    dirty_state::<Stage2>();
    dirty_state::<Arm64Stage1>();
    dirty_state::<crate::Amd64Nested>();
    dirty_state::<crate::Ept>();
    dirty_state::<crate::Amd64Guest>();
    dirty_state::<crate::Amd64Host>();
}

/// Every permission that a format admits is read back from the table unchanged.
fn round_trip<F: Format>() {
    let admitted = (0..=Permissions::all().bits()).map(Permissions::from_bits_truncate);
    let admitted: Vec<_> = admitted.filter(|permissions| F::admits(*permissions)).collect();
    for level in [Level::Page4K, Level::Page2M, Level::Page1G] {
        let arena = Arena::new(1024);
        let table = PageTable::<F, _>::new(&arena).unwrap();
        for &permissions in &admitted {
            let (address, told) = (u64::from(permissions.bits()) << 30, permissions - Permissions::TRACKED);
            table.install(address, PA, level, permissions).unwrap();
            let is_dirty = permissions.contains(Permissions::WRITE) && told == permissions;
            let mapping = Mapping { pa: PA, level, permissions: told, is_dirty };
            assert_eq!(table.query(address), Some(mapping));
        }
    }
}

#[test]
fn permissions_survive_encoding() {
    round_trip::<Arm64Stage2<3>>();
    round_trip::<Stage2>();
    round_trip::<Arm64Stage1>();
    round_trip::<crate::Amd64Nested>();
    round_trip::<crate::Ept>();
    round_trip::<crate::Amd64Guest>();
    round_trip::<crate::Amd64Host>();
}

#[test]
fn three_levels_reach_39_bits() {
    let arena = Arena::new(8);
    let table = PageTable::<Arm64Stage2<3>, _>::new(&arena).unwrap();
    let last = (1 << 39) - 1;
    table.install(last, PhysAddr((1 << 48) - 1), Level::Page4K, RWX).unwrap();
    assert_eq!(table.query(last).unwrap().pa, PhysAddr((1 << 48) - 1));
    assert_eq!(arena.used_count(), 3);
    assert!(table.install(last + 1, PA, Level::Page4K, RWX).is_err());
    assert!(table.install(0, PhysAddr(1 << 48), Level::Page4K, RWX).is_err());
}
