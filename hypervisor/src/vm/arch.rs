//! What an architecture offers to the core.
//!
//! | trait | what it is about |
//! |---|---|
//! | [`Clock`] | the time |
//! | [`Cpus`] | the machine's CPUs: data of each, interrupts, timers, how one is told to look |
//! | [`Board`] | the rest of the machine: caches, the control channel, the end of the run |
//! | [`State`] | what only the CPU that runs a vCPU touches |
//! | [`Arch`] | nested tables, devices, and a vCPU's way into the guest and out of it |
//!
//! `arch/x86_64` and `arch/aarch64` implement them on bare metal, [`tests`](super) by an
//! architecture that is made up. The functions have no `self`: there is one machine below, and code
//! finds it without being told.

use alloc::vec::Vec;
use core::ops::Range;

use coherence::{Space, Stalled};
use hostlink::config::Config;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;
use memslots::{Memslots, MmioCache};
use paging::{Format, Invalidation, Level, TableMemory};
use stay::MMIO_PAGES;

use super::awaited::Word;
use super::context::{Context, Next};
use super::files::{CreateError, Files};
use super::machine::Vm;
use super::memory::NestedTables;
use super::percpu::PerCpu;
use super::space::{FlushScratch, Flushed, VmMemory};
use crate::devices::region::Region;
use crate::loader::LoadError;
use crate::sched::spinning::Look;
use crate::sched::{Turn, VcpuIndex};

/// The time: a counter that all CPUs see alike, and that never goes back.
pub trait Clock {
    /// What the counter says.
    fn now() -> u64;

    /// Ticks per second: not 0.
    fn hz() -> u64;

    /// Ticks in `us` microseconds.
    fn ticks_of_us(us: u64) -> u64 {
        (u128::from(us) * u128::from(Self::hz()) / 1_000_000) as u64
    }

    /// Microseconds in `ticks` ticks, begun ones counted as whole ones.
    fn us_of_ticks(ticks: u64) -> u64 {
        ticks.div_ceil(Self::ticks_of_us(1).max(1))
    }
}

/// The machine's CPUs.
///
/// Interrupts are taken where [`take_interrupts`](Self::take_interrupts) and
/// [`wait_for_interrupt`](Self::wait_for_interrupt) are called, where a vCPU leaves the guest, and
/// nowhere else. Their handlers call [`super::run`]'s `on_timer`, `on_kick`, `on_control_interrupt`
/// and `on_serial_interrupt`.
///
/// # Safety
///
/// [`this_cpu`](Self::this_cpu) is the block of the CPU that calls, and no other CPU is told the
/// same. Of [`CpuData`](Self::CpuData), others than the CPU itself touch only what may be shared.
pub unsafe trait Cpus: Clock + Sized + 'static {
    /// What belongs to one CPU beside [`PerCpu`]'s own.
    type CpuData: 'static;

    /// The calling CPU's data.
    fn this_cpu() -> &'static PerCpu<Self>;

    /// The data of CPU `index`, if there is such a CPU: whether it came up or not. They are dense.
    fn cpu(index: u32) -> Option<&'static PerCpu<Self>>;

    /// Takes the interrupts that pend.
    fn take_interrupts();

    /// Waits for an interrupt, and takes it. One that pends already ends the wait.
    fn wait_for_interrupt();

    /// Makes a CPU leave guest mode or idling soon. What was stored before is visible to it then.
    fn kick(cpu: &PerCpu<Self>);

    /// Has the calling CPU's timer go off at `deadline`, or a little later, where it is `now`;
    /// `u64::MAX` for never. What it was set for before is void.
    fn arm_timer(deadline: u64, now: u64);

    /// Stops the calling CPU for ever.
    fn stop() -> !;
}

/// The rest of the machine.
pub trait Board: Cpus {
    /// The virtual machine that runs here, if it is there already.
    fn machine() -> Option<&'static Vm<Self>>
    where
        Self: Arch;

