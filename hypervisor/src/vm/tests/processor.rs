//! The architecture that is made up. A vCPU executes a program; it has a TLB that keeps what it
//! may, interrupts by sender, and one timer.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Mutex;

use core::ops::{ControlFlow, Range};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use alloc::vec;
use alloc::vec::Vec;
use coherence::{CpuId, Hardware, Space, Stalled};
use hostlink::config::Config;
use hostlink::counters::Counter;
use memslots::{Gpa, Memslots, MmioCache, SlotError};
use paging::{Amd64Nested, Invalidation, Level};
use stay::MMIO_PAGES;

use crate::devices::region::Region;
use crate::loader::LoadError;
use crate::sched::spinning::Look;
use crate::sched::{Turn, VcpuIndex};
use crate::vm::arch::{Arch, Clock, Cpus, State};
use crate::vm::awaited::Word;
use crate::vm::machine::attention;
use crate::vm::made::{self, End, made_board, offer};
use crate::vm::memory::NestedTables;
use crate::vm::space::{FlushScratch, Flushed, VmMemory};
use crate::vm::{Access, Context, CreateError, Files, Led, Next, PerCpu, Vm, percpu};

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Activity {
    Off,
    Running,
    Halted,
}

/// Why a vCPU left the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exit {
    Interrupt,
    Halt,
    Sleep(u64),
    Send(u32),
    Start(u32),
    Pause,
    Fault { gpa: u64, is_store: bool, may_miss: bool },
    Move(u64),
    Reset,
    PowerOff,
    Crash,
}

pub(super) struct Vcpu {
    index: u32,
    program: Vec<Op>,
    at: usize,
    rounds: BTreeMap<usize, u32>,
    activity: Activity,
    /// Interrupts that have come and were not taken.
    got: u64,
    /// Those that it waits for.
    wants: u64,
    timer: u64,
    worked: u64,
    /// When it began to wait.
    since: Option<u64>,
    exit: Exit,
    /// The CPU that its state is loaded on.
    loaded: Option<u32>,
    exits_on_pause: bool,
    word: Option<Word>,
    mmio: MmioCache<MMIO_PAGES>,
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

    fn dump(&self, _: VcpuIndex) {}
}

/// The bit of the timer among the interrupts.
const TIMER: u64 = 1 << 63;

