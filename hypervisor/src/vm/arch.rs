//! The traits that an architecture implements for the core.
//!
//! | trait | purpose |
//! |---|---|
//! | [`Clock`] | the time |
//! | [`Cpus`] | the machine's CPUs: per-CPU data, interrupts, timers, kicks |
//! | [`Board`] | the rest of the machine: caches, the control channel, the end of the run |
//! | [`State`] | the part of a vCPU that only the CPU that runs it touches |
//! | [`Arch`] | nested tables, devices, and a vCPU's entry to and exit from the guest |
//! | [`Devices`] | devices of the machine that guests own |
//!
//! `arch/x86_64` and `arch/aarch64` implement them on bare metal, `vm/mock` by a mock
//! architecture. The functions take no `self`: there is one machine below, and the code finds it
//! without an argument.

use alloc::vec::Vec;
use core::ops::Range;

use hostlink::architecture::Architecture;
use hostlink::config::Config;
use memslots::space::LogWay;
use migration::{Archive, Flaw};
use paging::{Format, Invalidation, Level, TableMemory};

pub use super::board::{Board, Clock, Cpus};
pub use super::state::State;

use super::awaited::Word;
use super::context::{Context, Next};
use super::dma::{Devices, DmaFlush, NotFlushed};
use super::files::{CreateError, Files};
use super::load::Plan;
use super::machine::{Vm, VpIndex};
use super::memory::NestedTables;
use super::percpu::PerCpu;
use super::shown::ShownMemory;
use super::space::{FlushScratch, Flushed, VmMemory};
use crate::devices::region::Region;
use crate::loader::LoadError;
use crate::sched::Turn;

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
/// * [`flush_space`](Self::flush_space) reaches every CPU, and `devices`.
pub unsafe trait Arch: Board {
    /// Format of the nested page table.
    type Nested: Format + 'static;
    /// The allocator of nested tables, with the properties that walks by the processor need.
    type Tables: TableMemory + Send + Sync + 'static;
    /// What all guests share besides memory and scheduler.
    type Common: Send + Sync + 'static;
    /// Where a guest's boot vCPU begins.
    type Entry: Send + 'static;
    /// Devices of the machine that a guest being created owns. Dropped, they are free again.
    type Claim;
    /// The state that vCPUs share besides memory and scheduler: devices.
    type Shared: Send + Sync + 'static;
    /// The items that other CPUs post to a vCPU: interrupts, and start-up. By default as after
    /// power-on.
    type Inbox: Default + Send + Sync + 'static;
    /// A vCPU's private state.
    type State: State<Inbox = Self::Inbox> + 'static;
    /// A CPU's own data for running vCPUs; created once.
    type Workspace: 'static;
    /// The devices of the machine that guests own.
    type Devices: Devices<Self>;
    /// Whether sections of software translations are counted (see [`stay::Stay::COUNTED`]).
    const COUNTS_SECTIONS: bool;

    /// Which architecture it is.
    const MACHINE: Architecture;

