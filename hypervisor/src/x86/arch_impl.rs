//! The core's traits for x86-64, on top of the processor operations.

use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;
use hostlink::architecture::Architecture;
use hostlink::config::Config;
use memslots::space::LogWay;
use migration::{Archive, Flaw};
use paging::{Invalidation, Level};
use pci::Function;

use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::{platform, power};
use crate::devices::region::Region;
use crate::iommu::messages::Remapping;
use crate::iommu::routes::Receiver;
use crate::loader::{EntryState, LoadError, MemoryLayout};
use crate::owned::{DeviceOwner, Holding, OwnedFunctions};
use crate::sched::Turn;
use crate::vm::arch::{Arch, Cpus};
use crate::vm::awaited::Word;
use crate::vm::dma::{DmaFlush, NotFlushed};
use crate::vm::load::Plan;
use crate::vm::memory::NestedTables;
use crate::vm::space::{FlushScratch, Flushed, VmMemory};
use crate::vm::{Context, CreateError, Files, Next, PerCpu, Vm, VpIndex};
use crate::x86::guest::flush::Ipi;
use crate::x86::guest::{self, Claim, Common, Shared};
use crate::x86::processor::{Processor, Vendor};
use crate::x86::vcpu::signals::{self, Workspace};
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{cpuid, enter};

/// The architecture of x86-64 guests on a kind of processor.
pub struct OnX86<V>(PhantomData<V>);

