//! Everything that the guests share: CPUs and their scheduler, free memory, the control channel,
//! and the rows by which a vCPU is known outside of its guest.
//!
//! # Rows
//!
//! A vCPU has two numbers: its index in its guest, which is its VP index, and its row among the
//! vCPUs of all guests, by which the scheduler, the counters and the trace know it. Guests come and
//! go, so a row is used again. What other CPUs may reach at any time, without knowing whether the
//! guest still exists, belongs to the row and is never freed: the [`Target`] and the counters. An
//! event that is posted to a row whose guest has just ended does no harm.
//!
//! The vCPU and its guest are found through a row in two places only: by the CPU to which the
//! scheduler has given the vCPU, and by `may_go`, under the lock of the queue in which the vCPU
//! waits. A guest is freed when all its vCPUs are parked: then they are on no CPU, and in no queue.

use alloc::boxed::Box;
use alloc::vec::Vec;
use coherence::Target;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use hostlink::config::{BootCpu, MAX_GUESTS, MAX_TOTAL_VCPUS};
use hostlink::counters::Counter;
use hostlink::guests::GuestEntry;
use hostlink::name::Name;
use spin::Mutex;

use super::arch::{Arch, Cpus};
use super::control::Channel;
use super::counting::CounterRow;
use super::files::{Bundle, CreateError};
use super::guests::Guest;
use super::machine::{Vcpu, Vm};
use super::memory::FreeMemory;
use super::percpu::{self, PerCpu};
use super::trace::{self, Rings};
use crate::devices::wall_clock::WallClock;
use crate::sched::notify::{self, Published, Reach};
use crate::sched::{CpuIndex, Nudge, Policy, QueueClass, Scheduler, VcpuIndex};

/// Rows. Tests create thousands of machines, with one guest of the largest size at most.
pub(super) const ROWS: u32 = if cfg!(test) { 320 } else { MAX_TOTAL_VCPUS };

/// See [`Host::tick_max`].
const TICK_MAX_US: u64 = 20_000;
/// With guests that the host tool sees, the longest time for which a vCPU that nothing interrupts
/// runs before the tool sees that it has had that time.
const SHOWN_US: u64 = 100_000;

/// Where the vCPU of a row is; null pointers without one.
struct Row<A: Arch> {
    vcpu: AtomicPtr<Vcpu<A>>,
    vm: AtomicPtr<Vm<A>>,
}

/// What the guests share.
pub struct Host<A: Arch> {
    /// Decides which vCPU runs where and when.
    pub sched: Scheduler,
    /// By row: the flush engine's view of each vCPU.
    targets: Box<[Target]>,
    rows: Box<[Row<A>]>,
    /// By row.
    pub(super) counters: Box<[CounterRow]>,
    /// Longest time in clock ticks that a CPU runs without a timer interrupt. It is short where
    /// interrupts may be lost, which is in QEMU's multi-threaded emulation alone (`docs/qemu.md`),
    /// and `u64::MAX` with one guest elsewhere.
    pub tick_max: u64,
    /// The date.
    pub wall: WallClock,
    /// What the architecture's guests share.
    pub common: A::Common,
    /// Physical memory without a user.
    pub free: Mutex<FreeMemory>,
    pub(super) channel: Mutex<Channel<A>>,
    pub(crate) trace: Rings,
    /// The guests' files.
    pub bundle: Bundle,
    pub(super) guests: Mutex<Vec<Option<Guest<A>>>>,
    /// By number: what the host tool sees of the guests.
    pub(super) entries: Box<[GuestEntry]>,
    /// A request from outside is pending or being served. The boot CPU's alone: its interrupts set
    /// it, and it serves them.
    requests: AtomicBool,
    /// vCPUs that have been created so far: the next one's identity.
    created: AtomicU32,
    /// Number of the guest whose console is on the machine's screen.
    pub(super) shown: AtomicU32,
    /// Whether vCPUs may run.
    begun: AtomicBool,
    /// Address spaces that are about to be freed, which CPUs that idle must not keep loaded.
    leaving: AtomicU32,
}

