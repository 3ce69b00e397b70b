//! The traits that an architecture implements for the core.
//!
//! | trait | purpose |
//! |---|---|
//! | [`Clock`] | the time |
//! | [`Cpus`] | the machine's CPUs: per-CPU data, interrupts, timers, kicks |
//! | [`Board`] | the rest of the machine: caches, the control channel, the end of the run |
//! | [`State`] | the part of a vCPU that only the CPU that runs it touches |
//! | [`Arch`] | nested tables, devices, and a vCPU's entry to and exit from the guest |
//!
//! `arch/x86_64` and `arch/aarch64` implement them on bare metal, [`tests`](super) by a mock
//! architecture. The functions take no `self`: there is one machine below, and the code finds it
//! without an argument.

use alloc::vec::Vec;
use core::ops::Range;

use coherence::Space;
use hostlink::config::Config;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;
use iommu::Stuck;
use memslots::MmioCache;
use paging::{Format, Invalidation, Level, Progress, TableMemory};
use stay::MMIO_PAGES;

use super::awaited::Word;
use super::context::{Context, Next};
use super::dma::{DmaFlush, NotFlushed, Tickets};
use super::files::{CreateError, Files};
use super::host::Host;
use super::load::Plan;
use super::machine::{Vm, VpIndex};
use super::memory::NestedTables;
use super::percpu::PerCpu;
use super::shown::ShownMemory;
use super::space::{FlushScratch, Flushed, VmMemory};
use crate::devices::region::Region;
use crate::loader::LoadError;
use crate::sched::Turn;
use crate::sched::spinning::Look;

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
/// handlers call [`super::run`]'s `on_timer`, `on_kick`, `on_control_interrupt` and
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
    fn cpu(index: u32) -> Option<&'static PerCpu<Self>>;

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

    /// Ends the run.
    fn exit(code: ExitCode) -> !;
}

/// A vCPU's private state: registers, interrupt controller, timers.
pub trait State: Send {
    /// The items that other CPUs post to the vCPU.
    type Inbox: Sync + Send;

    /// Resets everything to the state after power-on. Discards earlier posts.
    fn reset(&mut self, inbox: &Self::Inbox);

    /// The current address space, as initiators of a flush may know it while the vCPU halts.
    fn space(&self) -> Space;

    /// Whether the vCPU has instructions to run: it waits neither for an interrupt nor for
    /// start-up.
    fn is_running(&self) -> bool;

    /// Checks whether a posted item ends the vCPU's wait.
    fn update_activity(&mut self);

    /// Whether something already present ends a wait for an interrupt. Does not look at what others
    /// have posted.
    fn wakes_from_halt(&self) -> bool;

    /// When the vCPU next needs attention for one of its timers. The result is not later than `now`
    /// if a timer has expired already, and `u64::MAX` if none runs.
    fn next_deadline(&self, now: u64) -> u64;

    /// Sets whether the processor exits when the guest signals that it spins.
    fn intercept_pause(&mut self, wanted: bool);

    /// Whether it is time to check if the guest spins.
    fn is_look_due(&self, now: u64) -> bool;

    /// Checks whether the guest spins, where the processor does not report it. `first` is the time
    /// from the beginning of a turn to the first check.
    fn check_spinning(&mut self, now: u64, first: u64) -> Look;

    /// The pages without memory that the vCPU accessed most recently.
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES>;

    /// Logs the registers, when the guest cannot continue.
    fn dump(&self, vcpu: VpIndex);
}

