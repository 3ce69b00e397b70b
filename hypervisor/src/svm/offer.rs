//! The core's traits for AMD64, on top of the processor operations.

/// Implements [`Arch`](crate::vm::arch::Arch) for a processor that implements
/// [`Amd64`](super::processor::Amd64): on bare metal, and for the mock processor.
macro_rules! offer_amd64 {
    ($processor:ty) => {
        const _: () = {
            use core::ops::Range;

            use alloc::vec::Vec;
            use hostlink::config::Config;
            use iommu::Stuck;
            use paging::{Amd64Nested, Invalidation, Level, Progress};
            use pci::Function;

            use $crate::devices::pc::inbox::Inbox;
            use $crate::devices::pc::platform;
            use $crate::devices::region::Region;
            use $crate::iommu::messages::AmdVi;
            use $crate::iommu::routes::Receiver;
            use $crate::loader::{EntryState, LoadError};
            use $crate::owned::Owner;
            use $crate::sched::Turn;
            use $crate::svm::enter;
            use $crate::vm::arch::{Arch, Cpus};
            use $crate::vm::awaited::Word;
            use $crate::vm::dma::{DmaFlush, NotFlushed, Tickets};
            use $crate::vm::load::Plan;
            use $crate::vm::memory::NestedTables;
            use $crate::vm::shared::{Link, Signal};
            use $crate::vm::space::{FlushScratch, Flushed, VmMemory};
            use $crate::vm::{Context, CreateError, Files, Next, PerCpu, Vm, VpIndex};
            use $crate::x86::exits;
            use $crate::x86::guest::flush::Ipi;
            use $crate::x86::guest::{self, Claim, Common, Shared};
            use $crate::x86::vcpu::signals::{self, Workspace};
            use $crate::x86::vcpu::state::VcpuState;

            impl Owner for $processor {
                type Platform = AmdVi;

                fn with_shown<R>(vm: &Vm<Self>, act: impl FnOnce(&mut [Function]) -> R) -> R {
                    act(vm.guest.platform.lock().functions_mut())
                }

                fn receiver(vm: &'static Vm<Self>) -> &'static dyn Receiver {
                    vm
                }
            }

            // SAFETY: `Amd64::run` is called in `enter::enter` alone, for the owner's guest.
            // `enter::take_flush` drops what is named, or notes that the vCPU's next entry drops
            // all translations of its ASID, before it completes. `flush_space` reaches every vCPU
            // of the machine.
            unsafe impl Arch for $processor {
                type Nested = Amd64Nested;
                /// AMD64's walks see stores in program order: nothing needs to be added.
                type Tables = NestedTables;
                type Common = Common;
                type Entry = EntryState;
                type Claim = Claim;
                type Shared = Shared;
                type Inbox = Inbox;
                type State = VcpuState;
                type Workspace = Workspace;

                /// All flushes are requests.
                const COUNTS_SECTIONS: bool = false;

                fn check(config: &Config<'_>) -> Result<(), CreateError> {
                    guest::check::<Self>(config)
                }

                fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
                    guest::ram(size)
                }

                fn physical_address_bits() -> u32 {
                    guest::physical_address_bits::<Self>()
                }

                fn largest_page() -> Level {
                    guest::largest_page::<Self>()
                }

                /// Always true.
                fn notes_stores() -> bool {
                    true
                }

                fn tables(pool: NestedTables) -> NestedTables {
                    pool
                }

                fn common(_: &Config<'_>) -> Result<Common, CreateError> {
                    Ok(Common::new::<Self>())
                }

                fn claim(
                    config: &Config<'static>,
                    common: &'static Common,
                    links: Vec<Link>,
                ) -> Result<Claim, CreateError> {
                    guest::claim::<Self>(config, common, links)
                }

                fn signal(vm: &Vm<Self>, signal: Signal) -> bool {
                    vm.signal(signal)
                }

                fn share(
                    config: &Config<'static>,
                    common: &'static Common,
                    space: &VmMemory<Self>,
                    claim: Claim,
                ) -> Result<Shared, CreateError> {
                    Shared::new::<Self>(config, common, space, claim)
                }

                fn new_vcpu(shared: &Shared, index: VpIndex, identity: u32) -> VcpuState {
                    shared.new_vcpu::<Self>(index, identity)
                }

                fn new_inbox() -> Inbox {
                    Inbox::new()
                }

                fn new_workspace(cpu: &PerCpu<Self>) -> Workspace {
                    Workspace::new(cpu)
                }

                fn plan(shared: &Shared, files: &Files, vcpus: u32) -> Result<Plan<EntryState>, LoadError> {
                    shared.plan(files, vcpus)
                }

                fn begin(_: &Shared, entry: EntryState, (_, boot): (&Inbox, &mut VcpuState)) {
                    boot.start_kernel(&entry);
                }

                fn reset_slots(vm: &'static Vm<Self>, cpu: &PerCpu<Self>) -> bool {
                    vm.reset_pci(cpu)
                }

                fn reset_devices(vm: &Vm<Self>) {
                    vm.reset_devices();
                }

                fn device_regions(_: &Vm<Self>) -> impl IntoIterator<Item = Region> {
                    platform::REGIONS
                }

                fn type_in(vm: &Vm<Self>, port: u16, bytes: &[u8]) -> Option<usize> {
                    vm.type_in(port, bytes)
                }

                fn wake(vm: &Vm<Self>) {
                    vm.press();
                }

                fn receive_console(vm: &Vm<Self>) {
                    vm.receive_console();
                }

                /// Nested translations of CPUs are tagged by ASID alone, so no range can be named:
                /// they drop everything.
                fn flush_space(
                    vm: &Vm<Self>,
                    _: Invalidation<'_>,
                    devices: &DmaFlush<'_, Self>,
                    scratch: &mut FlushScratch,
                ) -> Result<Flushed, NotFlushed<Self>> {
                    coherence::flush_space(vm, devices, scratch, &Ipi::<Self>::of_machine())
                }

                #[inline(always)]
                fn begin_dma_flush(vm: &Vm<Self>, invalidation: Invalidation<'_>) -> Result<Tickets, Stuck> {
                    match &vm.guest.domains {
                        None => Ok(Tickets::new()),
                        Some(domains) => domains.begin(invalidation),
                    }
                }

                fn finish_dma_flush(vm: &Vm<Self>, begun: &Tickets) -> Result<(), Stuck> {
                    vm.guest.domains.as_ref().map_or(Ok(()), |domains| domains.finish(begun))
                }

                fn owns_devices(vm: &Vm<Self>) -> bool {
                    vm.guest.domains.is_some()
                }

                fn step_owned_reset(vm: &Vm<Self>) -> Progress {
                    vm.guest.functions.lock().reset()
                }

                fn attach_devices(vm: &Vm<Self>) {
                    vm.guest.functions.lock().attach(vm.space.root().0);
                }

                fn silence_devices(vm: &Vm<Self>) {
                    vm.guest.functions.lock().silence();
                }

                fn detach_devices(vm: &Vm<Self>) -> Result<(), Stuck> {
                    vm.guest.functions.lock().detach(vm.guest.domains.as_ref())
                }

                fn give_devices_back(vm: &Vm<Self>) -> Progress {
                    vm.guest.functions.lock().give_back()
                }

                #[inline(always)]
                fn load_state(context: &mut Context<'_, Self>, _: &Turn) {
                    context.state.load::<Self>();
                }

                #[inline(always)]
                fn reload_state(context: &mut Context<'_, Self>) {
                    context.state.load::<Self>();
                }

                #[inline(always)]
                fn save_state(context: &mut Context<'_, Self>) {
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
                    exits::handle_exit(context)
                }
            }
        };
    };
}
pub(crate) use offer_amd64;
