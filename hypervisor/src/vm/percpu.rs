//! The data of each CPU.

use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64};

use super::arch::Cpus;
use super::trace::CpuTrace;
use crate::bringup::Presence;
use crate::sched::Turns;

/// Most physical CPUs that are used; any others stay parked.
pub const MAX_CPUS: usize = 256;

/// What belongs to one CPU. Only that CPU touches the cells; the atomics say who else does.
pub struct PerCpu<A: Cpus> {
    /// Number of this CPU: 0 for the boot CPU, dense.
    pub index: u32,
    /// What the machine calls it: its local APIC's id, or the affinity in MPIDR_EL1.
    pub id: u64,
    /// Whether it came up, was given up, or is waited for. Settled for all CPUs before there is a
    /// machine.
    pub presence: Presence,
    /// What the architecture adds.
    pub arch: A::CpuData,
    /// Clock value at which the one-shot timer is set to go off; `u64::MAX` when it is not set.
    timer_due: Cell<u64>,
    /// Whether it is set for the tick's sake alone.
    timer_is_tick: Cell<bool>,
    /// A vCPU has been put into this CPU's queue by the CPU itself, or the vCPU here has a change
    /// of memory under way: before the guest goes on, see who is to run.
    pub check_queue: Cell<bool>,
    /// The last vCPU to stop for a reset did so here: this CPU starts the guest again.
    pub resets: Cell<bool>,
    /// Turns of vCPUs since interrupts were last taken on account of them.
    pub turns: Turns,
    /// Longest time in clock ticks that this CPU goes without a timer interrupt.
    pub tick_max: Cell<u64>,
    /// Clock value at which the last kick was sent that has not been taken; 0 if there is none. It
    /// is only counted by: a kicker stores it, and the CPU itself takes it.
    pub kicked_at: AtomicU64,
    /// Whether a kick was taken since it began to idle.
    pub was_kicked: Cell<bool>,
    /// The vCPU that is on this CPU, as index + 1; 0 for none. Written by the CPU itself.
    pub current_vcpu: AtomicU32,
    /// Exit code of the last exit. For the panic report.
    pub last_exit: AtomicU64,
    /// What it does, for the host tool.
    pub trace: CpuTrace,
}

impl<A: Cpus> PerCpu<A> {
    /// Of a CPU that has not started.
    pub fn new(index: u32, id: u64, arch: A::CpuData) -> Self {
        Self {
            index,
            id,
            presence: Presence::expected(),
            arch,
            timer_due: Cell::new(u64::MAX),
            timer_is_tick: Cell::new(false),
            check_queue: Cell::new(false),
            resets: Cell::new(false),
            turns: Turns::new(),
            tick_max: Cell::new(u64::MAX),
            kicked_at: AtomicU64::new(0),
            was_kicked: Cell::new(false),
            current_vcpu: AtomicU32::new(0),
            last_exit: AtomicU64::new(0),
            trace: CpuTrace::new(),
        }
    }

    /// When the timer goes off, by the clock; `u64::MAX` for never.
    #[inline(always)]
    pub fn timer_due(&self) -> u64 {
        self.timer_due.get()
    }

    /// When the tick is due for whose sake alone the timer is set.
    pub fn tick_due(&self) -> Option<u64> {
        (self.timer_is_tick.get() && self.timer_due.get() != u64::MAX).then(|| self.timer_due.get())
    }

    /// Sets the timer of this CPU, which is the calling one, to go off at `deadline`, or a little
    /// later; `u64::MAX` for never.
    #[inline]
    pub fn set_timer(&self, deadline: u64, now: u64) {
        self.arm(deadline, false, now);
    }

    /// The same, and not later than the tick wants it.
    #[inline]
    pub fn set_timer_and_tick(&self, deadline: u64, now: u64) {
        let tick = now.saturating_add(self.tick_max.get());
        self.arm(deadline.min(tick), tick < deadline, now);
    }

    /// A timer that is set already to go off between `now` and `deadline` is left: it goes off
    /// early, finds nothing to do, and is set again. That is cheaper than moving it for every
    /// change. A time that is past means that its interrupt is on its way, or was lost: then it is
    /// set again.
    #[inline(always)]
    fn arm(&self, deadline: u64, is_tick: bool, now: u64) {
        let due = self.timer_due.get();
        if due <= deadline && due > now {
            return;
        }
        self.timer_due.set(deadline);
        self.timer_is_tick.set(is_tick);
        A::arm_timer(deadline, now);
    }

    /// The timer has gone off.
    pub(super) fn disarmed(&self) {
        self.timer_due.set(u64::MAX);
    }
}

/// All CPUs that the firmware names, those that did not come up included.
pub fn all<A: Cpus>() -> impl Iterator<Item = &'static PerCpu<A>> {
    (0..).map_while(A::cpu)
}

/// The CPUs that came up.
pub fn online<A: Cpus>() -> impl Iterator<Item = &'static PerCpu<A>> {
    all::<A>().filter(|cpu| cpu.presence.is_online())
}

// SAFETY: the cells are touched by the owning CPU alone; everything else is atomic or constant.
// What an architecture adds is for it to keep to the same rule.
unsafe impl<A: Cpus> Sync for PerCpu<A> {}