/// An architecture.
///
/// # Safety
///
/// The core frees tables and pages on the word of [`coherence`]'s engine, which must know of every
/// user ([`coherence::Walkers`]). So:
///
/// * the processor translates by a machine's nested tables in [`enter`](Self::enter) only, between
///   [`coherence::Owner::try_enter`] and [`coherence::InGuest::leave`] of the vCPU's owner;
/// * [`take_flush`](Self::take_flush) completes a flush only when the named translations have been
///   dropped, nested translations included, or when the vCPU's next entry drops them before
///   anything else;
/// * [`flush_space`](Self::flush_space) reaches every CPU;
/// * every device that translates by a machine's nested tables does so through an IOMMU that
///   [`begin_dma_flush`](Self::begin_dma_flush) reaches, and that has forgotten what is named when
///   [`finish_dma_flush`](Self::finish_dma_flush) returns.
pub unsafe trait Arch: Board {
    /// Format of the nested page table.
    type Nested: Format + 'static;
    /// The allocator of nested tables, with the properties that walks by the processor need.
    type Tables: TableMemory + Send + Sync + 'static;
    /// What all guests share besides memory and scheduler.
    type Common: Send + Sync + 'static;
    /// Where a guest's boot vCPU begins.
    type Entry: Send + 'static;
    /// The state that vCPUs share besides memory and scheduler: devices.
    type Shared: Send + Sync + 'static;
    /// The items that other CPUs post to a vCPU: interrupts, and start-up.
    type Inbox: Send + Sync + 'static;
    /// A vCPU's private state.
    type State: State<Inbox = Self::Inbox> + 'static;
    /// A CPU's own data for running vCPUs; created once.
    type Workspace: 'static;

    /// Whether sections of software translations are counted (see [`stay::Stay::COUNTED`]).
    const COUNTS_SECTIONS: bool;

    /// Refuses a configuration that this image or processor cannot serve.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    fn check(config: &Config<'_>) -> Result<(), CreateError>;

    /// Guest physical ranges of `size` bytes of RAM, in ascending order.
    ///
    /// # Errors
    ///
    /// If there is no room for that much.
    fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError>;

    /// Width of guest physical addresses.
    fn physical_address_bits() -> u32;

    /// Largest page of the nested page table.
    fn largest_page() -> Level;

    /// Whether the processor marks stored-to pages in nested tables.
    fn notes_stores() -> bool;

    /// A table allocator for one guest that draws on this pool.
    fn tables(pool: NestedTables) -> Self::Tables;

    /// What all guests share. Called once, before the first guest exists.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    fn common(config: &Config<'_>) -> Result<Self::Common, CreateError>;

