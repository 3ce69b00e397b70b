use super::{VcpuIndex as Vcpu, *};

const POLICY: Policy = Policy::new(1000);
const WORK: Standing = Standing { lag: 0, class: QueueClass::Work };
const EXPIRED: Standing = Standing { lag: 0, class: QueueClass::Timer };

fn queue(vcpus: u32) -> RunQueue {
    let mut queue = RunQueue::alone(vcpus);
    for vcpu in (0..vcpus).map(Vcpu) {
        _ = queue.enqueue(vcpu, WORK, &POLICY);
    }
    queue
}

/// Runs `queue` until `end`, each vCPU to the end of its slice; returns each vCPU's run time.
fn run(queue: &mut RunQueue, vcpus: usize, end: u64) -> Vec<u64> {
    let mut had = alloc::vec![0; vcpus];
    let mut now = 0;
    while now < end {
        let vcpu = queue.pick_alone(now, |_| true).unwrap();
        let until = queue.queue_state(0, &POLICY).next_event.min(end);
        had[vcpu.place()] += until - now;
        now = until;
        queue.end_by(now, PutBack::Preempted, &POLICY);
    }
    had
}

#[test]
fn busy_vcpus_share_the_cpu_evenly() {
    let had = run(&mut queue(5), 5, 100_000);
    assert!(had.iter().all(|time| (19_000..=21_000).contains(time)), "{had:?}");
}

#[test]
fn a_slice_ends_only_if_someone_waits() {
    let mut queue = queue(1);
    queue.pick_alone(0, |_| true);
    assert_eq!(queue.queue_state(0, &POLICY).next_event, u64::MAX);
    assert!(!queue.queue_state(1_000_000, &POLICY).should_switch);
    _ = queue.enqueue(Vcpu(7), WORK, &POLICY);
    assert_eq!(queue.queue_state(0, &POLICY).next_event, 1000);
}

#[test]
fn what_ran_alone_waits_for_a_newcomer_no_longer_than_a_few_slices() {
    let mut queue = queue(1);
    queue.pick_alone(0, |_| true);
    // A long time without a tick, and then another one comes.
    let mut now = 1_000_000;
    _ = queue.enqueue(Vcpu(1), WORK, &POLICY);
    queue.end_by(now, PutBack::Preempted, &POLICY);
    let mut had = [0, 0];
    while now < 1_020_000 {
        let vcpu = queue.pick_alone(now, |_| true).expect("both want the CPU");
        had[vcpu.place()] += POLICY.slice;
        now += POLICY.slice;
        queue.end_by(now, PutBack::Preempted, &POLICY);
    }
    assert!(had[0].abs_diff(had[1]) <= 3 * POLICY.slice, "{had:?}");
}

#[test]
fn a_sleeper_preempts_a_hog_soon_but_not_at_once() {
    let mut queue = queue(1);
    queue.pick_alone(0, |_| true);
    _ = queue.enqueue(Vcpu(1), WORK, &POLICY);
    assert!(!queue.queue_state(0, &POLICY).should_switch);
    assert!(!queue.queue_state(POLICY.wakeup_margin - 1, &POLICY).should_switch);
    assert!(queue.queue_state(POLICY.wakeup_margin + 500, &POLICY).should_switch);
}

#[test]
fn a_long_sleep_earns_no_more_than_half_a_slice() {
    let mut queue = queue(2);
    run(&mut queue, 2, 1_000_000);
    _ = queue.enqueue(Vcpu(2), WORK, &POLICY);
    let mut turns = 0;
    let mut now = 1_000_000;
    while queue.pick_alone(now, |_| true) == Some(Vcpu(2)) {
        turns += 1;
        now += 1000;
        queue.end_by(now, PutBack::Preempted, &POLICY);
    }
    assert!((1..=2).contains(&turns), "{turns} slices in a row");
}

