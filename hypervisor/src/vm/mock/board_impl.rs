//! The board's implementation of the core's traits, for the calling thread.

use super::{End, HZ, here};
use crate::sched::CpuIndex;
use crate::vm::arch::{Arch, Board, Clock, Cpus};
use crate::vm::host::Host;
use crate::vm::interrupts;
use crate::vm::percpu::PerCpu;
use alloc::format;
use core::ops::Range;
use core::sync::atomic::Ordering;
use hostlink::ctl::Reply;
use hostlink::exit::ExitCode;

/// Passes the turn on: for operations that may take time.
pub(crate) fn pass<A: Arch>() {
    let (board, cpu) = here::<A>();
    board.pass(cpu, false);
}

pub(crate) fn advance<A: Arch>(ticks: u64) {
    here::<A>().0.clock.fetch_add(ticks, Ordering::Relaxed);
}

pub(crate) fn is_interrupted<A: Arch>() -> bool {
    let (board, cpu) = here::<A>();
    board.is_interrupted(cpu)
}

pub(crate) fn begin_turn<A: Arch>() {
    let (board, cpu) = here::<A>();
    let turns = board.turns_since[cpu as usize].fetch_add(1, Ordering::Relaxed) + 1;
    board.turns_most.fetch_max(turns, Ordering::Relaxed);
}

/// Takes the pending interrupts, right after an exit: no other CPU runs before.
pub(crate) fn take_what_pends<A: Arch>() {
    let (board, cpu) = here::<A>();
    board.turns_since[cpu as usize].store(0, Ordering::Relaxed);
    loop {
        let mut turns = board.lock();
        let now = board.time();
        turns.deliver(now);
        let lines = &mut turns.lines[cpu as usize];
        if core::mem::take(&mut lines.kick) {
            drop(turns);
            interrupts::on_kick::<A>();
            continue;
        }
        if lines.timer <= now {
            lines.timer = u64::MAX;
            drop(turns);
            interrupts::on_timer::<A>();
            continue;
        }
        if core::mem::take(&mut lines.control) {
            drop(turns);
            interrupts::on_control_interrupt::<A>();
            continue;
        }
        if core::mem::take(&mut lines.serial) {
            drop(turns);
            interrupts::on_serial_interrupt::<A>();
            continue;
        }
        return;
    }
}

pub(crate) fn receive_console<A: Arch>() -> Option<u8> {
    here::<A>().0.console.lock().expect("no test panics with it").pop_front()
}

/// An architecture on the board.
pub trait OnMockBoard: Sized + 'static {
    type Data: 'static;

    /// See [`Board::must_clean`].
    fn must_clean() -> bool {
        false
    }

    /// See [`Board::clean`].
    fn clean(_: Range<u64>) {}
}

impl<A: OnMockBoard + Arch> Clock for A {
    fn now() -> u64 {
        here::<A>().0.clock.fetch_add(1, Ordering::Relaxed)
    }

    fn hz() -> u64 {
        HZ
    }
}

// SAFETY: each CPU of the board is a thread, and the thread knows its CPU; its data is for this
// thread.
unsafe impl<A: OnMockBoard + Arch> Cpus for A {
    type CpuData = A::Data;

    fn this_cpu() -> &'static PerCpu<A> {
        let (board, cpu) = here::<A>();
        &board.cpus[cpu as usize]
    }

    fn cpu(index: CpuIndex) -> Option<&'static PerCpu<A>> {
        here::<A>().0.cpus.get(index.place())
    }

    fn take_interrupts() {
        pass::<A>();
        take_what_pends::<A>();
    }

    fn wait_for_interrupt() {
        let (board, cpu) = here::<A>();
        board.pass(cpu, true);
        take_what_pends::<A>();
    }

    fn kick(cpu: &PerCpu<A>) {
        let board = here::<A>().0;
        board.kicks.fetch_add(1, Ordering::Relaxed);
        let is_lost = board.time() >= board.kicks_until.load(Ordering::Relaxed);
        board.lock().lines[cpu.index.place()].kick |= !is_lost;
        // The other CPU may take the interrupt at once.
        pass::<A>();
    }

    fn arm_timer(deadline: u64, _: u64) {
        let (board, cpu) = here::<A>();
        board.lock().lines[cpu as usize].timer = deadline;
    }

    fn stop() -> ! {
        unreachable!("no CPU of the board is given up")
    }
}

impl<A: OnMockBoard + Arch> Board for A {
    fn host() -> Option<&'static Host<A>> {
        here::<A>().0.host.get()
    }

    fn must_clean() -> bool {
        <A as OnMockBoard>::must_clean()
    }

    fn clean(memory: Range<u64>) {
        <A as OnMockBoard>::clean(memory);
    }

    /// It takes as long as [`MockBoard::zero_takes`](super::MockBoard::zero_takes) says.
    unsafe fn zero(start: u64, size: u64) {
        advance::<A>(here::<A>().0.page_ticks.load(Ordering::Relaxed) * size / 4096);
        // SAFETY: the caller vouches for the range.
        unsafe { core::ptr::write_bytes(start as *mut u8, 0, size as usize) };
    }

    fn heap_used() -> u64 {
        0
    }

    fn heap_left() -> u64 {
        here::<A>().0.heap_left.load(Ordering::Relaxed)
    }

    fn stack_left() -> u64 {
        64 << 10
    }

    fn chosen_console() -> Option<u32> {
        here::<A>().0.chosen.lock().expect("no test panics with it").take()
    }

    fn show(text: &mut dyn Iterator<Item = u8>, alone: bool) {
        let mut screen = here::<A>().0.screen.lock().expect("no test panics with it");
        screen.truncate(if alone { 0 } else { usize::MAX });
        screen.extend(text);
    }

    fn receive_control() -> Option<u8> {
        here::<A>().0.lock().to_hypervisor.pop_front()
    }

    /// The sender of the request asks for more after each record.
    fn send_control(byte: u8) {
        let board = here::<A>().0;
        let mut turns = board.lock();
        if byte != b'\n' {
            return turns.line.push(byte.into());
        }
        let line = core::mem::take(&mut turns.line);
        if let Some(outside) = &mut turns.outside {
            return super::live::send(outside, &line);
        }
        let record = line.split_once(" : ").and_then(|(number, _)| number.parse().ok());
        if let Some(number) = record.filter(|&number| turns.hung_up != Some(number)) {
            turns.to_hypervisor.extend(format!("{}\n", Reply::Next(number)).bytes());
            turns.lines[0].control = true;
        }
        turns.answered += usize::from(record.is_none());
        turns.answers.push(line);
        turns.answered_at.push(board.time());
    }

    fn exit(code: ExitCode) -> ! {
        let board = here::<A>().0;
        board.stop(board.lock(), End::Exit(code))
    }
}
