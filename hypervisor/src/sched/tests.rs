use super::{CpuIndex as Cpu, VcpuIndex as Vcpu, *};

fn scheduler(cpus: u32, vcpus: u32) -> Scheduler {
    on((0..cpus).collect(), vcpus)
}

fn on(cpus: Vec<u32>, vcpus: u32) -> Scheduler {
    let sched = Scheduler::new(cpus.into_iter().map(Cpu).collect(), vcpus, 1, Policy::new(1000));
    sched.add_group(0, Vcpu(0)..Vcpu(vcpus), Share::default());
    sched
}

/// The vCPU whose turn it is on `cpu`, and whether it comes from another CPU.
fn next(sched: &Scheduler, cpu: u32) -> Option<(u32, bool)> {
    sched.next(Cpu(cpu), 0).map(|turn| (turn.vcpu.0, turn.migrated))
}

/// The vCPU on `cpu` blocks, until a time at most; who has the CPU then.
fn block(sched: &Scheduler, cpu: u32, now: u64, until: u64) -> Option<Turn> {
    match sched.block(Cpu(cpu), now, until, || Some(Released::made())) {
        Block::Next(turn) => turn,
        Block::Refused => panic!("it may block"),
    }
}

fn enqueue(sched: &Scheduler, cpu: u32, vcpus: impl IntoIterator<Item = u32>) {
    for vcpu in vcpus {
        let _ = sched.enqueue(Cpu(cpu), Vcpu(vcpu), Standing::default());
    }
}

#[test]
fn wakers_nudge_idle_cpus_and_running_vcpus() {
    let sched = scheduler(2, 3);
    assert_eq!(sched.wake(Vcpu(0), QueueClass::Work, 0), Nudge::Idle(Cpu(0)));
    assert_eq!(next(&sched, 0), Some((0, false)));
    assert_eq!(sched.wake(Vcpu(2), QueueClass::Work, 0), Nudge::Idle(Cpu(1)), "CPU 0 is busy, CPU 1 is not");
    assert_eq!(next(&sched, 1), Some((2, true)));
    assert_eq!(sched.wake(Vcpu(1), QueueClass::Work, 0), Nudge::Running(Vcpu(2)));
}

#[test]
fn an_idle_cpu_takes_work_from_the_longest_queue() {
    let sched = scheduler(3, 4);
    enqueue(&sched, 0, [0, 2]);
    assert_eq!((next(&sched, 0), next(&sched, 1)), (Some((0, false)), Some((2, true))));
    assert_eq!(next(&sched, 2), None, "the others have one each, which runs");
}

#[test]
fn a_refused_block_leaves_the_vcpu_running() {
    let sched = scheduler(1, 1);
    sched.wake(Vcpu(0), QueueClass::Work, 0);
    next(&sched, 0);
    assert_eq!(sched.block(Cpu(0), 5, 100, || None), Block::Refused);
    assert_eq!(sched.next_event(Cpu(0)), u64::MAX, "no timer was left behind");
    assert_eq!(sched.block(Cpu(0), 5, 100, || Some(Released::made())), Block::Next(None));
    assert_eq!((sched.next_event(Cpu(0)), sched.pop_expired(Cpu(0), 100)), (100, Some(Vcpu(0))));
}

#[test]
fn blocking_hands_the_cpu_to_whoever_waits_with_the_timer_in_sight() {
    let sched = scheduler(1, 3);
    enqueue(&sched, 0, 0..3);
    assert_eq!(next(&sched, 0), Some((0, false)));
    let turn = block(&sched, 0, 5, 300).expect("nobody has the CPU");
    let queue_state = sched.queue_state(Cpu(0), 5);
    assert_eq!((turn.vcpu.0, queue_state.has_waiting, queue_state.next_event), (1, true, 300));
    assert!(sched.has_waiting(Cpu(0)), "vCPU 2");
}

#[test]
fn waking_early_forgets_the_timer() {
    let sched = scheduler(1, 1);
    sched.wake(Vcpu(0), QueueClass::Work, 0);
    next(&sched, 0);
    block(&sched, 0, 5, 100);
    sched.wake(Vcpu(0), QueueClass::Work, 0);
    assert_eq!(sched.pop_expired(Cpu(0), 1000), None);
}

