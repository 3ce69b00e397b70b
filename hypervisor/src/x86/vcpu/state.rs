//! The vCPU state that only the CPU that runs it touches.

use alloc::boxed::Box;
use coherence::Space;
use hostlink::defect::Defect;
use memslots::MmioCache;
use stay::MMIO_PAGES;
use stay::tagged::{TranslationControls, changes_translations};

use super::block::Field::{Cr0, Cr2, Cr3, Cr4, Dr6, Dr7, Efer, Pat, Rflags, Rip, Rsp, TscOffset};
use super::block::{ControlBlock, Inner, Segment, SegmentName};
use super::code_path::CodePaths;
use super::debug::DebugRegisters;
use super::fpu::FpuState;
use super::msr;
use super::nmi::Nmi;
use super::registers::{RBX, RDX, RSI, RSP, Registers};
use crate::devices::pc::apic_ids::ApicId;
use crate::devices::pc::inbox::Inbox;
use crate::devices::pc::lapic::{Lapic, TimerClock};
use crate::loader::{self, EntryState};
use crate::sched::spinning::Look;
use crate::vm::arch::State;
use crate::vm::defects::makes;
use crate::vm::{GUEST, HEAP_PER_VCPU, VpIndex};
use crate::x86::cpuid::kept::Hidden;
use crate::x86::hyperv::Vp;
use crate::x86::processor::X86;
use crate::x86::{CR0_PE, DR6_SINGLE_STEP, RFLAGS_IF, RFLAGS_RF, RFLAGS_TF, cpuid};

/// CR0.ET, which is always set.
const CR0_ET: u64 = 1 << 4;
/// PAT after reset (APM volume 2, section 7.8.2).
const PAT_RESET: u64 = 0x0007_0406_0007_0406;
/// DS, ES, FS, GS and SS.
const DATA: [SegmentName; 5] =
    [SegmentName::Ds, SegmentName::Es, SegmentName::Fs, SegmentName::Gs, SegmentName::Ss];

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
    /// Whether the processor may be the local APIC.
    pub apic: bool,
}

/// A vCPU's private state.
pub struct VcpuState<B: ControlBlock> {
    /// The control block.
    pub block: Box<B>,
    /// General registers.
    pub registers: Registers,
    /// The local APIC.
    pub lapic: Lapic,
    /// The Hyper-V interface's state.
    pub hyperv: Vp,
    /// What its kind of processor needs besides.
    pub own: B::Own,
    /// Its activity.
    pub activity: Activity,
    /// When it looks whether the clock interrupts, as on Arm64.
    pub alarm: u64,
    /// An exception to raise at the next entry: see [`event`](super::event).
    pub exception: Option<u64>,
    /// NMIs.
    pub nmi: Nmi,
    /// The guest's value of TSC_ADJUST.
    pub tsc_adjust: u64,
    /// CPUID leaf 1's EAX, which is in EDX after INIT.
    pub(crate) signature: u32,
    /// The CPUID that this vCPU sees.
    pub view: cpuid::View,
    /// What it is not shown although the processor has it.
    pub hidden: Hidden,
    /// Its last walks to its code.
    pub code: CodePaths,
    /// The pages without memory that it accessed most recently.
    pub mmio: MmioCache<MMIO_PAGES>,
    pub(crate) fpu: FpuState,
    pub(crate) debug: DebugRegisters,
    pub(crate) tsc_aux: u64,
}