#[test]
fn a_spinner_goes_behind_everyone_who_waits() {
    let mut queue = queue(4);
    let spinner = queue.pick_alone(0, |_| true).unwrap();
    queue.end_by(1, PutBack::Yielded, &POLICY);
    for turn in 0..3 {
        let next = queue.pick_alone(1 + turn, |_| true).unwrap();
        assert_ne!(next, spinner);
        queue.block(1 + turn);
    }
    assert_eq!(queue.pick_alone(10, |_| true), Some(spinner));
}

#[test]
fn the_stolen_one_would_have_run_last_and_keeps_its_place() {
    let mut queue = queue(2);
    queue.pick_alone(0, |_| true);
    queue.end_by(900, PutBack::Preempted, &POLICY);
    assert_eq!(
        (queue.steal(), queue.load()),
        (Some((Vcpu(0), Standing { lag: 900, class: QueueClass::Work })), 1)
    );
}

#[test]
fn timers_expire_in_order_and_can_be_forgotten() {
    let mut queue = queue(0);
    queue.add_timer(30, Vcpu(3));
    queue.add_timer(10, Vcpu(1));
    queue.add_timer(20, Vcpu(2));
    assert_eq!((queue.next_timer(), queue.pop_expired(9)), (10, None));
    queue.remove_timer(Vcpu(2));
    assert_eq!((queue.pop_expired(100), queue.pop_expired(100)), (Some(Vcpu(1)), Some(Vcpu(3))));
    assert_eq!(queue.next_timer(), u64::MAX);
}

/// Time until `end` that the only vCPU with work gets beside `tickers` ticking vCPUs: each wakes in
/// `class` one period after its last tick began, or as soon as possible after that, and takes
/// `cost`.
fn work_beside_ticks(tickers: u32, cost: u64, period: u64, class: QueueClass, end: u64) -> u64 {
    let mut queue = queue(1);
    let mut virtual_time = vec![0; tickers as usize + 1];
    (1..=tickers).for_each(|vcpu| queue.add_timer(u64::from(vcpu), Vcpu(vcpu)));
    let (mut now, mut worked) = (0, 0);
    while now < end {
        wake_expired(&mut queue, now, class, &virtual_time);
        match queue.pick_alone(now, |_| true).unwrap() {
            Vcpu(0) => {
                let begin = now;
                while now < end && !queue.queue_state(now, &POLICY).should_switch {
                    now = queue.queue_state(now, &POLICY).next_event.clamp(now + 1, end);
                    wake_expired(&mut queue, now, class, &virtual_time);
                }
                worked += now - begin;
                queue.end_by(now, PutBack::Preempted, &POLICY);
            }
            ticker => {
                queue.add_timer(now + period, ticker);
                now += cost;
                virtual_time[ticker.place()] = queue.block(now);
            }
        }
    }
    worked
}

fn wake_expired(queue: &mut RunQueue, now: u64, class: QueueClass, virtual_time: &[u64]) {
    while let Some(vcpu) = queue.pop_expired(now) {
        let standing = queue.standing(vcpu, virtual_time[vcpu.place()], class);
        let _looked_at_next = queue.enqueue(vcpu, standing, &POLICY);
    }
}

#[test]
fn more_ticks_than_there_is_time_for_leave_half_of_the_cpu_to_work() {
    // 127 ticks of 70 in each 800: eleven times the available time.
    let worked = work_beside_ticks(127, 70, 800, QueueClass::Timer, 1_000_000);
    assert!((450_000..=550_000).contains(&worked), "{worked}");
    // The reason for the line: fairness among vCPUs is not enough.
    let worked = work_beside_ticks(127, 70, 800, QueueClass::Work, 1_000_000);
    assert!(worked < 100_000, "{worked}");
}

#[test]
fn few_ticks_are_not_held_back() {
    // Two ticks of 70 in each 800.
    let worked = work_beside_ticks(2, 70, 800, QueueClass::Timer, 1_000_000);
    assert!((800_000..=880_000).contains(&worked), "{worked}");
}

