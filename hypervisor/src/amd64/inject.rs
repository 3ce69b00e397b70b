//! Getting events into the guest: exceptions, NMIs, interrupts. APM volume 2, sections 15.20 and 15.21.

use super::checks::Refusal;
use super::event::{self, Combined};
use super::intercepts::{CR_WRITE_8, misc1};
use super::nmi::Nmi;
use super::processor::Amd64;
use super::state::{Activity, VcpuState};
use super::vmcb::{DR6_BREAKPOINTS, RFLAGS_IF, clean, vintr};
use super::{CR0_PE, RFLAGS_RF};
use crate::vm::Next;

impl VcpuState {
    /// Raises #UD at the current instruction.
    pub fn raise_undefined(&mut self) {
        self.exception = Some(event::exception(event::VECTOR_UD));
    }

    /// Raises #GP(0) at the current instruction.
    pub fn raise_protection(&mut self) {
        // Real mode has no error codes.
        let error = if self.vmcb.cr0 & CR0_PE != 0 { event::ERROR_VALID } else { 0 };
        self.exception = Some(event::exception(event::VECTOR_GP) | error);
    }

    /// Raises the fault that stands for a check of the processor's.
    pub fn raise_refusal(&mut self, refusal: Refusal) {
        match refusal {
            Refusal::Undefined => self.raise_undefined(),
            Refusal::Protection => self.raise_protection(),
        }
    }

    /// Raises #PF at the current instruction.
    pub fn raise_page_fault(&mut self, address: u64, error: u32) {
        self.vmcb.cr2 = address;
        self.vmcb.mark_dirty(clean::ALL);
        let code = event::exception(event::VECTOR_PF) | event::ERROR_VALID;
        self.exception = Some(code | u64::from(error) << 32);
    }

    /// Raises #DB behind the instruction that has been completed, with these bits in DR6.
    pub fn raise_debug(&mut self, bits: u64) {
        self.vmcb.dr6 = self.vmcb.dr6 & !DR6_BREAKPOINTS | bits;
        self.vmcb.mark_dirty(clean::ALL);
        self.exception = Some(event::exception(event::VECTOR_DB));
    }

    /// An exit cut the delivery of an event short: it is delivered again. Software interrupts and
    /// breakpoints are not, because their instruction is executed again.
    pub fn recover_event(&mut self) {
        let info = self.vmcb.exit_interrupt_info;
        if info & event::VALID == 0 {
            return;
        }
        let is_breakpoint = info & event::TYPE_MASK == event::TYPE_EXCEPTION && matches!(info & 0xff, 3 | 4);
        if info & event::TYPE_MASK != event::TYPE_SOFTWARE && !is_breakpoint {
            self.vmcb.event_injection = info;
        }
    }

    /// The event whose delivery was cut short cannot be delivered, because what it takes lies where there is no memory to
    /// push to or to read from. The guest gets a double fault for it; if that is what could not be delivered, it shuts down.
    pub fn raise_delivery_failure(&mut self) {
        self.exception = Some(event::double_fault(self.vmcb.cr0 & CR0_PE != 0));
    }

    /// Settles what becomes of the exception that has been raised, if any, where the delivery of an event was cut short.
    pub fn settle_delivery(&mut self) -> Next {
        let Some(second) = self.exception else { return Next::Resume };
        match event::combine(self.vmcb.event_injection, second) {
            // The entry sees to what was cut short.
            Combined::Second => {}
            Combined::DoubleFault => {
                self.raise_delivery_failure();
                self.vmcb.event_injection = 0;
            }
            Combined::Shutdown => return Next::Dead,
        }
        Next::Resume
    }

    /// Fills in the event for the next entry, or arranges for an exit as soon as the guest can take one.
    /// Returns the vector of an interrupt that goes in.
    pub fn prepare_events<A: Amd64>(&mut self) -> Option<u8> {
        let is_arranged = self.is_window_arranged();
        if !is_arranged && self.has_no_events() {
            return None;
        }
        // There may be one from an entry that did not come about.
        let _own = self.end_step();
        let mut injected = None;
        if let Some(exception) = self.exception.take() {
            // An exception while an event was being delivered: what was cut short is an interrupt, which comes
            // back, or an exception, which the new one replaces as far as the guest can tell.
            self.requeue_cut_short();
            self.vmcb.event_injection = exception;
            if event::pushes_resume_flag(exception) {
                self.vmcb.rflags |= RFLAGS_RF;
            }
        } else if self.vmcb.event_injection & event::VALID == 0 {
            injected = self.inject_next();
        }
        if self.nmi.contains(Nmi::AT_IRET) {
            self.prepare_iret::<A>();
        }
        if self.nmi.is_deliverable() && self.vmcb.event_injection & event::VALID != 0 {
            // It comes next: the kick is taken once the event is delivered.
            A::kick(A::this_cpu());
        }
        if is_arranged || self.nmi.is_deliverable() || self.lapic.highest_irr().is_some() {
            self.request_window();
        }
        injected
    }

