//! The vCPU state that only the CPU that runs it touches.

use alloc::boxed::Box;

use coherence::Space;
use coherence::asid::AsidSlot;
use memslots::MmioCache;
use stay::MMIO_PAGES;
use stay::amd64::{TranslationControls, changes_translations, start_over};

use super::code_path::CodePaths;
use super::debug::DebugRegisters;
use super::fpu::FpuState;
use super::msr;
use super::nmi::Nmi;
use super::registers::{RAX, RBX, RDX, RSI, RSP, Registers};
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::lapic::{Lapic, TimerClock};
use crate::loader::{self, EntryState};
use crate::sched::spinning::Look;
use crate::svm::audit::auditor::Auditor;
use crate::svm::intercepts::{self, misc1};
use crate::svm::processor::Amd64;
use crate::svm::step::Step;
use crate::svm::vmcb::RFLAGS_IF;
use crate::svm::vmcb::{DR6_SINGLE_STEP, EFER_SVME, RFLAGS_TF, Segment, Vmcb, clean, vintr};
use crate::vm::GUEST;
use crate::vm::arch::State;
use crate::vm::files::Defects;
use crate::x86::CR0_PE;
use crate::x86::RFLAGS_RF;
use crate::x86::cpuid;
use crate::x86::hyperv::Vp;

/// CR0.ET, which is always set.
const CR0_ET: u64 = 1 << 4;
/// PAT after reset (APM volume 2, section 7.8.2).
const PAT_RESET: u64 = 0x0007_0406_0007_0406;
/// Number of consecutive PAUSEs that make the processor exit, where it counts them; and the maximum
/// distance between them.
const PAUSE_COUNT: u16 = 3000;
const PAUSE_THRESHOLD: u16 = 128;

fn segment(from: loader::Segment) -> Segment {
    Segment { selector: from.selector, attributes: from.attributes, limit: from.limit, base: from.base }
}

/// The activity of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// It has instructions to run.
    Running,
    /// It executed HLT and waits for an interrupt.
    Halted,
    /// It waits for a start-up IPI.
    WaitForStartup,
}

/// Shared tables: the ports and MSRs that cause exits, and the nested page table.
#[derive(Clone, Copy, Debug)]
pub struct Permissions {
    /// Physical address of the I/O permission map.
    pub io: u64,
    /// Physical address of the MSR permission map.
    pub msr: u64,
    /// Root of the nested page table.
    pub nested_root: u64,
}

/// A vCPU's private state.
pub struct VcpuState {
    /// The control block.
    pub vmcb: Box<Vmcb>,
    /// General registers.
    pub registers: Registers,
    /// The local APIC.
    pub lapic: Lapic,
    /// The Hyper-V interface's state.
    pub hyperv: Vp,
    /// Its address space tag.
    pub asid: AsidSlot,
    /// The auditor's record.
    pub auditor: Auditor,
    /// Its activity.
    pub activity: Activity,
    /// When it looks whether the clock interrupts, as on Arm64.
    pub alarm: u64,
    /// An exception to raise at the next entry: the value for `event_injection`.
    pub exception: Option<u64>,
    /// NMIs.
    pub nmi: Nmi,
    /// Meaningful while `nmi` says so.
    pub(crate) step: Step,
    /// The guest's value of TSC_ADJUST.
    pub tsc_adjust: u64,
    /// CPUID leaf 1's EAX, which is in EDX after INIT.
    pub(crate) signature: u32,
    /// The CPUID that this vCPU sees.
    pub view: cpuid::View,
    /// Its last walks to its code.
    pub code: CodePaths,
    /// The pages without memory that it accessed most recently.
    pub mmio: MmioCache<MMIO_PAGES>,
    pub(crate) fpu: FpuState,
    pub(crate) debug: DebugRegisters,
    pub(crate) tsc_aux: u64,
}

