//! The timer.

use super::*;

#[test]
fn deadline_mode() {
    let mut lapic = lapic();
    set(&mut lapic, msr::TSC_DEADLINE, 1000);
    assert_eq!(lapic.next_deadline(), None, "ignored in another mode");
    assert_eq!(write(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40), Effect::TimerChanged);
    assert_eq!(write(&mut lapic, msr::TSC_DEADLINE, 1000), Effect::TimerChanged);
    set(&mut lapic, msr::INITIAL_COUNT, 5);
    assert_eq!(read(&lapic, msr::INITIAL_COUNT), 0, "ignored in this mode");
    assert_eq!(lapic.next_deadline(), Some(1000));
    assert_eq!((lapic.expire(999), lapic.expire(1000), lapic.expire(1001)), (None, Some(0x40), None));
    assert_eq!(inject(&mut lapic), Some(0x40));
}

#[test]
fn a_deadline_in_the_past_is_due_at_once() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40);
    assert_eq!(lapic.write_msr(msr::TSC_DEADLINE, 1, 5000), Ok(Effect::TimerChanged));
    assert_eq!(lapic.expire(5000), Some(0x40));
}

#[test]
fn an_end_that_came_before_a_change_is_not_lost() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40);
    set(&mut lapic, msr::TSC_DEADLINE, 1000);
    set_at(&mut lapic, msr::TSC_DEADLINE, 9000, 1500);
    assert_eq!((lapic.pending(), lapic.next_deadline()), (Some(0x40), Some(9000)));
    set_at(&mut lapic, msr::LVT_TIMER, 1 << 16 | 2 << 17 | 0x41, 9500);
    assert_eq!(lapic.read_msr(msr::IRR0 + 2, 0), Ok(1));
    let mut disabled = self::lapic();
    set(&mut disabled, msr::LVT_TIMER, 2 << 17 | 0x40);
    set(&mut disabled, msr::TSC_DEADLINE, 1000);
    set_at(&mut disabled, msr::SVR, 0xff, 1500);
    set_at(&mut disabled, msr::SVR, 0x1ff, 1500);
    assert_eq!(disabled.pending(), Some(0x40));
}

#[test]
fn an_end_that_came_while_masked_is_gone() {
    let mut lapic = lapic();
    let masked = 1 << 16 | 2 << 17 | 0x40;
    set(&mut lapic, msr::LVT_TIMER, masked);
    set(&mut lapic, msr::TSC_DEADLINE, 1000);
    assert_eq!(lapic.next_deadline(), None, "nobody needs waking for it");
    set_at(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40, 2000);
    assert_eq!(lapic.expire(u64::MAX), None);
    assert_eq!(lapic.highest_irr(), None);
    set(&mut lapic, msr::LVT_TIMER, masked);
    set(&mut lapic, msr::TSC_DEADLINE, 3000);
    set_at(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40, 2500);
    assert_eq!(lapic.next_deadline(), Some(3000), "unmasked in time");
}

#[test]
fn changing_between_deadline_and_counting_disarms() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40);
    set(&mut lapic, msr::TSC_DEADLINE, 1000);
    set(&mut lapic, msr::LVT_TIMER, 0x40);
    assert_eq!(lapic.next_deadline(), None);
    set(&mut lapic, msr::INITIAL_COUNT, 100);
    set(&mut lapic, msr::LVT_TIMER, 1 << 17 | 0x40);
    assert!(lapic.next_deadline().is_some(), "one-shot to periodic goes on");
    set(&mut lapic, msr::LVT_TIMER, 2 << 17 | 0x40);
    assert_eq!(lapic.next_deadline(), None);
}

#[test]
fn periodic_timer_repeats_and_count_runs_down() {
    let mut lapic = lapic();
    set(&mut lapic, msr::DIVIDE, 0b1011);
    set(&mut lapic, msr::LVT_TIMER, 1 << 17 | 0x40);
    set(&mut lapic, msr::INITIAL_COUNT, 1_000_000);
    assert_eq!(lapic.read_msr(msr::CURRENT_COUNT, 500_000), Ok(750_000));
    for period in 1..=3_u64 {
        assert_eq!(lapic.next_deadline(), Some(period * 2_000_000));
        assert_eq!(lapic.expire(period * 2_000_000 + 17), Some(0x40));
    }
    set(&mut lapic, msr::INITIAL_COUNT, 0);
    assert_eq!((lapic.next_deadline(), lapic.read_msr(msr::CURRENT_COUNT, 9)), (None, Ok(0)));
}

#[test]
fn a_timer_vector_below_16_is_an_error_not_an_interrupt() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_TIMER, 2 << 17 | 5);
    set(&mut lapic, msr::TSC_DEADLINE, 10);
    let _ = lapic.expire(10);
    assert_eq!(lapic.highest_irr(), None);
    set(&mut lapic, msr::ESR, 0);
    assert_eq!(read(&lapic, msr::ESR), 0x40);
}