impl Vcpu {
    fn new(index: u32, program: Vec<Op>) -> Self {
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

    /// Takes an interrupt, if it has come; goes on to the next operation then.
    fn take(&mut self, sender: u64) -> bool {
        let has_come = self.got & sender != 0;
        self.got &= !sender;
        self.at += usize::from(has_come);
        has_come
    }

    /// Executes some of the program; an exit if there is one.
    fn execute(&mut self, vm: &Vm<Made>, inbox: &Inbox) -> Option<Exit> {
        let Some(&op) = self.program.get(self.at) else {
            self.wants = 0;
            return Some(Exit::Halt);
        };
        match op {
            Op::Work(ticks) => {
                // In pieces, so that interrupts come in between.
                let piece = 10_000;
                offer::advance::<Made>(piece);
                self.worked += piece;
                if self.worked >= ticks {
                    self.worked = 0;
                    self.at += 1;
                }
                return None;
            }
            Op::Sleep(ticks) if self.timer == u64::MAX && self.wants != TIMER => {
                self.wants = TIMER;
                return Some(Exit::Sleep(ticks));
            }
            Op::Sleep(_) => {
                if !self.take(TIMER) {
                    return Some(Exit::Halt);
                }
                self.wants = 0;
                return None;
            }
            // As HLT does it: it is for the hypervisor to find that there is an interrupt already.
            Op::WaitFor(sender) if self.wants != 1 << sender => {
                self.wants = 1 << sender;
                return Some(Exit::Halt);
            }
            Op::WaitFor(sender) => {
                if !self.take(1 << sender) {
                    return Some(Exit::Halt);
                }
                self.wants = 0;
                return None;
            }
            Op::Tick(ticks) if self.timer == u64::MAX && self.wants != TIMER => {
                self.wants = TIMER;
                return Some(Exit::Sleep(ticks));
            }
            Op::Tick(_) => {
                offer::advance::<Made>(1000);
                if self.take(TIMER) {
                    self.wants = 0;
                }
                return None;
            }
            Op::Note => vm.guest.notes.lock().unwrap().push((self.index, Made::now())),
            Op::Etch(gpa, value) => {
                let memory = vm.space.slots().memory();
                let mut found = None;
                memory.for_each(|slot| {
                    if (slot.gpa.0..slot.gpa.0 + slot.size).contains(&gpa) {
                        found = Some(slot.host.0 + (gpa - slot.gpa.0));
                    }
                });
                let host = found.expect("there is memory");
                // SAFETY: the guest's memory.
                unsafe { &*(host as *const AtomicU64) }.store(value, Ordering::Relaxed);
            }
            Op::SpinFor(sender) => {
                offer::advance::<Made>(100);
                return (!self.take(1 << sender) && self.exits_on_pause).then_some(Exit::Pause);
            }
            Op::SpinOn(gpa, _) | Op::SpinOnFor(gpa, _) | Op::SpinOnOr(gpa, _) => {
                offer::advance::<Made>(100);
                let now = Made::now();
                let found = match self.access(vm, inbox, gpa, false) {
                    Ok(host) => host,
                    Err(exit) => return Some(exit),
                };
                // SAFETY: it is the guest's memory, which other vCPUs store to by atomics as well.
                let found = unsafe { &*(found as *const AtomicU64) }.load(Ordering::Relaxed);
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
                    self.at += 1;
                    return None;
                }
                self.word = Some(Word { gpa: Gpa(gpa), bytes: 8, value: found });
                return self.exits_on_pause.then_some(Exit::Pause);
            }
            Op::Move(gpa) => return Some(Exit::Move(gpa)),
            Op::Gone(gpa) => match self.access(vm, inbox, gpa, false) {
                Ok(_) => panic!("vCPU {} finds memory at {gpa:#x}, which has gone", self.index),
                Err(Exit::Fault { gpa, is_store, .. }) => {
                    return Some(Exit::Fault { gpa, is_store, may_miss: true });
                }
                Err(exit) => return Some(exit),
            },
            Op::Load(gpa, _) | Op::Try(gpa) | Op::Store(gpa, _) | Op::StoreTry(gpa) => {
                let is_store = matches!(op, Op::Store(..) | Op::StoreTry(_));
                let host = match self.access(vm, inbox, gpa, is_store) {
                    Ok(host) => host,
                    Err(Exit::Fault { gpa, is_store, .. }) => {
                        return Some(Exit::Fault {
                            gpa,
                            is_store,
                            may_miss: matches!(op, Op::Try(_) | Op::StoreTry(_)),
                        });
                    }
                    Err(exit) => return Some(exit),
                };
                // SAFETY: as above.
                let word = unsafe { &*(host as *const AtomicU64) };
                match op {
                    Op::Store(_, value) => word.store(value, Ordering::Relaxed),
                    Op::StoreTry(_) => word.store(1, Ordering::Relaxed),
                    Op::Load(_, value) => {
                        assert_eq!(word.load(Ordering::Relaxed), value, "vCPU {} at {gpa:#x}", self.index);
                    }
                    _ => {
                        let _any = word.load(Ordering::Relaxed);
                    }
                }
            }
            Op::Back(to, times) => {
                let rounds = self.rounds.entry(self.at).or_default();
                *rounds += 1;
                if *rounds < times {
                    self.at = to;
                } else {
                    *rounds = 0;
                    self.at += 1;
                }
                return None;
            }
            Op::Send(to) => {
                self.at += 1;
                return Some(Exit::Send(to));
            }
            Op::Start(vcpu) => {
                self.at += 1;
                return Some(Exit::Start(vcpu));
            }
            Op::SkipAfterReset => self.at += usize::from(vm.guest.resets.load(Ordering::Relaxed) != 0),
            Op::Reset => return Some(Exit::Reset),
            Op::ResetBelow(most) if vm.guest.resets.load(Ordering::Relaxed) < most => {
                return Some(Exit::Reset);
            }
            Op::ResetBelow(_) => {}
            Op::PowerOff => return Some(Exit::PowerOff),
            Op::Crash => return Some(Exit::Crash),
            Op::Done => {
                self.at += 1;
                let done = vm.guest.done.fetch_add(1, Ordering::Relaxed) + 1;
                return (done == vm.vcpu_count()).then_some(Exit::PowerOff);
            }
        }
        self.at += 1;
        None
    }

    /// The host address that the TLB, or the nested table, has for a word.
    fn access(&self, vm: &Vm<Made>, inbox: &Inbox, gpa: u64, is_store: bool) -> Result<u64, Exit> {
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
        // What was loaded only may not be stored to before the entry says so: then it notes the
        // store.
        return Some(Entry { host, is_writable: is_store, is_void: false });
    }
    None
}

