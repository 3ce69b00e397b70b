//! The guests' accounts, which CPUs change without a common lock: no turn is charged twice or to
//! another guest, and no CPU sleeps through the end of a hold.

use loom::sync::Arc;
use loom::thread;

use super::board::{Board, Guest};
use crate::model::explored;
use crate::sched::ledger::Ledger;
use crate::sched::{CpuIndex, PutBack, QueueClass, Released, Scheduler, Share, VcpuIndex};

fn capped(cap: u32) -> Share {
    Share { cap: Some(cap), ..Share::default() }
}

fn next(board: &Board, cpu: u32, now: u64) -> Option<u32> {
    board.sched.next(CpuIndex(cpu), now).map(|turn| turn.vcpu.0)
}

/// A guest with a vCPU on each of two CPUs has used so much that CPU 0 finds it held. To CPU 1 it
/// is later: it finds the guest free, and runs the other vCPU. CPU 0 looks again at the end of the
/// hold at the latest.
fn hold(next_event: fn(&Scheduler) -> u64) {
    let board = Arc::new(Board::empty(2, &[Guest::Runs; 2], 0));
    board.sched.add_group(0, VcpuIndex(0)..VcpuIndex(2), capped(50));
    for vcpu in [0, 1].map(VcpuIndex) {
        let _ = board.sched.wake(vcpu, QueueClass::Work, 0);
    }
    assert_eq!(next(&board, 0, 0), Some(0));
    let other = {
        let board = board.clone();
        // Twice 10,000 are spent by then, but for half of a burst of 2000: it finds a vCPU. If it
        // is first, it charges the other CPU's turn up to then, and the guest is held for longer.
        thread::spawn(move || _ = next(&board, 1, 19_000))
    };
    let (turn, _) = board.sched.switch(CpuIndex(0), 10_000, PutBack::Preempted, Released::made());
    let looks_at = if turn.is_none() { next_event(&board.sched) } else { 0 };
    other.join().unwrap();
    let end = board.sched.ledger.spent_until(0) - 1000;
    assert!(looks_at <= end, "the end of a hold is overslept");
}

explored! {
    fn a_cpu_looks_again_when_a_hold_ends(Some(2)): || hold(|sched| sched.next_event(CpuIndex(0)));
    /// The CPU looks whether the guest is held, which another CPU may have changed.
    fn hold_taken_for_over_because_another_cpu_found_it_over(Some(2)) fails "the end of a hold is overslept":
        || hold(|sched| sched.ledger.next_event_if_held(0));
    /// The CPU has the end of the hold from when it last changed its queue, not from now.
    fn hold_not_among_the_timers(Some(2)) fails "the end of a hold is overslept":
        || hold(|sched| sched.place(CpuIndex(0)).queue.lock().next_timer());
}

/// CPU 0 ends a long turn of one guest and begins one of another, while CPU 1 charges long turns.
fn charging(settle: fn(&Ledger)) {
    let board = Arc::new(Board::empty(2, &[Guest::Runs; 2], 0));
    board.sched.add_group(0, VcpuIndex(0)..VcpuIndex(1), capped(10));
    board.sched.add_group(1, VcpuIndex(1)..VcpuIndex(2), capped(100));
    let ledger = &board.sched.ledger;
    // It has used ten times as much as it may, so that the order of charges makes no difference.
    ledger.begin_turn(CpuIndex(0), 0, 0);
    ledger.end_turn(CpuIndex(0), 0, 3000);
    ledger.begin_turn(CpuIndex(0), 0, 3000);
    let other = {
        let board = board.clone();
        thread::spawn(move || settle(&board.sched.ledger))
    };
    ledger.end_turn(CpuIndex(0), 0, 5000);
    ledger.begin_turn(CpuIndex(0), 1, 5000);
    other.join().unwrap();
    ledger.end_turn(CpuIndex(0), 1, 5100);
    let spent = [0, 1].map(|group| ledger.spent_until(group));
    assert_eq!(spent, [50_000, 5100], "a turn is charged twice, or to another guest");
}

explored! {
    fn each_turn_is_charged_once_and_to_its_guest(None): || charging(|ledger| ledger.look(4500));
    /// The time up to which the turn is charged is moved by a store, not by an exchange.
    fn turn_charged_by_two_cpus(None) fails "a turn is charged twice":
        || charging(|ledger| ledger.settle_carelessly(CpuIndex(0), 4500));
}