impl VcpuState {
    /// A vCPU after power-on, waiting for start-up: its VP index, and its identity among the vCPUs
    /// of all guests.
    pub fn new<A: Amd64>(
        (vp_index, identity): (u32, u32),
        view: cpuid::View,
        clock: TimerClock,
        permissions: &Permissions,
    ) -> Self {
        let mut state = Self {
            vmcb: Vmcb::boxed(),
            registers: Registers::default(),
            lapic: Lapic::new(view.apic_id, view.apic_id == 0, clock),
            hyperv: Vp::new(vp_index),
            asid: AsidSlot::new(),
            auditor: Auditor::new(identity),
            activity: Activity::WaitForStartup,
            alarm: u64::MAX,
            exception: None,
            nmi: Nmi::default(),
            step: Step::default(),
            tsc_adjust: 0,
            signature: cpuid::answer::<A>(1, 0, view).eax,
            view,
            code: CodePaths::default(),
            mmio: MmioCache::new(),
            fpu: FpuState::new::<A>(),
            debug: DebugRegisters::default(),
            tsc_aux: 0,
        };
        state.set_controls::<A>(permissions);
        state.set_init_state();
        state
    }

    fn set_controls<A: Amd64>(&mut self, permissions: &Permissions) {
        let vmcb = &mut *self.vmcb;
        vmcb.iopm_base = permissions.io;
        vmcb.msrpm_base = permissions.msr;
        vmcb.nested_control = 1;
        vmcb.nested_cr3 = permissions.nested_root;
        if A::features().pause_filter() {
            vmcb.pause_filter_count = PAUSE_COUNT;
            vmcb.pause_filter_threshold = PAUSE_THRESHOLD;
        }
    }

    /// What causes exits and what is offered while no event waits. Whether PAUSE is intercepted
    /// depends on the CPU's queue.
    fn set_idle_controls(&mut self) {
        let vmcb = &mut *self.vmcb;
        let pause = vmcb.intercept_misc1 & misc1::PAUSE;
        vmcb.intercept_cr = intercepts::CR_WRITE_4;
        vmcb.intercept_exceptions = intercepts::EXCEPTIONS;
        [vmcb.intercept_misc1, vmcb.intercept_misc2, vmcb.intercept_misc3] = intercepts::ALWAYS;
        vmcb.intercept_misc1 = vmcb.intercept_misc1 & !misc1::PAUSE | pause;
        vmcb.interrupt_control = vintr::MASKING;
    }

    /// The processor's state after INIT: APM volume 2, table 14-1. The FPU keeps its state.
    pub fn set_init_state(&mut self) {
        let _own = self.end_step();
        self.set_idle_controls();
        let data = Segment { selector: 0, attributes: 0x093, limit: 0xffff, base: 0 };
        let vmcb = &mut *self.vmcb;
        vmcb.cs = Segment { selector: 0xf000, attributes: 0x09b, limit: 0xffff, base: 0xffff_0000 };
        (vmcb.ds, vmcb.es, vmcb.fs, vmcb.gs, vmcb.ss) = (data, data, data, data, data);
        let table = Segment { selector: 0, attributes: 0, limit: 0xffff, base: 0 };
        (vmcb.gdtr, vmcb.idtr) = (table, table);
        vmcb.ldtr = Segment { attributes: 0x082, ..table };
        vmcb.tr = Segment { attributes: 0x08b, ..table };
        vmcb.cpl = 0;
        vmcb.efer = EFER_SVME;
        vmcb.cr0 = 0x6000_0010;
        (vmcb.cr2, vmcb.cr3, vmcb.cr4) = (0, 0, 0);
        (vmcb.dr6, vmcb.dr7) = (0xffff_0ff0, 0x400);
        vmcb.rflags = 2;
        vmcb.rip = 0xfff0;
        vmcb.pat = PAT_RESET;
        (vmcb.event_injection, vmcb.interrupt_shadow) = (0, 0);
        self.registers = Registers::default();
        self.vmcb.rsp = 0;
        self.registers.set_low(RDX, self.signature);
        self.exception = None;
        self.nmi = Nmi::default();
        self.vmcb.mark_dirty(clean::ALL);
        start_over(&mut self.asid, &Defects);
    }