impl<A: Arch> Host<A> {
    /// What the guests of this bundle will share, on the CPUs that are online, with this free
    /// memory. `unix` is the current time in seconds since the beginning of 1970, if the machine
    /// below reports it.
    ///
    /// # Errors
    ///
    /// What the machine lacks, or what is wrong with the configuration.
    pub fn new(bundle: Bundle, free: &mut FreeMemory, unix: Option<u64>) -> Result<Self, CreateError> {
        let config = &bundle.config;
        A::check(config)?;
        let first_cpu = match config.boot_cpu {
            BootCpu::Run => CpuIndex(0),
            BootCpu::Serve => CpuIndex(1),
        };
        let online = || percpu::online::<A>().map(|cpu| cpu.index);
        let cpus: Vec<_> = online().filter(|&index| index >= first_cpu).collect();
        if cpus.is_empty() {
            return Err(CreateError::NoCpu);
        }
        let rings = online().map(|index| index.0 + 1).max().unwrap_or(0);
        let trace = Rings::take(free, rings).ok_or(CreateError::NoTrace)?;
        let policy = Policy::new(A::ticks_of_us(config.slice_us.into()));
        let row = |_| Row { vcpu: AtomicPtr::new(ptr::null_mut()), vm: AtomicPtr::new(ptr::null_mut()) };
        let counters = |_| [const { AtomicU64::new(0) }; Counter::COUNT];
        Ok(Self {
            sched: Scheduler::new(cpus, ROWS, MAX_GUESTS, policy).asking(may_go::<A>),
            targets: (0..ROWS).map(|_| Target::new()).collect(),
            rows: (0..ROWS).map(row).collect(),
            counters: (0..ROWS).map(counters).collect(),
            tick_max: match config.boot_cpu {
                BootCpu::Serve => A::ticks_of_us(TICK_MAX_US),
                BootCpu::Run if bundle.lists_guests() => A::ticks_of_us(SHOWN_US),
                BootCpu::Run => u64::MAX,
            },
            wall: wall_clock::<A>(unix),
            common: A::common(config)?,
            free: Mutex::new(core::mem::take(free)),
            channel: Mutex::new(Channel::new()),
            trace,
            bundle,
            guests: Mutex::new((0..MAX_GUESTS).map(|_| None).collect()),
            entries: (0..MAX_GUESTS).map(|_| GuestEntry::new()).collect(),
            requests: AtomicBool::new(false),
            created: AtomicU32::new(0),
            shown: AtomicU32::new(0),
            begun: AtomicBool::new(false),
            leaving: AtomicU32::new(0),
        })
    }

    pub(super) fn begin(&self) {
        self.begun.store(true, Ordering::Release); // Pairs with `has_begun`.
    }