impl<B: ControlBlock> VcpuState<B> {
    /// A vCPU after power-on, waiting for start-up: its VP index, and its identity among the vCPUs
    /// of all guests.
    pub fn new<A: X86<Block = B>>(
        (vp_index, identity): (VpIndex, u32),
        view: cpuid::View,
        clock: TimerClock,
        permissions: &Permissions,
    ) -> Self {
        // Four pages for the processor and an image of 11 KiB, with AMX, are beside it.
        const { assert!((size_of::<Self>() + CodePaths::BYTES + (27 << 10)) < HEAP_PER_VCPU as usize) };
        let mut state = Self {
            block: B::boxed(),
            registers: Registers::default(),
            lapic: Lapic::new(view.apic_id, view.apic_id == ApicId(0), clock),
            hyperv: Vp::new(vp_index),
            own: B::own(identity, view.may_nest),
            activity: Activity::WaitForStartup,
            alarm: u64::MAX,
            exception: None,
            nmi: Nmi::default(),
            tsc_adjust: 0,
            signature: cpuid::answer::<A>(1, 0, view, &Hidden::default()).eax,
            view,
            hidden: Hidden::default(),
            code: CodePaths::default(),
            mmio: MmioCache::new(),
            fpu: FpuState::new::<A>(),
            debug: DebugRegisters::default(),
            tsc_aux: 0,
        };
        A::set_up(&mut state.block, permissions);
        state.set_init_state();
        state
    }

    /// The processor's state after INIT: APM volume 2, table 14-1. The FPU keeps its state.
    pub fn set_init_state(&mut self) {
        B::end_step(self);
        B::init(self);
        let data = Segment { selector: 0, attributes: 0x093, limit: 0xffff, base: 0 };
        let table = Segment { attributes: 0, ..data };
        self.debug = DebugRegisters::default();
        let block = &mut *self.block;
        block.intercept_debug(true);
        let code = Segment { selector: 0xf000, attributes: 0x09b, base: 0xffff_0000, ..data };
        block.set_segment(SegmentName::Cs, code);
        DATA.into_iter().for_each(|name| block.set_segment(name, data));
        block.set_segment(SegmentName::Gdtr, table);
        block.set_segment(SegmentName::Idtr, table);
        block.set_segment(SegmentName::Ldtr, Segment { attributes: 0x082, ..table });
        block.set_segment(SegmentName::Tr, Segment { attributes: 0x08b, ..table });
        for (field, value) in [
            (Efer, 0),
            (Cr0, 0x6000_0010),
            (Cr2, 0),
            (Cr3, 0),
            (Cr4, 0),
            (Dr6, 0xffff_0ff0),
            (Dr7, 0x400),
            (Rflags, 2),
            (Rip, 0xfff0),
            (Rsp, 0),
            (Pat, PAT_RESET),
        ] {
            block.write(field, value);
        }
        self.registers = Registers::default();
        self.registers.set_low(RDX, self.signature);
        self.exception = None;
        self.nmi = Nmi::default();
    }

    /// A start-up IPI arrived: starts in real mode at `page`.
    pub fn start_up(&mut self, page: u8) {
        let base = u64::from(page) << 12;
        let selector = u16::from(page) << 8;
        self.block.set_segment(SegmentName::Cs, Segment { selector, attributes: 0x09b, limit: 0xffff, base });
        self.block.write(Rip, 0);
        self.activity = Activity::Running;
    }

    /// Starts the boot vCPU at a kernel's entry point, as [`EntryState`] describes.
    pub fn start_kernel(&mut self, entry: &EntryState) {
        let loaded = |from: loader::Segment| Segment::loaded(from.selector, from.descriptor);
        let block = &mut *self.block;
        block.set_segment(SegmentName::Cs, loaded(loader::CODE));
        DATA.into_iter().for_each(|name| block.set_segment(name, loaded(loader::DATA)));
        block.set_segment(SegmentName::Tr, loaded(loader::TASK));
        let (base, limit) = (loader::pc::layout::GDT, loader::GDT_LIMIT.into());
        block.set_segment(SegmentName::Gdtr, Segment { base, limit, ..Segment::default() });
        block.write(Cr0, CR0_PE | CR0_ET);
        block.write(Rip, entry.rip);
        block.write(Rsp, 0);
        self.registers = Registers::default();
        self.registers.0[RSI] = entry.rsi;
        self.registers.0[RBX] = entry.rbx;
        self.activity = Activity::Running;
    }

