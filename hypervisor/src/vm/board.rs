//! The machine below the core, as traits: its time, its CPUs, and the rest of the board. `arch.rs`
//! says who implements them.

use core::ops::Range;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;

use super::arch::Arch;
use super::host::Host;
use super::percpu::PerCpu;
use crate::sched::CpuIndex;

/// The time: a counter that reads the same on all CPUs and never decreases.
pub trait Clock {
    /// The counter's current value.
    fn now() -> u64;
    /// Ticks per second; never 0.
    fn hz() -> u64;

    /// Ticks in `us` microseconds.
    fn ticks_of_us(us: u64) -> u64 {
        (u128::from(us) * u128::from(Self::hz()) / 1_000_000) as u64
    }

    /// Microseconds in `ticks` ticks, rounded up.
    fn us_of_ticks(ticks: u64) -> u64 {
        ticks.div_ceil(Self::ticks_of_us(1).max(1))
    }
}

/// The machine's CPUs.
///
/// Interrupts are taken only in [`take_interrupts`](Self::take_interrupts) and
/// [`wait_for_interrupt`](Self::wait_for_interrupt), and where a vCPU leaves the guest. Their
/// handlers call [`super::interrupts`]' `on_timer`, `on_kick`, `on_control_interrupt` and
/// `on_serial_interrupt`.
///
/// # Safety
///
/// [`this_cpu`](Self::this_cpu) returns the block of the calling CPU, and no two CPUs get the same
/// one. Other CPUs touch only the shareable part of a CPU's [`CpuData`](Self::CpuData).
pub unsafe trait Cpus: Clock + Sized + 'static {
    /// Architecture-specific data of one CPU, in addition to [`PerCpu`]'s own.
    type CpuData: 'static;
    /// The calling CPU's data.
    fn this_cpu() -> &'static PerCpu<Self>;

    /// The data of CPU `index`, whether or not it came up; `None` if there is no such CPU. Indices
    /// are dense.
    fn cpu(index: CpuIndex) -> Option<&'static PerCpu<Self>>;

    /// Takes the pending interrupts.
    fn take_interrupts();
    /// Waits for an interrupt, and takes it. An interrupt that is already pending ends the wait.
    fn wait_for_interrupt();
    /// Makes a CPU leave guest mode or idling soon. It then sees all earlier stores of the caller.
    fn kick(cpu: &PerCpu<Self>);

    /// Sets the calling CPU's timer to fire at `deadline`, or a little later; `now` is the current
    /// time. `u64::MAX` means never. Replaces any earlier deadline.
    fn arm_timer(deadline: u64, now: u64);

    /// Stops the calling CPU forever.
    fn stop() -> !;
}

/// The rest of the machine.
pub trait Board: Cpus {
    /// What the guests here share, once it exists.
    fn host() -> Option<&'static Host<Self>>
    where
        Self: Arch;

    /// Tells an instruction-counting emulator what the hypervisor is doing.
    #[inline(always)]
    fn mark(_: Phase) {}

    /// Whether former guest memory must be cleaned out of the data caches before it is reused.
    #[inline(always)]
    fn must_clean() -> bool {
        false
    }

    /// Whether memory must be cleaned out of the data caches before a guest executes what was
    /// written there as data.
    fn must_clean_code() -> bool {
        Self::must_clean()
    }

    /// Writes back and invalidates the data-cache lines of a range of physical memory.
    fn clean(_: Range<u64>) {}

    /// Zeroes physical memory.
    ///
    /// # Safety
    ///
    /// The range is RAM, mapped, aligned to 4 KiB, and not in use.
    unsafe fn zero(start: u64, size: u64);

    /// Bytes that are allocated from the heap.
    fn heap_used() -> u64;
    /// Bytes of the heap that are free.
    fn heap_left() -> u64;
    /// The least number of bytes that a CPU's stack has had left so far.
    fn stack_left() -> u64;
    /// Next byte received on the control channel.
    fn receive_control() -> Option<u8>;
    /// Sends one byte over the control channel.
    fn send_control(byte: u8);
    /// Number of the guest whose console was chosen for the machine's screen since the last call,
    /// if one was.
    fn chosen_console() -> Option<u32> {
        None
    }
    /// Shows text on the machine's screen: behind what is there, or `alone`.
    fn show(_text: &mut dyn Iterator<Item = u8>, _alone: bool) {}
    /// Ends the run.
    fn exit(code: ExitCode) -> !;
}
