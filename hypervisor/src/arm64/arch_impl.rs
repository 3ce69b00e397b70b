//! The core's traits for Arm64, on top of the processor operations.

use ::pci::Function;
use alloc::vec::Vec;
use core::marker::PhantomData;
use core::ops::Range;
use hostlink::architecture::Architecture;
use hostlink::config::Config;
use iommu::Stuck;
use memslots::space::LogWay;
use migration::{Archive, Flaw};
use paging::{Invalidation, Level, Progress};

use crate::arm64::controls::STAGE2_BITS;
use crate::arm64::exits;
use crate::arm64::guest::{self, Claim, Common, Shared, devices, translations};
use crate::arm64::processor::{Features, Processor};
use crate::arm64::vcpu::state::VcpuState;
use crate::arm64::vcpu::{self, Inbox, Patience, Workspace, stolen_time};
use crate::devices::region::Region;
use crate::devices::virt::map;
use crate::iommu::lines::{Receiver, Wired};
use crate::loader::LoadError;
use crate::loader::virt::Entry;
use crate::owned::{DeviceOwner, Domains, Followed, Holding, OwnedFunctions};
use crate::sched::Turn;
use crate::vm::arch::Arch;
use crate::vm::awaited::Word;
use crate::vm::dma::{DmaFlush, NotFlushed, Tickets};
use crate::vm::load::Plan;
use crate::vm::memory::NestedTables;
use crate::vm::shown::ShownMemory;
use crate::vm::space::{FlushScratch, Flushed, VmMemory};
use crate::vm::{Context, CreateError, Files, Next, PerCpu, Vm, VpIndex};

/// Arm64 at EL2, on the processor `P`.
pub struct OnArm64<P>(PhantomData<P>);

