//! The virtual machine: what all its vCPUs share.

use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::ops::Range;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use coherence::{Notify, Target};
use hostlink::config::{self, BootCpu, NestedPage, ResetPolicy};
use hostlink::counters::{BEACON_MAGIC, Beacon, Counter};
#[cfg(target_arch = "aarch64")]
use hostlink::exit::ExitCode;
use memslots::space::ZapWay;
use memslots::{Gpa, GuestMemory, Memslots, PhysAddr, Piece, Slot, SlotFlags, SlotId, Sweep};
use paging::Level;
use spin::{Mutex, Once};

use super::awaited::Awaited;
use super::console::GUEST;
use super::control;
use super::files::{CreateError, Files};
use super::memory::{self, FreeMemory};
use super::percpu::PerCpu;
use super::slot_memory::{CLEAR_BYTES, SlotMemory};
use super::space::Space;
use crate::arch::vcpu::{Inbox, VcpuState};
use crate::arch::{clock, cpu, guest};
use crate::loader::LoadError;
use crate::sched::{Line, Nudge, Policy, Scheduler, VcpuIndex};

/// See [`Machine::tick_max`].
const TICK_MAX_US: u64 = 20_000;

/// Where the host tool finds the counters.
#[unsafe(no_mangle)]
static QUELL_BEACON: Beacon = Beacon::new();

static MACHINE: Once<Machine> = Once::new();

/// Bits of [`Machine::attention`].
pub(crate) mod attention {
    /// A reset is under way.
    pub(crate) const RESET: u32 = 1 << 0;
    /// Somebody outside has a request, or one is being served.
    pub(crate) const REQUESTS: u32 = 1 << 1;
}

/// The counters of one vCPU, as `hostlink::counters` lays them out.
pub(crate) type CounterRow = [AtomicU64; Counter::COUNT];

/// One virtual CPU.
pub(crate) struct Vcpu {
    /// Index in the machine; also its VP index.
    pub(crate) index: VcpuIndex,
    /// As the flush engine sees it. Its owner is the one who may touch `state`.
    pub(crate) target: Target,
    /// Interrupts that others post.
    pub(crate) inbox: Inbox,
    /// What it waits for, if it is passive in a queue.
    pub(crate) awaited: Awaited,
    state: UnsafeCell<VcpuState>,
}

// SAFETY: `state` is reached only through `state()`, whose caller owns the target; the rest is atomic.
unsafe impl Sync for Vcpu {}

impl Vcpu {
    /// The private state.
    ///
    /// # Safety
    ///
    /// The caller holds the target's `Owner`, and no reference from an earlier call is alive.
    #[expect(clippy::mut_from_ref, reason = "ownership is proved by the target's token")]
    pub(crate) unsafe fn state(&self) -> &mut VcpuState {
        // SAFETY: the token is exclusive, so there is no other reference.
        unsafe { &mut *self.state.get() }
    }
}

/// The one virtual machine.
pub(crate) struct Machine {
    pub(crate) vcpus: Vec<Vcpu>,
    /// Its memory.
    pub(crate) space: Space,
    /// The memory behind slots that come and go.
    pub(crate) memory_of_slots: Mutex<SlotMemory>,
    pub(crate) sched: Scheduler,
    /// Longest time in clock ticks that a CPU goes without a timer interrupt; `u64::MAX` where no interrupt is ever
    /// lost, which is everywhere but in QEMU's multi-threaded emulation (`docs/qemu.md`).
    pub(crate) tick_max: u64,
    /// What is particular to the architecture.
    pub(crate) guest: guest::Shared,
    pub(crate) files: Files,
    counters: Vec<CounterRow>,
    /// What every CPU has to look at: bits of [`attention`].
    attention: AtomicU32,
    /// Whether a request from outside waits for its turn to change guest memory: vCPUs let it go first.
    pub(crate) turn_wanted: AtomicBool,
    /// How many vCPUs have stopped for a reset.
    parked: AtomicU32,
}

/// The machine.
pub(crate) fn machine() -> &'static Machine {
    MACHINE.get().expect("the machine is created before any vCPU runs")
}

/// The machine, if it is there already.
pub(crate) fn try_machine() -> Option<&'static Machine> {
    MACHINE.get()
}

