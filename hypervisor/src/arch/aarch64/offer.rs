//! What this architecture offers to the core.

use alloc::vec::Vec;
use core::ops::Range;

use coherence::Stalled;
use hostlink::config::Config;
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;
use memslots::Memslots;
use paging::{Invalidation, Level};
use stay::arm64;

use super::features::STAGE2_BITS;
use super::flush::Tlb;
use super::stage2::{self, Stage2, Tables};
use super::sysreg::{isb, read, write};
use super::{clock, console, cpu, entry, features, float, gic, points, registers, vgic};
use crate::arch::{Context, Machine, PerCpu, Space};
use crate::arm64::debug::{Counts, Debug};
use crate::arm64::devices;
use crate::arm64::exchanged::Register;
use crate::arm64::exits;
use crate::arm64::guest::{self, Shared};
use crate::arm64::processor::{Configuration, CpuData, Features, FloatState, Processor, Registers, Vector};
use crate::arm64::state::VcpuState;
use crate::arm64::vcpu::{self, Inbox, Patience, Workspace};
use crate::devices::gic::Maintenance;
use crate::devices::region::Region;
use crate::devices::virt_map;
use crate::image;
use crate::loader::LoadError;
use crate::sched::{Turn, VcpuIndex};
use crate::vm::arch::{Arch, Board, Clock, Cpus};
use crate::vm::awaited::Word;
use crate::vm::memory::NestedTables;
use crate::vm::space::{FlushScratch, Flushed};
use crate::vm::{CreateError, Files, Next};

/// Arm64 at EL2.
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
    type CpuData = CpuData;

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

impl Board for Local {
    #[inline(always)]
    fn mark(phase: Phase) {
        cpu::mark(phase);
    }

    fn must_clean() -> bool {
        cpu::must_clean()
    }

    fn clean(memory: Range<u64>) {
        cpu::clean(memory);
    }

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

impl Processor for Local {
    type Tlb = Tlb;

    const TLB: Tlb = Tlb;

    #[inline(always)]
    fn features() -> Features {
        features::get()
    }

    fn base_configuration() -> u64 {
        features::hypervisor_configuration()
    }

    fn identification(crm: u32, op2: u32) -> u64 {
        registers::identification(crm, op2)
    }

    fn auxiliary_control() -> u64 {
        read!("actlr_el1")
    }

    #[inline(always)]
    fn read(register: Register) -> u64 {
        registers::get(register)
    }

    #[inline(always)]
    fn write(register: Register, value: u64) {
        registers::set(register, value);
    }

    #[inline(always)]
    fn configuration() -> u64 {
        read!("hcr_el2")
    }

    #[inline(always)]
    fn set_configuration(configuration: Configuration) {
        // SAFETY: what differs between vCPUs, and between what others want: local maintenance,
        // virtual SErrors, traps of WFE.
        unsafe { write!("hcr_el2", configuration.bits()) };
    }

    #[inline(always)]
    fn synchronize() {
        isb();
    }

    fn translate(address: u64, at_el0: bool) -> u64 {
        registers::translate(address, at_el0)
    }

    #[inline(always)]
    fn syndrome() -> u64 {
        read!("esr_el2")
    }

    #[inline(always)]
    fn fault_address() -> u64 {
        read!("far_el2")
    }

    #[inline(always)]
    fn fault_page() -> u64 {
        read!("hpfar_el2")
    }

    #[inline(always)]
    fn save_float(to: &mut FloatState) {
        float::save(to);
    }

    #[inline(always)]
    fn load_float(from: &FloatState) {
        float::load(from);
    }

    #[inline(always)]
    fn list_count() -> usize {
        vgic::list_count()
    }

    #[inline]
    fn read_list(index: usize) -> u64 {
        vgic::read_list(index)
    }

    #[inline]
    fn write_list(index: usize, value: u64) {
        vgic::write_list(index, value);
    }

    #[inline(always)]
    fn preemption_bits() -> u32 {
        vgic::preemption_bits()
    }

    fn init_interface() {
        vgic::init_cpu();
    }

    #[inline(always)]
    fn interface_control() -> u64 {
        vgic::control()
    }