    pub(super) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire) // Pairs with `begin`.
    }

    /// Makes CPUs that idle leave the address space that they have loaded, until
    /// [`have_left`](Self::have_left).
    pub(super) fn let_leave(&self) {
        self.leaving.fetch_add(1, Ordering::Release); // Pairs with `is_leaving`.
    }

    /// They have left the one that somebody waits for.
    pub(super) fn have_left(&self) {
        self.leaving.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether a CPU that idles must leave the address space that it has loaded, and one that runs
    /// another guest drop what it holds by any other.
    pub(crate) fn is_leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire) != 0 // Pairs with `let_leave`.
    }

    pub(crate) fn attach_trace(&self, cpu: &PerCpu<A>) {
        cpu.trace.attach(&self.trace, cpu.index);
    }

    /// Whether a request from the host tool is pending or being served.
    #[inline]
    pub fn requests_wait(&self) -> bool {
        self.requests.load(Ordering::Relaxed)
    }

    /// Sets or clears the flags that make the boot CPU, which is the calling one, look for
    /// requests: its own, and those of all guests, because any may have a vCPU there.
    pub fn set_requests_wait(&self, wait: bool) -> Published {
        self.requests.store(wait, Ordering::Relaxed);
        for guest in self.guests.lock().iter().flatten() {
            guest.vm().set_requests_wait(wait);
        }
        Published::here()
    }

    /// The number of the guest that the bundle describes by this name.
    pub(super) fn number_of(&self, name: Name) -> Option<u32> {
        (0..).zip(&self.bundle.guests).find(|(_, files)| files.config.name == name).map(|(number, _)| number)
    }

    pub(super) fn guest(&self, number: u32) -> Option<&'static Vm<A>> {
        self.guests.lock().get(number as usize)?.as_ref().map(Guest::vm)
    }

    /// The existing guest with the least number that is not below this one.
    pub(crate) fn next_guest(&self, from: u32) -> Option<&'static Vm<A>> {
        self.guests.lock().iter().skip(from as usize).flatten().next().map(Guest::vm)
    }

    /// The first guest.
    pub fn first_guest(&self) -> Option<&'static Vm<A>> {
        self.guests.lock().iter().flatten().next().map(Guest::vm)
    }

    /// Takes `count` identities of vCPUs: no other vCPU ever gets one of them. Returns the first.
    pub(super) fn take_identities(&self, count: u32) -> u32 {
        self.created.fetch_add(count, Ordering::Relaxed)
    }

    /// The flush engine's view of the vCPUs of these rows.
    pub(super) fn targets(&self, first: VcpuIndex, count: u32) -> &[Target] {
        &self.targets[first.place()..][..count as usize]
    }

    pub(super) fn enter_rows(&self, vm: &'static Vm<A>) {
        for vcpu in &vm.vcpus {
            let row = &self.rows[vcpu.row.place()];
            self.counters[vcpu.row.place()].iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
            row.vm.store(ptr::from_ref(vm).cast_mut(), Ordering::Relaxed);
            // Release: pairs with `vcpu`.
            row.vcpu.store(ptr::from_ref(vcpu).cast_mut(), Ordering::Release);
        }
    }

    /// The vCPU of a row, and its guest.
    ///
    /// # Safety
    ///
    /// The scheduler has given the vCPU to the calling CPU, or the caller holds the lock of the
    /// queue in which it waits. The result is used no longer than that is so.
    #[inline(always)]
    pub(super) unsafe fn vcpu(&self, row: VcpuIndex) -> (&'static Vm<A>, &'static Vcpu<A>) {
        let row = &self.rows[row.place()];
        // Acquire: pairs with `enter_rows`.
        let (vcpu, vm) = (row.vcpu.load(Ordering::Acquire), row.vm.load(Ordering::Relaxed));
        debug_assert!(!vcpu.is_null() && !vm.is_null(), "the row's guest has been freed");
        // SAFETY: the vCPU is in a queue or was just taken from one, so its guest exists: see the
        // module's documentation.
        unsafe { (&*vm, &*vcpu) }
    }

    /// Takes the guest's vCPUs out of their rows. None of them is in a queue.
    pub(super) fn leave_rows(&self, vm: &Vm<A>) {
        for vcpu in &vm.vcpus {
            let row = &self.rows[vcpu.row.place()];
            row.vcpu.store(ptr::null_mut(), Ordering::Relaxed);
            row.vm.store(ptr::null_mut(), Ordering::Relaxed);
        }
    }

    /// The number of rows that the host tool reads: all, if the guests' entries tell it which are
    /// in use, otherwise the guest's.
    pub(super) fn row_count(&self) -> u32 {
        match self.bundle.guests.first().filter(|_| !self.bundle.lists_guests()) {
            Some(files) => files.config.vcpus,
            None => ROWS,
        }
    }

    /// The number of the guest that a row belongs to, or last belonged to; and its name if the
    /// host tool sees the guests.
    pub fn guest_of(&self, row: VcpuIndex) -> (usize, Option<Name>) {
        let number = self.sched.group_of(row) as usize;
        let files = self.bundle.guests.get(number).filter(|_| self.bundle.lists_guests());
        (number, files.map(|files| files.config.name))
    }

    /// A row that belongs, or last belonged, to the guest of this number.
    pub(super) fn a_row_of(&self, number: usize) -> Option<VcpuIndex> {
        (0..self.counters.len() as u32)
            .map(VcpuIndex)
            .find(|&row| self.sched.group_of(row) as usize == number)
    }

    /// A row's counters.
    #[inline(always)]
    pub fn counters_of(&self, row: VcpuIndex) -> &CounterRow {
        &self.counters[row.place()]
    }

    /// Tells the vCPU of a row that something was posted to it.
    pub fn notify(&self, row: VcpuIndex, posted: Published) {
        notify::notify(self, row, &self.targets[row.place()], QueueClass::Work, posted);
    }

    /// Tells a blocked vCPU that its timer has expired.
    pub fn notify_expired(&self, row: VcpuIndex) {
        notify::notify(self, row, &self.targets[row.place()], QueueClass::Timer, Published::NOTHING);
    }

    /// Carries out the nudge that the scheduler returned.
    #[inline]
    pub fn nudge(&self, nudge: Nudge) {
        notify::nudge(self, nudge);
    }
}