/// Creates the machine that `files` describe, on the CPUs that are online. Its boot vCPU is ready to run.
pub(crate) fn create(files: Files, free: &mut FreeMemory) -> Result<(), CreateError> {
    let config = &files.config;
    guest::check(config)?;
    let ram = guest::ram(config.memory).map_err(CreateError::Load)?;
    let total = free.total();
    let memslots = back_memory(&ram, free)?;
    // For all memory: the rest may be added later.
    let tables = memory::init_tables(free, total, config.switches.tables).ok_or(CreateError::NoTables)?;
    log::debug!("{tables} pages for nested page tables");
    let largest = match config.switches.nested_page {
        NestedPage::Small => Level::Page4K,
        NestedPage::Large => Level::Page2M,
        NestedPage::Huge => guest::largest_page(),
    };
    let space = Space::new(memslots, guest::Tables, largest).map_err(|_| CreateError::NoTables)?;
    let space = space.zapping(match (config.switches.zap, config.switches.stage2_unmap) {
        (config::Zap::Everything, _) => ZapWay::Everything,
        (_, config::Stage2Unmap::Page) => ZapWay::PageByPage,
        _ => ZapWay::Detach,
    });
    let first_cpu = match config.boot_cpu {
        BootCpu::Run => 0,
        BootCpu::Serve => 1,
    };
    let cpus: Vec<_> = PerCpu::online().map(|cpu| cpu.index).filter(|&index| index >= first_cpu).collect();
    if cpus.is_empty() {
        return Err(CreateError::NoCpu);
    }
    let shared = guest::Shared::new(config, &space)?;
    let vcpu = |index| Vcpu {
        index,
        target: Target::new(),
        inbox: Inbox::new(),
        awaited: Awaited::default(),
        state: UnsafeCell::new(shared.new_vcpu(index)),
    };
    let policy = Policy::new(clock::ticks_of_us(config.slice_us.into()));
    let counters = (0..config.vcpus).map(|_| [const { AtomicU64::new(0) }; Counter::COUNT]).collect();
    let machine = Machine {
        vcpus: (0..config.vcpus).map(vcpu).collect(),
        space,
        memory_of_slots: Mutex::new(SlotMemory::new(core::mem::take(free))),
        sched: Scheduler::new(cpus, config.vcpus, policy).asking(may_go),
        tick_max: match config.boot_cpu {
            BootCpu::Run => u64::MAX,
            BootCpu::Serve => clock::ticks_of_us(TICK_MAX_US),
        },
        guest: shared,
        files,
        counters,
        attention: AtomicU32::new(0),
        turn_wanted: AtomicBool::new(false),
        parked: AtomicU32::new(0),
    };
    machine.load_guest(&mut || {}).map_err(CreateError::Load)?;
    machine.publish_counters();
    MACHINE.call_once(|| machine);
    Ok(())
}

/// Whether a vCPU in a queue that waits for memory to change may go on: it has changed, or there is something else for the vCPU.
fn may_go(vcpu: VcpuIndex) -> bool {
    let vm = machine();
    let Some(vcpu) = vm.vcpus.get(vcpu as usize) else { return true };
    vcpu.target.has_event() || vcpu.awaited.is_over(&vm.space.slots().memory(), clock::now())
}

/// Takes memory for the guest and makes slots of it: one for each piece of memory, with neither gap nor overlap within a range.
fn back_memory(ram: &[Range<u64>], free: &mut FreeMemory) -> Result<Memslots, CreateError> {
    let mut memslots = Memslots::new(guest::physical_address_bits());
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
            // SAFETY: the memory was taken from the free RAM, is mapped one to one, and is never given back.
            unsafe { memslots.add(slot) }
                .map_err(|_| CreateError::Load(LoadError::MemoryTooLarge { memory: size }))?;
            id += 1;
        }
    }
    Ok(memslots)
}

impl Machine {
    /// Number of vCPUs.
    pub(crate) fn vcpu_count(&self) -> u32 {
        self.vcpus.len() as u32
    }

    /// Whether the nested page table is compared with the slots after each change.
    pub(crate) fn is_paranoid(&self) -> bool {
        self.files.config.switches.paranoid
    }

