//! What this architecture offers to the core.

use alloc::vec::Vec;
use core::arch::asm;
use core::arch::x86_64::__cpuid_count;
use core::num::NonZeroU32;
use core::ops::Range;
use core::ptr::NonNull;

use coherence::Stalled;
use hostlink::config::Config;
use hostlink::exit::ExitCode;
use memslots::Memslots;
use paging::{Amd64Nested, Invalidation, Level};
use stay::Cost;
use tlfs::XMM_WORDS;
use x86_64::registers::debug::{DebugAddressRegister, Dr0, Dr1, Dr2, Dr3};
use x86_64::registers::model_specific::Msr;

use super::svm::{entry, features, fpu, invalidate};
use super::{clock, console, cpu};
use crate::amd64::features::Features;
use crate::amd64::flush::Ipi;
use crate::amd64::guest::{self, Shared};
use crate::amd64::registers::Registers;
use crate::amd64::signals::{self, Workspace};
use crate::amd64::state::VcpuState;
use crate::amd64::vmcb::Vmcb;
use crate::amd64::{Amd64, enter, exits};
use crate::arch::{Context, Machine, PerCpu, Space};
use crate::devices::inbox::Inbox;
use crate::devices::platform::{self, SerialPort};
use crate::devices::region::Region;
use crate::hyperv::cpuid::CpuidResult;
use crate::image;
use crate::loader::LoadError;
use crate::sched::{Turn, VcpuIndex};
use crate::vm::arch::{Arch, Board, Clock, Cpus};
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

    /// Always.
    fn notes_stores() -> bool {
        true
    }

    fn tables(pool: NestedTables) -> NestedTables {
        pool
    }

    fn share(config: &Config<'_>, space: &Space) -> Result<Shared, CreateError> {
        Shared::new::<Self>(config, space)
    }

    fn new_vcpu(shared: &Shared, index: VcpuIndex) -> VcpuState {
        shared.new_vcpu::<Self>(index)
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
        coherence::flush_space(vm, scratch, &Ipi::<Self>::of_machine())
    }

    #[inline(always)]
    fn load_state(context: &mut Context<'_>, _: &Turn) {
        context.state.load::<Self>();
    }

    #[inline(always)]
    fn reload_state(context: &mut Context<'_>) {
        context.state.load::<Self>();
    }

    #[inline(always)]
    fn save_state(context: &mut Context<'_>) {
        context.state.save::<Self>();
    }

    #[cold]
    fn open_window(_: &mut Context<'_>) {
        cpu::take_interrupts();
    }

    #[inline(always)]
    fn take_signals(context: &mut Context<'_>) {
        signals::take_signals(context);
    }

    fn expire_timers(context: &mut Context<'_>, now: u64) {
        signals::expire_timers(context, now);
    }

    /// PAUSE does not say which.
    #[inline(always)]
    fn awaited_word(_: &Context<'_>) -> Option<Word> {
        None
    }

    #[inline(always)]
    fn enter(context: &mut Context<'_>) -> bool {
        enter::enter(context)
    }

    fn take_flush(context: &mut Context<'_>) {
        enter::take_flush(context);
    }

    #[inline(always)]
    fn handle_exit(context: &mut Context<'_>) -> Next {
        exits::handle_exit(context)
    }
}

const MSR_TSC_AUX: u32 = 0xc000_0103;
const MSR_PATCH_LEVEL: u32 = 0x8b;

impl Amd64 for Local {
    #[inline(always)]
    fn features() -> Features {
        features::get()
    }

    fn pretend() {
        features::pretend();
    }

    fn tags() -> NonZeroU32 {
        features::tags()
    }

    #[inline(always)]
    fn cpuid(leaf: u32, subleaf: u32) -> CpuidResult {
        let core::arch::x86_64::CpuidResult { eax, ebx, ecx, edx } = __cpuid_count(leaf, subleaf);
        CpuidResult { eax, ebx, ecx, edx }
    }

