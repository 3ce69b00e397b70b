//! A vCPU: its program, its TLB, its interrupts and its timer.

use super::{Entry, Inbox, MockArch, Op, PAGE};
use crate::sched::CpuIndex;
use crate::sched::spinning::Look;
use crate::vm::arch::{Clock, State};
use crate::vm::awaited::Word;
use crate::vm::mock::board_impl;
use crate::vm::{Vm, VpIndex};
use alloc::vec::Vec;
use coherence::Space;
use core::sync::atomic::{AtomicU64, Ordering};
use memslots::{Gpa, MmioCache};
use migration::{Archive, Described, Flaw};
use stay::MMIO_PAGES;
use std::collections::BTreeMap;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Activity {
    Off,
    Running,
    Halted,
}

/// Why a vCPU left the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::vm) enum Exit {
    Interrupt,
    Halt,
    Sleep(u64),
    Send(u32),
    Start(u32),
    Pause,
    Fault { gpa: u64, is_store: bool, may_miss: bool },
    Move(u64),
    Walk(u64),
    Reset,
    PowerOff,
    Shutdown,
    Crash,
}

pub(in crate::vm) struct Vcpu {
    pub(in crate::vm) index: VpIndex,
    pub(in crate::vm) program: Vec<Op>,
    pub(in crate::vm) at: usize,
    pub(in crate::vm) rounds: BTreeMap<usize, u32>,
    pub(in crate::vm) activity: Activity,
    /// Interrupts that have arrived and were not taken.
    pub(in crate::vm) got: u64,
    /// The interrupts that it waits for.
    pub(in crate::vm) wants: u64,
    pub(in crate::vm) timer: u64,
    pub(in crate::vm) worked: u64,
    /// When it began to wait.
    pub(in crate::vm) since: Option<u64>,
    pub(in crate::vm) exit: Exit,
    /// The CPU that its state is loaded on.
    pub(in crate::vm) loaded: Option<CpuIndex>,
    pub(in crate::vm) exits_on_pause: bool,
    pub(in crate::vm) word: Option<Word>,
    pub(in crate::vm) mmio: MmioCache<MMIO_PAGES>,
}

impl Described for Vcpu {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        let Self { at, rounds, activity, got, wants, worked, since, .. } = self;
        archive.through(at, |at| *at as u64, |at| usize::try_from(at).ok())?;
        // Programs are short: how often each operation has been counted, plus one.
        let list = |rounds: &BTreeMap<usize, u32>| {
            core::array::from_fn::<u32, 16, _>(|at| rounds.get(&at).map_or(0, |count| count + 1))
        };
        let map = |list: [u32; 16]| {
            let rounds = list.iter().enumerate().filter(|(_, count)| **count > 0);
            Some(rounds.map(|(at, count)| (at, count - 1)).collect())
        };
        archive.through(rounds, list, map)?;
        archive.choice(activity, &[Activity::Off, Activity::Running, Activity::Halted])?;
        [got, wants, worked].into_iter().try_for_each(|word| word.describe(archive))?;
        since.describe(archive)
    }
}

impl State for Vcpu {
    type Inbox = Inbox;

    fn reset(&mut self, inbox: &Inbox) {
        assert_eq!(self.loaded, None, "a vCPU that is loaded is not reset");
        inbox.interrupts.store(0, Ordering::Relaxed);
        inbox.start.store(0, Ordering::Relaxed);
        *self = Self { mmio: MmioCache::new(), ..Self::new(self.index, core::mem::take(&mut self.program)) };
    }

    fn space(&self) -> Space {
        Space::UNKNOWN
    }

    fn is_running(&self) -> bool {
        self.activity == Activity::Running
    }

    fn update_activity(&mut self) {
        if self.activity == Activity::Halted && self.wakes_from_halt() {
            self.activity = Activity::Running;
        }
    }

    fn wakes_from_halt(&self) -> bool {
        self.got & self.wants != 0
    }

    fn next_deadline(&self, _: u64) -> u64 {
        self.timer
    }