#[test]
fn an_interrupt_helps_whoever_waits_behind_expired_timers() {
    let sched = scheduler(1, 4);
    for vcpu in 0..4 {
        let class = if vcpu == 0 { QueueClass::Work } else { QueueClass::Timer };
        let _ = sched.wake(Vcpu(vcpu), class, 0);
    }
    next(&sched, 0);
    assert_eq!(sched.promote(Vcpu(0)), Nudge::Nothing, "it runs");
    assert_eq!(sched.promote(Vcpu(3)), Nudge::Running(Vcpu(0)));
    assert_eq!(sched.promote(Vcpu(3)), Nudge::Nothing, "it has been helped");
    let turn = block(&sched, 0, 0, u64::MAX).expect("nobody has the CPU");
    assert_eq!((turn.vcpu.0, sched.promote(Vcpu(3))), (3, Nudge::Nothing));
}

#[test]
fn only_the_first_in_the_timer_line_is_announced() {
    let sched = scheduler(1, 3);
    sched.wake(Vcpu(0), QueueClass::Work, 0);
    next(&sched, 0);
    assert_eq!(sched.wake(Vcpu(1), QueueClass::Timer, 0), Nudge::Running(Vcpu(0)));
    assert_eq!(sched.wake(Vcpu(2), QueueClass::Timer, 0), Nudge::Nothing);
}

#[test]
fn u15_cpus_with_gaps() {
    let sched = on(vec![1, 4], 4);
    assert_eq!((sched.cpu_count(), sched.has_cpu(Cpu(2)), sched.has_cpu(Cpu(4))), (2, false, true));
    assert_eq!(sched.wake(Vcpu(0), QueueClass::Work, 0), Nudge::Idle(Cpu(1)));
    assert_eq!(next(&sched, 1), Some((0, false)));
    assert_eq!(
        sched.wake(Vcpu(2), QueueClass::Work, 0),
        Nudge::Idle(Cpu(4)),
        "the CPU with less to do is behind the gap"
    );
    assert_eq!(next(&sched, 4), Some((2, true)));
    enqueue(&sched, 1, [1, 3]);
    block(&sched, 4, 0, u64::MAX);
    assert!(next(&sched, 4).is_some(), "it takes work from the other one");
}

#[test]
fn a_cpu_that_is_left_out_gets_no_vcpu() {
    let sched = on(vec![1, 2], 4);
    assert!(!sched.has_cpu(Cpu(0)) && sched.has_cpu(Cpu(2)));
    for vcpu in 0..4 {
        assert!(matches!(sched.wake(Vcpu(vcpu), QueueClass::Work, 0), Nudge::Idle(cpu) if cpu != Cpu(0)));
    }
    assert!(next(&sched, 1).is_some() && next(&sched, 2).is_some());
}

#[test]
fn put_back_evens_the_queues_out() {
    let sched = scheduler(2, 4);
    enqueue(&sched, 0, 0..4);
    next(&sched, 0);
    let (turn, nudge) = sched.switch(Cpu(0), 1000, PutBack::Preempted, Released::made());
    assert_eq!((turn.map(|turn| turn.vcpu.0), nudge), (Some(1), Nudge::Idle(Cpu(1))));
    assert_eq!((sched.place(Cpu(0)).load(), sched.place(Cpu(1)).load()), (3, 1));
}

