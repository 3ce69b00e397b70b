//! The data of each CPU.

use baremetal::HardwareId;
use core::cell::Cell;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::arch::Cpus;
use super::trace::CpuTrace;
use crate::bringup::Presence;
use crate::sched::{CpuIndex, Turns, VcpuIndex};

/// Maximum number of physical CPUs in use; any others stay parked.
pub const MAX_CPUS: usize = 256;

/// The data of one CPU. Only that CPU touches the cells; each atomic says which other CPUs use it.
///
/// Its layout depends on [`CpuData`](Cpus::CpuData) alone.
#[repr(C)]
pub struct PerCpu<A: Cpus> {
    /// Number of this CPU: 0 for the boot CPU, dense.
    pub index: CpuIndex,
    /// What the hardware calls it.
    pub id: HardwareId,
    /// Whether it came up, was given up, or is still awaited. Settled for all CPUs before there is
    /// a machine.
    pub presence: Presence,
    /// Architecture-specific data.
    pub arch: A::CpuData,
    /// Clock value at which the one-shot timer is set to fire; `u64::MAX` when it is not set.
    timer_due: Cell<u64>,
    /// Whether the timer is set for the tick alone.
    timer_is_tick: Cell<bool>,
    /// This CPU has put a vCPU into its own queue, or the vCPU here has a change of memory in
    /// progress: before the guest goes on, check which vCPU is to run.
    pub check_queue: Cell<bool>,
    /// Up to when the time of the vCPU here is in what the host tool sees of its guest.
    pub used_until: Cell<u64>,
    /// Turns of vCPUs since their number last caused interrupts to be taken.
    pub turns: Turns,
    /// Longest time in clock ticks that this CPU runs without a timer interrupt.
    pub tick_max: Cell<u64>,
    /// Clock value at which the last kick was sent that has not been taken; 0 if there is none.
    /// Used for counting only: a kicker stores it, and the CPU itself takes it.
    pub kicked_at: AtomicU64,
    /// Whether a kick was taken since this CPU began to idle.
    pub was_kicked: Cell<bool>,
    /// The row of the vCPU that is on this CPU, plus 1; 0 for none. Written by the CPU itself.
    pub current_vcpu: AtomicU32,
    /// Exit code of the last exit, for the panic report.
    pub last_exit: AtomicU64,
    /// What it does, for the host tool.
    pub trace: CpuTrace,
}

impl<A: Cpus> PerCpu<A> {
    /// The data of a CPU that has not started.
    pub fn new(index: CpuIndex, id: HardwareId, arch: A::CpuData) -> Self {
        Self {
            index,
            id,
            presence: Presence::expected(),
            arch,
            timer_due: Cell::new(u64::MAX),
            timer_is_tick: Cell::new(false),
            check_queue: Cell::new(false),
            used_until: Cell::new(0),
            turns: Turns::default(),
            tick_max: Cell::new(u64::MAX),
            kicked_at: AtomicU64::new(0),
            was_kicked: Cell::new(false),
            current_vcpu: AtomicU32::new(0),
            last_exit: AtomicU64::new(0),
            trace: CpuTrace::default(),
        }
    }

    /// When the timer fires, by the clock; `u64::MAX` for never.
    #[inline(always)]
    pub fn timer_due(&self) -> u64 {
        self.timer_due.get()
    }

    /// When the tick is due, if the timer is set for the tick alone.
    pub fn tick_due(&self) -> Option<u64> {
        (self.timer_is_tick.get() && self.timer_due.get() != u64::MAX).then(|| self.timer_due.get())
    }

    /// Sets the timer of this CPU, which must be the calling one, to fire at `deadline`, or a
    /// little later; `u64::MAX` for never.
    #[inline]
    pub fn set_timer(&self, deadline: u64, now: u64) {
        self.arm(deadline, false, now);
    }

    /// The same, but at the next tick at the latest.
    #[inline]
    pub fn set_timer_and_tick(&self, deadline: u64, now: u64) {
        let tick = now.saturating_add(self.tick_max.get());
        self.arm(deadline.min(tick), tick < deadline, now);
    }

    /// A timer that is already set to fire between `now` and `deadline` is left alone: it fires
    /// early, finds nothing to do, and is set again. That is cheaper than moving it for every
    /// change. A timer whose time has passed has its interrupt pending, or has lost it: then it is
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

    /// Marks the vCPU of this row as the one on this CPU, which is the calling one.
    #[inline(always)]
    pub(super) fn note_current(&self, row: Option<VcpuIndex>) {
        self.current_vcpu.store(row.map_or(0, |row| row.0 + 1), Ordering::Relaxed);
    }

    /// The timer has fired.
    pub(super) fn disarmed(&self) {
        self.timer_due.set(u64::MAX);
    }
}

/// All CPUs that the firmware lists, including those that did not come up.
pub fn all<A: Cpus>() -> impl Iterator<Item = &'static PerCpu<A>> {
    (0..).map(CpuIndex).map_while(A::cpu)
}

/// The CPUs that came up.
pub fn online<A: Cpus>() -> impl Iterator<Item = &'static PerCpu<A>> {
    all::<A>().filter(|cpu| cpu.presence.is_online())
}

// SAFETY: the owning CPU alone touches the cells; everything else is atomic or constant. The
// architecture must keep to the same rule for its own data.
unsafe impl<A: Cpus> Sync for PerCpu<A> {}