    fn intercept_pause(&mut self, wanted: bool) {
        self.exits_on_pause = wanted;
    }

    fn is_look_due(&self, _: u64) -> bool {
        false
    }

    fn check_spinning(&mut self, _: u64, _: u64) -> Look {
        Look::Again(u64::MAX)
    }

    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.mmio
    }

    fn dump(&self, _: VpIndex, _: &str) {}
}

/// What follows an operation.
enum Next {
    /// The next operation.
    Done,
    /// The same operation.
    Again,
    /// An exit, and the next operation.
    DoneBy(Exit),
    /// An exit, and the same operation.
    AgainAfter(Exit),
}

/// The timer's bit among the interrupts.
pub(in crate::vm) const TIMER: u64 = 1 << 63;

impl Vcpu {
    pub(in crate::vm) fn new(index: VpIndex, program: Vec<Op>) -> Self {
        Self {
            index,
            program,
            at: 0,
            rounds: BTreeMap::new(),
            activity: Activity::Off,
            got: 0,
            wants: 0,
            timer: u64::MAX,
            worked: 0,
            since: None,
            exit: Exit::Interrupt,
            loaded: None,
            exits_on_pause: false,
            word: None,
            mmio: MmioCache::new(),
        }
    }

    /// Takes an interrupt, if it has arrived, and then goes on to the next operation.
    pub(in crate::vm) fn take(&mut self, sender: u64) -> bool {
        let has_come = self.got & sender != 0;
        self.got &= !sender;
        self.at += usize::from(has_come);
        has_come
    }

    /// Executes some of the program; returns an exit if there is one.
    pub(in crate::vm) fn execute(&mut self, vm: &Vm<MockArch>, inbox: &Inbox) -> Option<Exit> {
        super::assert_may_run(vm);
        let Some(&op) = self.program.get(self.at) else {
            self.wants = 0;
            return Some(Exit::Halt);
        };
        let next = self.execute_one(op, vm, inbox);
        let (is_done, exit) = match next {
            Next::Done => (true, None),
            Next::Again => (false, None),
            Next::DoneBy(exit) => (true, Some(exit)),
            Next::AgainAfter(exit) => (false, Some(exit)),
        };
        self.at += usize::from(is_done);
        exit
    }

    fn execute_one(&mut self, op: Op, vm: &Vm<MockArch>, inbox: &Inbox) -> Next {
        let resets = || vm.guest.resets.load(Ordering::Relaxed);
        match op {
            Op::Work(ticks) => return self.work(ticks),
            Op::Sleep(_) | Op::WaitFor(_) | Op::Tick(_) | Op::SpinFor(_) => return self.wait(op),
            Op::SpinOn(gpa, _) | Op::SpinOnFor(gpa, _) | Op::SpinOnOr(gpa, _) => {
                return self.spin_on(op, gpa, vm, inbox).unwrap_or_else(Next::AgainAfter);
            }
            Op::Gone(gpa) | Op::Load(gpa, _) | Op::Try(gpa) | Op::Store(gpa, _) | Op::StoreTry(gpa) => {
                return self.access_by(op, gpa, vm, inbox).unwrap_or_else(Next::AgainAfter);
            }
            Op::Back(to, times) => return self.back(to, times),
            Op::Note => vm.guest.notes.lock().unwrap().push((self.index.0, MockArch::now())),
            Op::Etch(gpa, value) => etch(vm, gpa, value),
            Op::Move(gpa) => return Next::AgainAfter(Exit::Move(gpa)),
            Op::Walk(ticks) => return Next::DoneBy(Exit::Walk(ticks)),
            Op::Send(to) => return Next::DoneBy(Exit::Send(to)),
            Op::Start(vcpu) => return Next::DoneBy(Exit::Start(vcpu)),
            Op::SkipAfterReset => self.at += usize::from(resets() != 0),
            Op::Reset => return Next::AgainAfter(Exit::Reset),
            Op::ResetBelow(most) if resets() < most => return Next::AgainAfter(Exit::Reset),
            Op::ShutdownBelow(most) if resets() < most => return Next::AgainAfter(Exit::Shutdown),
            Op::ResetBelow(_) | Op::ShutdownBelow(_) => {}
            Op::PowerOff => return Next::AgainAfter(Exit::PowerOff),
            Op::Crash => return Next::AgainAfter(Exit::Crash),
            Op::Done => {
                let done = vm.guest.done.fetch_add(1, Ordering::Relaxed) + 1;
                return if done == vm.vcpu_count() { Next::DoneBy(Exit::PowerOff) } else { Next::Done };
            }
        }
        Next::Done
    }

