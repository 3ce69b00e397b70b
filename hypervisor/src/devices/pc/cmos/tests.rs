use super::*;

/// 2026-11-22 21:43:56 UTC, a Sunday.
const UNIX: u64 = 1_795_383_836;

fn read(cmos: &mut Cmos, index: u8, wall_ns: u64) -> u8 {
    cmos.write(INDEX, index, wall_ns);
    cmos.read(DATA, wall_ns)
}

fn write(cmos: &mut Cmos, index: u8, value: u8, wall_ns: u64) {
    cmos.write(INDEX, index, wall_ns);
    cmos.write(DATA, value, wall_ns);
}

/// As software reads it.
fn unix(cmos: &mut Cmos, wall_ns: u64) -> Option<u64> {
    let (fields, status) = Fields::read(|index| read(cmos, index, wall_ns), Some(CENTURY))?;
    fields.unix(status)
}

#[test]
fn u25_a_pcs_clock_says_what_time_it_is() {
    let mut cmos = Cmos::default();
    let at = |index, cmos: &mut Cmos| read(cmos, index, UNIX * NS);
    let bytes = [0, 2, 4, 6, 7, 8, 9, CENTURY].map(|index| at(index, &mut cmos));
    assert_eq!(bytes, [0x56, 0x43, 0x21, 1, 0x22, 0x11, 0x26, 0x20]);
    assert_eq!([0xa, 0xb, 0xc, 0xd].map(|index| at(index, &mut cmos)), [0x26, 0x02, 0, 0x80]);
    // Leap days, turns of years and of the century, and 1970 itself.
    for unix_time in [0, 951_782_399, 951_782_400, 946_684_799, 946_684_800, 1_709_164_800, 4_102_444_800] {
        assert_eq!(unix(&mut cmos, unix_time * NS), Some(unix_time));
    }
}

#[test]
fn every_format_is_read_and_written() {
    for status in [0, BINARY, HOURS_24, BINARY | HOURS_24] {
        let mut cmos = Cmos::default();
        write(&mut cmos, STATUS_B, status, 0);
        for hour in 0..24 {
            let unix_time = UNIX + hour * 3600;
            assert_eq!(unix(&mut cmos, unix_time * NS), Some(unix_time), "{status:#x}, {hour}");
        }
    }
}

#[test]
fn what_a_guest_sets_goes_on_from_there_and_through_a_reset() {
    let mut cmos = Cmos::default();
    let now = UNIX * NS + NS / 3;
    write(&mut cmos, STATUS_B, SET | HOURS_24, now);
    for (index, value) in
        [(SECONDS, 0x59), (MINUTES, 0x59), (HOURS, 0x23), (DAY, 0x31), (MONTH, 0x12), (YEAR, 0x99)]
    {
        write(&mut cmos, index, value, now + 5 * NS);
    }
    write(&mut cmos, CENTURY, 0x19, now + 5 * NS);
    write(&mut cmos, STATUS_B, HOURS_24, now + 6 * NS);
    assert_eq!(unix(&mut cmos, now + 6 * NS), Some(946_684_799));
    cmos.reset();
    assert_eq!(unix(&mut cmos, now + 7 * NS), Some(946_684_800));
    write(&mut cmos, MONTH, 0x77, now + 7 * NS);
    assert_eq!(unix(&mut cmos, now + 8 * NS), Some(946_684_801), "no month");
}

#[test]
fn an_update_is_announced_so_that_readings_fit_together() {
    let mut cmos = Cmos::default();
    let second = UNIX * NS;
    assert_eq!(read(&mut cmos, STATUS_A, second) & UPDATE_IN_PROGRESS, 0);
    assert_ne!(read(&mut cmos, STATUS_A, second - 1) & UPDATE_IN_PROGRESS, 0);
    assert_ne!(read(&mut cmos, STATUS_A, second - UPDATE_NS) & UPDATE_IN_PROGRESS, 0);
    assert_eq!(read(&mut cmos, STATUS_A, second - UPDATE_NS - 1) & UPDATE_IN_PROGRESS, 0);
}

