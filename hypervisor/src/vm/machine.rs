//! The virtual machine: the state that its vCPUs share.

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coherence::Target;
use hostlink::config::{self, BootCpu, NestedPage, ResetPolicy};
use hostlink::counters::Counter;
use memslots::space::ZapWay;
use memslots::{Gpa, GuestMemory, Memslots, PhysAddr, Piece, Slot, SlotFlags, SlotId, Sweep};
use paging::Level;
use spin::Mutex;

use super::arch::{Arch, Cpus};
use super::awaited::Awaited;
use super::change::OwnChange;
use super::control::Channel;
use super::counting::CounterRow;
use super::files::{CreateError, Files};
use super::memory::{FreeMemory, NestedTables};
use super::percpu;
use super::slot_memory::{CLEAR_BYTES, SlotMemory};
use super::space::VmMemory;
use super::trace::{self, Rings};
use crate::devices::wall_clock::WallClock;
use crate::loader::LoadError;
use crate::sched::notify::{self, Reach};
use crate::sched::{CpuIndex, Line, Nudge, Policy, Scheduler, Share, VcpuIndex};

/// See [`Vm::tick_max`].
const TICK_MAX_US: u64 = 20_000;

/// Bits of [`Vm::attention`].
pub mod attention {
    /// A reset is in progress.
    pub const RESET: u32 = 1 << 0;
    /// A request from the host is pending or being served.
    pub const REQUESTS: u32 = 1 << 1;
    /// A vCPU's access has begun a change of guest memory.
    pub const CHANGE: u32 = 1 << 2;
}

/// One virtual CPU.
pub struct Vcpu<A: Arch> {
    /// Index in the machine; also its VP index.
    pub index: VcpuIndex,
    /// The flush engine's view of the vCPU. Its owner is the only one that may touch `state`.
    pub target: Target,
    /// Interrupts posted by other CPUs.
    pub inbox: A::Inbox,
    /// The word it waits for, if it is passive in a queue.
    pub awaited: Awaited,
    state: UnsafeCell<A::State>,
}

// SAFETY: `state` is reached only through `state()`, whose caller owns the target; the rest is
// atomic.
unsafe impl<A: Arch> Sync for Vcpu<A> {}

impl<A: Arch> Vcpu<A> {
    /// The private state.
    ///
    /// # Safety
    ///
    /// The caller holds the target's `Owner`, and no reference from an earlier call is alive.
    #[expect(clippy::mut_from_ref, reason = "ownership is proved by the target's token")]
    pub unsafe fn state(&self) -> &mut A::State {
        // SAFETY: the token is exclusive, so there is no other reference.
        unsafe { &mut *self.state.get() }
    }
}

/// The virtual machine.
pub struct Vm<A: Arch> {
    /// By index.
    pub vcpus: Vec<Vcpu<A>>,
    /// Its memory.
    pub space: VmMemory<A>,
    /// The memory behind slots that are added and removed at run time.
    pub memory_of_slots: Mutex<SlotMemory>,
    /// Decides which vCPU runs where and when.
    pub sched: Scheduler,
    /// Longest time in clock ticks that a CPU runs without a timer interrupt; `u64::MAX` where no
    /// interrupt is ever lost, which is everywhere but in QEMU's multi-threaded emulation
    /// (`docs/qemu.md`).
    pub tick_max: u64,
    /// The architecture-specific shared state.
    pub guest: A::Shared,
    /// The files it was created from.
    pub files: Files,
    /// The date.
    pub wall: WallClock,
    /// Requests from outside.
    pub(super) channel: Mutex<Channel<A>>,
    pub(super) counters: Vec<CounterRow>,
    pub(super) trace: Rings,
    /// A change of memory that a vCPU's access has caused.
    pub(super) change: Mutex<OwnChange<A>>,
    /// Pending work that every CPU must check: bits of [`attention`].
    pub(super) attention: AtomicU32,
    /// Whether a request from the host waits for its turn to change guest memory: vCPUs let it go
    /// first.
    pub turn_wanted: AtomicBool,
    /// Number of vCPUs that have stopped for a reset.
    pub(super) parked: AtomicU32,
    /// Whether its vCPUs may run.
    begun: AtomicBool,
}

