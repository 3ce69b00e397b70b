//! The frames' registers: the existing ones, and above all the missing ones.

use super::system::SGI_FRAME;
use crate::devices::virt::gic::{
    Distributor, Effect, Private, RedistributorRegister, RegisterEffect, locate, read_foreign, write_foreign,
};

#[test]
fn registers_that_there_are_not_are_zero_and_ignore_writes() {
    let mut distributor = Distributor::new(2, 64);
    let mut private = Private::new(0, 2);
    let before = format!("{distributor:?}{private:?}");
    // Private words, SPIs beyond 64, reserved, legacy and security registers, and registers that
    // affinity routing replaces.
    let distributor_only = [
        0x00c, 0x010, 0x040, 0x048, 0x050, 0x058, 0x080, 0x088, 0x100, 0x108, 0x180, 0x200, 0x280, 0x300,
        0x380, 0x400, 0x41c, 0x440, 0x7f8, 0x820, 0xc00, 0xc04, 0xc10, 0xd04, 0xe08, 0xf00, 0xf10, 0xf20,
        0xf80, 0x60f8, 0x6200, 0x7fd8, 0x8000, 0xffcc, 0xffff, 0x1_0000, !0,
    ];
    for offset in distributor_only {
        for size in [0, 1, 2, 3, 4, 8, 255] {
            assert_eq!(distributor.write(offset, size, u64::MAX), Effect::default(), "{offset:#x}");
            assert_eq!(distributor.read(offset, size), (0, Effect::default()), "{offset:#x}");
        }
    }
    for offset in [
        0x0, 0x10, 0x18, 0x20, 0x24, 0x40, 0x70, 0x78, 0xa0, 0xb0, 0xc0, 0x100, 0x1_0000, 0x1_0084, 0x1_0420,
        0x1_0c08, 0x1_0d00, 0x1_0e00, 0x1_6000, 0x1_ffcc, !0,
    ] {
        for size in [0, 1, 2, 3, 4, 8, 255] {
            assert_eq!(private.write(offset, size, u64::MAX), RegisterEffect::default(), "{offset:#x}");
            assert_eq!(private.read(offset, size), 0, "{offset:#x}");
        }
    }
    assert_eq!(format!("{distributor:?}{private:?}"), before);
    assert_eq!(distributor.set_line(31, true), Effect::default());
    assert_eq!(distributor.set_line(64, true), Effect::default());
    assert_eq!(format!("{distributor:?}{private:?}"), before);
}

#[test]
fn identification_is_that_of_a_gicv3_without_lpis() {
    let mut enabled = Distributor::new(1, 64);
    let _ = enabled.write(0, 4, 2);
    assert_eq!(enabled.read(0, 4).0, 0x52);
    let distributor = Distributor::new(200, 128);
    let read = |offset| distributor.read(offset, 4).0;
    assert_eq!(read(0), 0x50, "affinity routing, one security state, no group enabled");
    assert_eq!((read(4), read(8) & 0xfff), (9 << 19 | 3, 0x43b));
    assert_eq!(read(0xffe8) >> 4, 3, "GICv3");
    assert_eq!([read(0xfff0), read(0xfff4), read(0xfff8), read(0xfffc)], [0x0d, 0xf0, 0x05, 0xb1]);
    for (asked, count) in [(0, 64), (64, 64), (65, 96), (256, 256), (u16::MAX, 256)] {
        assert_eq!(Distributor::new(1, asked).intid_count(), count);
    }
    let private = Private::new(17, 18);
    assert_eq!(private.read(0x8, 8), 0x101 << 32 | 17 << 8 | 1 << 4);
    assert_eq!([private.read(0x8, 4), private.read(0xc, 4)], [17 << 8 | 1 << 4, 0x101]);
    assert_eq!((private.read(0xffe8, 4) >> 4, private.read(0x1_ffe8, 4) >> 4), (3, 3));
    assert_eq!(Private::new(16, 18).read(0x8, 8) & 1 << 4, 0, "not the last");
}

#[test]
fn waking_is_told() {
    let mut private = Private::new(0, 1);
    assert_eq!(private.read(0x14, 4), 6, "asleep after reset");
    assert_eq!(private.write(0x14, 4, 0), RegisterEffect { awake: Some(true), ..Default::default() });
    assert_eq!(private.read(0x14, 4), 0);
    assert_eq!(private.write(0x14, 4, 2).awake, Some(false));
    assert_eq!(private.read(0x14, 4), 6);
}

#[test]
fn of_others_only_what_is_constant_and_the_pending_register() {
    assert_eq!((locate(0, 0), locate(2 * 0x2_0000, 2), locate(u64::MAX, 255)), (None, None, None));
    let place = locate(0x2_0000 + 8, 2).unwrap();
    assert_eq!(place, RedistributorRegister { vcpu: 1, offset: 8 });
    assert_eq!(read_foreign(place, 8, 2, false), Private::new(1, 2).read(8, 8));
    let at = |offset| RedistributorRegister { vcpu: 1, offset };
    assert_eq!((read_foreign(at(0x14), 4, 2, false), read_foreign(at(0x14), 4, 2, true)), (6, 0));
    assert_eq!(read_foreign(at(SGI_FRAME + 0xc00), 4, 2, true), 0, "state is its owner's");
    assert_eq!(write_foreign(at(SGI_FRAME + 0x200), 4, 0x1_0000_0005), Some(5));
    for offset in [0x14, SGI_FRAME + 0x80, SGI_FRAME + 0x100, SGI_FRAME + 0x280, SGI_FRAME + 0x400, 0x200] {
        assert_eq!(write_foreign(at(offset), 4, u64::MAX), None, "{offset:#x}");
    }
    assert_eq!(write_foreign(at(SGI_FRAME + 0x200), 8, 1), None);
}