impl<V: 'static> DeviceOwner for OnX86<V>
where
    Self: Vendor,
{
    type Platform = Remapping;

    #[inline(always)]
    fn owned(vm: &Vm<Self>) -> &Holding<Remapping> {
        &vm.guest.owned
    }

    fn root(vm: &Vm<Self>) -> Option<u64> {
        Some(vm.space.root().0)
    }

    fn with_shown<R>(vm: &Vm<Self>, act: impl FnOnce(&mut [Function]) -> R) -> R {
        act(vm.guest.platform.lock().functions_mut())
    }

    fn receiver(vm: &'static Vm<Self>) -> &'static dyn Receiver {
        vm
    }
}

// SAFETY: `Vendor` promises that the processor translates in the entry by `stay` alone, and drops
// what `stay` says. `flush_space` reaches every vCPU of the machine.
unsafe impl<V: 'static> Arch for OnX86<V>
where
    Self: Vendor,
{
    type Nested = <Self as Vendor>::Nested;
    /// AMD64's walks see stores in program order: nothing needs to be added.
    type Tables = NestedTables;
    type Common = Common;
    type Entry = EntryState;
    type Claim = Claim;
    type Shared = Shared;
    type Inbox = Inbox;
    type State = VcpuState<<Self as Vendor>::Block>;
    type Workspace = Workspace;
    type Devices = OwnedFunctions;

    const MACHINE: Architecture = <Self as Vendor>::ARCHITECTURE;
    /// All flushes are requests.
    const COUNTS_SECTIONS: bool = false;

    fn check(config: &Config<'_>) -> Result<(), CreateError> {
        guest::check::<Self>(config)
    }

    fn ram(config: &Config<'_>) -> Result<Vec<Range<u64>>, LoadError> {
        Ok(MemoryLayout::new(config.memory)?.slots().into_iter().collect())
    }

    fn physical_address_bits() -> u32 {
        cpuid::physical_address_bits::<Self>()
    }

    fn largest_page() -> Level {
        <Self as Vendor>::largest_page()
    }

    fn log_way() -> LogWay {
        <Self as Vendor>::log_way()
    }

    fn tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn common(_: &Config<'_>) -> Result<Common, CreateError> {
        Ok(Common::new::<Self>())
    }

    fn claim(config: &Config<'static>, common: &'static Common) -> Result<Claim, CreateError> {
        guest::claim::<Self>(config, common)
    }

    fn device_memory(claim: &Claim) -> u64 {
        claim.functions.slot_bytes()
    }

    fn share(
        config: &Config<'static>,
        common: &'static Common,
        space: &VmMemory<Self>,
        claim: Claim,
    ) -> Result<Shared, CreateError> {
        Shared::new::<Self>(config, common, space, claim)
    }

    fn new_vcpu(shared: &Shared, index: VpIndex, identity: u32) -> VcpuState<<Self as Vendor>::Block> {
        shared.new_vcpu::<Self>(index, identity)
    }

    fn new_workspace(cpu: &PerCpu<Self>) -> Workspace {
        Workspace::new(cpu)
    }

    fn plan(shared: &Shared, files: &Files, vcpus: u32) -> Result<Plan<EntryState>, LoadError> {
        shared.plan(files, vcpus)
    }

    fn begin(_: &Shared, entry: EntryState, (_, boot): (&Inbox, &mut VcpuState<<Self as Vendor>::Block>)) {
        boot.start_kernel(&entry);
    }

    fn reset_slots(vm: &'static Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        vm.reset_pci(cpu)
    }

    fn follow_state(vm: &'static Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        vm.follow_pci(cpu)
    }

    fn reset_devices(vm: &Vm<Self>) {
        vm.reset_devices();
        if vm.has_input() {
            vm.receive_console();
        }
    }

    fn show_generation(vm: &Vm<Self>, is_new: bool) {
        vm.show_generation(is_new);
    }

    fn leave_inner(vm: &Vm<Self>, state: &mut VcpuState<<Self as Vendor>::Block>) -> Result<(), Flaw> {
        Self::leave_to_move(state, &vm.space.slots().memory())
    }

    fn describe_shared(vm: &Vm<Self>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        vm.describe_shared(archive)
    }

    fn describe_vcpu(
        vm: &Vm<Self>,
        state: &mut VcpuState<<Self as Vendor>::Block>,
        inbox: &Inbox,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        state.hidden = *vm.guest.hidden.lock();
        state.describe::<Self>(inbox, (vm.clock.base(), vm.guest.cr4_mask), archive)
    }

    fn device_regions(_: &Vm<Self>) -> impl IntoIterator<Item = Region> {
        platform::REGIONS
    }

    fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize> {
        vm.type_in(port, bytes)
    }

    fn wake(vm: &Vm<Self>) {
        vm.happens(power::BUTTON);
    }

    #[inline(always)]
    fn holds_space(vm: &Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        <Self as Vendor>::holds_root(vm.space.root().0, cpu)
    }

    #[inline(always)]
    fn let_go(cpu: &PerCpu<Self>) {
        <Self as Vendor>::let_go(cpu);
    }

    fn receive_console(vm: Option<&Vm<Self>>) {
        match vm {
            Some(vm) => vm.receive_console(),
            None => while <Self as Processor>::receive().is_some() {},
        }
    }

    /// No instruction names a range of nested translations, which are tagged by ASID (SVM) or by
    /// root (VMX): CPUs drop everything.
    fn flush_space(
        vm: &Vm<Self>,
        _: Invalidation<'_>,
        devices: &DmaFlush<'_, Self>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, NotFlushed<Self>> {
        coherence::flush_space(vm, devices, scratch, &Ipi::<Self>::of_machine())
    }

    #[inline(always)]
    fn load_state(context: &mut Context<'_, Self>, _: &Turn) {
        Self::arrive(context);
        context.state.load::<Self>();
    }

    #[inline(always)]
    fn reload_state(context: &mut Context<'_, Self>) {
        Self::arrive(context);
        context.state.load::<Self>();
    }

    #[inline(always)]
    fn save_state(context: &mut Context<'_, Self>) {
        Self::leave(context);
        context.state.save::<Self>();
    }

    #[cold]
    fn open_window(_: &mut Context<'_, Self>) {
        Self::take_interrupts();
    }

    #[inline(always)]
    fn take_signals(context: &mut Context<'_, Self>) {
        signals::take_signals(context);
    }

    fn expire_timers(context: &mut Context<'_, Self>, now: u64) {
        signals::expire_timers(context, now);
    }

    /// PAUSE does not name a word.
    #[inline(always)]
    fn awaited_word(_: &Context<'_, Self>) -> Option<Word> {
        None
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_, Self>) -> bool {
        enter::enter(context)
    }

    fn take_flush(context: &mut Context<'_, Self>) {
        enter::take_flush(context);
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        <Self as Vendor>::handle_exit(context)
    }
}