    /// Tells an emulator that counts instructions what the hypervisor is doing.
    #[inline(always)]
    fn mark(_: Phase) {}

    /// Whether memory that was a guest's has to be cleaned out of the data caches before somebody
    /// else has it.
    #[inline(always)]
    fn must_clean() -> bool {
        false
    }

    /// Writes the data caches' lines of some physical memory back, and drops them.
    fn clean(_: Range<u64>) {}

    /// Zeroes physical memory.
    ///
    /// # Safety
    ///
    /// The range is RAM, mapped, aligned to 4 KiB, and nobody else uses it.
    unsafe fn zero(start: u64, size: u64);

    /// Next byte that came over the control channel.
    fn receive_control() -> Option<u8>;

    /// Sends one byte over the control channel.
    fn send_control(byte: u8);

    /// Ends the run.
    fn exit(code: ExitCode) -> !;
}

/// A vCPU's private state: registers, interrupt controller, timers.
pub trait State: Send {
    /// What others post to the vCPU.
    type Inbox: Sync + Send;

    /// Everything as after power-on. What was posted before is void.
    fn reset(&mut self, inbox: &Self::Inbox);

    /// The address space that it is in, as initiators of a flush may know it while it halts.
    fn space(&self) -> Space;

    /// Whether it has instructions to run: it neither waits for an interrupt nor to be started.
    fn is_running(&self) -> bool;

    /// Looks whether what has come in ends its wait.
    fn update_activity(&mut self);

    /// Whether there is something already that ends a wait for an interrupt. What others have
    /// posted is not looked at.
    fn wakes_from_halt(&self) -> bool;

    /// When it wants to be looked at for one of its timers, where it is `now`: a time that is not
    /// later if one has expired already, `u64::MAX` if none runs.
    fn next_deadline(&self, now: u64) -> u64;

    /// Has the processor exit when the guest says that it spins, or not.
    fn intercept_pause(&mut self, wanted: bool);

    /// Whether it is time to look whether it spins.
    fn is_look_due(&self, now: u64) -> bool;

    /// Looks whether the guest spins, where the processor does not say it; `first` is the time from
    /// the beginning of a turn to the first look.
    fn check_spinning(&mut self, now: u64, first: u64) -> Look;

    /// Pages without memory that it has accessed last.
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES>;

    /// Logs its registers, when the guest cannot go on.
    fn dump(&self, vcpu: VcpuIndex);
}

/// An architecture.
///
/// # Safety
///
/// The core frees tables and pages on the word of [`coherence`]'s engine, which has to know of all
/// that uses them ([`coherence::Walkers`]). So:
///
/// * the processor translates by a machine's nested tables in [`enter`](Self::enter) only, between
///   [`coherence::Owner::try_enter`] and [`coherence::InGuest::leave`] of the vCPU's owner;
/// * [`take_flush`](Self::take_flush) completes a flush only when what it names has been dropped,
///   nested translations included, or when the vCPU's next entry drops it before anything else;
/// * [`flush_space`](Self::flush_space) reaches every CPU.
pub unsafe trait Arch: Board {
    /// Format of the nested page table.
    type Nested: Format + 'static;
    /// Where its tables come from, with what walks by the processor ask for.
    type Tables: TableMemory + Send + Sync + 'static;
    /// What the vCPUs share beyond memory and scheduler: devices.
    type Shared: Send + Sync + 'static;
    /// What others post to a vCPU: interrupts, and to be started.
    type Inbox: Send + Sync + 'static;
    /// A vCPU's private state.
    type State: State<Inbox = Self::Inbox> + 'static;
    /// What a CPU needs besides its vCPU; made once.
    type Workspace: 'static;

    /// Whether sections of software translations are counted (see [`stay::Stay::COUNTED`]).
    const COUNTS_SECTIONS: bool;

    /// Refuses a configuration that this image or processor cannot serve.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    fn check(config: &Config<'_>) -> Result<(), CreateError>;

