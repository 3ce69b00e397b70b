use super::*;

/// 1 GHz: 100 TSC ticks to a unit of reference time, give or take one for rounding.
fn clock() -> ReferenceClock {
    ReferenceClock::new(1_000_000_000, 0).unwrap()
}

fn tsc(time: u64) -> u64 {
    clock().tsc_at(time).unwrap()
}

const VECTOR: u8 = 0xed;

fn direct() -> StimerConfig {
    StimerConfig::new().with_direct_mode(true).with_apic_vector(VECTOR)
}

fn timer(config: StimerConfig, now: u64) -> Stimer {
    let mut timer = Stimer::default();
    timer.set_config(config.into_bits(), &clock(), now).unwrap();
    timer
}

fn enabled(timer: &Stimer) -> bool {
    StimerConfig::from_bits(timer.config()).enable()
}

#[test]
fn reserved_bits_fault_and_change_nothing() {
    let mut timer = timer(direct(), 0);
    let before = timer.config();
    for bit in (13..16).chain(20..64) {
        assert_eq!(timer.set_config(1 << bit, &clock(), 0), Err(GpFault), "bit {bit}");
    }
    assert_eq!(timer.config(), before);
}

#[test]
fn a_timer_that_cannot_signal_cannot_be_enabled() {
    for config in [
        StimerConfig::new().with_enable(true),
        StimerConfig::new().with_enable(true).with_sint(2),
        direct().with_enable(true).with_apic_vector(15),
        direct().with_enable(true).with_apic_vector(0),
    ] {
        let mut timer = timer(config.with_auto_enable(true), 0);
        timer.set_count(tsc(100), &clock(), 0);
        assert!(!enabled(&timer) && timer.deadline_tsc().is_none(), "{config:?}");
        assert_eq!(timer.expire(&clock(), u64::MAX), None);
    }
    assert!(enabled(&timer(direct().with_enable(true).with_apic_vector(16), 0)));
}

#[test]
fn auto_enable_arms_with_the_count_and_again_after_each_expiration() {
    // As in Linux: configure once, then only write counts.
    let mut timer = timer(direct().with_enable(true).with_auto_enable(true), 0);
    assert_eq!(timer.deadline_tsc(), None, "enabled, but there is no count yet");
    for time in [1_000, 2_000, 3_000] {
        timer.set_count(time, &clock(), tsc(time - 900));
        assert_eq!(timer.deadline_tsc(), Some(tsc(time)));
        assert_eq!(timer.expire(&clock(), tsc(time) - 1), None, "never early");
        assert_eq!(timer.expire(&clock(), tsc(time)), Some(VECTOR));
        assert!(!enabled(&timer), "a one-shot timer disables itself");
        assert_eq!(timer.expire(&clock(), tsc(time)), None, "once");
    }
}

#[test]
fn without_auto_enable_the_count_alone_does_not_start_it() {
    let mut timer = timer(direct(), 0);
    timer.set_count(500, &clock(), 0);
    assert_eq!((timer.count(), timer.deadline_tsc()), (500, None));
    timer.set_config(direct().with_enable(true).into_bits(), &clock(), 0).unwrap();
    assert_eq!(timer.deadline_tsc(), Some(tsc(500)));
}

#[test]
fn a_count_of_zero_disables() {
    let mut timer = timer(direct().with_enable(true).with_auto_enable(true), 0);
    timer.set_count(500, &clock(), 0);
    timer.set_count(0, &clock(), 0);
    assert!(!enabled(&timer) && timer.deadline_tsc().is_none());
    assert_eq!(timer.expire(&clock(), u64::MAX), None);
}

#[test]
fn disabling_stops_it_and_keeps_the_count() {
    let mut timer = timer(direct().with_enable(true), 0);
    timer.set_count(500, &clock(), 0);
    timer.set_config(0, &clock(), 0).unwrap();
    assert_eq!((timer.count(), timer.deadline_tsc()), (500, None));
}

#[test]
fn a_count_in_the_past_expires_at_once() {
    let mut timer = timer(direct().with_enable(true), 0);
    timer.set_count(10, &clock(), tsc(1_000));
    assert!(timer.deadline_tsc().unwrap() <= tsc(1_000));
    assert_eq!(timer.expire(&clock(), tsc(1_000)), Some(VECTOR));
}

#[test]
fn a_count_beyond_all_time_never_expires() {
    for config in [direct().with_enable(true), direct().with_enable(true).with_periodic(true)] {
        let mut timer = timer(config, 0);
        timer.set_count(u64::MAX, &clock(), tsc(1_000));
        assert!(enabled(&timer) && timer.deadline_tsc().is_none());
    }
}

#[test]
fn a_periodic_timer_keeps_its_rhythm_and_skips_what_it_missed() {
    let mut timer = timer(direct().with_enable(true).with_periodic(true), 0);
    timer.set_count(1_000, &clock(), tsc(300));
    assert_eq!(timer.deadline_tsc(), Some(tsc(1_300)), "the first period begins with the enabling");
    assert_eq!(timer.expire(&clock(), tsc(1_350)), Some(VECTOR));
    assert_eq!(timer.deadline_tsc(), Some(tsc(2_300)), "the delay of one does not move the next");
    assert_eq!(timer.expire(&clock(), tsc(5_400)), Some(VECTOR));
    assert_eq!(timer.expire(&clock(), tsc(5_400)), None, "one interrupt for four periods");
    assert_eq!(timer.deadline_tsc(), Some(tsc(6_300)));
    assert!(enabled(&timer));
}

#[test]
fn a_short_period_is_taken_several_times_at_once() {
    for (count, period) in [(1, 500), (3, 501), (499, 998), (500, 500), (501, 501)] {
        let mut timer = timer(direct().with_enable(true).with_periodic(true), 0);
        timer.set_count(count, &clock(), 0);
        assert_eq!(timer.deadline_tsc(), Some(tsc(period)), "{count}");
        assert_eq!(timer.count(), count, "the register keeps what was written");
        assert_eq!(timer.expire(&clock(), tsc(period)), Some(VECTOR));
        assert_eq!(timer.deadline_tsc(), Some(tsc(2 * period)), "{count}");
    }
}

#[test]
fn no_register_value_panics() {
    let values = [0, 1, 2, 3, 499, 1 << 32, 1 << 63, u64::MAX - 1, u64::MAX];
    for config in (0..1 << 13).chain([0x000f_1fff]) {
        for (count, now) in values.iter().flat_map(|count| values.map(|now| (*count, now))) {
            let mut timer = Stimer::default();
            let _ = timer.set_config(config, &clock(), now);
            timer.set_count(count, &clock(), now);
            let _ = timer.set_config(config, &clock(), now);
            for _ in 0..2 {
                let _ = timer.expire(&clock(), u64::MAX);
            }
        }
    }
}
