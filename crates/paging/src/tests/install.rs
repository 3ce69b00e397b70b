use super::arena::Arena;
use super::{R, RW, RWX, RX};
use crate::{Amd64Host, Amd64Nested, Installed, Level, MapError, PageTable, Permissions, PhysAddr};

#[test]
fn refuses_addresses_that_the_format_cannot_express() {
    let arena = Arena::new(8);
    let nested = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    let host = PageTable::<Amd64Host, _>::new(&arena).unwrap();
    let out = Err(MapError::OutOfRange);
    for gpa in [1 << 48, u64::MAX, 1 << 52] {
        assert_eq!(nested.install(gpa, PhysAddr(gpa & 0xfff), Level::Page4K, RWX), out);
        assert_eq!(nested.query(gpa), None);
    }
    for va in [1 << 47, !0 << 48 | 0x1000] {
        assert_eq!(host.install(va, PhysAddr(0), Level::Page4K, R), out);
        assert_eq!(host.query(va), None);
    }
    for pa in [1 << 52, !0xfff] {
        assert_eq!(nested.install(0, PhysAddr(pa), Level::Page4K, RWX), out);
    }
    assert_eq!(arena.used_count(), 2, "nothing but the roots");
}

#[test]
fn refuses_what_is_both_writable_and_executable_in_host_tables() {
    let arena = Arena::new(4);
    let mut host = PageTable::<Amd64Host, _>::new(&arena).unwrap();
    let refused = MapError::Permissions;
    for bad in [RWX, Permissions::WRITE, Permissions::EXECUTE, Permissions::empty()] {
        assert_eq!(host.install(0, PhysAddr(0), Level::Page4K, bad), Err(refused));
        assert_eq!(host.map(0..0x1000, PhysAddr(0), bad, Level::Page4K), Err(refused));
        assert_eq!(host.protect(0..0x1000, bad).unwrap_err(), refused);
    }
    let nested = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    assert_eq!(nested.install(0, PhysAddr(0), Level::Page4K, Permissions::WRITE), Err(refused));
}

#[test]
fn running_out_of_tables_leaves_a_tree_that_can_go_on() {
    let arena = Arena::new(3);
    let nested = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    assert_eq!(nested.install(0, PhysAddr(0), Level::Page4K, RWX), Err(MapError::OutOfTables));
    assert_eq!(nested.query(0), None);
    assert_eq!(nested.install(0, PhysAddr(0), Level::Page2M, RWX), Ok(Installed::New(Level::Page2M)));
}

#[test]
fn never_makes_a_leaf_larger_than_the_format_has() {
    let arena = Arena::new(8);
    let nested = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    let installed = nested.install(1 << 40, PhysAddr(1 << 39), Level::Page512G, RWX);
    assert_eq!(installed, Ok(Installed::New(Level::Page1G)));
    assert_eq!(nested.query((1 << 40) + 0x3fff_ffff).unwrap().pa, PhysAddr((1 << 39) + 0x3fff_ffff));
    assert_eq!(nested.query((1 << 40) + 0x4000_0000), None);
}

#[test]
fn entries_have_the_bits_of_the_manual() {
    use crate::Format;
    let pa = PhysAddr(0x4000_0000);
    assert_eq!(Amd64Nested::leaf(pa, Level::Page4K, RWX), 0x6000_0000_4000_0067, "P, RW, US, A, D, IR, IW");
    assert_eq!(Amd64Nested::leaf(pa, Level::Page2M, R), 0xa000_0000_4000_00a5, "NX, PS, no D, IR");
    assert_eq!(Amd64Nested::table(pa, Level::Page1G), 0x6000_0000_4000_0427, "the next level is 2");
    assert_eq!(Amd64Host::leaf(pa, Level::Page1G, RW), 0x8000_0000_4000_01e3, "NX, G, PS");
    assert_eq!(Amd64Host::leaf(pa, Level::Page4K, RX), 0x4000_0121);
    let device = RW | Permissions::DEVICE;
    assert_eq!(Amd64Host::leaf(pa, Level::Page4K, device), 0x8000_0000_4000_017b, "PCD, PWT");
    assert_eq!(Amd64Host::address(0x4000_1083, Level::Page2M), pa, "bit 12 of a large leaf is PAT");
}

#[test]
fn an_upgrade_gives_more_rights_to_the_same_page_and_takes_none() {
    let arena = Arena::new(8);
    let nested = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    let install = |pa, level, permissions| nested.install(0x1000, PhysAddr(pa), level, permissions).unwrap();
    let now = || nested.query(0x1000).unwrap();
    install(0x7000, Level::Page4K, RX);
    let tracked = RW | Permissions::TRACKED;
    assert_eq!(install(0x7000, Level::Page4K, tracked), Installed::Upgraded(Level::Page4K));
    assert_eq!((now().permissions, now().is_dirty), (RWX, false), "X stays, and the store is to be seen");
    assert_eq!(install(0x7000, Level::Page4K, RWX), Installed::Present(now()), "nothing is missing");
    assert!(!now().is_dirty);

    let other = PageTable::<Amd64Nested, _>::new(&arena).unwrap();
    other.install(0, PhysAddr(0), Level::Page2M, RX).unwrap();
    let there = other.query(0).unwrap();
    let present = Ok(Installed::Present(there));
    assert_eq!(other.install(0, PhysAddr(0x20_0000), Level::Page2M, RWX), present, "another page");
    assert_eq!(other.install(0, PhysAddr(0), Level::Page4K, RWX), present, "a larger leaf than asked for");
    let device = RWX | Permissions::DEVICE;
    assert_eq!(other.install(0, PhysAddr(0), Level::Page2M, device), present, "another memory type");
    assert_eq!(other.query(0), Some(there));
    assert_eq!(other.install(0, PhysAddr(0), Level::Page1G, RWX), Ok(Installed::Upgraded(Level::Page2M)));
    assert!(other.query(0).unwrap().is_dirty, "not tracked");
}

#[test]
fn an_upgrade_keeps_to_the_format_s_policy() {
    let arena = Arena::new(8);
    let host = PageTable::<Amd64Host, _>::new(&arena).unwrap();
    host.install(0, PhysAddr(0), Level::Page4K, RX).unwrap();
    let installed = host.install(0, PhysAddr(0), Level::Page4K, RW);
    assert_eq!(installed, Ok(Installed::Present(host.query(0).unwrap())), "W and X do not meet");
}