    /// Works in pieces, so that interrupts arrive in between.
    fn work(&mut self, ticks: u64) -> Next {
        let piece = 10_000;
        board_impl::advance::<MockArch>(piece);
        self.worked += piece;
        if self.worked < ticks {
            return Next::Again;
        }
        self.worked = 0;
        Next::Done
    }

    /// Waits for an interrupt, halted or running.
    fn wait(&mut self, op: Op) -> Next {
        let (sender, exit) = match op {
            Op::Sleep(ticks) | Op::Tick(ticks) => (TIMER, Exit::Sleep(ticks)),
            Op::WaitFor(sender) => (1 << sender, Exit::Halt),
            Op::SpinFor(sender) => {
                board_impl::advance::<MockArch>(100);
                let has_come = self.take(1 << sender);
                let exits = !has_come && self.exits_on_pause;
                return if exits { Next::AgainAfter(Exit::Pause) } else { Next::Again };
            }
            _ => unreachable!("it waits for no interrupt"),
        };
        let is_armed = sender == TIMER && self.timer != u64::MAX;
        if self.wants != sender && !is_armed {
            // Like HLT: the hypervisor has to notice that the interrupt is already pending.
            self.wants = sender;
            return Next::AgainAfter(exit);
        }
        let is_running = matches!(op, Op::Tick(_));
        if is_running {
            board_impl::advance::<MockArch>(1000);
        }
        if self.take(sender) {
            self.wants = 0;
        } else if !is_running {
            return Next::AgainAfter(Exit::Halt);
        }
        Next::Again
    }

    /// Spins until a word in memory has a value, for a time, or until an interrupt arrives.
    fn spin_on(&mut self, op: Op, gpa: u64, vm: &Vm<MockArch>, inbox: &Inbox) -> Result<Next, Exit> {
        board_impl::advance::<MockArch>(100);
        let now = MockArch::now();
        let host = self.access(vm, inbox, gpa, false)?;
        // SAFETY: it is the guest's memory, which other vCPUs store to by atomics as well.
        let found = unsafe { &*(host as *const AtomicU64) }.load(Ordering::Relaxed);
        let since = *self.since.get_or_insert(now);
        let is_over = match op {
            Op::SpinOn(_, value) => found == value,
            Op::SpinOnFor(_, ticks) => now - since >= ticks,
            Op::SpinOnOr(_, sender) => {
                let has_come = self.got & 1 << sender != 0;
                self.got &= !(1 << sender);
                has_come
            }
            _ => unreachable!("one of the three"),
        };
        if is_over {
            (self.word, self.since) = (None, None);
            return Ok(Next::Done);
        }
        self.word = Some(Word { gpa: Gpa(gpa), bytes: 8, value: found });
        Ok(if self.exits_on_pause { Next::AgainAfter(Exit::Pause) } else { Next::Again })
    }