    /// A start-up IPI arrived: starts in real mode at `page`.
    pub fn start_up(&mut self, page: u8) {
        let base = u64::from(page) << 12;
        self.vmcb.cs = Segment { selector: u16::from(page) << 8, attributes: 0x09b, limit: 0xffff, base };
        self.vmcb.rip = 0;
        self.vmcb.mark_dirty(clean::ALL);
        self.activity = Activity::Running;
    }

    /// Starts the boot vCPU at a kernel's entry point, as [`EntryState`] describes.
    pub fn start_kernel(&mut self, entry: &EntryState) {
        let data = segment(loader::DATA);
        let vmcb = &mut *self.vmcb;
        vmcb.cs = segment(loader::CODE);
        (vmcb.ds, vmcb.es, vmcb.fs, vmcb.gs, vmcb.ss) = (data, data, data, data, data);
        vmcb.tr = segment(loader::TASK);
        vmcb.gdtr.base = loader::pc::layout::GDT;
        vmcb.gdtr.limit = loader::GDT_LIMIT.into();
        vmcb.cr0 = CR0_PE | CR0_ET;
        vmcb.rip = entry.rip;
        vmcb.rsp = 0;
        self.registers = Registers::default();
        self.registers.0[RSI] = entry.rsi;
        self.registers.0[RBX] = entry.rbx;
        self.vmcb.mark_dirty(clean::ALL);
        self.activity = Activity::Running;
    }

    /// The hypervisor has written control registers of the guest; their previous values are `old`.
    #[inline(always)]
    pub fn settle_translations(&mut self, old: TranslationControls) {
        if changes_translations(old, self.vmcb.translation_controls()) {
            self.asid.owe_flush();
        }
    }

    /// Loads the state that VMRUN and [`Amd64::run`] do not switch.
    pub fn load<A: Amd64>(&mut self) {
        self.fpu.load::<A>();
        self.debug.arrive::<A>(&mut self.vmcb);
        if A::has_tsc_aux() {
            A::write_tsc_aux(self.tsc_aux);
        }
        self.vmcb.mark_dirty(clean::ALL);
    }

    /// Saves the state that [`load`](Self::load) loaded.
    pub fn save<A: Amd64>(&mut self) {
        self.auditor.leave::<A>();
        self.fpu.save::<A>();
        self.debug.leave::<A>();
        if A::has_tsc_aux() {
            self.tsc_aux = A::read_tsc_aux();
        }
    }

    /// The guest accesses a debug register: it retries the access at the next entry.
    #[cold]
    pub fn load_debug_registers<A: Amd64>(&mut self) {
        self.debug.load::<A>(&mut self.vmcb);
    }

    /// Continues after an instruction of `length` bytes.
    pub fn skip(&mut self, length: u64) {
        let vmcb = &mut *self.vmcb;
        let next = vmcb.rip.wrapping_add(length);
        vmcb.rip = if vmcb.is_64bit() { next } else { next & 0xffff_ffff };
        vmcb.interrupt_shadow &= !1;
        if vmcb.rflags & (RFLAGS_TF | RFLAGS_RF) != 0 {
            // RF has served its purpose, and TF takes effect.
            vmcb.rflags &= !RFLAGS_RF;
            if vmcb.rflags & RFLAGS_TF != 0 {
                self.raise_debug(DR6_SINGLE_STEP);
            }
        }
    }

    /// Copies RAX out of the VMCB after an exit.
    pub fn rax_from_vmcb(&mut self) {
        self.registers.0[RAX] = self.vmcb.rax;
    }

    /// Copies RAX into the VMCB before an entry.
    pub fn rax_to_vmcb(&mut self) {
        self.vmcb.rax = self.registers.0[RAX];
    }

    /// Copies RSP out of the VMCB, before an emulated instruction that may name it.
    pub fn rsp_from_vmcb(&mut self) {
        self.registers.0[RSP] = self.vmcb.rsp;
    }

    /// Copies RSP into the VMCB, after an emulated instruction that may have changed it.
    pub fn rsp_to_vmcb(&mut self) {
        self.vmcb.rsp = self.registers.0[RSP];
    }
}

impl State for VcpuState {
    type Inbox = Inbox;

