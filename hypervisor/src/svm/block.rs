//! The VMCB as a vCPU's [control block](ControlBlock).

use alloc::boxed::Box;
use coherence::asid::AsidSlot;
use migration::{Archive, Flaw};
use paging::guest::ControlRegisters;
use stay::tagged::start_over;

use super::audit::auditor::Auditor;
use super::intercepts::{self, CR_WRITE_8, misc1};
use super::nested::{Nested, Now};
use super::step::{self, Step};
use super::vmcb::{EFER_SVME, Vmcb, clean, vintr};
use crate::vm::arch::Cpus;
use crate::vm::defects::Defects;
use crate::x86::vcpu::block::{ControlBlock, Field, InterruptRequest, Offered, Segment, SegmentName};
use crate::x86::vcpu::event;
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{CR0_PE, RFLAGS_IF};

/// What SVM needs of a vCPU besides the VMCB.
pub struct Own {
    /// Its address space tag.
    pub asid: AsidSlot,
    /// The auditor's record.
    pub auditor: Auditor,
    /// Meaningful while the vCPU's NMIs say so.
    pub(super) step: Step,
    /// For guests of the guest, if it may have any.
    pub(super) nested: Option<Box<Nested>>,
    /// What of that is so now, which is all that entries and exits look at.
    pub(super) now: Now,
    /// What the TSC of what runs has beyond the guest's.
    pub(super) tsc_shift: u64,
}

/// A virtual interrupt that ignores the task priority: the local APIC has checked that.
const REQUEST: u64 = vintr::IRQ | vintr::IGNORE_TPR | 0xf << vintr::PRIORITY_SHIFT;

/// `interrupt_control` if no interrupt is offered and no exit requested.
const fn quiet(priority: u8) -> u64 {
    vintr::MASKING | priority as u64
}

/// The clean bits of what holds a register (section 15.15.3).
const fn group(field: Field) -> u32 {
    match field {
        Field::TscOffset => clean::INTERCEPTS,
        Field::Pat => clean::NESTED,
        Field::Cr0 | Field::Cr3 | Field::Cr4 | Field::Efer => clean::CRX,
        Field::Dr6 | Field::Dr7 => clean::DRX,
        Field::Cr2 => clean::CR2,
        _ => 0,
    }
}

/// A register's place in a VMCB, by value or borrowed.
macro_rules! register {
    ($field:expr, $($borrow:tt)+) => {
        match $field {
            Field::Rip => $($borrow)+.rip,
            Field::Rsp => $($borrow)+.rsp,
            Field::Rflags => $($borrow)+.rflags,
            Field::Cr0 => $($borrow)+.cr0,
            Field::Cr2 => $($borrow)+.cr2,
            Field::Cr3 => $($borrow)+.cr3,
            Field::Cr4 => $($borrow)+.cr4,
            Field::Dr6 => $($borrow)+.dr6,
            Field::Dr7 => $($borrow)+.dr7,
            Field::Efer => $($borrow)+.efer,
            Field::Pat => $($borrow)+.pat,
            Field::TscOffset => $($borrow)+.tsc_offset,
            Field::Star => $($borrow)+.star,
            Field::Lstar => $($borrow)+.lstar,
            Field::Cstar => $($borrow)+.cstar,
            Field::Sfmask => $($borrow)+.sfmask,
            Field::KernelGs => $($borrow)+.kernel_gs_base,
            Field::SysenterCs => $($borrow)+.sysenter_cs,
            Field::SysenterEsp => $($borrow)+.sysenter_esp,
            Field::SysenterEip => $($borrow)+.sysenter_eip,
        }
    };
}

/// The same for a segment register.
macro_rules! segment {
    ($name:expr, $($borrow:tt)+) => {
        match $name {
            SegmentName::Es => $($borrow)+.es,
            SegmentName::Cs => $($borrow)+.cs,
            SegmentName::Ss => $($borrow)+.ss,
            SegmentName::Ds => $($borrow)+.ds,
            SegmentName::Fs => $($borrow)+.fs,
            SegmentName::Gs => $($borrow)+.gs,
            SegmentName::Gdtr => $($borrow)+.gdtr,
            SegmentName::Ldtr => $($borrow)+.ldtr,
            SegmentName::Idtr => $($borrow)+.idtr,
            SegmentName::Tr => $($borrow)+.tr,
        }
    };
}

impl ControlBlock for Vmcb {
    type Own = Own;

