use super::*;
use crate::arm64::processor::Features;

/// Every field is 1, except those where 2 matters; there is no double lock.
fn everything() -> IdRegisters {
    const ONES: u64 = 0x1111_1111_1111_1111;
    IdRegisters {
        midr: 0x411f_d0c1,
        pfr0: ONES,
        pfr1: ONES | 2 << 8,
        dfr0: ONES | 0xf << 36,
        mmfr0: ONES | 2 << 56 | 2 << 60,
        mmfr1: ONES,
        mmfr2: ONES,
        isar0: ONES,
        isar1: ONES,
        isar2: ONES,
        dczid: u64::MAX,
        ctr: 0,
        mpamidr: u64::MAX,
        counters: 6,
    }
}

/// ARMv8.0 without optional features.
fn nothing() -> IdRegisters {
    IdRegisters { mmfr0: 0xff << 24, ..IdRegisters::default() }
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
    assert_eq!((mdcr & (1 << 8 | 3 << 12 | 3 << 24), mdcr & 0x1f), (0, 6));
    assert_eq!((value(Control::Hcrx), value(Control::Hdfgrtr)), (Some(1 << 6), Some(1 << 63 | 1 << 56)));
    assert_eq!(value(Control::Mpam2), Some(1 << 48 | 1 << 49 | 1 << 58));
    let without = IdRegisters { mpamidr: !(1 << 58), ..all };
    assert_eq!(at_start(Control::Mpam2, &without), Some(1 << 48 | 1 << 49), "no TIDR");
    assert_eq!((value(Control::Mpamhcr), value(Control::Vsesr)), (Some(1 << 31), Some(1 << 24)));
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
        Control::Vtcr,
        Control::Vpidr,
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
    let own = IdRegisters { dfr0: 0xf << 8, ..nothing() };
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

#[test]
fn u63_stage_2_is_what_the_processor_walks() {
    // T0SZ 25 and SL0 1: three levels from 39 bits. Write-back, inner shareable. PS: 40 bits.
    let plain = IdRegisters { mmfr0: 2, ..nothing() };
    assert_eq!(at_start(Control::Vtcr, &plain), Some(0x8002_3559));
    assert_eq!((plain.physical_bits(), STAGE2_BITS), (40, 39));
    // VS, HA, HD each by its own feature.
    for (mmfr1, bits) in [(1 << 4, 0), (2 << 4, 1 << 19), (1, 1 << 21), (2, 1 << 21 | 1 << 22), (3, 3 << 21)]
    {
        let with = IdRegisters { mmfr1, ..plain };
        assert_eq!(at_start(Control::Vtcr, &with), Some(0x8002_3559 | bits), "{mmfr1:#x}");
    }
    // 52 bits and more are used as 48.
    for (range, bits) in [(0, 32), (1, 36), (2, 40), (3, 42), (4, 44), (5, 48), (6, 48), (7, 48), (15, 48)] {
        let with = IdRegisters { mmfr0: range, ..plain };
        assert_eq!(with.physical_bits(), bits, "PARange {range}");
        assert_eq!(at_start(Control::Vtcr, &with).unwrap() >> 16 & 7, range.min(5));
    }
    assert_eq!(at_start(Control::Vpidr, &everything()), Some(0x411f_d0c1));
}

#[test]
fn u63_each_feature_is_found_by_its_field_from_its_least_value_on() {
    let nothing = IdRegisters { ctr: 3 << 14, dfr0: 0xf << 36, ..IdRegisters::default() };
    assert_eq!(nothing.features(), Features::empty());
    let of = |change: fn(&mut IdRegisters, u64), value: u64| {
        let mut processor = nothing;
        change(&mut processor, value);
        processor.features()
    };
    // Feature, its place, the value that brings it, and what it brings along.
    type Row = (Features, fn(&mut IdRegisters, u64), u64, Features);
    let none = Features::empty();
    let rows: [Row; 12] = [
        (Features::RANGE, |p, v| p.isar0 = v << 56, 2, none),
        (Features::LEVEL_HINT, |p, v| p.mmfr2 = v << 48, 1, none),
        (Features::VMID16, |p, v| p.mmfr1 = v << 4, 2, none),
        (Features::FORCED_WRITE_BACK, |p, v| p.mmfr2 = v << 40, 1, none),
        (Features::ACCESS_FLAG, |p, v| p.mmfr1 = v, 1, none),
        (Features::DIRTY_STATE, |p, v| p.mmfr1 = v, 2, Features::ACCESS_FLAG),
        (Features::REPLACES_IN_PLACE, |p, v| p.mmfr2 = v << 52, 2, none),
        (Features::POINTER_KEYS, |p, v| p.isar1 = v << 4, 1, none),
        (Features::POINTER_KEYS, |p, v| p.isar2 = v << 12, 1, none),
        (Features::VHE, |p, v| p.mmfr1 = v << 8, 1, none),
        (Features::ERRORS, |p, v| p.pfr0 = v << 28, 1, none),
        (Features::MATRICES, |p, v| p.pfr1 = v << 24, 1, none),
    ];
    for (feature, change, least, more) in rows {
        assert_eq!(of(change, least), feature | more);
        assert!(!of(change, least - 1).contains(feature), "{feature:?}");
        assert!(of(change, least + 1).contains(feature), "{feature:?}");
    }
    for kind in 0..3 {
        assert_eq!(of(|p, v| p.ctr = v << 14, kind), Features::VIRTUAL_INSTRUCTION_CACHE, "L1Ip {kind}");
    }
}

#[test]
fn u63_processors_that_guests_cannot_run_on_are_refused() {
    let good = IdRegisters { pfr0: 1 << 24, ..IdRegisters::default() };
    assert_eq!(good.lacks(), None);
    assert!(IdRegisters { pfr0: 0, ..good }.lacks().unwrap().contains("GIC"));
    for (tgran4, lacks) in [(0, false), (1, false), (0xf, true)] {
        assert_eq!(IdRegisters { mmfr0: tgran4 << 28, ..good }.lacks().is_some(), lacks, "{tgran4:#x}");
    }
    // TGran4_2: 1 is "not supported".
    for (tgran4_2, lacks) in [(0, false), (1, true), (2, false), (3, false)] {
        assert_eq!(IdRegisters { mmfr0: tgran4_2 << 40, ..good }.lacks().is_some(), lacks, "{tgran4_2}");
    }
}

#[test]
fn u63_caches_are_counted_in_words() {
    assert_eq!((data_line(4 << 16), data_line(0xffff_ffff_fff0_ffff)), (64, 4));
    assert_eq!((data_line(u64::MAX), zeroed_block(9), zeroed_block(4)), (4 << 15, Some(2048), Some(64)));
    assert_eq!((zeroed_block(0x14), zeroed_block(0)), (None, Some(4)));
    // M9: QEMU's Cortex-A57 has neither IDC nor DIC; a processor with DIC alone does not help.
    for (ctr, expected) in [(0x8444_c004, false), (0xa444_c004, false), (0x9444_c004, true)] {
        assert_eq!(IdRegisters { ctr, ..nothing() }.fetches_data(), expected, "{ctr:#x}");
    }
}
