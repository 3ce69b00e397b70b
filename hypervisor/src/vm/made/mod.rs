//! A mock board, for tests on the host: CPUs, a clock, interrupts, the control channel, memory.
//!
//! Each CPU is a thread, and one of them runs at a time. Where the core calls the board for
//! something that may take time (waiting for an interrupt, taking interrupts, running a guest), the
//! thread passes its turn to the CPU that a random number generator selects. So a run is a function
//! of its seed. The clock advances by one each time it is read, and when all CPUs wait it jumps to
//! the next timer. If there is no timer the run is over: nothing would ever happen again.
//!
//! A test that handles one exit needs no run: [`Made::create`] makes the calling thread CPU 0, and
//! [`Made::with_vcpu`] gives it a vCPU.

mod board;
pub(crate) mod offer;

pub(crate) use board::made_board;

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use alloc::alloc::{Layout, alloc_zeroed};
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use baremetal::random::Random;
use hostlink::bundle::{self, Reader};
use hostlink::exit::ExitCode;

use super::arch::Arch;
use super::context::Context;
use super::files::{Bundle, CreateError, Files};
use super::host::Host;
use super::machine::Vm;
use super::percpu::PerCpu;
use super::run;
use crate::free_memory::FreeMemory;
use crate::sched::Turn;

/// Ticks per second: one per nanosecond.
pub(crate) const HZ: u64 = 1_000_000_000;
/// Turns of CPUs after which a run is ended: no test takes this many.
const TURNS_MAX: u64 = 2_000_000;

/// How a run has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// The hypervisor exited.
    Exit(ExitCode),
    /// All CPUs wait, no timer is set, and there is no more input.
    Quiet,
    /// It would go on forever.
    Endless,
    /// A CPU has panicked.
    Panic,
}

/// Unwinds the thread of a CPU at the end of a run.
struct Over;

/// A CPU's interrupt lines.
#[derive(Clone, Copy, Debug, Default)]
struct Lines {
    kick: bool,
    control: bool,
    serial: bool,
    /// When its timer fires.
    timer: u64,
    /// It waits for one of these lines.
    waits: bool,
}

/// The CPU whose turn it is, and the state of the run.
struct Turns {
    running: u32,
    lines: Vec<Lines>,
    random: Random,
    left: u64,
    /// The CPUs are threads now.
    is_live: bool,
    end: Option<End>,
    /// Bytes for the control channel, and when they arrive.
    asked: VecDeque<(u64, Vec<u8>)>,
    /// Bytes that the sender of requests has sent and the hypervisor has not read.
    to_hypervisor: VecDeque<u8>,
    /// The answers: complete lines. `line` is the incomplete one.
    answers: Vec<String>,
    line: String,
    /// The sender of the request of this number does not ask for more records.
    hung_up: Option<u64>,
}

impl Turns {
    fn is_due(&self, cpu: u32, now: u64) -> bool {
        let Lines { kick, control, serial, timer, .. } = self.lines[cpu as usize];
        kick || control || serial || timer <= now
    }

    /// Delivers the input that has arrived by now.
    fn deliver(&mut self, now: u64) {
        while self.asked.front().is_some_and(|&(when, _)| when <= now) {
            let (_, bytes) = self.asked.pop_front().expect("there is one");
            self.to_hypervisor.extend(bytes);
            self.lines[0].control = true;
        }
    }
}

/// The board.
pub(crate) struct Made<A: Arch> {
    cpus: Vec<PerCpu<A>>,
    host: OnceLock<Host<A>>,
    clock: AtomicU64,
    turns: Mutex<Turns>,
    /// One per CPU.
    turned: Vec<Condvar>,
    /// Number of kicks sent.
    kicks: AtomicU64,
    /// For each CPU the number of vCPU turns that began since it last took interrupts; and the
    /// maximum over all CPUs.
    turns_since: Vec<AtomicU32>,
    turns_most: AtomicU32,
    /// Input of the real console.
    console: Mutex<VecDeque<u8>>,
}

