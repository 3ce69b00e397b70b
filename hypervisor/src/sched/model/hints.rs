//! Hints, read without a queue's lock: an out-of-date one costs no more than its documentation
//! claims.

use coherence::{CpuId, Notify, Space};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};
use loom::thread;

use super::board::{Board, Cpu, Guest, Outside, Real, Steps};
use crate::model::explored;
use crate::sched::notify::Reach;
use crate::sched::queue::VIRTUAL_EPOCH;
use crate::sched::{Block, CpuIndex, PutBack, QueueClass, Released, Scheduler, VcpuIndex};

/// A vCPU is woken while its CPU has others block with timers: that CPU never waits beyond the next
/// of them.
fn next_timer(wake: fn(&Scheduler, VcpuIndex)) {
    let board = Arc::new(Board::new(1, &[Guest::Halts; 2], 0));
    board.block(0, 0, 50);
    let _ = board.sched.wake(VcpuIndex(1), QueueClass::Work, 0);
    assert_eq!(board.sched.next(CpuIndex(0), 0).map(|turn| turn.vcpu.0), Some(1));
    let waker = {
        let board = board.clone();
        thread::spawn(move || wake(&board.sched, VcpuIndex(0)))
    };
    let block = board.sched.block(CpuIndex(0), 0, 100, || Some(Released::made()));
    assert!(matches!(block, Block::Next(_)));
    assert!(board.sched.next_event(CpuIndex(0)) <= 100, "a timer is overslept");
    waker.join().unwrap();
    assert!(board.sched.next_event(CpuIndex(0)) <= 100, "a timer is overslept");
}

explored! {
    fn a_timer_that_is_removed_hides_no_other(None):
        || next_timer(|sched, vcpu| _ = sched.wake(vcpu, QueueClass::Work, 0));
    /// The hint is stored after the lock is released: an older value is stored last.
    fn hint_stored_out_of_the_lock(None) fails "a timer is overslept": || {
        next_timer(|sched, vcpu| {
            let place = sched.place(CpuIndex(0));
            let timer = {
                let mut queue = place.queue.lock();
                let _ = queue.remove_timer(vcpu);
                queue.next_timer()
            };
            place.next_timer.store(timer, Relaxed);
        });
    };
}

/// A vCPU has moved to another CPU and blocks there with a timer. A waker finds it there.
fn home(wakes: fn(&Board, &AtomicU64) -> bool) {
    let shared = Arc::new((Board::new(2, &[Guest::Halts; 3], 0), AtomicU64::new(0)));
    {
        let board = &shared.0;
        let _ = board.sched.enqueue(CpuIndex(0), VcpuIndex(0), Default::default());
        let _ = board.sched.enqueue(CpuIndex(0), VcpuIndex(2), Default::default());
        assert_eq!(board.sched.next(CpuIndex(0), 0).map(|turn| turn.vcpu.0), Some(0));
    }
    let other = {
        let shared = shared.clone();
        thread::spawn(move || {
            let (board, has_blocked) = &*shared;
            let turn = board.sched.next(CpuIndex(1), 0).expect("one waits on CPU 0");
            assert!(turn.vcpu == VcpuIndex(2) && turn.migrated);
            let mut owner = board.vcpus[2].target.owner().expect("free");
            let block = board.sched.block(CpuIndex(1), 0, 100, || {
                let has_halted = owner.try_halt(Space::UNKNOWN);
                has_blocked.store(has_halted.into(), Relaxed);
                has_halted.then(|| Released::by(owner))
            });
            block != Block::Refused
        })
    };
    let (board, has_blocked) = &*shared;
    let has_woken = wakes(board, has_blocked);
    if has_woken {
        let _ = board.sched.wake(VcpuIndex(2), QueueClass::Work, 0);
    }
    let has_blocked = other.join().unwrap();
    if has_woken {
        assert!(has_blocked);
        assert_eq!(board.sched.pop_expired(CpuIndex(1), 1000), None, "its timer is left behind");
    }
}

explored! {
    fn a_vcpu_is_woken_where_it_blocks(Some(3)):
        || home(|board, _| board.vcpus[2].target.post_event() == Notify::Wake);
    /// A waker learns of the block by a hint: it may use the vCPU's previous place.
    fn wake_by_a_hint(Some(3)) fails "its timer is left behind":
        || home(|_, has_blocked| has_blocked.load(Relaxed) != 0);
}

