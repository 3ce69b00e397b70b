//! A mock board, for tests on the host: CPUs, a clock, interrupts, the control channel, memory.
//!
//! Each CPU is a thread, and one of them runs at a time. Where the core calls the board for
//! something that may take time (waiting for an interrupt, taking interrupts, running a guest), the
//! thread passes its turn to the CPU that a random number generator selects. So a run is a function
//! of its seed. The clock advances by one each time it is read, and when all CPUs wait it jumps to
//! the next timer. If there is no timer the run is over: nothing would ever happen again.
//!
//! A test that handles one exit needs no run: [`MockBoard::create`] makes the calling thread CPU 0,
//! and [`MockBoard::with_vcpu`] gives it a vCPU.

mod asking;
pub(crate) mod board_impl;
pub(crate) mod creation;
#[cfg(test)]
pub(crate) mod largest;
pub mod live;
pub(crate) mod processor;

pub(crate) use board_impl::OnMockBoard;

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use baremetal::random::Random;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hostlink::exit::ExitCode;
use hostlink::guests::{GONE, GuestState};
use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

use super::arch::Arch;
use super::context::Context;
use super::host::Host;
use super::machine::Vm;
use super::percpu::PerCpu;
use super::run;
use crate::sched::Turn;
use crate::stopping::PAUSE;

/// Ticks per second: one per nanosecond.
pub(crate) const HZ: u64 = 1_000_000_000;
/// Turns of CPUs after which a run is ended: no test takes this many.
const TURNS_MAX: u64 = 2_000_000;