    /// Refuses a configuration that this image or processor cannot serve.
    ///
    /// # Errors
    ///
    /// What is wrong with the configuration.
    fn check(config: &Config<'_>) -> Result<(), CreateError>;

    /// Guest physical ranges of the RAM that it wants, in ascending order.
    ///
    /// # Errors
    ///
    /// If there is no room for that much.
    fn ram(config: &Config<'_>) -> Result<Vec<Range<u64>>, LoadError>;

    /// Width of guest physical addresses.
    fn physical_address_bits() -> u32;
    /// Largest page of the nested page table.
    fn largest_page() -> Level;
    /// How stores to slots with a log are detected if the processor is to do it; by faults if it
    /// cannot.
    fn log_way() -> LogWay;
    /// A table allocator for one guest that draws on this pool.
    fn tables(pool: NestedTables) -> Self::Tables;

    /// What all guests share. Called once, before the first guest exists.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    fn common(config: &Config<'_>) -> Result<Self::Common, CreateError>;

    /// Claims the devices that a guest is to own, before it takes memory.
    ///
    /// # Errors
    ///
    /// Why it does not get them.
    fn claim(config: &Config<'static>, common: &'static Self::Common) -> Result<Self::Claim, CreateError>;

    /// Bytes of registers of claimed devices that the guest may have among its slots.
    fn device_memory(_: &Self::Claim) -> u64 {
        0
    }

    /// The shared state of a guest's vCPUs; `space` holds its nested page table.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    fn share(
        config: &Config<'static>,
        common: &'static Self::Common,
        space: &VmMemory<Self>,
        claim: Self::Claim,
    ) -> Result<Self::Shared, CreateError>;

    /// The private state of a vCPU after power-on. No other vCPU of any guest ever has the same
    /// identity.
    fn new_vcpu(shared: &Self::Shared, index: VpIndex, identity: u32) -> Self::State;

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

    /// After the states were read, and memory was cleaned where that is needed: begins to
    /// [add](Vm::begin_change) the slots that the devices have in these states. Returns true only
    /// when all are there, and no change of the slots is in progress. No vCPU runs.
    fn follow_state(_: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        true
    }

    /// Resets all devices to their state after power-on. No vCPU runs.
    fn reset_devices(vm: &Vm<Self>);
    /// Lets the guest find its generation id in memory. If it `is_new` to a guest that has run
    /// before, its kernel is interrupted. No vCPU runs.
    fn show_generation(vm: &Vm<Self>, is_new: bool);

    /// The guest is to be saved or moved: a vCPU that runs a guest of the guest leaves that. It
    /// stores to memory, before the logs are fetched for the last time. No vCPU runs.
    ///
    /// # Errors
    ///
    /// Why that is not possible now.
    fn leave_inner(_: &Vm<Self>, _: &mut Self::State) -> Result<(), Flaw> {
        Ok(())
    }

    /// Describes what the guest's vCPUs share: devices, and registers of all. No vCPU runs.
    ///
    /// # Errors
    ///
    /// What is wrong with a state that is read, or why this one cannot be written.
    fn describe_shared(vm: &Vm<Self>, archive: &mut Archive<'_>) -> Result<(), Flaw>;

    /// Describes a vCPU: its private state, and what is posted to it. No vCPU runs. When it is
    /// read, what the vCPUs share has been read before.
    ///
    /// # Errors
    ///
    /// As above.
    fn describe_vcpu(
        vm: &Vm<Self>,
        state: &mut Self::State,
        inbox: &Self::Inbox,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw>;

    /// Address ranges where no memory can be added.
    fn device_regions(vm: &Vm<Self>) -> impl IntoIterator<Item = Region>;

    /// Memory of the hypervisor's own that a guest with so many vCPUs may read.
    fn shown_memory(_vcpus: u32) -> Option<ShownMemory> {
        None
    }

    /// The input of a guest's serial port: returns how many of the bytes the guest has room for;
    /// `None` if there is no such port.
    fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize>;

    /// Wakes a guest that sleeps until an interrupt that may wake it.
    fn wake(vm: &Vm<Self>);

    /// Whether a CPU, of which no vCPU of the guest makes use, has the guest's address space
    /// loaded.
    fn holds_space(_: &Vm<Self>, _: &PerCpu<Self>) -> bool {
        false
    }

    /// A kick has arrived on the calling CPU, which is out of guest mode. If it may hold
    /// translations of a guest that is gone, it drops them.
    fn let_go(_: &PerCpu<Self>) {}

    /// No vCPU is on the calling CPU: it loads the address space of no guest.
    fn leave_space(_: &Self::Common, _: &PerCpu<Self>, _: &mut Self::Workspace) {}

    /// Passes on the real console's input, as far as the guest has room for it; without a guest it
    /// is dropped.
    fn receive_console(vm: Option<&Vm<Self>>);

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