    #[inline(always)]
    fn set_maintenance(maintenance: Maintenance) {
        vgic::set_maintenance(maintenance);
    }

    #[inline(always)]
    fn deactivate(intid: u32) {
        gic::deactivate(intid);
    }

    fn load_debug(debug: &Debug, counts: Counts, control: u64) {
        points::load(debug, counts, control);
    }

    fn stop_debug() {
        points::switch_off();
    }

    #[inline(always)]
    unsafe fn run_guest(registers: &mut Registers) -> Vector {
        // SAFETY: the caller vouches for it.
        unsafe { entry::run(registers) }
    }

    fn transmit(byte: u8) {
        console::guest_transmit(byte);
    }

    fn receive() -> Option<u8> {
        console::receive()
    }
}

impl Arch for Local {
    type Nested = Stage2;
    type Tables = Tables;
    type Shared = Shared;
    type Inbox = Inbox;
    type State = VcpuState<Self>;
    type Workspace = Workspace;

    /// All flushes are broadcasts.
    const COUNTS_SECTIONS: bool = true;

    #[inline(always)]
    fn machine() -> Option<&'static Machine> {
        image::machine()
    }

    fn check(config: &Config<'_>) -> Result<(), CreateError> {
        guest::check(config)
    }

    fn ram(size: u64) -> Result<Vec<Range<u64>>, LoadError> {
        guest::ram::<Self>(size)
    }

    fn physical_address_bits() -> u32 {
        STAGE2_BITS.min(features::physical_bits())
    }

    fn largest_page() -> Level {
        Level::Page1G
    }

    fn notes_stores() -> bool {
        features::get().contains(Features::DIRTY_STATE)
    }

    fn tables(pool: NestedTables) -> Tables {
        Tables(pool)
    }

    fn share(config: &Config<'_>, space: &Space) -> Result<Shared, CreateError> {
        Shared::new::<Self>(config, space, stage2::set_up(config.switches.stage2_unmap))
    }

    fn new_vcpu(shared: &Shared, index: VcpuIndex) -> VcpuState<Self> {
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
        boot: (&Inbox, &mut VcpuState<Self>),
        pause: &mut dyn FnMut(),
    ) -> Result<(), LoadError> {
        shared.load::<Self>(files, vcpus, slots, boot, pause)
    }

    fn reset_devices(vm: &'static Machine, _: &PerCpu) {
        vm.guest.reset();
    }

    fn device_regions(vm: &Machine) -> impl IntoIterator<Item = Region> {
        virt_map::regions(vm.vcpu_count() as u8)
    }

    fn receive_console(vm: &Machine) {
        devices::receive_console(vm);
    }

    fn flush_space(
        vm: &Machine,
        invalidation: Invalidation<'_>,
        scratch: &mut FlushScratch,
    ) -> Result<Flushed, Stalled> {
        let space = vm.guest.address_space();
        arm64::flush_space(vm, &Tlb, &space, invalidation, scratch, &Patience)
    }

    #[inline(always)]
    fn load_state(context: &mut Context<'_>, _: &Turn) {
        vcpu::load_state(context);
    }

    #[inline(always)]
    fn reload_state(context: &mut Context<'_>) {
        context.state.load();
    }

    #[inline(always)]
    fn save_state(context: &mut Context<'_>) {
        context.state.save();
    }

    fn open_window(context: &mut Context<'_>) {
        vcpu::open_window(context);
    }

    #[inline(always)]
    fn take_signals(context: &mut Context<'_>) {
        vcpu::take_signals(context);
    }

    /// The vCPU waits for its timer, whose time has come.
    fn expire_timers(context: &mut Context<'_>, _: u64) {
        vcpu::open_window(context);
    }

    fn awaited_word(context: &Context<'_>) -> Option<Word> {
        exits::wait::awaited_word(context)
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_>) -> bool {
        vcpu::enter(context)
    }

    fn take_flush(context: &mut Context<'_>) {
        vcpu::take_flush::<Self>(&mut context.owner);
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_>) -> Next {
        exits::handle_next(context, context.state.exit)
    }
}