#[test]
fn a_timer_that_expires_preempts_soon_but_not_at_once() {
    let mut queue = queue(1);
    queue.pick_alone(0, |_| true);
    assert!(queue.enqueue(Vcpu(1), EXPIRED, &POLICY), "whoever runs has to look at the time again");
    assert!(!queue.queue_state(POLICY.wakeup_margin - 1, &POLICY).should_switch);
    assert_eq!(queue.queue_state(0, &POLICY).next_event, POLICY.slice / 2, "both have had nothing");
    queue.end_by(900, PutBack::Preempted, &POLICY);
    assert_eq!(queue.pick_alone(900, |_| true), Some(Vcpu(1)));
    queue.block(950);
    assert_eq!(queue.pick_alone(950, |_| true), Some(Vcpu(0)));
    // The line was empty: it is owed the credit, whatever it had run before.
    assert!(queue.enqueue(Vcpu(1), EXPIRED, &POLICY));
    assert_eq!(queue.queue_state(0, &POLICY).next_event, 950 + POLICY.wakeup_margin);
}

#[test]
fn timers_do_not_interrupt_only_to_make_their_line_longer() {
    let mut queue = queue(1);
    queue.pick_alone(0, |_| true);
    queue.add_timer(10, Vcpu(7));
    assert_eq!(queue.queue_state(0, &POLICY).next_event, 10);
    let _ = queue.enqueue(Vcpu(1), WORK, &POLICY);
    let found = queue.queue_state(0, &POLICY).next_event;
    assert_eq!(found, POLICY.wakeup_margin, "nobody would be preempted before");
    let _ = queue.enqueue(Vcpu(2), EXPIRED, &POLICY);
    assert!(!queue.enqueue(Vcpu(3), EXPIRED, &POLICY));
    assert_eq!(queue.queue_state(0, &POLICY).next_event, POLICY.slice / 2, "the end of its turn");
}

#[test]
fn what_takes_longer_than_a_tick_gets_in_line_with_the_others_that_have_work() {
    let mut queue = queue(0);
    (0..2).for_each(|vcpu| _ = queue.enqueue(Vcpu(vcpu), EXPIRED, &POLICY));
    assert_eq!(queue.pick_alone(0, |_| true), Some(Vcpu(0)));
    assert_eq!(queue.queue_state(0, &POLICY).next_event, POLICY.wakeup_margin);
    assert!(queue.queue_state(POLICY.wakeup_margin, &POLICY).should_switch);
    queue.end_by(POLICY.wakeup_margin, PutBack::Preempted, &POLICY);
    assert_eq!((queue.front.waiting.len(), queue.front.expired.len()), (1, 1));
}

#[test]
fn an_interrupt_takes_a_vcpu_out_of_the_timer_line() {
    let mut queue = queue(1);
    (1..4).for_each(|vcpu| _ = queue.enqueue(Vcpu(vcpu), EXPIRED, &POLICY));
    assert!(queue.promote(Vcpu(2), &POLICY));
    assert!(!queue.promote(Vcpu(2), &POLICY) && !queue.promote(Vcpu(0), &POLICY), "not there");
    assert_eq!(queue.load(), 4);
    let order = core::array::from_fn(|_| {
        let next = queue.pick_alone(0, |_| true);
        queue.block(0);
        next
    });
    assert_eq!(order, [0, 2, 1, 3].map(|vcpu| Some(Vcpu(vcpu))));
}

#[test]
fn a_spinner_leaves_its_turn_to_the_timer_line() {
    let mut queue = queue(1);
    (1..4).for_each(|vcpu| _ = queue.enqueue(Vcpu(vcpu), EXPIRED, &POLICY));
    let mut now = 0;
    assert_eq!(queue.pick_alone(now, |_| true), Some(Vcpu(0)));
    queue.end_by(now, PutBack::Yielded, &POLICY);
    for expected in 1..4 {
        assert_eq!(queue.pick_alone(now, |_| true), Some(Vcpu(expected)));
        now += 100;
        queue.block(now);
    }
    assert_eq!(queue.pick_alone(now, |_| true), Some(Vcpu(0)));
}