/// Creates the machine that `files` describe, on the CPUs that are online. Its boot vCPU is ready
/// to run. `unix` is the current time in seconds since the beginning of 1970, if the machine below
/// reports it.
///
/// # Errors
///
/// What the machine lacks, or what is wrong with the files.
pub fn create<A: Arch>(files: Files, free: &mut FreeMemory, unix: Option<u64>) -> Result<Vm<A>, CreateError> {
    let config = &files.config;
    A::check(config)?;
    let ram = A::ram(config.memory).map_err(CreateError::Load)?;
    let total = free.total();
    let memslots = back_memory::<A>(&ram, free)?;
    // Enough for all memory: more may be added to the guest later.
    let (tables, count) =
        NestedTables::take(free, total, config.switches.tables).ok_or(CreateError::NoTables)?;
    log::debug!("{count} pages for nested page tables");
    let largest = match config.switches.nested_page {
        NestedPage::Small => Level::Page4K,
        NestedPage::Large => Level::Page2M,
        NestedPage::Huge => A::largest_page(),
    };
    let space =
        VmMemory::<A>::new(memslots, A::tables(tables), largest).map_err(|_| CreateError::NoTables)?;
    let space = space.zapping(match (config.switches.zap, config.switches.stage2_unmap) {
        (config::Zap::Everything, _) => ZapWay::Everything,
        (_, config::Stage2Unmap::Page) => ZapWay::PageByPage,
        _ => ZapWay::Detach,
    });
    let first_cpu = u32::from(matches!(config.boot_cpu, BootCpu::Serve));
    let cpus: Vec<_> =
        percpu::online::<A>().map(|cpu| cpu.index).filter(|&index| index >= first_cpu).collect();
    if cpus.is_empty() {
        return Err(CreateError::NoCpu);
    }
    let rings = percpu::online::<A>().map(|cpu| cpu.index + 1).max().unwrap_or(0);
    let trace = Rings::take(free, rings).ok_or(CreateError::NoTrace)?;
    let shared = A::share(config, &space)?;
    let vcpu = |index| Vcpu {
        index,
        target: Target::new(),
        inbox: A::new_inbox(),
        awaited: Awaited::default(),
        state: UnsafeCell::new(A::new_vcpu(&shared, index)),
    };
    let sched = Scheduler::new(cpus, config.vcpus, 1, Policy::new(A::ticks_of_us(config.slice_us.into())));
    sched.add_group(0, 0..config.vcpus, Share::default());
    let counters = (0..config.vcpus).map(|_| [const { AtomicU64::new(0) }; Counter::COUNT]).collect();
    let machine = Vm {
        vcpus: (0..config.vcpus).map(vcpu).collect(),
        space,
        memory_of_slots: Mutex::new(SlotMemory::new(core::mem::take(free))),
        sched: sched.asking(may_go::<A>),
        tick_max: match config.boot_cpu {
            BootCpu::Run => u64::MAX,
            BootCpu::Serve => A::ticks_of_us(TICK_MAX_US),
        },
        guest: shared,
        files,
        wall: wall_clock::<A>(unix),
        channel: Mutex::new(Channel::new()),
        counters,
        trace,
        change: Mutex::new(OwnChange::none()),
        attention: AtomicU32::new(0),
        turn_wanted: AtomicBool::new(false),
        parked: AtomicU32::new(0),
        begun: AtomicBool::new(false),
    };
    machine.load_guest(&mut || {}).map_err(CreateError::Load)?;
    Ok(machine)
}

