//! The CPU's own interrupts: its timer, kicks, and what they count and leave behind.

use core::sync::atomic::Ordering;

use super::Op::*;
use crate::vm::arch::Cpus;
#[cfg(feature = "trace")]
use crate::vm::host::kick;
use crate::vm::interrupts::{on_kick, on_timer};
use crate::vm::mock::MockBoard as Board;
use crate::vm::mock::processor::{MockArch, board};
use hostlink::counters::Counter;
#[cfg(feature = "trace")]
use hostlink::trace::Event;

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
    // With a tick every hundred: it is the tick's alone if it comes first.
    cpu.tick_max.set(100);
    for (deadline, due, tick) in
        [(u64::MAX, 107, Some(107)), (108, 107, Some(107)), (107, 107, None), (106, 106, None)]
    {
        cpu.disarmed();
        cpu.set_timer_and_tick(deadline, 7);
        assert_eq!((cpu.timer_due(), cpu.tick_due()), (due, tick), "{deadline}");
    }
    // What is set for that time already is left alone.
    cpu.disarmed();
    cpu.set_timer_and_tick(u64::MAX, 7);
    cpu.set_timer(107, 8);
    assert_eq!(cpu.tick_due(), Some(107));
    cpu.set_timer(106, 8);
    assert_eq!((cpu.timer_due(), cpu.tick_due()), (106, None));
}

#[cfg(feature = "trace")]
#[test]
fn a_kick_is_in_the_trace_of_the_cpu_that_sends_it() {
    let board = one_guest();
    board.with_vcpu(1, |context| {
        board.host().attach_trace(context.cpu);
        context.cpu.note_current(Some(context.vcpu.row));
        kick::<MockArch>(context.cpu.index);
        let last = board.host().trace.records(context.cpu.index).last().expect("it is there");
        let expected = (Event::Kick, context.vcpu.row.0 as u16, context.cpu.index.0);
        assert_eq!((last.event, last.vcpu, last.detail), expected);
    });
}

/// A tick every thousand: a kick is late that was sent more than half of that before.
#[test]
fn a_kick_that_was_sent_long_before_the_tick_is_counted_once_as_late() {
    let board = one_guest();
    let (cpu, row) = (MockArch::this_cpu(), board.machine().vcpus[1].row);
    let late = || board.host().counters_of(row)[Counter::KickLate as usize].load(Ordering::Relaxed);
    board.with_vcpu(1, |context| {
        for is_tick in [true, false] {
            for (kicked, count) in [(0, 0), (1, 1), (5499, 1), (5500, 0), (6000, 0)] {
                // Before the tick is due nothing can be said of a kick that arrives.
                for (interrupt, time, looks) in [
                    (on_kick::<MockArch> as fn(), 5999, false),
                    (on_kick::<MockArch>, 6000, false),
                    (on_timer::<MockArch>, 0, true),
                ] {
                    let before = late();
                    cpu.disarmed();
                    cpu.tick_max.set(if is_tick { 1000 } else { u64::MAX });
                    cpu.set_timer_and_tick(if is_tick { u64::MAX } else { 6000 }, 5000);
                    cpu.kicked_at.store(kicked, Ordering::Relaxed);
                    cpu.was_kicked.set(false);
                    board.set_time(time);
                    interrupt();
                    let counts = if is_tick && time != 5999 { count } else { 0 };
                    let kicked_at = if looks && !is_tick { kicked } else { 0 };
                    let left = (cpu.timer_due(), cpu.kicked_at.load(Ordering::Relaxed), cpu.was_kicked.get());
                    let due = if looks { u64::MAX } else { 6000 };
                    assert_eq!((late() - before, left), (counts, (due, kicked_at, !looks)), "{kicked}");
                    assert_eq!(context.owner.take_events(), looks, "the vCPU here looks at the time");
                }
            }
        }
    });
}