#[test]
fn sleeps_of_no_length_earn_nothing() {
    let mut queue = queue(2);
    let mut had = [0_u64; 2];
    for turn in 0..1000 {
        let now = turn * 300;
        let vcpu = queue.pick_alone(now, |_| true).unwrap();
        had[vcpu.place()] += 300;
        if vcpu == Vcpu(0) {
            let virtual_time = queue.block(now + 300);
            let standing = queue.standing(Vcpu(0), virtual_time, QueueClass::Work);
            let _nobody_runs = queue.enqueue(Vcpu(0), standing, &POLICY);
        } else {
            queue.end_by(now + 300, PutBack::Preempted, &POLICY);
        }
    }
    assert!(had[0].abs_diff(had[1]) <= 600, "{had:?}");
}

#[test]
fn those_of_the_timer_line_are_stolen_first_and_stay_in_line() {
    let (mut victim, mut thief) = (queue(2), queue(1));
    let _ = victim.enqueue(Vcpu(5), EXPIRED, &POLICY);
    let (stolen, standing) = victim.steal().unwrap();
    assert_eq!(stolen, Vcpu(5));
    assert!(standing.is_expired());
    thief.pick_alone(0, |_| true);
    assert!(thief.enqueue(stolen, standing, &POLICY));
    assert_eq!((thief.front.waiting.len(), thief.front.expired.len()), (0, 1));
}

/// A queue in which this many vCPUs wait, all of them passive, in the order of their numbers.
fn passive(count: u32) -> RunQueue {
    let mut queue = RunQueue::alone(count);
    for vcpu in (0..count).map(Vcpu) {
        let _nobody_runs = queue.enqueue(vcpu, Standing::default(), &POLICY);
    }
    for turn in 0..u64::from(count) {
        assert_eq!(queue.pick_alone(turn, |_| true), Some(Vcpu(turn as u32)));
        queue.end_by(turn + 1, PutBack::Passive, &POLICY);
    }
    queue
}

#[test]
fn u30_whoever_waits_for_memory_is_passed_over_until_that_changes() {
    let mut queue = passive(60);
    let mut asked = 0;
    let next = queue.pick_alone(100, |vcpu| {
        asked += 1;
        vcpu == Vcpu(41)
    });
    assert_eq!((next, asked), (Some(Vcpu(41)), 42), "each is asked once, in order");
    queue.end_by(200, PutBack::Preempted, &POLICY);
    assert_eq!(queue.pick_alone(200, |_| false), Some(Vcpu(41)), "it is not passive any more");
    queue.block(300);
    let found = queue.pick_alone(300, |_| false);
    assert_eq!(found, Some(Vcpu(0)), "all of them are passive: the next runs, for the CPU has nothing else");
    queue.block(301);
    for vcpu in (1..60).filter(|&vcpu| vcpu != 41).map(Vcpu) {
        assert_eq!(queue.pick_alone(400, |_| true), Some(vcpu));
        queue.block(400);
    }
    assert!(queue.is_idle());
}

#[test]
fn u30_whoever_waits_for_memory_preempts_nobody() {
    let mut queue = passive(1);
    let _nobody_runs = queue.enqueue(Vcpu(7), Standing::default(), &POLICY);
    assert_eq!(queue.pick_alone(0, |_| false), Some(Vcpu(7)));
    let late = POLICY.slice - 1;
    assert!(!queue.queue_state(late, &POLICY).should_switch, "the one that waits has had less");
    assert!(queue.queue_state(late + 1, &POLICY).should_switch, "its slice is over");
}

#[test]
fn u30_whoever_waits_for_memory_is_active_on_a_cpu_that_idles() {
    let (mut queue, mut thief) = (passive(2), RunQueue::alone(2));
    let (stolen, standing) = queue.steal().unwrap();
    let _nobody_runs = thief.enqueue(stolen, standing, &POLICY);
    assert_eq!(thief.pick_alone(10, |_| panic!("it is not passive")), Some(stolen));
    let left = queue.pick_alone(10, |_| true);
    queue.block(10);
    assert!(left.is_some() && queue.pick_alone(10, |_| panic!("nobody is left")).is_none());
}
