use super::*;
use crate::sched::queue::{Policy, PutBack, RunQueue, Standing, VcpuIndex};

const FIRST: u64 = 10;

/// Checks whenever it is time to, for `turns` turns of `slice`; returns when the vCPU was found
/// spinning.
fn found(watch: &mut SpinWatch, slice: u64, state: &mut impl FnMut() -> [u64; 2]) -> Option<u64> {
    let mut now = 0;
    watch.begin_turn();
    while now < slice {
        match watch.look(now, FIRST, &state()) {
            Look::Spins => return Some(now),
            Look::Again(later) => now = later,
        }
    }
    None
}

#[test]
fn u30_whoever_waits_in_a_loop_is_found_soon_and_sooner_the_next_time() {
    let mut watch = SpinWatch::default();
    let mut count = 0;
    // Three places in a loop, by turns.
    let mut state = || {
        count += 1;
        [0x8000 + 4 * (count % 3), 7]
    };
    let first = found(&mut watch, 1000, &mut state).expect("it spins");
    assert!(first < 500, "{first}");
    assert_eq!(found(&mut watch, 1000, &mut state), Some(FIRST));
    watch.forget();
    assert!(found(&mut watch, 1000, &mut state).expect("it spins") > FIRST);
}

#[test]
fn whoever_gets_on_is_looked_at_ever_less() {
    let mut watch = SpinWatch::default();
    let mut looks = 0;
    let mut state = || {
        looks += 1;
        [0x8000, looks]
    };
    assert_eq!(found(&mut watch, 1 << 20, &mut state), None);
    assert!(looks < 20, "{looks}");
}

#[test]
fn once_at_the_same_place_is_chance() {
    let mut watch = SpinWatch::default();
    let mut count = 0;
    let mut state = || {
        count += 1;
        [0x8000, if count == 5 { 2 } else { count }]
    };
    assert_eq!(found(&mut watch, 10_000, &mut state), None);
}

/// An interrupt may arrive before the first instruction. A vCPU that is put aside for that makes no
/// progress.
#[test]
fn u30_a_vcpu_that_has_executed_nothing_yet_is_not_put_aside() {
    let mut watch = SpinWatch::default();
    for turn in 0..20 {
        watch.begin_turn();
        let mut now = 0;
        while now < WHILE * FIRST {
            let Look::Again(later) = watch.look(now, FIRST, &[1, 2]) else {
                panic!("turn {turn} ends after {now}")
            };
            now = later;
        }
    }
}

#[test]
fn a_state_that_never_changes_is_a_loop_after_a_while() {
    let mut watch = SpinWatch::default();
    let turns = (0..10).find_map(|_| found(&mut watch, 1000, &mut || [3, 4]));
    assert!(turns.is_some_and(|at| at >= WHILE * FIRST), "{turns:?}");
}

/// Some vCPUs of one CPU want a lock that is handed on in turn, the last vCPU to run first. Returns
/// how long it takes until all have had it.
fn convoy(vcpus: u32, watched: bool) -> u64 {
    const HOLDS: u64 = 20;
    let policy = Policy::new(32 * FIRST);
    let mut queue = RunQueue::alone(vcpus);
    let mut watches = alloc::vec![SpinWatch::default(); vcpus as usize];
    for vcpu in 0..vcpus {
        let _nobody_runs = queue.enqueue(VcpuIndex(vcpu), Standing::default(), &policy);
    }
    let (mut holder, mut now, mut loops) = (vcpus, 0, 0);
    while let Some(VcpuIndex(vcpu)) = queue.pick_alone(now, |_| true) {
        if vcpu + 1 == holder {
            now += HOLDS;
            let _done = queue.block(now);
            holder -= 1;
            continue;
        }
        let watch = &mut watches[vcpu as usize];
        watch.begin_turn();
        let why = loop {
            let queue_state = queue.queue_state(now, &policy);
            if queue_state.should_switch {
                break PutBack::Preempted;
            }
            loops += 1;
            let state = [u64::from(vcpu), loops % 3];
            let look =
                if watched { watch.look(now, policy.spin_look(), &state) } else { Look::Again(u64::MAX) };
            match look {
                Look::Spins => break PutBack::Yielded,
                Look::Again(later) => now = later.min(queue_state.next_event),
            }
        };
        queue.end_by(now, why, &policy);
    }
    now
}

#[test]
fn u30_a_lock_that_many_wait_for_is_handed_on_without_a_slice_for_each() {
    let (with, without) = (convoy(64, true), convoy(64, false));
    assert!(with * 6 < without, "{with} of {without}");
}