    #[inline(always)]
    fn wrong() -> u32 {
        features::wrong()
    }

    fn patch_level() -> u64 {
        // SAFETY: every AMD64 processor has this register; reading it changes nothing.
        unsafe { Msr::new(MSR_PATCH_LEVEL).read() }
    }

    #[inline(always)]
    fn has_tsc_aux() -> bool {
        features::has_tsc_aux()
    }

    #[inline(always)]
    fn read_tsc_aux() -> u64 {
        // SAFETY: it is called where the MSR is there.
        unsafe { Msr::new(MSR_TSC_AUX).read() }
    }

    #[inline(always)]
    fn write_tsc_aux(value: u64) {
        // SAFETY: it is called where the MSR is there, and the hypervisor does not use it.
        unsafe { Msr::new(MSR_TSC_AUX).write(value) };
    }

    #[inline(always)]
    fn read_breakpoints() -> [u64; 4] {
        [Dr0::read(), Dr1::read(), Dr2::read(), Dr3::read()]
    }

    #[inline(always)]
    fn write_breakpoints(addresses: [u64; 4]) {
        let [dr0, dr1, dr2, dr3] = addresses;
        Dr0::write(dr0);
        Dr1::write(dr1);
        Dr2::write(dr2);
        Dr3::write(dr3);
    }

    #[inline(always)]
    fn components() -> u64 {
        fpu::components()
    }

    fn fpu_size() -> usize {
        fpu::size()
    }

    #[inline(always)]
    fn read_xcr0() -> u64 {
        fpu::read_xcr0()
    }

    #[inline(always)]
    fn write_xcr0(value: u64) {
        fpu::write_xcr0(value);
    }

    #[inline(always)]
    unsafe fn load_fpu(area: NonNull<u8>) {
        // SAFETY: the caller vouches for the area.
        unsafe { fpu::load(area) };
    }

    #[inline(always)]
    unsafe fn save_fpu(area: NonNull<u8>) {
        // SAFETY: the caller vouches for the area.
        unsafe { fpu::save(area) };
    }

    #[inline(always)]
    fn xmm_words() -> [u64; XMM_WORDS] {
        fpu::xmm_words()
    }

    /// RFLAGS.IF is set while GIF is 0: a kick that comes then ends guest mode at once.
    #[inline(always)]
    fn hold_interrupts() {
        // SAFETY: SVM is on; IF = 1 with GIF = 0 takes no interrupt.
        unsafe { asm!("clgi", "sti", options(nomem, nostack)) };
    }

    #[inline(always)]
    fn release_interrupts() {
        // SAFETY: handlers need nothing but the stack; no lock is held here.
        unsafe { asm!("stgi", "nop", "cli", options(nostack)) };
    }

    #[inline(always)]
    unsafe fn run(cpu: &PerCpu, vmcb: &mut Vmcb, registers: &mut Registers) {
        let guest = core::ptr::from_mut(vmcb).expose_provenance() as u64;
        // SAFETY: the caller vouches for the guest's block and registers; the host's is this CPU's
        // own.
        unsafe { entry::run_guest(guest, &raw mut *registers, cpu.arch.host_vmcb.get()) };
    }

    #[inline(always)]
    fn invalidate_page(address: u64, asid: u32) {
        invalidate::invalidate_page(address, asid);
    }

    fn measure_flushes() -> Cost {
        // No guest uses any tag yet.
        invalidate::measure(1)
    }

    fn transmit(port: SerialPort, byte: u8) {
        console::guest_transmit(usize::from(port == SerialPort::Com2), byte);
    }

    fn receive() -> Option<u8> {
        console::receive()
    }

    #[cfg(feature = "audit")]
    fn books(cpu: &PerCpu) -> &core::cell::RefCell<crate::amd64::audit::CpuBooks> {
        &cpu.arch.books
    }
}