    /// What a guest's reset does.
    pub(crate) fn reset_policy(&self) -> ResetPolicy {
        self.files.config.reset
    }

    /// Zeroes guest memory and puts kernel, initial RAM disk and tables there; the boot vCPU begins at the entry.
    ///
    /// Nobody owns a vCPU meanwhile. All of it is done in steps, between which there is a `pause` without any lock held or
    /// memory pinned.
    fn load_guest(&self, pause: &mut dyn FnMut()) -> Result<(), LoadError> {
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
            unsafe { cpu::zero(piece.host.start, piece.host.end - piece.host.start) };
            // Not by way of `memory`, so its log has to be told.
            memory.mark_dirty(piece.gpas);
        });
        self.guest.load(&self.files, self.vcpu_count(), slots, &boot.inbox, state, pause)?;
        drop(owner);
        Ok(())
    }

    fn publish_counters(&self) {
        QUELL_BEACON.counters.store(self.counters.as_ptr().addr() as u64, Ordering::Relaxed);
        QUELL_BEACON.tsc_hz.store(clock::hz(), Ordering::Relaxed);
        QUELL_BEACON.vcpu_count.store(self.vcpu_count(), Ordering::Relaxed);
        QUELL_BEACON.counter_count.store(Counter::COUNT as u32, Ordering::Relaxed);
        QUELL_BEACON.cpu_count.store(self.sched.cpu_count(), Ordering::Relaxed);
        QUELL_BEACON.magic.store(BEACON_MAGIC, Ordering::Release);
    }

    /// The counters of a vCPU.
    pub(crate) fn counters_of(&self, vcpu: &Vcpu) -> &CounterRow {
        &self.counters[vcpu.index as usize]
    }

    /// Tells a vCPU that something was posted to it.
    pub(crate) fn notify(&self, vcpu: &Vcpu) {
        self.notify_in(vcpu, Line::Work);
    }

    /// Tells a vCPU that blocks that its timer has expired.
    pub(crate) fn notify_expired(&self, vcpu: &Vcpu) {
        self.notify_in(vcpu, Line::Timer);
    }

    #[inline]
    fn notify_in(&self, vcpu: &Vcpu, line: Line) {
        match vcpu.target.post_event() {
            Notify::None if line == Line::Work => match self.sched.promote(vcpu.index) {
                Nudge::Nothing => {}
                nudge => self.nudge(nudge),
            },
            Notify::None => {}
            Notify::Kick(cpu) => self.kick_for(vcpu, cpu.0),
            Notify::Wake => self.nudge(self.sched.wake(vcpu.index, line)),
        }
    }

    /// Carries out what the scheduler asks for.
    #[inline]
    pub(crate) fn nudge(&self, nudge: Nudge) {
        match nudge {
            Nudge::Nothing => {}
            Nudge::Running(vcpu) if PerCpu::current().current_vcpu.load(Ordering::Relaxed) == vcpu + 1 => {
                // It is on this CPU, out of guest mode: it need not be told by way of its target.
                PerCpu::current().replan.set(true);
            }
            _ => self.nudge_other(nudge),
        }
    }

    #[inline(never)]
    fn nudge_other(&self, mut nudge: Nudge) {
        // Goes on only if the vCPU to be told has blocked meanwhile, and is thereby woken: once for each vCPU at most
        // until it has run again.
        while let Nudge::Running(vcpu) = nudge {
            let Some(vcpu) = self.vcpus.get(vcpu as usize) else { return };
            match vcpu.target.post_event() {
                Notify::None => return,
                Notify::Kick(cpu) => return self.kick_for(vcpu, cpu.0),
                Notify::Wake => nudge = self.sched.wake(vcpu.index, Line::Work),
            }
        }
        if let Nudge::Idle(cpu) = nudge {
            kick(cpu);
        }
    }

    /// Kicks the CPU that a vCPU is in guest mode on.
    fn kick_for(&self, vcpu: &Vcpu, cpu: u32) {
        // Counted for the vCPU that is kicked, by whoever kicks it: the one counter that needs a locked add.
        self.counters_of(vcpu)[Counter::KickEvent as usize].fetch_add(1, Ordering::Relaxed);
        kick(cpu);
    }

    /// Begins a reset: every vCPU stops at its next look at its events. Whoever comes first does this.
    pub(crate) fn begin_reset(&self) {
        if self.attention.fetch_or(attention::RESET, Ordering::AcqRel) & attention::RESET == 0 {
            self.vcpus.iter().for_each(|vcpu| self.notify(vcpu));
        }
    }

    /// Whether there is anything that is looked at beside the vCPUs: bits of [`attention`].
    #[inline]
    pub(crate) fn attention(&self) -> u32 {
        self.attention.load(Ordering::Acquire)
    }

    /// Whether there is a request from outside, or one is being served.
    pub(crate) fn requests_wait(&self) -> bool {
        self.attention() & attention::REQUESTS != 0
    }

    /// Has the CPU that serves requests look at them, or no longer.
    pub(crate) fn set_requests_wait(&self, wait: bool) {
        if wait {
            self.attention.fetch_or(attention::REQUESTS, Ordering::Release);
        } else {
            self.attention.fetch_and(!attention::REQUESTS, Ordering::Release);
        }
    }

    /// A vCPU has stopped for the reset: it is in no queue, and its owner is gone. The last one starts the
    /// guest again, in steps between which its CPU takes interrupts and serves requests.
    ///
    /// ```text
    /// each vCPU                                the last vCPU
    /// A  state saved, owner dropped            C  parked = count (Acquire): all have done A
    /// B  parked += 1 (AcqRel)                  D  states and memory reset, RESET cleared, all woken
    /// ```
    /// B before C, so A before D.
    pub(crate) fn park(&self, cpu: &PerCpu) {
        if self.parked.fetch_add(1, Ordering::AcqRel) + 1 < self.vcpu_count() {
            return;
        }
        log::info!(target: GUEST, "the guest resets");
        self.parked.store(0, Ordering::Relaxed);
        for vcpu in &self.vcpus {
            let mut owner = vcpu.target.owner().expect("all vCPUs are parked");
            // SAFETY: the owner was just taken.
            let state = unsafe { vcpu.state() };
            let _event = owner.take_events();
            // What was posted before the reset is void.
            state.reset(&vcpu.inbox);
        }
        self.reset_devices(cpu);
        let counters = self.counters_of(&self.vcpus[0]);
        increase(&counters[Counter::Resets as usize], 1);
        let mut pause = || {
            cpu::take_interrupts();
            if cpu.index == 0 && self.requests_wait() {
                control::serve(cpu);
                increase(&counters[Counter::ResetRequests as usize], 1);
            }
        };
        // The plan was made from the same files before.
        self.load_guest(&mut pause)
            .unwrap_or_else(|error| panic!("the guest cannot be loaded again: {error}"));
        self.attention.fetch_and(!attention::RESET, Ordering::Release);
        for vcpu in &self.vcpus {
            self.nudge(self.sched.wake(vcpu.index, Line::Work));
        }
    }
}