#[test]
fn a_clock_that_is_absent_or_broken_has_no_time() {
    assert_eq!(Fields::read(|_| 0xff, Some(CENTURY)), None, "an update that never ends");
    let mut count = 0_u8;
    let turning = |_| {
        count = count.wrapping_add(1);
        count & 0x7f
    };
    assert_eq!(Fields::read(turning, None), None, "no two readings are alike");
    let (fields, _) = Fields::read(|_| 0x7f, None).unwrap();
    assert_eq!(fields.unix(HOURS_24), None, "no digits");
    assert_eq!(fields.unix(BINARY | HOURS_24), None, "no date");
}

#[test]
fn memory_is_memory_and_no_index_is_too_large() {
    let mut cmos = Cmos::default();
    for index in 0xe..=0xff_u8 {
        if index & 0x7f >= 0xe && index & 0x7f != CENTURY {
            write(&mut cmos, index, index ^ 0x55, 0);
            assert_eq!(read(&mut cmos, index, 0), index ^ 0x55);
        }
    }
    assert_eq!(cmos.read(INDEX, 0), 0xff);
    for (index, value) in (0..=0xff_u8).zip((0..=0xff).rev()) {
        write(&mut cmos, index, value, u64::MAX);
        let _ = read(&mut cmos, index, u64::MAX);
    }
}

/// The alarm of each field in turn, in every format.
#[test]
fn u67_the_alarm_matches_what_it_names_and_anything_where_it_names_nothing() {
    let at = |time: u64| UNIX / 86_400 * 86_400 + time;
    let now = at(21 * 3600 + 43 * 60 + 56);
    for (alarm, due) in [
        ([59, 43, 21], now + 3),
        ([56, 43, 21], now + 86_400),
        ([55, 43, 21], now + 86_399),
        ([0, 0, 0], at(86_400)),
        ([ANY, 43, 21], now + 1),
        ([7, ANY, 0xff], now + 11),
        ([0xc5, 0xdd, 0xff], now + 1),
        ([0, 0, ANY], at(22 * 3600)),
        ([5, 43, ANY], now + 3600 - 51),
        ([ANY, ANY, 12], at(86_400 + 12 * 3600)),
    ] {
        for status in [0, BINARY, HOURS_24, BINARY | HOURS_24] {
            let mut cmos = Cmos::default();
            write(&mut cmos, STATUS_B, status, now * NS);
            let [second, minute, hour] = alarm.map(|number| if number < ANY { number } else { 0 });
            let bytes = [cmos.number(second), cmos.number(minute), cmos.hour(hour)];
            for ((field, byte), any) in ALARMED.into_iter().zip(bytes).zip(alarm) {
                write(&mut cmos, field + 1, if any >= ANY { any } else { byte }, now * NS + 7);
            }
            assert_eq!(cmos.due_ns(), None, "not enabled");
            write(&mut cmos, STATUS_B, status | ALARM, now * NS + 8);
            assert_eq!(cmos.due_ns(), Some(due * NS), "{status:#x} {alarm:?}");
        }
    }
    for never in [[0x60, ANY, ANY], [ANY, 0x7f, ANY], [ANY, ANY, 0x24]] {
        let mut cmos = Cmos::default();
        write(&mut cmos, STATUS_B, HOURS_24 | ALARM, now * NS);
        for (field, byte) in ALARMED.into_iter().zip(never) {
            write(&mut cmos, field + 1, byte, now * NS);
        }
        assert_eq!(cmos.due_ns(), None, "{never:x?}");
    }
}