/// The date, from the machine's own clock at the start. It is read once. For runs to be
/// reproducible the machine's clock must be too (QEMU: `-rtc base=…,clock=vm`).
fn wall_clock<A: Arch>(unix: Option<u64>) -> WallClock {
    if unix.is_none() {
        log::warn!("the machine does not say what time it is: guests begin in 1970");
    }
    WallClock::new(unix.unwrap_or(0), A::now(), A::hz())
}

/// Whether a queued vCPU that waits for memory to change may go on: the memory has changed, or
/// there is an event for the vCPU.
fn may_go<A: Arch>(vcpu: VcpuIndex) -> bool {
    let Some(vm) = A::machine() else { return true };
    let Some(vcpu) = vm.vcpus.get(vcpu as usize) else { return true };
    vcpu.target.has_event() || vcpu.awaited.is_over(&vm.space.slots().memory(), A::now())
}

/// Takes memory for the guest and makes slots of it: one for each piece of memory, with neither
/// gaps nor overlaps within a range.
fn back_memory<A: Arch>(ram: &[Range<u64>], free: &mut FreeMemory) -> Result<Memslots, CreateError> {
    let mut memslots = Memslots::new(A::physical_address_bits());
    let mut id = 0;
    for range in ram {
        let size = range.end - range.start;
        let pieces = free.take_pieces(range).ok_or_else(|| CreateError::NoMemory(size, free.total()))?;
        for piece in pieces {
            let slot = Slot {
                id: SlotId(id),
                gpa: Gpa(piece.at),
                size: piece.size,
                host: PhysAddr(piece.host),
                flags: SlotFlags::empty(),
            };
            // SAFETY: the memory was taken from the free RAM, is mapped one to one, and is never
            // freed.
            unsafe { memslots.add(slot) }
                .map_err(|_| CreateError::Load(LoadError::MemoryTooLarge { memory: size }))?;
            id += 1;
        }
    }
    Ok(memslots)
}

impl<A: Arch> Vm<A> {
    /// Number of vCPUs.
    pub fn vcpu_count(&self) -> u32 {
        self.vcpus.len() as u32
    }

    /// Lets its vCPUs run from now on.
    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release); // Pairs with `has_begun`.
    }

    /// Whether its vCPUs may run.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) // Pairs with `begin`.
    }

    /// Nanoseconds since the beginning of 1970.
    pub fn wall_ns(&self) -> u64 {
        self.wall.ns(A::now())
    }

    /// Whether the nested page table is compared with the slots after each change.
    pub fn is_paranoid(&self) -> bool {
        self.files.config.switches.paranoid
    }

    /// The action on a guest's reset.
    pub fn reset_policy(&self) -> ResetPolicy {
        self.files.config.reset
    }

    /// Zeroes guest memory and puts kernel, initial RAM disk and tables there; the boot vCPU begins
    /// at the entry.
    ///
    /// No vCPU has an owner meanwhile. All of it is done in steps, with a `pause` between them,
    /// during which no lock is held and no memory is pinned.
    pub(super) fn load_guest(&self, pause: &mut dyn FnMut()) -> Result<(), LoadError> {
        let boot = &self.vcpus[0];
        let owner = boot.target.owner().expect("nobody runs the boot vCPU while memory is loaded");
        // SAFETY: the owner was just taken.
        let state = unsafe { boot.state() };
        let slots = self.space.slots();
        sweep(slots, pause, |memory, piece| {
            if piece.slot.is_read_only() {
                return;
            }
            // SAFETY: the slot's memory is the guest's alone, and no vCPU runs.
            unsafe { A::zero(piece.host.start, piece.host.end - piece.host.start) };
            // This bypasses `memory`, so mark the log explicitly.
            memory.mark_dirty(piece.gpas);
        });
        A::load(&self.guest, &self.files, self.vcpu_count(), slots, (&boot.inbox, state), pause)?;
        drop(owner);
        Ok(())
    }

    /// Tells a vCPU that something was posted to it.
    pub fn notify(&self, vcpu: &Vcpu<A>) {
        self.notify_in(vcpu, Line::Work);
    }

    /// Tells a blocked vCPU that its timer has expired.
    pub fn notify_expired(&self, vcpu: &Vcpu<A>) {
        self.notify_in(vcpu, Line::Timer);
    }

    #[inline]
    fn notify_in(&self, vcpu: &Vcpu<A>, line: Line) {
        notify::notify(self, vcpu.index, &vcpu.target, line);
    }

    /// Carries out the nudge that the scheduler returned.
    #[inline]
    pub fn nudge(&self, nudge: Nudge) {
        notify::nudge(self, nudge);
    }

    /// Pending work besides the vCPUs: bits of [`attention`].
    #[inline]
    pub fn attention(&self) -> u32 {
        // Pairs with `set_requests_wait`, `begin_reset` and the end of `park`.
        self.attention.load(Ordering::Acquire)
    }

    /// Whether a request from the host is pending or being served.
    pub fn requests_wait(&self) -> bool {
        self.attention() & attention::REQUESTS != 0
    }

    /// Sets or clears the flag that makes the serving CPU look for requests.
    pub fn set_requests_wait(&self, wait: bool) {
        if wait {
            // Pairs with `attention`, as does the other one: earlier stores must be visible.
            self.attention.fetch_or(attention::REQUESTS, Ordering::Release);
        } else {
            // Pairs with `attention`.
            self.attention.fetch_and(!attention::REQUESTS, Ordering::Release);
        }
    }
}

