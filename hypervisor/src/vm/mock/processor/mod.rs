//! The mock architecture. A vCPU executes a program; it has a TLB that keeps every translation it
//! may, interrupts by sender, and one timer.

mod vcpu;
mod wiring;

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;
use hostlink::name::Name;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::sched::CpuIndex;
use crate::stopping;
use crate::vm::arch::Board;
use crate::vm::mock::{End, MockBoard, OnMockBoard};
use crate::vm::{CreateError, Vm};

/// An address without memory: a device.
pub(in crate::vm) const DEVICE: u64 = 0xf000_0000;
const PAGE: u64 = 4096;

/// All guests have switched themselves off.
pub(in crate::vm) const OFF: End = End::Exit(ExitCode::GuestPowerOff);

/// What is put into the memory of a guest whose command line is "placed": addresses and sizes, the
/// first one of more than two steps.
pub(in crate::vm) const PLACED: [(u64, u64); 3] =
    [(0x3008, (513 << 10) + 5), (0x1f_f000, 4096), (1 << 32, 1)];

/// The byte at this place of it.
pub(in crate::vm) fn placed_byte(at: u64) -> u8 {
    (at % 251) as u8 + 1
}

/// An operation of a vCPU's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Op {
    /// Takes this many ticks.
    Work(u64),
    /// Sets the timer, and waits until it has expired.
    Sleep(u64),
    Send(u32),
    /// Waits for an interrupt from this vCPU, and takes it.
    WaitFor(u32),
    /// Reports that it spins until an interrupt from this vCPU arrives, and takes it.
    SpinFor(u32),
    /// Sets the timer, and works until it has expired.
    Tick(u64),
    /// Waits for a word in memory to change to this, and reports where it is.
    SpinOn(u64, u64),
    /// Waits for a word to change, which it does not, and goes on after this many ticks in any
    /// case.
    SpinOnFor(u64, u64),
    /// The same until an interrupt from this vCPU arrives, which it takes.
    SpinOnOr(u64, u32),
    Note,
    /// Writes a word bypassing the nested table, as if it had been there from the beginning.
    Etch(u64, u64),
    /// Loads a word, which must be this.
    Load(u64, u64),
    /// Loads a word, or finds that there is no memory.
    Try(u64),
    /// Stores 1, or finds that there is no memory, or that it is read-only.
    StoreTry(u64),
    Store(u64, u64),
    /// Loads a word where there must be no memory.
    Gone(u64),
    /// Moves the added memory to this address, as a write to a device's register does.
    Move(u64),
    /// Has the slots in use for so long, as a slow walk by software has.
    Walk(u64),
    /// Jumps back to the operation of this number, this many times in all.
    Back(usize, u32),
    Start(u32),
    Reset,
    SkipAfterReset,
    /// Resets the machine, unless that has been done this often.
    ResetBelow(u32),
    /// The same by a triple fault.
    ShutdownBelow(u32),
    PowerOff,
    /// Cannot continue.
    Crash,
    /// Has finished. When all vCPUs have, the machine is switched off.
    Done,
}

/// No vCPU executes anything while its guest stands still, whatever has happened before.
fn assert_may_run(vm: &Vm<MockArch>) {
    use GuestState::{Empty, Given, Loaded, Offered, Paused};
    let state = vm.host.state_of(vm.number);
    let stands_still = [Empty, Loaded, Paused, Offered, Given].contains(&state);
    assert!(!stands_still, "a vCPU of guest {} goes on, which is {state}", vm.number);
    let shown = vm.guest.shown.lock().unwrap().last().map(|(id, _)| *id);
    assert_eq!(shown, Some(*vm.generation.lock()), "a vCPU of guest {} sees another id", vm.number);
}

thread_local! {
    /// The programs of the next machine's vCPUs, by the names of its guests.
    static PROGRAMS: RefCell<Programs> = const { RefCell::new(BTreeMap::new()) };
}

pub(in crate::vm) type Programs = BTreeMap<Name, Vec<Vec<Op>>>;

/// Runs a machine with these programs on this many CPUs.
pub(in crate::vm) fn run(
    cpus: usize,
    config: &'static str,
    seed: u64,
    programs: &[&[Op]],
) -> (&'static MockBoard<MockArch>, End) {
    let board = board(cpus, config, programs);
    (board, board.run(seed))
}

pub(in crate::vm) fn run_to(
    end: End,
    cpus: usize,
    config: &'static str,
    seed: u64,
    programs: &[&[Op]],
) -> &'static MockBoard<MockArch> {
    let (board, ended) = run(cpus, config, seed, programs);
    assert_eq!(ended, end, "seed {seed}, {cpus} CPUs, {config:?}");
    board
}

/// The machine, which does not run yet.
pub(in crate::vm) fn board(
    cpus: usize,
    config: &'static str,
    programs: &[&[Op]],
) -> &'static MockBoard<MockArch> {
    create(cpus, 64 << 20, config, programs).unwrap_or_else(|why| panic!("{why}"))
}

/// Creates the machine, with this much memory below it.
pub(in crate::vm) fn create(
    cpus: usize,
    bytes: u64,
    config: &'static str,
    programs: &[&[Op]],
) -> Result<&'static MockBoard<MockArch>, CreateError> {
    PROGRAMS.set([(Name::GUEST, owned(programs))].into());
    MockBoard::create(vec![(); cpus], bytes, config)
}

fn owned(programs: &[&[Op]]) -> Vec<Vec<Op>> {
    programs.iter().map(|program| program.to_vec()).collect()
}