#[test]
fn u67_events_interrupt_if_they_are_enabled_until_register_c_is_read() {
    let second = UNIX * NS;
    for (event, due, next) in [
        (UPDATE, second + NS, second + 2 * NS),
        (ALARM, second + 3 * NS, second + 86_403 * NS),
        (PERIODIC, second + NS / 4 + NS.div_ceil(1024), second + NS / 4 + 2 * NS / 1024),
    ] {
        let mut cmos = Cmos::default();
        let now = second + NS / 4;
        for (index, value) in [(SECONDS + 1, 0x59), (MINUTES + 1, 0x43), (HOURS + 1, 0x21)] {
            write(&mut cmos, index, value, now);
        }
        write(&mut cmos, STATUS_B, HOURS_24 | event, now);
        assert_eq!(read(&mut cmos, STATUS_B, now), HOURS_24 | event);
        assert_eq!(cmos.due_ns(), Some(due), "{event:#x}");
        cmos.pass(due - 1);
        assert!(!cmos.irq_level(), "{event:#x}");
        cmos.pass(due);
        assert_eq!((cmos.irq_level(), cmos.due_ns()), (true, None), "{event:#x}");
        let flags = read(&mut cmos, STATUS_C, due);
        assert_eq!(flags & (INTERRUPT | event), INTERRUPT | event, "{flags:#x}");
        assert_eq!((read(&mut cmos, STATUS_C, due), cmos.irq_level()), (0, false), "it is cleared");
        assert_eq!(cmos.due_ns(), Some(next), "{event:#x}");
        // An event that is not enabled is shown, and does not interrupt.
        write(&mut cmos, STATUS_B, HOURS_24, due);
        cmos.pass(next + 1);
        assert_eq!((cmos.irq_level(), cmos.due_ns()), (false, None));
        assert_eq!(read(&mut cmos, STATUS_C, next + 1) & (INTERRUPT | event), event);
        write(&mut cmos, STATUS_B, HOURS_24 | event, next + 1);
        cmos.reset();
        assert_eq!((cmos.irq_level(), cmos.due_ns()), (false, None), "{event:#x}");
    }
}

#[test]
fn u67_a_clock_that_is_being_set_has_only_periodic_events() {
    let second = UNIX * NS;
    let mut cmos = Cmos::default();
    write(&mut cmos, STATUS_B, HOURS_24 | SET | UPDATE | ALARM | PERIODIC, second);
    assert_eq!(read(&mut cmos, STATUS_B, second), HOURS_24 | SET | ALARM | PERIODIC);
    write(&mut cmos, STATUS_B, HOURS_24 | SET | ALARM, second);
    for field in ALARMED {
        write(&mut cmos, field + 1, ANY, second);
    }
    assert_eq!((cmos.due_ns(), read(&mut cmos, STATUS_C, second + 9 * NS)), (None, PERIODIC));
    // Whoever sets the clock moves the alarm.
    write(&mut cmos, MINUTES, 0x50, second + 10 * NS);
    write(&mut cmos, SECONDS + 1, 0x05, second + 10 * NS);
    write(&mut cmos, STATUS_B, HOURS_24 | ALARM, second + 10 * NS);
    assert_eq!(cmos.due_ns(), Some(second + 19 * NS), "it was 21:50:56 then");
}

#[test]
fn u67_the_rate_selects_the_period_and_zero_none() {
    let second = UNIX * NS;
    let mut cmos = Cmos::default();
    write(&mut cmos, STATUS_B, HOURS_24 | PERIODIC, second);
    for (rate, hz) in [(1, 256), (2, 128), (3, 8192), (6, 1024), (8, 256), (9, 128), (15, 2)] {
        write(&mut cmos, STATUS_A, 0xf0 | rate, second);
        assert_eq!(read(&mut cmos, STATUS_A, second), DIVIDER | rate);
        assert_eq!(cmos.due_ns(), Some(second + NS.div_ceil(hz)), "rate {rate}");
    }
    write(&mut cmos, STATUS_A, 0, second);
    assert_eq!(cmos.due_ns(), None);
}

#[test]
fn u67_only_the_time_sets_the_time() {
    let mut cmos = Cmos::default();
    let now = UNIX * NS + NS / 2;
    for index in (0..=0x7f).filter(|&index| ![0, 2, 4, 7, 8, 9, 0xb, CENTURY].contains(&index)) {
        write(&mut cmos, index, 1, now);
        assert_eq!(cmos.ahead, 0, "{index:#x}");
    }
    write(&mut cmos, SECONDS, 0x56, now);
    assert_eq!(cmos.ahead, -(NS as i64) / 2, "the second begins");
}