    fn reset(&mut self, inbox: &Inbox) {
        let _signals = inbox.take_signals(&mut self.lapic);
        inbox.drain_vectors(&mut self.lapic);
        self.set_init_state();
        self.auditor.reset();
        self.lapic.reset();
        inbox.set_address(&self.lapic);
        self.hyperv.reset();
        self.fpu.reset();
        self.debug = DebugRegisters::default();
        self.tsc_aux = 0;
        self.tsc_adjust = 0;
        self.vmcb.tsc_offset = 0;
        msr::reset_pass_through(&mut self.vmcb);
        self.activity = Activity::WaitForStartup;
        self.alarm = u64::MAX;
    }

    #[inline(always)]
    fn space(&self) -> Space {
        self.vmcb.translation_controls().space()
    }

    #[inline(always)]
    fn is_running(&self) -> bool {
        self.activity == Activity::Running
    }

    #[inline]
    fn update_activity(&mut self) {
        if self.activity == Activity::Halted && self.wakes_from_halt() {
            self.activity = Activity::Running;
        }
    }

    #[inline]
    fn wakes_from_halt(&self) -> bool {
        let interrupt = self.lapic.pending().is_some() && self.vmcb.rflags & RFLAGS_IF != 0;
        interrupt || self.nmi.is_deliverable()
    }

    #[inline]
    fn next_deadline(&self, now: u64) -> u64 {
        // The local APIC counts in the guest's TSC, which may have wrapped against the host's.
        let guest_now = now.wrapping_add(self.vmcb.tsc_offset);
        let lapic =
            self.lapic.next_deadline().map(|guest| now.saturating_add(guest.saturating_sub(guest_now)));
        let synthetic = self.hyperv.next_deadline_tsc();
        lapic.unwrap_or(u64::MAX).min(synthetic.unwrap_or(u64::MAX)).min(self.alarm)
    }

    #[inline]
    fn intercept_pause(&mut self, wanted: bool) {
        let bits = self.vmcb.intercept_misc1;
        let new = if wanted { bits | misc1::PAUSE } else { bits & !misc1::PAUSE };
        if new != bits {
            self.vmcb.intercept_misc1 = new;
            self.vmcb.mark_dirty(clean::INTERCEPTS);
        }
    }

    /// Never: the guest's PAUSE shows whether it spins.
    #[inline(always)]
    fn is_look_due(&self, _: u64) -> bool {
        false
    }

    #[inline(always)]
    fn check_spinning(&mut self, _: u64, _: u64) -> Look {
        Look::Again(u64::MAX)
    }

    #[inline(always)]
    fn mmio(&mut self) -> &mut MmioCache<MMIO_PAGES> {
        &mut self.mmio
    }

    fn dump(&self, vcpu: u32, what: &str) {
        let (v, r) = (&*self.vmcb, &self.registers.0);
        log::error!(target: GUEST, "vCPU {vcpu} {what}: at {:#06x}:{:#018x}", v.cs.selector, v.rip);
        log::error!(target: GUEST, "  rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}", r[0], r[3], r[1], r[2]);
        log::error!(target: GUEST, "  rsi {:#018x} rdi {:#018x} rbp {:#018x} rsp {:#018x}", r[6], r[7], r[5], v.rsp);
        log::error!(target: GUEST, "  r8  {:#018x} r9  {:#018x} r10 {:#018x} r11 {:#018x}", r[8], r[9], r[10], r[11]);
        log::error!(target: GUEST, "  r12 {:#018x} r13 {:#018x} r14 {:#018x} r15 {:#018x}", r[12], r[13], r[14], r[15]);
        log::error!(target: GUEST, "  cr0 {:#018x} cr2 {:#018x} cr3 {:#018x} cr4 {:#018x}", v.cr0, v.cr2, v.cr3, v.cr4);
        log::error!(target: GUEST, "  efer {:#x} rflags {:#x} cpl {}", v.efer & !EFER_SVME, v.rflags, v.cpl);
        log::error!(
            target: GUEST,
            "  idt {:#x} limit {:#x}, gdt {:#x} limit {:#x}",
            v.idtr.base,
            v.idtr.limit,
            v.gdtr.base,
            v.gdtr.limit
        );
    }
}