impl<A: Arch> Reach for Vm<A> {
    #[inline]
    fn scheduler(&self) -> &Scheduler {
        &self.sched
    }

    #[inline]
    fn now(&self) -> u64 {
        A::now()
    }

    fn target(&self, vcpu: VcpuIndex) -> Option<&Target> {
        self.vcpus.get(vcpu as usize).map(|vcpu| &vcpu.target)
    }

    #[inline]
    fn is_here(&self, vcpu: VcpuIndex) -> bool {
        // Relaxed: only this CPU writes it. No vCPU has a number that wraps.
        A::this_cpu().current_vcpu.load(Ordering::Relaxed) == vcpu.wrapping_add(1)
    }

    #[inline]
    fn check_queue(&self) {
        A::this_cpu().check_queue.set(true);
    }

    fn kick_idle(&self, cpu: CpuIndex) {
        kick::<A>(cpu);
    }

    fn kick_guest(&self, vcpu: VcpuIndex, cpu: CpuIndex) {
        // Counted for the vCPU that is kicked, by its kicker: the one counter that needs a locked
        // add.
        if let Some(row) = self.counters.get(vcpu as usize) {
            row[Counter::KickEvent as usize].fetch_add(1, Ordering::Relaxed);
        }
        kick::<A>(cpu);
    }
}

/// Applies `act` to all of a guest's memory, in short steps. `memory` and the slots are pinned
/// during a step.
pub fn sweep(slots: &Memslots, pause: &mut dyn FnMut(), mut act: impl FnMut(&GuestMemory<'_>, Piece)) {
    let mut sweep = Sweep::new(CLEAR_BYTES);
    loop {
        {
            let memory = slots.memory();
            let Some(piece) = sweep.next(&memory) else { return };
            act(&memory, piece);
        }
        pause();
    }
}

/// Writes to guest memory, in short steps.
pub fn place(slots: &Memslots, gpa: u64, bytes: &[u8], pause: &mut dyn FnMut()) {
    for (chunk, offset) in bytes.chunks(CLEAR_BYTES as usize).zip((0..).step_by(CLEAR_BYTES as usize)) {
        slots.memory().write(Gpa(gpa + offset), chunk).expect("the plan stays within memory");
        pause();
    }
}

/// Makes a CPU leave guest mode or idling soon.
pub fn kick<A: Cpus>(cpu: u32) {
    if let Some(cpu) = A::cpu(cpu) {
        cpu.kicked_at.store(A::now(), Ordering::Relaxed);
        trace::kick::<A>(cpu.index);
        A::kick(cpu);
    }
}