    const EFER_OWN: u64 = EFER_SVME;

    fn boxed() -> Box<Self> {
        // SAFETY: all fields are integers, for which zero is a value.
        unsafe { Box::new_zeroed().assume_init() }
    }

    fn own(identity: u32, may_nest: bool) -> Own {
        let nested = may_nest.then(|| Nested::new(identity));
        Own {
            asid: AsidSlot::new(),
            auditor: Auditor::new(identity),
            step: Step::default(),
            nested,
            now: Now::empty(),
            tsc_shift: 0,
        }
    }

    #[inline(always)]
    fn read(&self, field: Field) -> u64 {
        register!(field, self)
    }

    #[inline(always)]
    fn write(&mut self, field: Field, value: u64) {
        let own = if let Field::Efer = field { Self::EFER_OWN } else { 0 };
        *register!(field, &mut self) = value | own;
        if group(field) != 0 {
            self.mark_dirty(group(field));
        }
    }

    #[inline(always)]
    fn segment(&self, name: SegmentName) -> Segment {
        segment!(name, self)
    }

    fn set_segment(&mut self, name: SegmentName, segment: Segment) {
        *segment!(name, &mut self) = segment;
        self.mark_dirty(clean::SEGMENTS | clean::TABLES);
    }

    #[inline(always)]
    fn cpl(&self) -> u8 {
        self.cpl
    }

    #[inline(always)]
    fn event(&self) -> u64 {
        self.event_injection
    }

    #[inline(always)]
    fn set_event(&mut self, event: u64) {
        self.event_injection = event;
    }

    #[inline(always)]
    fn cut_short(&self) -> u64 {
        self.exit_interrupt_info
    }

    #[inline(always)]
    fn has_shadow(&self) -> bool {
        self.interrupt_shadow & 1 != 0
    }

    #[inline(always)]
    fn end_shadow(&mut self) {
        self.interrupt_shadow &= !1;
    }

    /// With the VINTR intercept, the first comparison finds a priority after the exit, too.
    #[inline(always)]
    fn is_quiet(&self, priority: u8) -> bool {
        self.interrupt_control == quiet(priority) && self.intercept_cr & CR_WRITE_8 == 0
    }

    #[inline(always)]
    fn offer(&mut self, vector: u8) {
        self.interrupt_control |= REQUEST | u64::from(vector) << vintr::VECTOR_SHIFT;
        self.mark_dirty(clean::TPR);
    }

    /// By an intercepted virtual interrupt, or by intercepting CR8. The former also ends STI's
    /// interrupt shadow for NMIs; an NMI in the shadow of a load of SS with interrupts off is
    /// delivered at the next exit.
    #[inline(always)]
    fn request(&mut self, request: InterruptRequest) {
        let InterruptRequest { priority, offered, window, priority_exits } = request;
        let vector = u64::from(offered.unwrap_or(0)) << vintr::VECTOR_SHIFT;
        let is_asked = window || offered.is_some();
        let control = quiet(priority) | if is_asked { REQUEST } else { 0 } | vector;
        if self.interrupt_control != control {
            self.interrupt_control = control;
            self.mark_dirty(clean::TPR);
        }
        let misc = self.intercept_misc1 & !misc1::VINTR | if window { misc1::VINTR } else { 0 };
        // With a pending request too: an emulator aborts if the guest writes CR8 then
        // (docs/qemu.md).
        let cr8 = if priority_exits || window { CR_WRITE_8 } else { 0 };
        let cr = self.intercept_cr & !CR_WRITE_8 | cr8;
        if (misc, cr) != (self.intercept_misc1, self.intercept_cr) {
            (self.intercept_misc1, self.intercept_cr) = (misc, cr);
            self.mark_dirty(clean::INTERCEPTS);
        }
    }

    #[inline(always)]
    fn close_window(&mut self) {
        self.interrupt_control &= !vintr::IRQ;
        self.mark_dirty(clean::TPR);
    }

    #[inline(always)]
    fn is_settled(&self, priority: u8) -> bool {
        self.interrupt_control == quiet(priority)
    }