    /// The shared state of a guest's vCPUs; `space` holds its nested page table.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    fn share(
        config: &Config<'static>,
        common: &'static Self::Common,
        space: &VmMemory<Self>,
    ) -> Result<Self::Shared, CreateError>;

    /// The private state of a vCPU after power-on. No other vCPU of any guest ever has the same
    /// identity.
    fn new_vcpu(shared: &Self::Shared, index: VpIndex, identity: u32) -> Self::State;

    /// The inbox of a vCPU after power-on.
    fn new_inbox() -> Self::Inbox;

    /// The workspace of the calling CPU, which is `cpu`.
    fn new_workspace(cpu: &PerCpu<Self>) -> Self::Workspace;

    /// What is put into the guest's memory: kernel, initial RAM disk and tables.
    ///
    /// # Errors
    ///
    /// If the files are malformed, or do not fit.
    fn plan(shared: &Self::Shared, files: &Files, vcpus: u32) -> Result<Plan<Self::Entry>, LoadError>;

    /// Memory is as planned: lets the boot vCPU begin. No vCPU of the guest runs.
    fn begin(shared: &Self::Shared, entry: Self::Entry, boot: (&Self::Inbox, &mut Self::State));

    /// Begins to [remove](Vm::begin_change) the memory slots that devices have added, if any are
    /// left. Returns true only when none is left and no change of the slots is in progress. No vCPU
    /// runs.
    fn reset_slots(_: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        true
    }

    /// Resets all devices to their state after power-on. No vCPU runs.
    fn reset_devices(vm: &Vm<Self>);

    /// Address ranges where no memory can be added.
    fn device_regions(vm: &Vm<Self>) -> impl IntoIterator<Item = Region>;

    /// Memory of the hypervisor's own that a guest with so many vCPUs may read.
    fn shown_memory(_vcpus: u32) -> Option<ShownMemory> {
        None
    }

    /// The input of a guest's serial port: returns how many of the bytes the guest has room for;
    /// `None` if there is no such port.
    fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize>;

    /// Whether a CPU, of which no vCPU of the guest makes use, has the guest's address space
    /// loaded.
    fn holds_space(_: &Vm<Self>, _: &PerCpu<Self>) -> bool {
        false
    }

    /// No vCPU is on the calling CPU: it loads the address space of no guest.
    fn leave_space(_: &Self::Common, _: &PerCpu<Self>, _: &mut Self::Workspace) {}

    /// Passes on the real console's input, as far as the guest has room for it.
    fn receive_console(vm: &Vm<Self>);

    /// Drops the guest's nested translations named by `invalidation`, on all CPUs and from what
    /// `devices` are. The tables have been changed already.
    ///
    /// # Errors
    ///
    /// [`NotFlushed`] when a CPU or an IOMMU does not do its part: nothing may be freed then.
    fn flush_space(
        vm: &Vm<Self>,
        invalidation: Invalidation<'_>,
        devices: &DmaFlush<'_, Self>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, NotFlushed<Self>>;

    /// Has the IOMMUs of the guest's devices drop what `invalidation` names, without a wait for
    /// them. None, unless the guest owns devices.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when one takes no more commands.
    #[inline(always)]
    fn begin_dma_flush(_: &Vm<Self>, _: Invalidation<'_>) -> Result<Tickets, Stuck> {
        Ok(Tickets::new())
    }

    /// Waits until they have.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when one does not go on.
    fn finish_dma_flush(_: &Vm<Self>, _: &Tickets) -> Result<(), Stuck> {
        Ok(())
    }

    /// Whether the guest owns devices of the machine, which translate by its nested tables.
    fn owns_devices(_: &Vm<Self>) -> bool {
        false
    }

    /// Makes a step of mapping all memory for the guest's devices, where they do not translate by
    /// its nested tables. To be called when all slots are mapped there.
    fn map_for_devices(_: &Vm<Self>) -> Progress {
        Progress::Done
    }

    /// Makes a step of switching off and resetting the devices that the guest owns; `Done` when they
    /// do nothing any more until the guest starts them. No vCPU runs.
    fn step_owned_reset(_: &Vm<Self>) -> Progress {
        Progress::Done
    }

    /// All memory of the guest is filled and mapped: its devices may translate by its tables.
    fn attach_devices(_: &Vm<Self>) {}

    /// The guest is being destroyed: its devices reach nothing any more when this returns.
    ///
    /// # Errors
    ///
    /// [`Stuck`] when an IOMMU does not do its part: nothing may be freed then.
    fn detach_devices(_: &Vm<Self>) -> Result<(), Stuck> {
        Ok(())
    }

    /// Makes a step of returning the devices, which are detached; `Done` when they are free for
    /// other guests.
    fn give_devices_back(_: &Vm<Self>) -> Progress {
        Progress::Done
    }

    /// Loads the state of the vCPU whose turn it is.
    fn load_state(context: &mut Context<'_, Self>, turn: &Turn);

    /// Reloads the state that was just saved on this CPU.
    fn reload_state(context: &mut Context<'_, Self>);

    /// Saves the vCPU's state from the processor. Another CPU may load it afterwards.
    fn save_state(context: &mut Context<'_, Self>);

    /// Takes pending interrupts, outside of guest mode.
    fn open_window(context: &mut Context<'_, Self>);

    /// Takes the posted items: interrupts, and start-up. The notify word was taken before.
    fn take_signals(context: &mut Context<'_, Self>);

    /// A timer of the vCPU has expired: asserts its interrupt.
    fn expire_timers(context: &mut Context<'_, Self>, now: u64);

    /// The word in memory that the guest is waiting on, where the processor or the guest's code
    /// reveals it.
    fn awaited_word(context: &Context<'_, Self>) -> Option<Word>;

    /// Enters the guest by [`coherence::Owner::try_enter`] and returns true after the exit. Returns
    /// false without entering if something must be looked at first; a pending flush has then been
    /// taken.
    fn enter(context: &mut Context<'_, Self>) -> bool;

    /// Takes the pending flush: carries it out, or has the next entry do so.
    fn take_flush(context: &mut Context<'_, Self>);

    /// Handles the exit that ended the last stay in the guest.
    fn handle_exit(context: &mut Context<'_, Self>) -> Next;
}