/// Who flushes: by kicks.
struct Kicks<'a>(&'a Vm<Made>);

impl Hardware for Kicks<'_> {
    fn kick(&self, cpu: CpuId) {
        Made::kick(Made::cpu(cpu.0).expect("a CPU that a vCPU is on"));
    }

    fn relax(&self, _: u64) -> ControlFlow<()> {
        if self.0.guest.stalls.load(Ordering::Relaxed) {
            return ControlFlow::Break(());
        }
        offer::pass::<Made>();
        ControlFlow::Continue(())
    }
}

// SAFETY: `enter` runs programs between `try_enter` and `leave`; `take_flush` clears the vCPU's TLB
// before it completes; `flush_space` asks all vCPUs.
unsafe impl Arch for Made {
    type Nested = Amd64Nested;
    type Tables = NestedTables;
    type Shared = Shared;
    type Inbox = Inbox;
    type State = Vcpu;
    type Workspace = ();

    const COUNTS_SECTIONS: bool = false;

    fn check(_: &Config<'_>) -> Result<(), CreateError> {
        Ok(())
    }

    fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
        // A hole, as machines have them.
        Ok(vec![0..size / 2, 1 << 32..(1 << 32) + size / 2])
    }

    fn physical_address_bits() -> u32 {
        40
    }

    fn largest_page() -> Level {
        Level::Page1G
    }

    fn notes_stores() -> bool {
        true
    }

    fn tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn share(_: &Config<'_>, space: &VmMemory<Self>) -> Result<Shared, CreateError> {
        Ok(Shared {
            programs: PROGRAMS.take(),
            root: space.root().0,
            done: AtomicU32::new(0),
            resets: AtomicU32::new(0),
            console: Mutex::default(),
            cleaned: AtomicU64::new(0),
            taken_over: AtomicU32::new(0),
            latest: AtomicU64::new(0),
            notes: Mutex::default(),
            stalls: false.into(),
        })
    }

    fn new_vcpu(shared: &Shared, index: VcpuIndex) -> Vcpu {
        Vcpu::new(index, shared.programs.get(index as usize).cloned().unwrap_or_else(|| vec![Op::Done]))
    }

    fn new_inbox() -> Inbox {
        Inbox::default()
    }

    fn new_workspace(_: &PerCpu<Self>) {}

    fn load(
        _: &Shared,
        _: &Files,
        _: u32,
        _: &Memslots,
        (_, state): (&Inbox, &mut Vcpu),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError> {
        pause();
        state.activity = Activity::Running;
        Ok(())
    }

    /// Is asked again until no change is under way.
    fn reset_slots(vm: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        assert!(!vm.is_changing(), "it is over before devices are asked");
        true
    }

    fn reset_devices(vm: &Vm<Self>) {
        vm.guest.resets.fetch_add(1, Ordering::Relaxed);
        vm.guest.done.store(0, Ordering::Relaxed);
        for vcpu in &vm.vcpus {
            assert!(vcpu.target.owner().is_some(), "vCPU {} runs while devices are reset", vcpu.index);
        }
    }

    fn device_regions(_: &Vm<Self>) -> impl IntoIterator<Item = Region> {
        [Region { name: "the device", range: DEVICE..DEVICE + PAGE }]
    }

    fn receive_console(vm: &Vm<Self>) {
        while let Some(byte) = offer::receive_console::<Self>() {
            vm.guest.console.lock().unwrap().push(byte);
        }
    }

    fn flush_space(
        vm: &Vm<Self>,
        _: Invalidation<'_>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, Stalled> {
        coherence::flush_space(vm, scratch, &Kicks(vm))
    }

    fn load_state(context: &mut Context<'_, Self>, _: &Turn) {
        offer::begin_turn::<Self>();
        assert_eq!(context.state.loaded.replace(context.cpu.index), None, "loaded twice");
        let name = context.vcpu.index + 1;
        let named = percpu::online::<Self>().filter(|cpu| cpu.current_vcpu.load(Ordering::Relaxed) == name);
        assert!(named.map(|cpu| cpu.index).eq([context.cpu.index]), "another CPU takes it for its own");
    }

    fn reload_state(context: &mut Context<'_, Self>) {
        assert_eq!(context.state.loaded.replace(context.cpu.index), None, "loaded twice");
    }

    fn save_state(context: &mut Context<'_, Self>) {
        assert_eq!(context.state.loaded.take(), Some(context.cpu.index), "saved elsewhere");
        let meets_change = attention::CHANGE | attention::RESET;
        if context.vm.attention() & meets_change == meets_change {
            context.vm.guest.taken_over.fetch_add(1, Ordering::Relaxed);
        }
        offer::pass::<Self>();
    }

    fn open_window(_: &mut Context<'_, Self>) {
        Self::take_interrupts();
    }

    fn take_signals(context: &mut Context<'_, Self>) {
        offer::pass::<Self>();
        let inbox = &context.vcpu.inbox;
        if inbox.start.swap(0, Ordering::Acquire) != 0 && context.state.activity == Activity::Off {
            context.state.activity = Activity::Running;
        }
        context.state.got |= inbox.interrupts.swap(0, Ordering::Acquire);
    }

    fn expire_timers(context: &mut Context<'_, Self>, now: u64) {
        let state = &mut *context.state;
        assert!(state.timer <= now, "a timer expires before its time");
        context.vm.guest.latest.fetch_max(now - state.timer, Ordering::Relaxed);
        state.timer = u64::MAX;
        state.got |= TIMER;
    }

    fn awaited_word(context: &Context<'_, Self>) -> Option<Word> {
        let word = context.state.word?;
        (!word.has_changed(&context.vm.space.slots().memory())).then_some(word)
    }

    fn enter(context: &mut Context<'_, Self>) -> bool {
        let Context { owner, state, vm, cpu, vcpu, .. } = context;
        let Ok(guest) = owner.try_enter(CpuId(cpu.index)) else {
            Self::take_flush(context);
            return false;
        };
        assert_eq!(state.loaded, Some(cpu.index), "it runs on a CPU that its state is not loaded on");
        assert_eq!(state.activity, Activity::Running, "a vCPU that waits is entered");
        state.exit = loop {
            offer::pass::<Self>();
            if offer::is_interrupted::<Self>() && !vm.guest.stalls.load(Ordering::Relaxed) {
                break Exit::Interrupt;
            }
            if let Some(exit) = state.execute(vm, &vcpu.inbox) {
                break exit;
            }
        };
        guest.leave();
        offer::take_what_pends::<Self>();
        true
    }

    fn take_flush(context: &mut Context<'_, Self>) {
        let Some(work) = context.owner.take_flush() else { return };
        context.vcpu.inbox.tlb.lock().unwrap().clear();
        work.complete();
        context.count(Counter::FlushTaken);
    }

    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        let vm = context.vm;
        match context.state.exit {
            Exit::Interrupt => Next::Resume,
            Exit::Halt => {
                context.state.activity = Activity::Halted;
                Next::Halt
            }
            Exit::Sleep(ticks) => {
                context.state.timer = Self::now() + ticks;
                Next::Timers
            }
            Exit::Send(to) => {
                let to = &vm.vcpus[to as usize];
                to.inbox.interrupts.fetch_or(1 << context.vcpu.index, Ordering::Release);
                vm.notify(to);
                Next::Resume
            }
            Exit::Start(vcpu) => {
                let vcpu = &vm.vcpus[vcpu as usize];
                vcpu.inbox.start.store(1, Ordering::Release);
                vm.notify(vcpu);
                Next::Resume
            }
            Exit::Pause => Next::Yield,
            Exit::Fault { gpa, is_store, may_miss } => {
                match context.nested_fault(Gpa(gpa), Access::Data, is_store) {
                    Led::Again => {}
                    Led::Lost if may_miss => context.state.at += 1,
                    Led::Lost => panic!("vCPU {} may not store to {gpa:#x}", context.vcpu.index),
                    Led::Device if gpa == DEVICE || may_miss => context.state.at += 1,
                    Led::Device => panic!("vCPU {} has no memory at {gpa:#x}", context.vcpu.index),
                    Led::WalkRefused | Led::FetchRefused => unreachable!("it was an access to data"),
                }
                Next::Resume
            }
            Exit::Move(_) if vm.is_changing() => Next::Again,
            Exit::Move(gpa) => {
                let mut last = None;
                vm.space.slots().memory().for_each(|slot| last = last.max(Some(slot.id)));
                match vm.space.move_to(last.expect("there is memory"), Gpa(gpa)) {
                    Ok(job) => {
                        context.state.at += 1;
                        vm.begin_change(context.cpu, context.vcpu.index, job);
                        Next::Resume
                    }
                    Err(SlotError::Busy) => Next::Again,
                    Err(error) => panic!("{error}"),
                }
            }
            Exit::Reset => Next::Reset,
            Exit::PowerOff => Next::PowerOff,
            Exit::Crash => Next::Dead,
        }
    }
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