impl<P: 'static> DeviceOwner for OnArm64<P>
where
    Self: Processor,
{
    type Platform = Wired;

    #[inline(always)]
    fn owned(vm: &Vm<Self>) -> &Holding<Wired> {
        &vm.guest.owned
    }

    fn root(vm: &Vm<Self>) -> Option<u64> {
        vm.guest.mirror().map(|mirror| mirror.lock().root())
    }

    fn begin_flush(vm: &Vm<Self>, domains: &Domains<Wired>, _: Invalidation<'_>) -> Result<Tickets, Stuck> {
        translations::begin_flush(vm, domains)
    }

    fn map(vm: &Vm<Self>) -> Progress {
        translations::fill(vm)
    }

    fn with_shown<R>(vm: &Vm<Self>, act: impl FnOnce(&mut [Function]) -> R) -> R {
        act(vm.guest.pci.lock().functions_mut())
    }

    fn receiver(vm: &'static Vm<Self>) -> &'static dyn Receiver {
        vm
    }
}

// SAFETY: `Processor::run_guest` is called in `vcpu::enter` alone, for the owner's guest.
// `vcpu::take_flush` drops this processor's translations of the machine before it completes.
// `flush_space` returns when its broadcasts are complete on all processors. Devices translate by
// the mirror, which follows the slots in `DeviceOwner::begin_flush`, and the SMMU drops what is not
// in it any more.
unsafe impl<P: 'static> Arch for OnArm64<P>
where
    Self: Processor,
{
    type Nested = <Self as Processor>::Stage2;
    type Tables = <Self as Processor>::Stage2Tables;
    type Common = Common;
    type Entry = Entry;
    type Claim = Claim;
    type Shared = Shared;
    type Inbox = Inbox;
    type State = VcpuState<Self>;
    type Workspace = Workspace;
    type Devices = OwnedFunctions;

    const MACHINE: Architecture = Architecture::Arm64;
    /// All flushes are broadcasts.
    const COUNTS_SECTIONS: bool = true;

    fn check(config: &Config<'_>) -> Result<(), CreateError> {
        guest::check(config)
    }

    fn ram(config: &Config<'_>) -> Result<Vec<Range<u64>>, LoadError> {
        guest::ram::<Self>(config)
    }

    fn claim(config: &Config<'static>, common: &'static Common) -> Result<Claim, CreateError> {
        guest::claim(config, common)
    }

    fn device_memory(claim: &Claim) -> u64 {
        claim.functions.slot_bytes()
    }

    fn physical_address_bits() -> u32 {
        STAGE2_BITS.min(Self::description().physical_bits())
    }

    fn tables(pool: NestedTables) -> Self::Tables {
        Self::stage2_tables(pool)
    }

    fn common(config: &Config<'_>) -> Result<Common, CreateError> {
        let (setup, cost) = Self::set_up_stage2();
        Common::new::<Self>(config, setup, cost)
    }

    fn share(
        config: &Config<'static>,
        common: &'static Common,
        space: &VmMemory<Self>,
        claim: Claim,
    ) -> Result<Shared, CreateError> {
        Shared::new::<Self>(config, common, space, Self::tag(space.tables().memory()), claim)
    }

    fn largest_page() -> Level {
        Level::Page1G
    }

    fn log_way() -> LogWay {
        let has_state = Self::features().contains(Features::DIRTY_STATE);
        if has_state { LogWay::DirtyBits } else { LogWay::WriteFaults }
    }

    fn new_vcpu(shared: &Shared, index: VpIndex, identity: u32) -> VcpuState<Self> {
        shared.new_vcpu(index, identity)
    }

    fn new_workspace(cpu: &PerCpu<Self>) -> Workspace {
        Workspace::new(cpu)
    }

    fn plan(shared: &Shared, files: &Files, vcpus: u32) -> Result<Plan<Entry>, LoadError> {
        shared.plan(files, vcpus)
    }

    fn begin(_: &Shared, entry: Entry, boot: (&Inbox, &mut VcpuState<Self>)) {
        guest::begin(entry, boot);
    }

    fn reset_slots(vm: &'static Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        matches!(vm.guest.owned.functions.lock().hide(vm, cpu), Ok(Followed::WasThere))
    }

    fn reset_devices(vm: &Vm<Self>) {
        vm.guest.reset();
        stolen_time::reset(vm);
    }

    fn show_generation(vm: &Vm<Self>, is_new: bool) {
        devices::show_generation(vm, is_new);
    }

    fn describe_shared(vm: &Vm<Self>, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        guest::saved_state::describe(vm, archive)
    }

    fn follow_state(_: &'static Vm<Self>, _: &PerCpu<Self>) -> bool {
        guest::saved_state::drop_instructions::<Self>();
        true
    }

    fn describe_vcpu(
        vm: &Vm<Self>,
        state: &mut VcpuState<Self>,
        inbox: &Inbox,
        archive: &mut Archive<'_>,
    ) -> Result<(), Flaw> {
        vcpu::saved_state::describe(vm, state, inbox, archive)
    }

    fn device_regions(vm: &Vm<Self>) -> impl IntoIterator<Item = Region> {
        let pci = vm.guest.has_functions().then(map::pci_regions);
        map::regions(vm.vcpu_count() as u8).into_iter().chain(pci.into_iter().flatten())
    }

    fn shown_memory(vcpus: u32) -> Option<ShownMemory> {
        Some(stolen_time::memory(vcpus))
    }

    fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize> {
        (port == 0).then(|| devices::type_in(vm, bytes))
    }

    fn wake(vm: &Vm<Self>) {
        devices::wake(vm);
    }

    fn holds_space(vm: &Vm<Self>, cpu: &PerCpu<Self>) -> bool {
        cpu.arch.loaded.is(vm.guest.root())
    }

    fn leave_space(common: &Common, cpu: &PerCpu<Self>, workspace: &mut Workspace) {
        vcpu::leave_space(common, cpu, workspace);
    }

    fn receive_console(vm: Option<&Vm<Self>>) {
        match vm {
            Some(vm) => devices::receive_console(vm),
            None => while Self::receive().is_some() {},
        }
    }

    fn flush_space(
        vm: &Vm<Self>,
        invalidation: Invalidation<'_>,
        devices: &DmaFlush<'_, Self>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, NotFlushed<Self>> {
        let space = vm.guest.address_space();
        let tlb = &Self::TLB;
        stay::broadcast::flush_space(vm, devices, tlb, &space, invalidation, scratch, &Patience)
    }

    #[inline(always)]
    fn load_state(context: &mut Context<'_, Self>, turn: &Turn) {
        stolen_time::add(context, turn.waited);
        vcpu::load_state(context);
    }

    #[inline(always)]
    fn reload_state(context: &mut Context<'_, Self>) {
        context.state.load();
    }

    #[inline(always)]
    fn save_state(context: &mut Context<'_, Self>) {
        context.state.save();
    }

    fn open_window(context: &mut Context<'_, Self>) {
        vcpu::open_window(context);
    }

    #[inline(always)]
    fn take_signals(context: &mut Context<'_, Self>) {
        vcpu::take_signals(context);
    }

    /// The vCPU waits for its timer or for the clock's alarm, which has expired.
    fn expire_timers(context: &mut Context<'_, Self>, now: u64) {
        devices::expire_alarm(context, now);
        vcpu::open_window(context);
    }

    fn awaited_word(context: &Context<'_, Self>) -> Option<Word> {
        exits::wait::awaited_word(context)
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_, Self>) -> bool {
        vcpu::enter(context)
    }

    fn take_flush(context: &mut Context<'_, Self>) {
        vcpu::take_flush::<Self>(&mut context.owner);
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_, Self>) -> Next {
        exits::handle_next(context, context.state.exit)
    }
}
