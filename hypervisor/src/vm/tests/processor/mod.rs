//! The architecture that is made up. A vCPU executes a program; it has a TLB that keeps what it
//! may, interrupts by sender, and one timer.

mod vcpu;
mod wiring;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use alloc::vec;
use alloc::vec::Vec;
use hostlink::counters::Counter;

use crate::vm::CreateError;
use crate::vm::made::{self, End, made_board};

/// Where no memory is: a device.
pub(super) const DEVICE: u64 = 0xf000_0000;
const PAGE: u64 = 4096;

/// What a vCPU executes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Takes so many ticks.
    Work(u64),
    /// Sets the timer, and waits until it has expired.
    Sleep(u64),
    /// Sends an interrupt.
    Send(u32),
    /// Waits for an interrupt of this vCPU's, and takes it.
    WaitFor(u32),
    /// Says that it spins until an interrupt of this vCPU's has come, and takes it.
    SpinFor(u32),
    /// Sets the timer, and works until it has expired.
    Tick(u64),
    /// Waits for a word in memory to change to this, telling where it is.
    SpinOn(u64, u64),
    /// Waits for a word to change, which it does not, and goes on after so many ticks whatever it
    /// is.
    SpinOnFor(u64, u64),
    /// The same until an interrupt of this vCPU's has come, which it takes.
    SpinOnOr(u64, u32),
    /// Notes the time.
    Note,
    /// Writes a word past the nested table, as if it had been there from the beginning.
    Etch(u64, u64),
    /// Loads a word, which has to be this.
    Load(u64, u64),
    /// Loads a word, or finds that there is no memory.
    Try(u64),
    /// Stores 1, or finds that there is no memory, or that it is read-only.
    StoreTry(u64),
    /// Stores a word.
    Store(u64, u64),
    /// Loads a word where there must be no memory.
    Gone(u64),
    /// Moves the memory that was added to this address, as a write to a device's register does.
    Move(u64),
    /// Goes back to the operation of this number, so many times in all.
    Back(usize, u32),
    /// Starts a vCPU that is off.
    Start(u32),
    Reset,
    /// Leaves out the next operation if there was a reset.
    SkipAfterReset,
    /// Resets the machine, unless that has been done so often.
    ResetBelow(u32),
    PowerOff,
    /// Cannot go on.
    Crash,
    /// Has done its part. When all vCPUs have, the machine is switched off.
    Done,
}

thread_local! {
    /// The programs of the next machine's vCPUs.
    static PROGRAMS: RefCell<Vec<Vec<Op>>> = const { RefCell::new(Vec::new()) };
}

/// Runs a machine with these programs on so many CPUs.
pub(super) fn run(
    cpus: usize,
    config: &'static str,
    seed: u64,
    programs: &[&[Op]],
) -> (&'static made::Made<Made>, End) {
    let board = create(cpus, 32 << 20, config, programs).unwrap_or_else(|why| panic!("{why}"));
    (board, board.run(seed))
}

/// The same, which has to end so.
pub(super) fn run_to(
    end: End,
    cpus: usize,
    config: &'static str,
    seed: u64,
    programs: &[&[Op]],
) -> &'static made::Made<Made> {
    let (board, ended) = run(cpus, config, seed, programs);
    assert_eq!(ended, end, "seed {seed}, {cpus} CPUs, {config:?}");
    board
}

/// Makes the machine, with so much memory below it.
pub(super) fn create(
    cpus: usize,
    bytes: u64,
    config: &'static str,
    programs: &[&[Op]],
) -> Result<&'static made::Made<Made>, CreateError> {
    PROGRAMS.set(programs.iter().map(|program| program.to_vec()).collect());
    made::Made::create(vec![(); cpus], bytes, config)
}

/// The architecture.
pub(super) struct Made;

made_board! {
    Made, (),
    fn must_clean() -> bool {
        true
    },
    /// Memory that goes to somebody else: translations of it that are left must not be used any
    /// more.
    fn clean(memory: Range<u64>) {
        let vm = Made::machine().expect("memory comes back from a machine");
        for vcpu in &vm.vcpus {
            let mut tlb = vcpu.inbox.tlb.lock().unwrap();
            tlb.values_mut().filter(|entry| memory.contains(&entry.host)).for_each(|entry| entry.is_void = true);
        }
        vm.guest.cleaned.fetch_add(memory.end - memory.start, Ordering::Relaxed);
    }
}

/// A translation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    host: u64,
    is_writable: bool,
    /// The memory is somebody else's by now.
    is_void: bool,
}

/// What others post to a vCPU; and its TLB, so that the checks find it.
#[derive(Default)]
pub(super) struct Inbox {
    /// A bit for each sender.
    interrupts: AtomicU64,
    start: AtomicU32,
    tlb: Mutex<BTreeMap<u64, Entry>>,
}

/// What vCPUs share.
pub(super) struct Shared {
    programs: Vec<Vec<Op>>,
    root: u64,
    done: AtomicU32,
    /// How often devices were reset.
    pub(super) resets: AtomicU32,
    /// What was typed.
    pub(super) console: Mutex<Vec<u8>>,
    /// Bytes of memory that were cleaned.
    pub(super) cleaned: AtomicU64,
    /// How often a vCPU left its CPU for a reset while a change of memory was under way.
    pub(super) taken_over: AtomicU32,
    /// Most ticks that a vCPU was woken after its timer's time.
    pub(super) latest: AtomicU64,
    /// Who noted the time when.
    pub(super) notes: Mutex<Vec<(u32, u64)>>,
    /// No interrupt ends guest mode, and flushes that wait for it are given up.
    pub(super) stalls: core::sync::atomic::AtomicBool,
}

/// The sum of a counter over all vCPUs.
pub(super) fn counted(board: &'static made::Made<Made>, counter: Counter) -> u64 {
    let vm = board.machine();
    vm.vcpus.iter().map(|vcpu| vm.counters_of(vcpu)[counter as usize].load(Ordering::Relaxed)).sum()
}

/// When a vCPU noted the time, one after the other.
pub(super) fn notes_of(board: &'static made::Made<Made>, vcpu: u32) -> Vec<u64> {
    let notes = board.machine().guest.notes.lock().unwrap();
    notes.iter().filter(|note| note.0 == vcpu).map(|note| note.1).collect()
}
