use super::*;

/// Every field is 1, except those where 2 matters; there is no double lock.
fn everything() -> Processor {
    const ONES: u64 = 0x1111_1111_1111_1111;
    Processor {
        pfr0: ONES,
        pfr1: ONES | 2 << 8,
        dfr0: ONES | 0xf << 36,
        mmfr0: ONES | 2 << 56 | 2 << 60,
        mmfr1: ONES,
        mmfr2: ONES,
        isar1: ONES,
        isar2: ONES,
        mpamidr: u64::MAX,
        counters: 6,
    }
}

/// ARMv8.0 without optional features.
fn nothing() -> Processor {
    Processor { mmfr0: 0xff << 24, ..Processor::default() }
}

#[test]
fn u8_whatever_the_processor_has_and_the_guest_has_not_is_kept_from_it() {
    let all = everything();
    let value = |control| at_start(control, &all);
    let hcr = value(Control::Hcr).unwrap();
    // TERR, TEA, TLOR, TID1, TID3, TID5, TSC, TIDCP, TACR, TSW, AMO; by their places in the manual.
    for bit in [36, 37, 35, 16, 18, 58, 19, 20, 21, 22, 5, 4, 3] {
        assert!(hcr >> bit & 1 != 0, "HCR_EL2 bit {bit}");
    }
    // ATA, EnSCXT, FIEN, AMVOFFEN, TME, NV, NV1, NV2, TGE, E2H, VSE: off.
    for bit in [56, 53, 47, 51, 39, 42, 43, 45, 27, 34, 8] {
        assert!(hcr >> bit & 1 == 0, "HCR_EL2 bit {bit}");
    }
    assert_eq!(value(Control::Cptr), Some(1 << 30 | 1 << 20 | 0x33ff), "TAM, TTA, TSM, TZ");
    let mdcr = value(Control::Mdcr).unwrap();
    for bit in [5, 6, 9, 10, 11, 14, 19, 27] {
        assert!(mdcr >> bit & 1 != 0, "MDCR_EL2 bit {bit}");
    }
    // TDE; E2PB and E2TB, whose 0 gives EL2 the buffers.
    assert_eq!(mdcr & (1 << 8 | 3 << 12 | 3 << 24), 0);
    assert_eq!(mdcr & 0x1f, 6);
    assert_eq!(value(Control::Hcrx), Some(1 << 6));
    assert_eq!(value(Control::Hdfgrtr), Some(1 << 63 | 1 << 56));
    assert_eq!(value(Control::Mpam2), Some(1 << 48 | 1 << 49 | 1 << 58));
    assert_eq!(value(Control::Mpamhcr), Some(1 << 31));
    assert_eq!(value(Control::Vsesr), Some(1 << 24));
    assert_eq!(ICC_SRE_EL2 & 1 << 3, 0, "ICC_SRE_EL1 traps");
}

#[test]
fn u8_nothing_keeps_what_firmware_left() {
    let all = everything();
    for &control in Control::ALL {
        let there = at_start(control, &all).is_some();
        assert_eq!(there, control != Control::DoubleLock, "{}", control.name());
    }
    assert_eq!(at_start(Control::DoubleLock, &nothing()), Some(0));
    let zeroes = [
        Control::Hstr,
        Control::Hacr,
        Control::Cntpoff,
        Control::Hfgrtr,
        Control::Hfgwtr,
        Control::Hfgitr,
        Control::Hdfgwtr,
        Control::Hafgrtr,
        Control::Hfgrtr2,
        Control::Hfgwtr2,
        Control::Hfgitr2,
        Control::Hdfgrtr2,
        Control::Hdfgwtr2,
        Control::Mpam1,
        Control::Mpam0,
        Control::Lorc,
        Control::Pmscr,
        Control::Trfcr,
        Control::Brbcr,
        Control::Pmuserenr,
        Control::Amuserenr,
        Control::Vdisr,
        Control::Mdscr,
        Control::Mdccint,
        Control::OsLock,
    ];
    for control in zeroes {
        assert_eq!(at_start(control, &all), Some(0), "{}", control.name());
    }
}

#[test]
fn u8_what_is_not_there_is_not_written() {
    let base = [
        Control::Hcr,
        Control::Cptr,
        Control::Mdcr,
        Control::Hstr,
        Control::Hacr,
        Control::Cnthctl,
        Control::Cntvoff,
        Control::Mdscr,
        Control::Mdccint,
        Control::OsLock,
        Control::DoubleLock,
    ];
    for &control in Control::ALL {
        assert_eq!(at_start(control, &nothing()).is_some(), base.contains(&control), "{}", control.name());
    }
    // Bits of features that do not exist are reserved.
    let hcr = at_start(Control::Hcr, &nothing()).unwrap();
    assert_eq!(hcr & (hcr::TERR | hcr::TEA | hcr::TLOR | hcr::TID5 | hcr::APK | hcr::API | hcr::FWB), 0);
    assert_eq!(at_start(Control::Cptr, &nothing()), Some(0x33ff | 1 << 20));
    // An implementation-defined performance monitor has no PMUSERENR_EL0 that we know.
    let own = Processor { dfr0: 0xf << 8, ..nothing() };
    assert_eq!(at_start(Control::Pmuserenr, &own), None);
}

#[test]
fn u1_the_guests_counter_has_no_offset() {
    for processor in [everything(), nothing()] {
        assert_eq!(at_start(Control::Cntvoff, &processor), Some(0));
        // The physical timer and counter belong to the guest (EL1PCTEN, EL1PCEN), without ECV's
        // traps and offset.
        assert_eq!(at_start(Control::Cnthctl, &processor), Some(3));
    }
}