/// The date, from the machine's own clock at the start. It is read once. For runs to be
/// reproducible the machine's clock must be too (QEMU: `-rtc base=…,clock=vm`).
pub(super) fn wall_clock<A: Arch>(unix: Option<u64>) -> WallClock {
    if unix.is_none() {
        log::warn!("the machine does not say what time it is: guests begin in 1970");
    }
    WallClock::new(unix.unwrap_or(0), A::now(), A::hz())
}

/// Whether a queued vCPU that waits for memory to change may go on: the memory has changed, or
/// there is an event for the vCPU.
fn may_go<A: Arch>(row: VcpuIndex) -> bool {
    let Some(host) = A::host() else { return true };
    // SAFETY: the scheduler calls this for vCPUs in a queue whose lock it holds.
    let (vm, vcpu) = unsafe { host.vcpu(row) };
    vcpu.target.has_event() || vcpu.awaited.is_over(&vm.space.slots().memory(), A::now())
}

impl<A: Arch> Reach for Host<A> {
    #[inline]
    fn scheduler(&self) -> &Scheduler {
        &self.sched
    }

    #[inline]
    fn now(&self) -> u64 {
        A::now()
    }

    fn target(&self, row: VcpuIndex) -> Option<&Target> {
        self.targets.get(row.place())
    }

    #[inline]
    fn is_here(&self, row: VcpuIndex) -> bool {
        // Relaxed: only this CPU writes it. No vCPU has a number that wraps.
        A::this_cpu().current_vcpu.load(Ordering::Relaxed) == row.0.wrapping_add(1)
    }

    #[inline]
    fn check_queue(&self) {
        A::this_cpu().check_queue.set(true);
    }

    fn kick_idle(&self, cpu: CpuIndex) {
        kick::<A>(cpu);
    }

    fn kick_guest(&self, row: VcpuIndex, cpu: CpuIndex) {
        // Counted for the vCPU that is kicked, by its kicker: the one counter that needs a locked
        // add.
        self.counters_of(row)[Counter::KickEvent as usize].fetch_add(1, Ordering::Relaxed);
        kick::<A>(cpu);
    }
}

/// Makes a CPU leave guest mode or idling soon.
pub fn kick<A: Cpus>(cpu: CpuIndex) {
    if let Some(cpu) = A::cpu(cpu) {
        cpu.kicked_at.store(A::now(), Ordering::Relaxed);
        trace::kick::<A>(cpu.index);
        A::kick(cpu);
    }
}