    /// Loads or stores a word of memory, or sees that it has been removed.
    fn access_by(&self, op: Op, gpa: u64, vm: &Vm<MockArch>, inbox: &Inbox) -> Result<Next, Exit> {
        let is_store = matches!(op, Op::Store(..) | Op::StoreTry(_));
        let may_miss = matches!(op, Op::Gone(_) | Op::Try(_) | Op::StoreTry(_));
        let host = self.access(vm, inbox, gpa, is_store).map_err(|exit| match exit {
            Exit::Fault { gpa, is_store, .. } => Exit::Fault { gpa, is_store, may_miss },
            exit => exit,
        })?;
        // SAFETY: it is the guest's memory, which other vCPUs store to by atomics as well.
        let word = unsafe { &*(host as *const AtomicU64) };
        match op {
            Op::Gone(_) => panic!("vCPU {} finds memory at {gpa:#x}, which has gone", self.index),
            Op::Store(_, value) => word.store(value, Ordering::Relaxed),
            Op::StoreTry(_) => word.store(1, Ordering::Relaxed),
            Op::Load(_, value) => {
                assert_eq!(word.load(Ordering::Relaxed), value, "vCPU {} at {gpa:#x}", self.index);
            }
            _ => {
                let _any = word.load(Ordering::Relaxed);
            }
        }
        Ok(Next::Done)
    }

    fn back(&mut self, to: usize, times: u32) -> Next {
        let rounds = self.rounds.entry(self.at).or_default();
        *rounds += 1;
        if *rounds < times {
            self.at = to;
            return Next::Again;
        }
        *rounds = 0;
        Next::Done
    }

    /// The host address of a word according to the TLB or the nested table.
    fn access(&self, vm: &Vm<MockArch>, inbox: &Inbox, gpa: u64, is_store: bool) -> Result<u64, Exit> {
        let page = gpa & !(PAGE - 1);
        let mut tlb = inbox.tlb.lock().unwrap();
        if let Some(entry) = tlb.get(&page).filter(|entry| entry.is_writable || !is_store) {
            assert!(!entry.is_void, "vCPU {} uses page {page:#x} of memory that was given back", self.index);
            return Ok(entry.host + gpa % PAGE);
        }
        let fault = Exit::Fault { gpa, is_store, may_miss: false };
        let entry = walk(vm.guest.root, page, is_store).ok_or(fault)?;
        tlb.insert(page, entry);
        Ok(entry.host + gpa % PAGE)
    }
}

/// Stores to a word of guest memory past the nested table.
fn etch(vm: &Vm<MockArch>, gpa: u64, value: u64) {
    let memory = vm.space.slots().memory();
    let mut found = None;
    memory.for_each(|slot| {
        if (slot.gpa.0..slot.gpa.0 + slot.size).contains(&gpa) {
            found = Some(slot.host.0 + (gpa - slot.gpa.0));
        }
    });
    let host = found.expect("there is memory");
    // SAFETY: it is the guest's memory, which vCPUs store to by atomics as well.
    unsafe { &*(host as *const AtomicU64) }.store(value, Ordering::Relaxed);
}

/// A walk of the nested table, as a processor does it.
fn walk(root: u64, gpa: u64, is_store: bool) -> Option<Entry> {
    const PRESENT: u64 = 1;
    const WRITABLE: u64 = 1 << 1;
    const DIRTY: u64 = 1 << 6;
    const LARGE: u64 = 1 << 7;
    const ADDRESS: u64 = 0xf_ffff_ffff_f000;
    let mut table = root;
    let mut is_writable = true;
    for shift in [39, 30, 21, 12] {
        let place = table + (gpa >> shift & 0x1ff) * 8;
        // SAFETY: a table of the machine's, whose entries are changed by atomics.
        let entry = unsafe { &*(place as *const AtomicU64) };
        let value = entry.load(Ordering::Acquire);
        if value & PRESENT == 0 {
            return None;
        }
        is_writable &= value & WRITABLE != 0;
        if shift != 12 && value & LARGE == 0 {
            table = value & ADDRESS;
            continue;
        }
        if is_store && !is_writable {
            return None;
        }
        if is_store
            && entry.compare_exchange(value, value | DIRTY, Ordering::AcqRel, Ordering::Relaxed).is_err()
        {
            return None;
        }
        let within = (1 << shift) - 1;
        let host = (value & ADDRESS & !within) | (gpa & within & !(PAGE - 1));
        // A page that was only loaded from must not be stored to before the entry says so: the
        // store has to mark the entry first.
        return Some(Entry { host, is_writable: is_store, is_void: false });
    }
    None
}