    /// Whether the VMCB asks for an exit when something can be delivered, or has another task priority than the local
    /// APIC.
    #[inline]
    fn is_window_arranged(&self) -> bool {
        let quiet = vintr::MASKING | u64::from(self.lapic.tpr() >> 4);
        self.vmcb.interrupt_control != quiet
            || self.vmcb.intercept_misc1 & misc1::VINTR != 0
            || self.vmcb.intercept_cr & CR_WRITE_8 != 0
    }

    /// Whether nothing waits to be delivered: the case of most entries.
    #[inline]
    fn has_no_events(&self) -> bool {
        self.vmcb.event_injection & event::VALID == 0
            && self.exception.is_none()
            && self.nmi.is_idle()
            && self.lapic.highest_irr().is_none()
    }

    fn requeue_cut_short(&mut self) {
        let info = self.vmcb.event_injection;
        if info & event::VALID == 0 {
            return;
        }
        match info & event::TYPE_MASK {
            event::TYPE_INTERRUPT => {
                let vector = info as u8;
                self.lapic.cancel_service(vector);
            }
            event::TYPE_NMI => {
                self.nmi.give_back();
            }
            _ => {}
        }
    }

    fn inject_next(&mut self) -> Option<u8> {
        let shadow = self.vmcb.interrupt_shadow & 1 != 0;
        if self.nmi.is_deliverable() && !shadow {
            self.take_nmi();
            self.vmcb.event_injection = event::VALID | event::TYPE_NMI | 2;
            return None;
        }
        let vector = self.lapic.pending()?;
        if self.vmcb.rflags & RFLAGS_IF == 0 || shadow {
            return None;
        }
        self.lapic.begin_service(vector);
        self.vmcb.event_injection = event::VALID | event::TYPE_INTERRUPT | u64::from(vector);
        Some(vector)
    }

    /// Arranges for an exit when a waiting interrupt can be taken: by a virtual interrupt that is intercepted, or
    /// by intercepting CR8 when only the task priority stands in the way. The former ends STI's interrupt shadow for
    /// NMIs, too; an NMI in the shadow of a load of SS with interrupts off comes at the next exit.
    fn request_window(&mut self) {
        let requested = self.lapic.highest_irr().is_some();
        let waiting = requested && self.lapic.pending().is_some();
        let masked = requested && !waiting;
        let tpr = u64::from(self.lapic.tpr() >> 4);
        let wanted = waiting || self.nmi.is_deliverable();
        let request = if wanted { vintr::IRQ | vintr::IGNORE_TPR | 0xf << vintr::PRIORITY_SHIFT } else { 0 };
        let control = vintr::MASKING | tpr | request;
        if self.vmcb.interrupt_control != control {
            self.vmcb.interrupt_control = control;
            self.vmcb.mark_dirty(clean::TPR);
        }
        let window = self.vmcb.intercept_misc1 & !misc1::VINTR | if wanted { misc1::VINTR } else { 0 };
        // With a request standing too: an emulator aborts if the guest writes CR8 then (docs/qemu.md).
        let cr = self.vmcb.intercept_cr & !CR_WRITE_8 | if masked || wanted { CR_WRITE_8 } else { 0 };
        if (window, cr) != (self.vmcb.intercept_misc1, self.vmcb.intercept_cr) {
            (self.vmcb.intercept_misc1, self.vmcb.intercept_cr) = (window, cr);
            self.vmcb.mark_dirty(clean::INTERCEPTS);
        }
    }

    /// Takes over what the guest did to its task priority while it ran.
    pub fn sync_tpr(&mut self) {
        let tpr = (self.vmcb.interrupt_control & vintr::TPR_MASK) as u8;
        if tpr != self.lapic.tpr() >> 4 {
            self.lapic.set_tpr(tpr << 4);
        }
    }

    /// Sets the task priority: the local APIC's, and the one that CR8 is while the guest runs.
    pub fn set_task_priority(&mut self, tpr: u8) {
        self.lapic.set_tpr(tpr);
        let control = &mut self.vmcb.interrupt_control;
        *control = *control & !vintr::TPR_MASK | u64::from(tpr >> 4);
        self.vmcb.mark_dirty(clean::TPR);
    }

    /// Whether a vCPU in HLT has a reason to go on.
    pub fn wakes_from_halt(&self) -> bool {
        let interrupt = self.lapic.pending().is_some() && self.vmcb.rflags & RFLAGS_IF != 0;
        interrupt || self.nmi.is_deliverable()
    }

    /// Leaves HLT if there is a reason.
    pub fn update_activity(&mut self) {
        if self.activity == Activity::Halted && self.wakes_from_halt() {
            self.activity = Activity::Running;
        }
    }
}