/// The guest is to pause, or goes on. No vCPU is told.
pub(crate) fn set_pause<A: Arch>(vm: &Vm<A>, wanted: bool) {
    if wanted { vm.stopping.set(PAUSE) } else { vm.stopping.clear(PAUSE) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Exit(ExitCode),
    /// All CPUs wait, no timer is set, and there is no more input.
    Quiet,
    /// It would go on forever.
    Endless,
    Panic,
}

/// Unwinds the thread of a CPU at the end of a run.
struct Over;

#[derive(Clone, Copy, Debug, Default)]
struct CpuLines {
    kick: bool,
    control: bool,
    serial: bool,
    /// When its timer fires.
    timer: u64,
    waits: bool,
}

/// The CPU whose turn it is, and the state of the run.
struct Turns {
    running: u32,
    lines: Vec<CpuLines>,
    random: Random,
    left: u64,
    /// The CPUs are threads now.
    is_live: bool,
    end: Option<End>,
    /// Bytes for the control channel, and when they arrive.
    asked: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that the sender of requests has sent and the hypervisor has not read.
    to_hypervisor: VecDeque<u8>,
    /// The answers: complete lines, and when they were sent. `line` is the incomplete one.
    answers: Vec<String>,
    answered_at: Vec<u64>,
    /// How many of them are the last lines of their answers.
    answered: usize,
    line: String,
    /// The sender of the request of this number does not ask for more records.
    hung_up: Option<u64>,
    /// The run ends when so many requests have been answered.
    enough: Option<usize>,
    tool: Option<Tool>,
    /// Whoever asks, if that is not the test itself: then the run does not end by itself.
    outside: Option<UnixStream>,
    is_ended: bool,
}

/// The number in an environment variable, by which a search goes on for longer than in each test.
pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// What the host tool does besides, whenever a CPU passes its turn on: it sees all answers so far,
/// and returns requests that it makes at once.
pub(crate) type Tool = Box<dyn FnMut(&[String]) -> Vec<String> + Send>;

impl Turns {
    fn is_due(&self, cpu: u32, now: u64) -> bool {
        let CpuLines { kick, control, serial, timer, .. } = self.lines[cpu as usize];
        kick || control || serial || timer <= now
    }

    fn deliver(&mut self, now: u64) {
        while self.asked.front().is_some_and(|&(when, _)| when <= now) {
            let (_, bytes) = self.asked.pop_front().expect("there is one");
            self.to_hypervisor.extend(bytes);
            self.lines[0].control = true;
        }
    }
}

pub(crate) struct MockBoard<A: Arch> {
    cpus: Vec<PerCpu<A>>,
    host: OnceLock<Host<A>>,
    clock: AtomicU64,
    turns: Mutex<Turns>,
    /// One per CPU.
    turned: Vec<Condvar>,
    kicks: AtomicU64,
    /// Kicks that are sent from this time on are lost.
    kicks_until: AtomicU64,
    /// What is left of the heap.
    pub(crate) heap_left: AtomicU64,
    /// How long it takes to zero a page.
    page_ticks: AtomicU64,
    /// For each CPU the number of vCPU turns that began since it last took interrupts; and the
    /// maximum over all CPUs.
    turns_since: Vec<AtomicU32>,
    turns_most: AtomicU32,
    /// Input of the real console.
    console: Mutex<VecDeque<u8>>,
    /// The console that was chosen last, and what the screen shows.
    chosen: Mutex<Option<u32>>,
    screen: Mutex<Vec<u8>>,
}

thread_local! {
    /// The board, and the CPU that the calling thread represents.
    static HERE: Cell<Option<(&'static (dyn Any + Sync), u32)>> = const { Cell::new(None) };
}

/// The board of the calling thread, and its CPU.
fn here<A: Arch>() -> (&'static MockBoard<A>, u32) {
    let (board, cpu) = HERE.get().expect("a test begins with `MockBoard::create`");
    let board = (board as &dyn Any).downcast_ref().expect("a test is about one architecture");
    (board, cpu)
}

/// From here on the calling thread is this CPU of its board.
pub(crate) fn act_as(cpu: u32) {
    HERE.set(HERE.get().map(|(board, _)| (board, cpu)));
}

impl<A: Arch> MockBoard<A> {
    pub(crate) fn host(&'static self) -> &'static Host<A> {
        self.host.get().expect("it is made with the board")
    }

    /// The first guest.
    pub(crate) fn machine(&'static self) -> &'static Vm<A> {
        self.host().first_guest().expect("it is made with the board")
    }

    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Maximum number of vCPU turns that a CPU began without taking interrupts in between.
    pub(crate) fn turns_without_interrupts(&self) -> u32 {
        self.turns_most.load(Ordering::Relaxed)
    }

    pub(crate) fn time(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Sends a line over the control channel at time `when` at the earliest. Lines must be in
    /// ascending order of their times.
    pub(crate) fn ask(&self, when: u64, line: &str) {
        let mut turns = self.lock();
        assert!(turns.asked.back().is_none_or(|&(last, _)| last <= when));
        turns.asked.push_back((when, [line.as_bytes(), b"\n"].concat()));
    }

    /// The sender of the request of this number disconnects before its first record arrives.
    pub(crate) fn hang_up(&self, number: u64) {
        self.lock().hung_up = Some(number);
    }

    pub(crate) fn answers(&self) -> Vec<String> {
        self.lock().answers.clone()
    }

    pub(crate) fn set_tool(&self, tool: Tool) {
        self.lock().tool = Some(tool);
    }

    pub(crate) fn type_in(&self, bytes: &[u8]) {
        self.console.lock().expect("no test panics with it").extend(bytes);
        self.lock().lines[0].serial = true;
    }

    /// Runs the machine until there is nothing more to do. `seed` determines the order in which its
    /// CPUs run.
    pub(crate) fn run(&'static self, seed: u64) -> End {
        {
            let mut turns = self.lock();
            turns.random = Random::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
            turns.is_live = true;
            turns.running = 0;
        }
        let cpu_thread = |cpu: u32| {
            HERE.set(Some((self, cpu)));
            let over = catch_unwind(AssertUnwindSafe(|| -> () {
                self.wait_for_turn(self.lock(), cpu);
                if cpu == 0 {
                    if !self.host().has_begun() {
                        run::start(self.host());
                    }
                    run::cpu_loop(self.host())
                }
                run::cpu_loop(run::wait_for_start::<A>())
            }));
            if over.is_err_and(|why| !why.is::<Over>()) {
                self.finish(self.lock(), End::Panic);
            }
        };
        std::thread::scope(|scope| {
            for cpu in 0..self.cpus.len() as u32 {
                scope.spawn(move || cpu_thread(cpu));
            }
        });
        let mut turns = self.lock();
        turns.is_live = false;
        turns.end.take().expect("threads end when the run does")
    }

    /// Zeroing a page of 4 KiB takes so many ticks from now on; none by default.
    pub(crate) fn zero_takes(&self, ticks: u64) {
        self.page_ticks.store(ticks, Ordering::Relaxed);
    }

    /// Gives a vCPU of the first guest that does not run to CPU 0, which is the calling thread.
    pub(crate) fn with_vcpu<R>(&'static self, vcpu: u32, act: impl FnOnce(&mut Context<'_, A>) -> R) -> R {
        let turn = Turn { vcpu: self.machine().vcpus[vcpu as usize].row, migrated: false, waited: 0 };
        self.with_turn(turn, act)
    }

    /// The same for a turn that the scheduler might have given.
    pub(crate) fn with_turn<R>(&'static self, turn: Turn, act: impl FnOnce(&mut Context<'_, A>) -> R) -> R {
        let cpu = &self.cpus[0];
        let mut workspace = A::new_workspace(cpu);
        let mut context = Context::new(self.host(), cpu, &turn, &mut workspace);
        // The boot vCPU finds that it has been started.
        A::take_signals(&mut context);
        let result = act(&mut context);
        A::save_state(&mut context);
        // SAFETY: the context is not used afterwards.
        unsafe { core::mem::ManuallyDrop::drop(&mut context.owner) };
        result
    }

    /// Returns how `act` ended the run, if it did.
    pub(crate) fn end_of(&self, act: impl FnOnce()) -> Option<End> {
        let over = catch_unwind(AssertUnwindSafe(act)).err()?;
        if !over.is::<Over>() {
            resume_unwind(over);
        }
        self.lock().end.take()
    }

    fn lock(&self) -> MutexGuard<'_, Turns> {
        // A thread that panics has reported its failure already.
        self.turns.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn finish(&self, mut turns: MutexGuard<'_, Turns>, end: End) {
        turns.end.get_or_insert(end);
        self.turned.iter().for_each(Condvar::notify_one);
    }

    fn stop(&self, turns: MutexGuard<'_, Turns>, end: End) -> ! {
        self.finish(turns, end);
        resume_unwind(Box::new(Over))
    }

    /// Waits until it is this CPU's turn.
    fn wait_for_turn(&self, mut turns: MutexGuard<'_, Turns>, cpu: u32) {
        loop {
            if turns.end.is_some() {
                drop(turns);
                resume_unwind(Box::new(Over));
            }
            if turns.running == cpu {
                return;
            }
            turns = self.turned[cpu as usize].wait(turns).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }

    /// How a guest has ended is said while it is off or has failed, and at no other time.
    fn assert_ends_are_said(&self) {
        let Some(host) = self.host.get() else { return };
        for number in 0..host.bundle.guests.len() as u32 {
            let (state, code) = (host.state_of(number), host.entry(number).exit.load(Ordering::Relaxed));
            let is_off =
                [ExitCode::GuestPowerOff, ExitCode::GuestReset].map(|off| off as u32).contains(&code);
            let is_right = match state {
                GuestState::Off => is_off,
                GuestState::Failed => code != 0 && !is_off,
                GuestState::Empty => [0, GONE].contains(&code),
                _ => code == 0,
            };
            assert!(is_right, "guest {number} is {state}, and has ended by {code:#x}");
        }
    }

    pub(crate) fn pass(&self, cpu: u32, waits: bool) {
        let mut turns = self.lock();
        if !turns.is_live {
            return;
        }
        self.assert_ends_are_said();
        if turns.is_ended {
            self.stop(turns, End::Quiet);
        }
        turns.left -= u64::from(turns.outside.is_none());
        if turns.left == 0 {
            self.stop(turns, End::Endless);
        }
        let now = self.time();
        let Turns { tool, answers, asked, .. } = &mut *turns;
        for line in tool.as_mut().map(|tool| tool(answers)).unwrap_or_default() {
            asked.push_back((now, [line.as_bytes(), b"\n"].concat()));
        }
        if turns.enough.is_some_and(|enough| turns.answered >= enough) {
            self.stop(turns, End::Quiet);
        }
        turns.lines[cpu as usize].waits = waits;
        loop {
            let now = self.time();
            turns.deliver(now);
            let ready = |&cpu: &u32| !turns.lines[cpu as usize].waits || turns.is_due(cpu, now);
            let ready: Vec<u32> = (0..self.cpus.len() as u32).filter(ready).collect();
            if !ready.is_empty() {
                turns.running = ready[turns.random.below(ready.len() as u64) as usize];
                break;
            }
            let timers = turns.lines.iter().map(|lines| lines.timer);
            let next = timers.chain(turns.asked.front().map(|&(when, _)| when)).min().unwrap_or(u64::MAX);
            if turns.outside.is_some() {
                drop(turns);
                live::pause();
                turns = self.lock();
            }
            if turns.is_ended || next == u64::MAX && turns.outside.is_none() {
                self.stop(turns, End::Quiet);
            }
            if next != u64::MAX {
                self.clock.store(next, Ordering::Relaxed);
            }
        }
        let next = turns.running;
        if next != cpu {
            // It would wait for the lock first, if that were held still.
            drop(turns);
            self.turned[next as usize].notify_one();
            self.wait_for_turn(self.lock(), cpu);
        }
    }

    pub(crate) fn is_interrupted(&self, cpu: u32) -> bool {
        let mut turns = self.lock();
        let now = self.time();
        turns.deliver(now);
        turns.is_due(cpu, now)
    }
}