#[test]
fn a_turn_says_how_long_the_vcpu_waited_for_it() {
    let sched = on(vec![0], 2);
    let _ = sched.wake(Vcpu(0), QueueClass::Work, 100);
    let turn = sched.next(Cpu(0), 130).unwrap();
    assert_eq!((turn.vcpu.0, turn.waited), (0, 30));
    let _ = sched.wake(Vcpu(1), QueueClass::Timer, 400);
    let (turn, _) = sched.switch(Cpu(0), 1000, PutBack::Preempted, Released::made());
    assert_eq!(turn.map(|turn| (turn.vcpu.0, turn.waited)), Some((1, 600)), "since it woke");
    let turn = block(&sched, 0, 1700, u64::MAX);
    assert_eq!(turn.map(|turn| (turn.vcpu.0, turn.waited)), Some((0, 700)), "since it was put back");
    // While it blocked it did not wait, and a clock that is ahead takes nothing back.
    let _ = sched.wake(Vcpu(1), QueueClass::Work, 5000);
    let (turn, _) = sched.switch(Cpu(0), 4990, PutBack::Yielded, Released::made());
    assert_eq!(turn.map(|turn| (turn.vcpu.0, turn.waited)), Some((1, 0)));
}

#[test]
fn whoever_is_taken_by_another_cpu_has_waited_since_before() {
    let sched = on(vec![0, 1], 4);
    for vcpu in [0, 2] {
        let _ = sched.wake(Vcpu(vcpu), QueueClass::Work, 10);
    }
    let _ = sched.next(Cpu(0), 20);
    let _ = sched.next(Cpu(1), 20);
    for vcpu in [1, 3] {
        let _ = sched.wake(Vcpu(vcpu), QueueClass::Work, 50);
    }
    let both = [0, 1].map(|cpu| {
        let turn = block(&sched, cpu, 80, u64::MAX).or_else(|| sched.next(Cpu(cpu), 80));
        turn.map(|turn| turn.waited)
    });
    assert_eq!(both, [Some(30), Some(30)]);
}

#[test]
fn what_a_vcpu_had_and_what_it_waited_is_the_time_that_it_was_runnable() {
    let sched = on(vec![0], 2);
    let _ = sched.wake(Vcpu(0), QueueClass::Work, 100);
    let _ = sched.wake(Vcpu(1), QueueClass::Work, 100);
    assert_eq!(sched.next(Cpu(0), 130).map(|turn| (turn.vcpu.0, turn.waited)), Some((0, 30)));
    assert_eq!([0, 1].map(|vcpu| sched.used_by(Vcpu(vcpu), 180)), [50, 0], "one of them runs");
    assert_eq!(sched.used_by(Vcpu(0), 129), 0, "a clock that is behind takes nothing back");
    let (turn, _) = sched.switch(Cpu(0), 1000, PutBack::Preempted, Released::made());
    assert_eq!(turn.map(|turn| (turn.vcpu.0, turn.waited)), Some((1, 900)));
    assert_eq!([0, 1].map(|vcpu| sched.used_by(Vcpu(vcpu), 1500)), [870, 500], "the other one runs");
    let turn = block(&sched, 0, 1600, u64::MAX);
    assert_eq!(turn.map(|turn| (turn.vcpu.0, turn.waited)), Some((0, 600)));
    assert_eq!([0, 1].map(|vcpu| sched.used_by(Vcpu(vcpu), 1700)), [970, 600], "one of them sleeps");
    assert_eq!((970 + 30 + 600, 600 + 900), (1700 - 100, 1600 - 100));
}

/// Its CPU knows of nobody who waits, so the turn may last for ever.
#[test]
fn a_turn_is_charged_as_it_goes() {
    let sched = Scheduler::new([0, 1].map(Cpu).into(), 3, 2, Policy::new(1000));
    sched.add_group(0, Vcpu(0)..Vcpu(1), Share::default());
    sched.add_group(1, Vcpu(1)..Vcpu(3), Share { cpus: [1].into_iter().collect(), ..Share::default() });
    for vcpu in 0..3 {
        let _ = sched.wake(Vcpu(vcpu), QueueClass::Work, 0);
    }
    assert_eq!([0, 1].map(|cpu| next(&sched, cpu)), [Some((0, false)), Some((1, false))]);
    for now in (400..4000).step_by(400) {
        let _ = sched.switch(Cpu(1), now, PutBack::Preempted, Released::made());
        assert_eq!(sched.ledger.charged(Cpu(0)), now, "by the CPU on which others wait");
        assert_eq!([sched.used(0, now), sched.used(1, now)], [now; 2], "nothing is left out");
    }
}