/// CPU 0 puts its vCPU back and has one too many, which goes to CPU 1. Meanwhile CPU 1 takes the
/// vCPU that was just put back, and enters the guest. A nudge tells it of the other vCPU.
fn switching<S: Steps>() {
    let board = Arc::new(Board::new(2, &[Guest::Runs; 3], 0));
    let _ = board.sched.enqueue(CpuIndex(0), VcpuIndex(0), Default::default());
    assert_eq!(board.sched.next(CpuIndex(0), 0).map(|turn| turn.vcpu.0), Some(0));
    // vCPU 0 has run less than vCPU 2 and more than vCPU 1 when it is put back.
    board.sched.place(CpuIndex(0)).with(|queue| {
        for (vcpu, virtual_time) in [(VcpuIndex(1), 10), (VcpuIndex(2), 1000)] {
            let standing = queue.standing(vcpu, VIRTUAL_EPOCH + virtual_time, QueueClass::Work);
            let _somebody_runs = queue.enqueue(vcpu, standing, board.sched.policy());
        }
    });
    let other = {
        let board = board.clone();
        thread::spawn(move || {
            let cpu = Cpu::new(&board, CpuIndex(1));
            let Some(turn) = board.sched.next(CpuIndex(1), 500) else { return false };
            let vcpu = &board.vcpus[turn.vcpu.place()];
            let mut owner = vcpu.target.owner().expect("the vCPU runs on another CPU");
            // The guest does not leave guest mode: the guard is forgotten.
            !S::settle(&cpu, &mut owner, vcpu) && owner.try_enter(CpuId(1)).map(core::mem::forget).is_ok()
        })
    };
    let cpu = Cpu::new(&board, CpuIndex(0));
    cpu.current.set(Some(VcpuIndex(0)));
    let owner = board.vcpus[0].target.owner().expect("free");
    assert!(cpu.put_back::<S>(owner, 500, PutBack::Preempted).is_some());
    let is_in_guest = other.join().unwrap();
    let is_told = board.lines[1].load(Relaxed) != 0;
    assert!(
        !(is_in_guest && board.sched.has_waiting(CpuIndex(1))) || is_told,
        "a vCPU is not told who waits"
    );
}

explored! { fn a_vcpu_that_was_put_back_is_told_where_it_is(Some(4)): switching::<Real> }

/// N after O: the vCPU is taken to be here while another CPU runs it.
struct HereTooLong;

impl Steps for HereTooLong {
    const HERE_TOO_LONG: bool = true;
}

explored! {
    fn current_vcpu_forgotten_after_the_switch(Some(4)) fails "a vCPU is not told who waits":
        switching::<HereTooLong>;
    /// A vCPU is interrupted while another CPU puts it in the timer class: it has work, or is late.
    fn one_that_is_not_promoted_is_late_and_not_lost(None): || {
        let board = Arc::new(Board::new(1, &[Guest::Halts; 2], 0));
        board.block(0, 1, 0);
        let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
        assert_eq!(board.sched.next(CpuIndex(0), 0).map(|turn| turn.vcpu.0), Some(0));
        let poster = {
            let board = board.clone();
            thread::spawn(move || Outside(&board).post::<Real>(VcpuIndex(1)))
        };
        if let Some(vcpu) = board.sched.pop_expired(CpuIndex(0), 0) {
            let cpu = Cpu::new(&board, CpuIndex(0));
            cpu.current.set(Some(VcpuIndex(0)));
            Real::notify(&cpu, vcpu, cpu.target(vcpu).unwrap(), QueueClass::Timer);
        }
        poster.join().unwrap();
        // Later interrupts find it in the line.
        let was_late = board.sched.homes[1].timer_line.load(Relaxed) != 0;
        Outside(&board).post::<Real>(VcpuIndex(1));
        assert_eq!(board.sched.homes[1].timer_line.load(Relaxed), 0, "it is still late ({was_late})");
        let Block::Next(Some(turn)) = board.sched.block(CpuIndex(0), 0, u64::MAX, || Some(Released::made())) else {
            panic!("it is lost")
        };
        assert_eq!(turn.vcpu, VcpuIndex(1));
    };
}