    #[inline(always)]
    fn settle(&mut self) -> (u8, Offered) {
        let control = self.interrupt_control;
        let priority = (control & vintr::TPR_MASK) as u8;
        if control >> vintr::VECTOR_SHIFT == 0 {
            return (priority, Offered::Nothing);
        }
        self.interrupt_control = control & (vintr::MASKING | vintr::TPR_MASK);
        self.mark_dirty(clean::TPR);
        if control & vintr::IRQ == 0 {
            return (priority, Offered::Taken);
        }
        let vector = (control >> vintr::VECTOR_SHIFT) as u8;
        if self.exit_interrupt_info & event::VALID != 0 {
            // It is what was being delivered: the guest has executed nothing. QEMU reports it as an
            // exception.
            self.exit_interrupt_info = event::VALID | event::TYPE_INTERRUPT | u64::from(vector);
        }
        (priority, Offered::Left(vector))
    }

    fn set_priority(&mut self, priority: u8) {
        self.interrupt_control = self.interrupt_control & !vintr::TPR_MASK | u64::from(priority);
        self.mark_dirty(clean::TPR);
    }

    fn inner_paging(&self) -> Option<ControlRegisters> {
        let [cr0, cr3, cr4, efer] = self.inner;
        (cr0 != 0).then_some(ControlRegisters { cr0, cr3, cr4, efer, rflags: 0 })
    }

    /// Section 15.21.4.
    fn takes_virtual(&self) -> bool {
        let control = self.interrupt_control;
        let priority = control >> vintr::PRIORITY_SHIFT & 0xf;
        let is_high = control & vintr::IGNORE_TPR != 0 || priority > control & vintr::TPR_MASK;
        control & vintr::IRQ != 0 && is_high && self.rflags & RFLAGS_IF != 0
    }

    #[inline]
    fn intercept_pause(&mut self, wanted: bool) {
        let bits = self.intercept_misc1;
        let new = if wanted { bits | misc1::PAUSE } else { bits & !misc1::PAUSE };
        if new != bits {
            self.intercept_misc1 = new;
            self.mark_dirty(clean::INTERCEPTS);
        }
    }

    #[inline(always)]
    fn intercept_debug(&mut self, wanted: bool) {
        self.intercept_dr = if wanted { intercepts::DEBUG } else { 0 };
        self.mark_dirty(clean::INTERCEPTS);
    }

    /// Whether PAUSE is intercepted depends on the CPU's queue.
    fn init(state: &mut VcpuState<Self>) {
        state.own.leave_for_good(&mut state.block, &mut state.code);
        let vmcb = &mut *state.block;
        let pause = vmcb.intercept_misc1 & misc1::PAUSE;
        vmcb.intercept_cr = intercepts::CR_WRITE_4;
        vmcb.intercept_exceptions = intercepts::EXCEPTIONS;
        [vmcb.intercept_misc1, vmcb.intercept_misc2, vmcb.intercept_misc3] = intercepts::ALWAYS;
        vmcb.intercept_misc1 = vmcb.intercept_misc1 & !misc1::PAUSE | pause;
        vmcb.interrupt_control = quiet(0);
        vmcb.cpl = 0;
        (vmcb.event_injection, vmcb.interrupt_shadow) = (0, 0);
        vmcb.mark_dirty(clean::ALL);
        start_over(&mut state.own.asid, &Defects);
        state.own.auditor.init();
    }

    #[inline(always)]
    fn owe_flush(own: &mut Own) {
        match own.inner() {
            Some((slot, ..)) => slot.owe_flush(),
            None => own.asid.owe_flush(),
        }
    }

    fn note_flush(own: &mut Own) {
        own.auditor.take_flush();
    }

    fn reset(own: &mut Own) {
        own.auditor.reset();
        own.nested.iter_mut().for_each(|nested| nested.reset_msrs());
    }

    fn begin_elsewhere(own: &mut Own) {
        own.auditor.begin_elsewhere();
    }

    fn begin_nmi(state: &mut VcpuState<Self>) {
        step::await_iret(state);
    }

    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        archive.fixed(&mut self.cpl, |cpl| cpl & 3)?;
        let is_protected = self.read(Field::Cr0) & CR0_PE != 0;
        archive.fixed(&mut self.event_injection, |event| event::kept(event, is_protected))?;
        archive.within(&mut self.interrupt_shadow, 1)?;
        self.mark_dirty(clean::ALL);
        Ok(())
    }

    fn prepare_iret<A: Cpus>(state: &mut VcpuState<Self>, is_interrupted: bool) {
        step::prepare_iret::<A>(state, is_interrupted);
    }

    #[inline(always)]
    fn end_step(state: &mut VcpuState<Self>) {
        let _own = step::end(state);
    }
}