    /// Whether an event ends a halt where the flags of what runs are not all that decides.
    #[cold]
    fn wakes_inside(&self) -> bool {
        self.lapic.pending().is_some() && self.own.takes_interrupts(self.block.read(Rflags))
            || self.nmi.is_deliverable() && !self.own.holds_events()
            || self.own.is_inside() && self.block.takes_virtual()
            || self.own.is_init_due()
    }

    /// The guest's TSC minus the machine's: the local APIC's clock.
    #[inline(always)]
    pub fn tsc_offset(&self) -> u64 {
        self.block.read(TscOffset).wrapping_sub(self.own.tsc_offset())
    }

    /// The hypervisor has written control registers of the guest; their previous values are `old`.
    #[inline(always)]
    pub fn settle_translations(&mut self, old: TranslationControls) {
        let is_due = changes_translations(old, self.block.translation_controls());
        if is_due && !makes(Defect::ControlsForgotten) {
            B::owe_flush(&mut self.own);
        }
    }

    /// Loads the state that the entry does not switch.
    pub fn load<A: X86<Block = B>>(&mut self) {
        self.fpu.load::<A>();
        self.debug.arrive::<A>(&mut self.block);
        if A::has_tsc_aux() {
            A::write_tsc_aux(self.tsc_aux);
        }
    }

    /// Saves the state that [`load`](Self::load) loaded.
    pub fn save<A: X86>(&mut self) {
        self.fpu.save::<A>();
        self.debug.leave::<A>();
        if A::has_tsc_aux() {
            self.tsc_aux = A::read_tsc_aux();
        }
    }

    /// The guest accesses a debug register: it retries the access at the next entry.
    #[cold]
    pub fn load_debug_registers<A: X86<Block = B>>(&mut self) {
        self.debug.load::<A>(&mut self.block);
    }

    /// Continues after an instruction of `length` bytes.
    pub fn skip(&mut self, length: u64) {
        let block = &mut *self.block;
        let next = block.read(Rip).wrapping_add(length);
        block.write(Rip, if block.is_64bit() { next } else { next & 0xffff_ffff });
        block.end_shadow();
        if block.read(Rflags) & (RFLAGS_TF | RFLAGS_RF) != 0 {
            // RF has served its purpose, and TF takes effect.
            block.write(Rflags, block.read(Rflags) & !RFLAGS_RF);
            if block.read(Rflags) & RFLAGS_TF != 0 {
                self.raise_debug(DR6_SINGLE_STEP);
            }
        }
    }

    /// Copies RSP out of the block, before an emulated instruction that may name it.
    pub fn rsp_from_block(&mut self) {
        self.registers.0[RSP] = self.block.read(Rsp);
    }

    /// Copies RSP into the block, after an emulated instruction that may have changed it.
    pub fn rsp_to_block(&mut self) {
        self.block.write(Rsp, self.registers.0[RSP]);
    }
}

#[cfg(test)]
impl<B: ControlBlock> VcpuState<B> {
    /// Each field but the control block.
    pub(crate) fn fields(&self) -> alloc::vec::Vec<(&'static str, alloc::string::String)> {
        let Self {
            block: _,
            registers,
            lapic,
            hyperv,
            own: _, // The next entry drops what it tags; a record of what was cached.
            activity,
            alarm,
            exception,
            nmi,
            tsc_adjust,
            signature,
            view,
            hidden,
            code: _, // Each walk is looked at again where it is used,
            mmio: _, // and each page without memory, by the version of the slots.
            fpu,
            debug,
            tsc_aux,
        } = self;
        crate::devices::state_checks::named!(registers lapic hyperv activity alarm exception nmi tsc_adjust signature view hidden fpu debug tsc_aux)
    }
}

