//! Small programs for the board. Each states the failure that it would detect.

use loom::sync::Arc;
use loom::thread;

use super::board::{Board, Cpu, Guest, Outside, Real, Steps};
use crate::model::explored;
use crate::sched::{CpuIndex, QueueClass, VcpuIndex};

/// Runs the CPUs' loops from `first` on, and an outside poster for each vCPU in `posts`, until all
/// posted items have been found.
fn run<S: Steps>(board: Board, cpus: u32, posts: &'static [u32]) {
    let board = Arc::new(board);
    let posters = posts.iter().map(|&vcpu| {
        let board = board.clone();
        thread::spawn(move || Outside(&board).post::<S>(VcpuIndex(vcpu)))
    });
    let posters: Vec<_> = posters.collect();
    let others = (1..cpus).map(|cpu| {
        let board = board.clone();
        thread::spawn(move || Cpu::new(&board, CpuIndex(cpu)).run::<S>())
    });
    let others: Vec<_> = others.collect();
    Cpu::new(&board, CpuIndex(0)).run::<S>();
    others.into_iter().chain(posters).for_each(|thread| thread.join().unwrap());
}

/// A vCPU that halts, and a CPU that then idles. One poster posts to it.
pub(super) fn halting<S: Steps>() {
    let board = Board::new(1, &[Guest::Halts], 1);
    let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
    run::<S>(board, 1, &[0]);
}

/// The same with two posters.
pub(super) fn halting_under_two<S: Steps>() {
    let board = Board::new(1, &[Guest::Halts], 2);
    let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
    run::<S>(board, 1, &[0, 0]);
}

/// A vCPU that has halted, and a CPU that idles or is about to.
pub(super) fn idling<S: Steps>() {
    let board = Board::new(1, &[Guest::Halts], 1);
    board.block(0, 0, u64::MAX);
    run::<S>(board, 1, &[0]);
}

/// A vCPU that runs without end while another one that has halted is woken on its CPU.
pub(super) fn nudging<S: Steps>() {
    let board = Board::new(1, &[Guest::Runs, Guest::Halts], 1);
    board.block(0, 1, u64::MAX);
    let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
    run::<S>(board, 1, &[1]);
}

/// The same, where the vCPU that is to make room halts at that moment.
pub(super) fn nudging_one_that_halts<S: Steps>() {
    let board = Board::new(1, &[Guest::Halts, Guest::Halts], 1);
    board.block(0, 1, u64::MAX);
    let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
    run::<S>(board, 1, &[1]);
}

/// Two vCPUs that halt on two CPUs; both are posted to, and either may go to the other CPU.
pub(super) fn two_cpus<S: Steps>() {
    let board = Board::new(2, &[Guest::Halts, Guest::Halts], 2);
    board.block(0, 0, u64::MAX);
    let _ = board.sched.wake(VcpuIndex(1), QueueClass::Work, 0);
    run::<S>(board, 2, &[0, 1]);
}

/// A vCPU whose timer expires while it is posted to, beside a vCPU that runs without end.
pub(super) fn expiring<S: Steps>() {
    let board = Board::new(1, &[Guest::Halts, Guest::Runs], 1);
    board.block(0, 0, 0);
    let _ = board.sched.wake(VcpuIndex(1), QueueClass::Work, 0);
    run::<S>(board, 1, &[0]);
}

/// `nudging` with two guests.
fn nudging_another_guest() {
    let board = Board::apart(1, &[Guest::Runs, Guest::Halts], 1);
    board.block(0, 1, u64::MAX);
    let _ = board.sched.wake(VcpuIndex(0), QueueClass::Work, 0);
    run::<Real>(board, 1, &[1]);
}

/// `two_cpus` with two guests, of which one is posted to.
fn two_guests_on_two_cpus() {
    let board = Board::apart(2, &[Guest::Halts, Guest::Halts], 1);
    board.block(0, 0, u64::MAX);
    let _ = board.sched.wake(VcpuIndex(1), QueueClass::Work, 0);
    run::<Real>(board, 2, &[0]);
}

explored! {
    fn a_guest_makes_room_for_one_that_wakes(Some(2)): nudging_another_guest;
    fn two_guests_lose_nothing_between_them(Some(1)): two_guests_on_two_cpus;
    fn o4_a_vcpu_that_halts_is_woken(Some(4)): halting::<Real>;
    fn o4_a_vcpu_that_halts_is_woken_once_by_two(Some(3)): halting_under_two::<Real>;
    fn a_cpu_that_goes_idle_is_kicked(Some(4)): idling::<Real>;
    fn a_vcpu_makes_room_for_one_that_is_woken(Some(3)): nudging::<Real>;
    fn a_vcpu_that_halts_makes_room_as_well(Some(3)): nudging_one_that_halts::<Real>;
    fn two_cpus_lose_nothing_between_them(Some(1)): two_cpus::<Real>;
    fn a_timer_that_expires_loses_no_interrupt(Some(3)): expiring::<Real>;
}
