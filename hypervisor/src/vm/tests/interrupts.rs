//! The CPU's own interrupts: its timer, kicks, and what they count and leave behind.

use core::sync::atomic::Ordering;

use super::Op::*;
use crate::sched::VcpuIndex;
use crate::vm::arch::Cpus;
use crate::vm::interrupts::{on_kick, on_timer};
use crate::vm::mock::MockBoard as Board;
use crate::vm::mock::processor::{MockArch, board, counted};
use hostlink::counters::Counter;

fn one_guest() -> &'static Board<MockArch> {
    board(1, "vcpus=2\nmemory=4194304", &[&[Done]])
}

#[test]
fn a_cpu_that_has_not_started_has_no_timer_no_vcpu_and_no_kick() {
    one_guest();
    let cpu = MockArch::this_cpu();
    let first = (cpu.timer_due(), cpu.tick_due(), cpu.tick_max.get(), cpu.check_queue.get());
    assert_eq!(first, (u64::MAX, None, u64::MAX, false));
    let then = [&cpu.kicked_at, &cpu.last_exit].map(|word| word.load(Ordering::Relaxed));
    let vcpu = cpu.current_vcpu.load(Ordering::Relaxed);
    assert_eq!((then, vcpu, cpu.used_until.get(), cpu.was_kicked.get()), ([0, 0], 0, 0, false));
}

#[test]
fn a_timer_is_moved_only_if_it_would_be_late_or_was_lost() {
    one_guest();
    let cpu = MockArch::this_cpu();
    // Set for the first one at 0, then for the second one.
    for (first, then, now, due) in [
        (u64::MAX, 50, 10, 50),
        (50, 60, 10, 50),
        (50, 50, 10, 50),
        (50, 49, 10, 49),
        (50, 60, 49, 50),
        (50, 60, 50, 60),
        (50, 60, 51, 60),
    ] {
        cpu.disarmed();
        cpu.set_timer(first, 0);
        cpu.set_timer(then, now);
        assert_eq!((cpu.timer_due(), cpu.tick_due()), (due, None), "{first}, then {then} at {now}");
    }
    // With a tick every hundred: it is the tick's alone if it comes first.
    cpu.tick_max.set(100);
    for (deadline, due, tick) in
        [(u64::MAX, 107, Some(107)), (108, 107, Some(107)), (107, 107, None), (106, 106, None)]
    {
        cpu.disarmed();
        cpu.set_timer_and_tick(deadline, 7);
        assert_eq!((cpu.timer_due(), cpu.tick_due()), (due, tick), "{deadline}");
    }
}

/// A tick every thousand: a kick is late that was sent more than half of that before.
#[test]
fn a_kick_that_was_sent_long_before_the_tick_is_counted_once_as_late() {
    let board = one_guest();
    let cpu = MockArch::this_cpu();
    let set = |is_tick: bool, kicked: u64| {
        cpu.disarmed();
        cpu.tick_max.set(if is_tick { 1000 } else { u64::MAX });
        cpu.set_timer_and_tick(if is_tick { u64::MAX } else { 6000 }, 5000);
        cpu.kicked_at.store(kicked, Ordering::Relaxed);
        cpu.was_kicked.set(false);
    };
    let after = || (cpu.timer_due(), cpu.kicked_at.load(Ordering::Relaxed), cpu.was_kicked.get());
    let late = |row| board.host().counters_of(row)[Counter::KickLate as usize].load(Ordering::Relaxed);
    // Without a vCPU here it is counted for the first row, which is no guest's.
    set(true, 1);
    on_timer::<MockArch>();
    assert_eq!((late(VcpuIndex(0)), counted(board, Counter::KickLate)), (1, 0));
    let row = board.machine().vcpus[1].row;
    board.with_vcpu(1, |context| {
        for time in [5999, 6000, 9999] {
            for (kicked, count) in [(0, 0), (1, 1), (5499, 1), (5500, 0), (6000, 0)] {
                for is_tick in [true, false] {
                    let case = (time, kicked, is_tick);
                    let before = late(row);
                    set(is_tick, kicked);
                    on_timer::<MockArch>();
                    assert!(context.owner.take_events(), "the vCPU here looks at the time: {case:?}");
                    let counts = if is_tick { count } else { 0 };
                    assert_eq!(late(row) - before, counts, "{case:?}");
                    assert_eq!(after(), (u64::MAX, if is_tick { 0 } else { kicked }, false), "{case:?}");
                    // Before the tick is due nothing can be said.
                    let before = late(row);
                    set(is_tick, kicked);
                    board.set_time(time);
                    on_kick::<MockArch>();
                    let counts = if is_tick && time >= 6000 { count } else { 0 };
                    assert_eq!((late(row) - before, after()), (counts, (6000, 0, true)), "{case:?}");
                    assert!(!context.owner.take_events(), "{case:?}");
                }
            }
        }
    });
}
