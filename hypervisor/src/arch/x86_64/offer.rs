//! What this architecture offers to the core.

use alloc::vec::Vec;
use core::ops::Range;

use coherence::Stalled;
use hostlink::config::Config;
use hostlink::exit::ExitCode;
use memslots::{Memslots, MmioCache};
use paging::{Amd64Nested, Invalidation, Level};
use stay::MMIO_PAGES;

use super::flush::Ipi;
use super::guest::{self, Shared};
use super::svm::state::{Activity, VcpuState};
use super::vcpu::Workspace;
use super::{clock, console, cpu};
use crate::arch::{Context, Machine, PerCpu, Space};
use crate::devices::inbox::Inbox;
use crate::devices::platform;
use crate::devices::region::Region;
use crate::image;
use crate::loader::LoadError;
use crate::sched::spinning::Look;
use crate::sched::{Turn, VcpuIndex};
use crate::vm::arch::{Arch, Board, Clock, Cpus, State};
use crate::vm::awaited::Word;
use crate::vm::memory::NestedTables;
use crate::vm::space::{FlushScratch, Flushed};
use crate::vm::{CreateError, Files, Next};

/// AMD64 with SVM.
pub(crate) struct Local;

impl Clock for Local {
    #[inline(always)]
    fn now() -> u64 {
        clock::now()
    }

    #[inline(always)]
    fn hz() -> u64 {
        clock::hz()
    }
}

impl Cpus for Local {
    type CpuData = cpu::CpuData;

    #[inline(always)]
    fn this_cpu() -> &'static PerCpu {
        PerCpu::current()
    }

    #[inline(always)]
    fn cpu(index: u32) -> Option<&'static PerCpu> {
        PerCpu::get(index)
    }

    fn take_interrupts() {
        cpu::take_interrupts();
    }

    fn wait_for_interrupt() {
        cpu::wait_for_interrupt();
    }

    #[inline(always)]
    fn kick(cpu: &PerCpu) {
        cpu::kick(cpu);
    }

    #[inline(always)]
    fn set_timer(cpu: &PerCpu, deadline: u64, now: u64) {
        clock::set_timer(cpu, deadline, now);
    }

    fn stop() -> ! {
        cpu::stop()
    }
}

/// The data caches are coherent whatever a guest does, so nothing is cleaned.
impl Board for Local {
    unsafe fn zero(start: u64, size: u64) {
        // SAFETY: the caller vouches for the range.
        unsafe { cpu::zero(start, size) };
    }

    fn receive_control() -> Option<u8> {
        console::receive_control()
    }

    fn send_control(byte: u8) {
        console::send_control(byte);
    }

    fn exit(code: ExitCode) -> ! {
        cpu::exit(code)
    }
}

impl State for VcpuState {
    type Inbox = Inbox;

    fn reset(&mut self, inbox: &Inbox) {
        self.reset(inbox);
    }

    #[inline(always)]
    fn space(&self) -> coherence::Space {
        self.space()
    }

    #[inline(always)]
    fn is_running(&self) -> bool {
        self.activity == Activity::Running
    }

    #[inline(always)]
    fn update_activity(&mut self) {
        self.update_activity();
    }

    #[inline(always)]
    fn wakes_from_halt(&self) -> bool {
        self.wakes_from_halt()
    }

    #[inline(always)]
    fn next_deadline(&self, now: u64) -> u64 {
        self.next_deadline(now)
    }

    #[inline(always)]
    fn intercept_pause(&mut self, wanted: bool) {
        self.intercept_pause(wanted);
    }

    /// It is never looked at: whether the guest spins is known from its PAUSE.
    #[inline(always)]
    fn is_look_due(&self, _: u64) -> bool {
        false
    }

    #[inline(always)]
    fn look_whether_it_spins(&mut self, _: u64, _: u64) -> Look {
        Look::Again(u64::MAX)
    }

    #[inline(always)]
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.mmio
    }

    fn dump(&self, vcpu: VcpuIndex) {
        self.dump(vcpu);
    }
}

impl Arch for Local {
    type Nested = Amd64Nested;
    /// AMD64's stores are seen by walks in program order: there is nothing to add.
    type Tables = NestedTables;
    type Shared = Shared;
    type Inbox = Inbox;
    type State = VcpuState;
    type Workspace = Workspace;

    /// All flushes are requests.
    const COUNTS_SECTIONS: bool = false;

    #[inline(always)]
    fn machine() -> Option<&'static Machine> {
        image::machine()
    }

    fn check(config: &Config<'_>) -> Result<(), CreateError> {
        guest::check(config)
    }

    fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
        guest::ram(size)
    }

    fn physical_address_bits() -> u32 {
        guest::physical_address_bits()
    }

    fn largest_page() -> Level {
        guest::largest_page()
    }

    /// Always.
    fn notes_stores() -> bool {
        true
    }

    fn tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn share(config: &Config<'_>, space: &Space) -> Result<Shared, CreateError> {
        Shared::new(config, space)
    }

    fn new_vcpu(shared: &Shared, index: VcpuIndex) -> VcpuState {
        shared.new_vcpu(index)
    }

    fn new_inbox() -> Inbox {
        Inbox::new()
    }

    fn new_workspace(cpu: &PerCpu) -> Workspace {
        Workspace::new(cpu)
    }

    fn load(
        shared: &Shared,
        files: &Files,
        vcpus: u32,
        slots: &Memslots,
        (_, state): (&Inbox, &mut VcpuState),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError> {
        shared.load(files, vcpus, slots, state, pause)
    }

    fn reset_devices(vm: &'static Machine, cpu: &PerCpu) {
        vm.reset_devices(cpu);
    }

    fn device_regions(_: &Machine) -> impl IntoIterator<Item = Region> {
        platform::REGIONS
    }

    fn receive_console(vm: &Machine) {
        vm.receive_console();
    }

    /// Nested translations are tagged by ASID alone, so no range can be named: everything goes.
    fn flush_space(
        vm: &Machine,
        _: Invalidation<'_>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, Stalled> {
        coherence::flush_space(vm, scratch, &Ipi)
    }

    #[inline(always)]
    fn load_state(context: &mut Context<'_>, _: &Turn) {
        context.state.load();
    }

    #[inline(always)]
    fn reload_state(context: &mut Context<'_>) {
        context.state.load();
    }

    #[inline(always)]
    fn save_state(context: &mut Context<'_>) {
        context.state.save();
    }

    #[cold]
    fn open_window(_: &mut Context<'_>) {
        cpu::take_interrupts();
    }

    #[inline(always)]
    fn take_signals(context: &mut Context<'_>) {
        context.take_signals();
    }

    fn expire_timers(context: &mut Context<'_>, now: u64) {
        context.expire_timers(now);
    }

    /// PAUSE does not say which.
    #[inline(always)]
    fn awaited_word(_: &Context<'_>) -> Option<Word> {
        None
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_>) -> bool {
        context.enter()
    }

    fn take_flush(context: &mut Context<'_>) {
        context.take_flush();
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_>) -> Next {
        context.handle_exit()
    }
}