    /// Guest physical ranges of `size` bytes of RAM, in ascending order.
    ///
    /// # Errors
    ///
    /// If so much has no place.
    fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError>;

    /// Width of guest physical addresses.
    fn physical_address_bits() -> u32;

    /// Largest page of the nested page table.
    fn largest_page() -> Level;

    /// Whether the processor notes in nested tables which pages are stored to.
    fn notes_stores() -> bool;

    /// Tables out of this pool.
    fn tables(pool: NestedTables) -> Self::Tables;

    /// What the vCPUs of a guest share whose nested page table is `space`'s.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    fn share(config: &Config<'_>, space: &VmMemory<Self>) -> Result<Self::Shared, CreateError>;

    /// The private state of a vCPU after power-on.
    fn new_vcpu(shared: &Self::Shared, index: VcpuIndex) -> Self::State;

    /// The inbox of such a vCPU.
    fn new_inbox() -> Self::Inbox;

    /// What the calling CPU, which is `cpu`, needs besides its vCPU.
    fn new_workspace(cpu: &PerCpu<Self>) -> Self::Workspace;

    /// Puts kernel, initial RAM disk and tables into memory, which is zeroed; `boot` begins at the
    /// entry. Steps are short, with a `pause` between them, at which no lock is held.
    ///
    /// # Errors
    ///
    /// If the files are not what they have to be, or do not fit.
    fn load(
        shared: &Self::Shared,
        files: &Files,
        vcpus: u32,
        slots: &Memslots,
        boot: (&Self::Inbox, &mut Self::State),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError>;

    /// Begins to take away what devices have added to the memory slots, if that is still to be
    /// done: false until it [has been](Vm::begin_change), or while somebody else changes the slots.
    /// No vCPU runs.
    fn reset_slots(_: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        true
    }

    /// All devices as after power-on. No vCPU runs.
    fn reset_devices(vm: &Vm<Self>);

    /// Addresses where no memory can be added.
    fn device_regions(vm: &Vm<Self>) -> impl IntoIterator<Item = Region>;

    /// Passes on what the real console has received, as far as the guest has room for it.
    fn receive_console(vm: &Vm<Self>);

    /// Drops what `invalidation` names, of the guest's nested translations, on all CPUs. The tables
    /// have been changed.
    ///
    /// # Errors
    ///
    /// [`Stalled`] when a CPU does not do its part: nothing may be freed then.
    fn flush_space(
        vm: &Vm<Self>,
        invalidation: Invalidation<'_>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, Stalled>;

    /// Loads the state of the vCPU whose turn it is.
    fn load_state(context: &mut Context<'_, Self>, turn: &Turn);

    /// Loads the state again that has just been saved on this CPU.
    fn reload_state(context: &mut Context<'_, Self>);

    /// Takes the vCPU's state out of the processor. Another CPU may load it afterwards.
    fn save_state(context: &mut Context<'_, Self>);

    /// Takes the interrupts that pend, outside of guest mode.
    fn open_window(context: &mut Context<'_, Self>);

    /// Takes what was posted: interrupts, and to be started. The notify word was taken before.
    fn take_signals(context: &mut Context<'_, Self>);

    /// A timer of the vCPU has expired: it asserts its interrupt.
    fn expire_timers(context: &mut Context<'_, Self>, now: u64);

    /// The word in memory for whose change the guest waits, where the processor or the guest's code
    /// tells it.
    fn awaited_word(context: &Context<'_, Self>) -> Option<Word>;

    /// Enters the guest by [`coherence::Owner::try_enter`] and comes back with an exit; or does not
    /// enter, because something has to be looked at first, and returns false. A flush that pends is
    /// taken then.
    fn enter(context: &mut Context<'_, Self>) -> bool;

    /// Takes the flush that pends: carries it out, or has the next entry do so.
    fn take_flush(context: &mut Context<'_, Self>);

    /// Handles the exit with which the last stay in the guest ended.
    fn handle_exit(context: &mut Context<'_, Self>) -> Next;
}