/// Creates a machine with several guests: their configurations, and their vCPUs' programs.
pub(in crate::vm) fn create_several(
    cpus: usize,
    bytes: u64,
    guests: &[(&'static str, &[&[Op]])],
) -> &'static MockBoard<MockArch> {
    let programs = guests.iter().map(|(config, programs)| {
        let name = config.lines().find_map(|line| line.strip_prefix("name=")).expect("a guest has a name");
        (Name::parse(name).expect("a name"), owned(programs))
    });
    PROGRAMS.set(programs.collect());
    let configs: Vec<_> = guests.iter().map(|(config, _)| *config).collect();
    MockBoard::create_several(vec![(); cpus], bytes, &configs).unwrap_or_else(|why| panic!("{why}"))
}

pub(in crate::vm) struct MockArch;

impl OnMockBoard for MockArch {
    type Data = ();

    fn must_clean() -> bool {
        true
    }

    /// The memory is about to be reused: remaining translations of it must not be used any more.
    fn clean(memory: Range<u64>) {
        let host = MockArch::host().expect("memory is a machine's");
        let mut from = 0;
        while let Some(vm) = host.next_guest(from) {
            from = vm.number + 1;
            // A guest that is being loaded keeps its memory.
            let is_new = host.state_of(vm.number) == GuestState::Loaded;
            if is_new || vm.attention() & (stopping::RESET | stopping::END) != 0 {
                vm.guest.cleaned_to_load.fetch_add(memory.end - memory.start, Ordering::Relaxed);
                continue;
            }
            for vcpu in &vm.vcpus {
                let mut tlb = vcpu.inbox.tlb.lock().unwrap();
                let former = tlb.values_mut().filter(|entry| memory.contains(&entry.host));
                former.for_each(|entry| entry.is_void = true);
            }
            vm.guest.cleaned.fetch_add(memory.end - memory.start, Ordering::Relaxed);
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(in crate::vm) struct Entry {
    host: u64,
    is_writable: bool,
    /// The memory has been freed and may be in use elsewhere.
    is_void: bool,
}

/// A vCPU's inbox; also its TLB, so that the checks can reach it.
#[derive(Default)]
pub(in crate::vm) struct Inbox {
    /// A bit for each sender.
    interrupts: AtomicU64,
    start: AtomicU32,
    tlb: Mutex<BTreeMap<u64, Entry>>,
}

/// The state that vCPUs share.
#[derive(Default)]
pub(in crate::vm) struct Shared {
    programs: Vec<Vec<Op>>,
    root: u64,
    done: AtomicU32,
    planned: AtomicU32,
    pub(in crate::vm) resets: AtomicU32,
    pub(in crate::vm) console: Mutex<Vec<u8>>,
    /// The generation ids that it was shown, and whether they were new.
    pub(in crate::vm) shown: Mutex<Vec<(u128, bool)>>,
    pub(in crate::vm) cleaned: AtomicU64,
    /// The same while it was being loaded.
    pub(in crate::vm) cleaned_to_load: AtomicU64,
    pub(in crate::vm) holders: Holders,
    /// Number of times a vCPU left its CPU for a reset while a change of memory was in progress.
    pub(in crate::vm) taken_over: AtomicU32,
    /// Number of times a vCPU left its CPU for a pause while it carried out a reset.
    pub(in crate::vm) paused_amid: AtomicU32,
    /// The latest wake-up of a vCPU, in ticks after its timer's deadline.
    pub(in crate::vm) latest: AtomicU64,
    /// The times noted, each with its vCPU.
    pub(in crate::vm) notes: Mutex<Vec<(u32, u64)>>,
    /// No interrupt ends guest mode, and flushes give up waiting for it.
    pub(in crate::vm) stalls: core::sync::atomic::AtomicBool,
}

/// Who has the guest's address space loaded.
#[derive(Default)]
pub(in crate::vm) struct Holders {
    /// A bit for each CPU: none when the guest is freed.
    cpus: AtomicU64,
    /// How often one has loaded it that had not got it.
    loads: AtomicU64,
}

impl Drop for Holders {
    fn drop(&mut self) {
        assert_eq!(*self.cpus.get_mut(), 0, "the address space of a guest that is freed is loaded");
    }
}

impl Holders {
    /// The CPU drops the address space that it has loaded, and loads this guest's, if any.
    fn load(cpu: CpuIndex, next: Option<&Vm<MockArch>>) {
        if next.is_some_and(|vm| vm.guest.holders.cpus.load(Ordering::Relaxed) >> cpu.0 & 1 != 0) {
            return;
        }
        let host = MockArch::host().expect("the CPU runs vCPUs");
        let mut from = 0;
        while let Some(vm) = host.next_guest(from) {
            from = vm.number + 1;
            vm.guest.holders.cpus.fetch_and(!(1 << cpu.0), Ordering::Relaxed);
        }
        for Holders { cpus, loads } in next.into_iter().map(|vm| &vm.guest.holders) {
            cpus.fetch_or(1 << cpu.0, Ordering::Relaxed);
            loads.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(in crate::vm) fn loads(&self) -> u64 {
        self.loads.load(Ordering::Relaxed)
    }
}

/// The sum of a counter over all vCPUs.
pub(in crate::vm) fn counted(board: &'static MockBoard<MockArch>, counter: Counter) -> u64 {
    let vm = board.machine();
    vm.vcpus.iter().map(|vcpu| vm.host.counters_of(vcpu.row)[counter as usize].load(Ordering::Relaxed)).sum()
}

/// The times that a vCPU noted, in order.
pub(in crate::vm) fn notes_of(board: &'static MockBoard<MockArch>, vcpu: u32) -> Vec<u64> {
    let notes = board.machine().guest.notes.lock().unwrap();
    notes.iter().filter(|note| note.0 == vcpu).map(|note| note.1).collect()
}