impl<B: ControlBlock> State for VcpuState<B> {
    type Inbox = Inbox;

    fn reset(&mut self, inbox: &Inbox) {
        let _signals = inbox.take(&mut self.lapic);
        self.set_init_state();
        B::reset(&mut self.own);
        self.lapic.reset();
        inbox.set_address(&self.lapic);
        inbox.set_levels(&self.lapic);
        self.hyperv.reset();
        self.fpu.reset();
        self.tsc_aux = 0;
        // What it has beyond that is the guest's clock, which goes on.
        let clock = self.block.read(TscOffset).wrapping_sub(self.tsc_adjust);
        self.block.write(TscOffset, clock);
        self.tsc_adjust = 0;
        msr::reset_pass_through(&mut *self.block);
        self.activity = Activity::WaitForStartup;
        self.alarm = u64::MAX;
    }

    #[inline(always)]
    fn space(&self) -> Space {
        let [cr3, cr4, efer] = [Cr3, Cr4, Efer].map(|field| self.block.read(field));
        // Memory types do not matter.
        TranslationControls { cr3, cr4, efer, pat: 0 }.space()
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
        let interrupt = self.lapic.pending().is_some() && self.block.read(Rflags) & RFLAGS_IF != 0;
        let wakes = interrupt || self.nmi.is_deliverable();
        if self.own.is_plain() { wakes } else { self.wakes_inside() }
    }

    #[inline]
    fn next_deadline(&self, now: u64) -> u64 {
        // The local APIC counts in the guest's TSC, which may have wrapped against the host's.
        let guest_now = now.wrapping_add(self.tsc_offset());
        let lapic =
            self.lapic.next_deadline().map(|guest| now.saturating_add(guest.saturating_sub(guest_now)));
        let synthetic = self.hyperv.next_deadline_tsc();
        lapic.unwrap_or(u64::MAX).min(synthetic.unwrap_or(u64::MAX)).min(self.alarm)
    }

    #[inline]
    fn intercept_pause(&mut self, wanted: bool) {
        self.block.intercept_pause(wanted);
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

    fn dump(&self, vcpu: VpIndex, what: &str) {
        let (v, r) = (|field| self.block.read(field), &self.registers.0);
        let segment = |name| self.block.segment(name);
        log::error!(target: GUEST, "vCPU {vcpu} {what}: at {:#06x}:{:#018x}", segment(SegmentName::Cs).selector, v(Rip));
        log::error!(target: GUEST, "  rax {:#018x} rbx {:#018x} rcx {:#018x} rdx {:#018x}", r[0], r[3], r[1], r[2]);
        log::error!(target: GUEST, "  rsi {:#018x} rdi {:#018x} rbp {:#018x} rsp {:#018x}", r[6], r[7], r[5], v(Rsp));
        log::error!(target: GUEST, "  r8  {:#018x} r9  {:#018x} r10 {:#018x} r11 {:#018x}", r[8], r[9], r[10], r[11]);
        log::error!(target: GUEST, "  r12 {:#018x} r13 {:#018x} r14 {:#018x} r15 {:#018x}", r[12], r[13], r[14], r[15]);
        log::error!(target: GUEST, "  cr0 {:#018x} cr2 {:#018x} cr3 {:#018x} cr4 {:#018x}", v(Cr0), v(Cr2), v(Cr3), v(Cr4));
        log::error!(target: GUEST, "  efer {:#x} rflags {:#x} cpl {}", v(Efer) & !B::EFER_OWN, v(Rflags), self.block.cpl());
        let (idt, gdt) = (segment(SegmentName::Idtr), segment(SegmentName::Gdtr));
        let ((idt, limit), (gdt, last)) = ((idt.base, idt.limit), (gdt.base, gdt.limit));
        log::error!(target: GUEST, "  idt {idt:#x} limit {limit:#x}, gdt {gdt:#x} limit {last:#x}");
    }
}
