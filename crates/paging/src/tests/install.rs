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
fn an_upgrade_keeps_to_the_format_s_policy() {
    let arena = Arena::new(8);
    let host = PageTable::<Amd64Host, _>::new(&arena).unwrap();
    host.install(0, PhysAddr(0), Level::Page4K, RX).unwrap();
    let installed = host.install(0, PhysAddr(0), Level::Page4K, RW);
    assert_eq!(installed, Ok(Installed::Present(host.query(0).unwrap())), "W and X do not meet");
}