/// Does something to all of a guest's memory, in short steps. `memory` and the slots are pinned during a step.
pub(crate) fn sweep(slots: &Memslots, pause: &mut dyn FnMut(), mut act: impl FnMut(&GuestMemory<'_>, Piece)) {
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
pub(crate) fn place(slots: &Memslots, gpa: u64, bytes: &[u8], pause: &mut dyn FnMut()) {
    for (chunk, offset) in bytes.chunks(CLEAR_BYTES as usize).zip((0..).step_by(CLEAR_BYTES as usize)) {
        slots.memory().write(Gpa(gpa + offset), chunk).expect("the plan stays within memory");
        pause();
    }
}

/// Leaves the code with which the run ends to whoever reads the beacon, where no device takes it.
#[cfg(target_arch = "aarch64")]
pub(crate) fn leave_exit_code(code: ExitCode) {
    QUELL_BEACON.exit.store(code as u32, Ordering::Release);
}

/// Adds to a counter of a vCPU. Only the CPU that runs the vCPU does so, hence no locked instruction.
#[inline]
pub(crate) fn increase(counter: &AtomicU64, amount: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(amount), Ordering::Relaxed);
}

/// Makes a CPU leave guest mode or idling soon.
pub(crate) fn kick(cpu: u32) {
    if let Some(cpu) = PerCpu::get(cpu) {
        cpu::kick(cpu);
    }
}