thread_local! {
    /// The board, and the CPU that the calling thread represents.
    static HERE: Cell<Option<(&'static (dyn Any + Sync), u32)>> = const { Cell::new(None) };
}

/// The board of the calling thread, and its CPU.
fn here<A: Arch>() -> (&'static Made<A>, u32) {
    let (board, cpu) = HERE.get().expect("a test begins with `Made::create`");
    let board = (board as &dyn Any).downcast_ref().expect("a test is about one architecture");
    (board, cpu)
}

/// Host memory that serves as a machine's physical memory: that of the calling thread's last
/// machine if it has the same size. That machine is no longer in use, and the new one must clear
/// what it left behind.
fn memory(bytes: u64) -> Range<u64> {
    thread_local! {
        static LAST: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
    }
    let (last, size) = LAST.get();
    if size == bytes {
        return last..last + bytes;
    }
    let layout = Layout::from_size_align(bytes as usize, 2 << 20).expect("a size");
    // SAFETY: the size is not 0.
    let start = unsafe { alloc_zeroed(layout) }.expose_provenance() as u64;
    assert_ne!(start, 0, "no memory for a test");
    LAST.set((start, bytes));
    start..start + bytes
}

impl<A: Arch> Made<A> {
    /// A machine for this configuration on a board with these CPUs and `bytes` of memory; the
    /// calling thread is CPU 0.
    pub(crate) fn create(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        config: &'static str,
    ) -> Result<&'static Self, CreateError> {
        let member = |name: &str| match name {
            bundle::CONFIG => Some(config.as_bytes()),
            bundle::KERNEL => Some(&[][..]),
            _ => None,
        };
        let config = *Reader::new(member).map_err(CreateError::Bundle)?.machine();
        let files = Files { kernel: &[], initrd: None, config };
        Self::create_from(cpus, bytes, files)
    }

    /// A machine with several guests, which have these configurations.
    pub(crate) fn create_several(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        configs: &[&'static str],
    ) -> Result<&'static Self, CreateError> {
        let member = |name: &str| match name.strip_prefix("guests/") {
            Some(number) => {
                number.parse().ok().and_then(|number: usize| configs.get(number)).map(|text| text.as_bytes())
            }
            None => Some(&[][..]).filter(|_| [bundle::CONFIG, bundle::KERNEL].contains(&name)),
        };
        let reader = Reader::new(member).map_err(CreateError::Bundle)?;
        let guests = (0..reader.guest_count())
            .map(|number| Files::of_guest(&reader, number))
            .collect::<Result<_, _>>()?;
        let config = *reader.machine();
        let board = Self::board(cpus);
        board.found(bytes, Bundle { config, is_single: false, symbols: None, guests })?;
        board.host().create_guests()?;
        Ok(board)
    }

    /// The same with the given files.
    pub(crate) fn create_from(
        cpus: impl IntoIterator<Item = A::CpuData>,
        bytes: u64,
        files: Files,
    ) -> Result<&'static Self, CreateError> {
        let board = Self::board(cpus);
        let bundle =
            Bundle { config: files.config, is_single: true, symbols: None, guests: alloc::vec![files] };
        board.found(bytes, bundle)?;
        // Its rows differ from its vCPUs' indices.
        board.host().create_guest_in(0, 7, &files)?.load_at_once().map_err(CreateError::Load)?;
        Ok(board)
    }

    /// Gives the board what its guests share.
    fn found(&self, bytes: u64, bundle: Bundle) -> Result<(), CreateError> {
        let mut free = FreeMemory::default();
        free.add(memory(bytes));
        assert!(self.host.set(Host::new(bundle, &mut free, Some(1_700_000_000))?).is_ok());
        Ok(())
    }

    /// A board without guests; the calling thread is CPU 0.
    fn board(cpus: impl IntoIterator<Item = A::CpuData>) -> &'static Self {
        let cpus: Vec<_> =
            (0..).zip(cpus).map(|(index, data)| PerCpu::new(index, index.into(), data)).collect();
        let lines = Lines { timer: u64::MAX, ..Lines::default() };
        let board: &'static Self = Box::leak(Box::new(Self {
            host: OnceLock::new(),
            clock: AtomicU64::new(1000),
            turns: Mutex::new(Turns {
                running: 0,
                lines: alloc::vec![lines; cpus.len()],
                random: Random::new(1),
                left: TURNS_MAX,
                is_live: false,
                end: None,
                asked: VecDeque::new(),
                to_hypervisor: VecDeque::new(),
                answers: Vec::new(),
                line: String::new(),
                hung_up: None,
            }),
            turned: cpus.iter().map(|_| Condvar::new()).collect(),
            kicks: AtomicU64::new(0),
            turns_since: cpus.iter().map(|_| AtomicU32::new(0)).collect(),
            turns_most: AtomicU32::new(0),
            console: Mutex::new(VecDeque::new()),
            cpus,
        }));
        for cpu in &board.cpus {
            assert!(cpu.presence.come_online());
        }
        HERE.set(Some((board, 0)));
        board
    }

    /// What its guests share.
    pub(crate) fn host(&'static self) -> &'static Host<A> {
        self.host.get().expect("it is made with the board")
    }

    /// The first guest.
    pub(crate) fn machine(&'static self) -> &'static Vm<A> {
        self.host().first_guest().expect("it is made with the board")
    }

    /// Number of kicks sent so far.
    pub(crate) fn kicks(&self) -> u64 {
        self.kicks.load(Ordering::Relaxed)
    }

    /// Maximum number of vCPU turns that a CPU began without taking interrupts in between.
    pub(crate) fn turns_without_interrupts(&self) -> u32 {
        self.turns_most.load(Ordering::Relaxed)
    }

    /// The time.
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

    /// The lines of the answers.
    pub(crate) fn answers(&self) -> Vec<String> {
        self.lock().answers.clone()
    }

    /// The real console receives these bytes.
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
                    run::start(self.host());
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

    /// Ends the run on the calling CPU.
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

    /// Passes the turn on.
    pub(crate) fn pass(&self, cpu: u32, waits: bool) {
        let mut turns = self.lock();
        if !turns.is_live {
            return;
        }
        turns.left -= 1;
        if turns.left == 0 {
            self.stop(turns, End::Endless);
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
            if next == u64::MAX {
                self.stop(turns, End::Quiet);
            }
            self.clock.store(next, Ordering::Relaxed);
        }
        if turns.running != cpu {
            self.turned[turns.running as usize].notify_one();
            self.wait_for_turn(turns, cpu);
        }
    }

    /// Whether an interrupt is pending on a CPU.
    pub(crate) fn is_interrupted(&self, cpu: u32) -> bool {
        let mut turns = self.lock();
        let now = self.time();
        turns.deliver(now);
        turns.is_due(cpu, now)
    }
}
