//! Injection of events into the guest: exceptions, NMIs, interrupts. APM volume 2, sections 15.20
//! and 15.21.
//!
//! Exceptions and NMIs are injected by EVENTINJ, interrupts as virtual interrupts: V_IRQ, which the
//! processor takes before the guest's next instruction, because an interrupt is only offered if the
//! guest can take it. The local APIC has it in service from then on. V_IRQ after the exit shows
//! whether it was taken. If it was not, because an interrupt of the machine came first or its
//! delivery was cut short, it becomes a request again, and the next entry decides anew. The guest
//! executes no instruction while such a request is outstanding, so neither its task priority nor
//! its end of interrupt can interfere.
//!
//! The same bit with the VINTR intercept requests an exit as soon as the guest can take an
//! interrupt or an NMI.

use super::checks::Refusal;
use super::nmi::Nmi;
use super::state::VcpuState;
use crate::svm::event::{self, Combined};
use crate::svm::intercepts::{CR_WRITE_8, misc1};
use crate::svm::processor::Amd64;
use crate::svm::vmcb::{DR6_BREAKPOINTS, RFLAGS_IF, clean, vintr};
use crate::vm::Next;
use crate::x86::{CR0_PE, RFLAGS_RF};

/// A virtual interrupt that ignores the task priority: the local APIC has checked that.
const REQUEST: u64 = vintr::IRQ | vintr::IGNORE_TPR | 0xf << vintr::PRIORITY_SHIFT;

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

    /// Raises the fault of a failed instruction check.
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

    /// Raises #DB after the completed instruction, with these bits in DR6.
    pub fn raise_debug(&mut self, bits: u64) {
        self.vmcb.dr6 = self.vmcb.dr6 & !DR6_BREAKPOINTS | bits;
        self.vmcb.mark_dirty(clean::ALL);
        self.exception = Some(event::exception(event::VECTOR_DB));
    }

    /// An exit cut the delivery of an event short: it is delivered again. Software interrupts and
    /// breakpoints are not, because their instruction is executed again; nor are interrupts, which
    /// the local APIC still has.
    pub fn recover_event(&mut self) {
        let info = self.vmcb.exit_interrupt_info;
        if info & event::VALID == 0 {
            return;
        }
        match info & event::TYPE_MASK {
            event::TYPE_INTERRUPT => self.lapic.cancel_service(info as u8),
            event::TYPE_SOFTWARE => {}
            event::TYPE_EXCEPTION if matches!(info & 0xff, event::VECTOR_BP | event::VECTOR_OF) => {}
            _ => self.vmcb.event_injection = info,
        }
    }

    /// The event whose delivery was cut short cannot be delivered, because it needs to read or push
    /// to an address without memory. The guest gets a double fault instead. If the event was a
    /// double fault itself, the guest shuts down.
    pub fn raise_delivery_failure(&mut self) {
        self.exception = Some(event::double_fault(self.vmcb.cr0 & CR0_PE != 0));
    }

    /// Decides what the guest gets when an exception was raised while the delivery of an event was
    /// cut short.
    pub fn settle_delivery(&mut self) -> Next {
        let Some(second) = self.exception else { return Next::Resume };
        match event::combine(self.vmcb.event_injection, second) {
            // The entry takes care of the interrupted event.
            Combined::Second => {}
            Combined::DoubleFault => {
                self.raise_delivery_failure();
                self.vmcb.event_injection = 0;
            }
            Combined::Shutdown => return Next::Shutdown,
        }
        Next::Resume
    }

    /// Fills in the event for the next entry, or requests an exit as soon as the guest can take
    /// one.
    pub fn prepare_events<A: Amd64>(&mut self) {
        let is_arranged = self.is_window_arranged();
        if !is_arranged && self.has_no_events() {
            return;
        }
        // There may be one from an entry that was not carried out.
        let _own = self.end_step();
        let mut injected = None;
        if let Some(exception) = self.exception.take() {
            // An exception while an event was being delivered: the interrupted event is an NMI,
            // which is raised again, or an exception, which the new one replaces as far as the
            // guest can tell.
            self.requeue_cut_short();
            self.vmcb.event_injection = exception;
            if event::pushes_resume_flag(exception) {
                self.vmcb.rflags |= RFLAGS_RF;
            }
        } else if self.vmcb.event_injection & event::VALID == 0 {
            injected = self.inject_next();
        }
        if !self.nmi.is_idle() {
            self.prepare_nmi::<A>(injected.is_some());
        }
        if is_arranged || self.nmi.is_deliverable() || self.lapic.has_requests() {
            self.request(injected);
        } else if let Some(vector) = injected {
            self.vmcb.interrupt_control |= REQUEST | u64::from(vector) << vintr::VECTOR_SHIFT;
            self.vmcb.mark_dirty(clean::TPR);
        }
    }

    /// An NMI waits, or its IRET is being watched.
    #[cold]
    fn prepare_nmi<A: Amd64>(&mut self, is_interrupted: bool) {
        if self.nmi.contains(Nmi::AT_IRET) {
            self.prepare_iret::<A>(is_interrupted);
        }
        if self.nmi.is_deliverable() && self.vmcb.event_injection & event::VALID != 0 {
            // The NMI is next: the kick is taken once the event is delivered.
            A::kick(A::this_cpu());
        }
    }

    /// Whether the VMCB requests an exit when an event can be delivered, or has another task
    /// priority than the local APIC.
    #[inline]
    fn is_window_arranged(&self) -> bool {
        // With the VINTR intercept, the first comparison finds a priority after the exit, too.
        self.vmcb.interrupt_control != self.quiet() || self.vmcb.intercept_cr & CR_WRITE_8 != 0
    }

    /// Whether no event waits to be delivered, as for most entries.
    #[inline]
    fn has_no_events(&self) -> bool {
        self.vmcb.event_injection & event::VALID == 0
            && self.exception.is_none()
            && self.nmi.is_idle()
            && !self.lapic.has_requests()
    }

    fn requeue_cut_short(&mut self) {
        let info = self.vmcb.event_injection;
        if info & (event::VALID | event::TYPE_MASK) == event::VALID | event::TYPE_NMI {
            self.nmi.give_back();
        }
    }

    /// Selects the event that the guest can take next: an NMI, which is injected by EVENTINJ, or an
    /// interrupt, whose vector is returned.
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
        Some(vector)
    }

    /// Offers the guest the interrupt that it can take, or requests an exit when a waiting event
    /// can be taken: by an intercepted virtual interrupt, or by intercepting CR8 when only the task
    /// priority blocks it. The former also ends STI's interrupt shadow for NMIs; an NMI in the
    /// shadow of a load of SS with interrupts off is delivered at the next exit.
    #[inline(never)] // Kept apart from the interrupts that can be taken at once, which are most.
    fn request(&mut self, injected: Option<u8>) {
        let requested = self.lapic.has_requests();
        let waiting = requested && self.lapic.pending().is_some();
        let masked = requested && !waiting;
        let wanted = waiting || self.nmi.is_deliverable();
        // If one is injected no other could be taken: it has the highest priority, and an NMI would
        // have gone first.
        let vector = u64::from(injected.unwrap_or(0)) << vintr::VECTOR_SHIFT;
        let is_asked = wanted || injected.is_some();
        let control = self.quiet() | if is_asked { REQUEST } else { 0 } | vector;
        if self.vmcb.interrupt_control != control {
            self.vmcb.interrupt_control = control;
            self.vmcb.mark_dirty(clean::TPR);
        }
        let window = self.vmcb.intercept_misc1 & !misc1::VINTR | if wanted { misc1::VINTR } else { 0 };
        // With a pending request too: an emulator aborts if the guest writes CR8 then
        // (docs/qemu.md).
        let cr = self.vmcb.intercept_cr & !CR_WRITE_8 | if masked || wanted { CR_WRITE_8 } else { 0 };
        if (window, cr) != (self.vmcb.intercept_misc1, self.vmcb.intercept_cr) {
            (self.vmcb.intercept_misc1, self.vmcb.intercept_cr) = (window, cr);
            self.vmcb.mark_dirty(clean::INTERCEPTS);
        }
    }

    /// Takes over the guest's changes to its task priority, and settles the offered interrupt.
    /// Returns whether the guest has taken it.
    #[inline(always)]
    pub fn sync_interrupts(&mut self) -> bool {
        self.vmcb.interrupt_control != self.quiet() && self.settle_interrupts()
    }

    /// The entry was not carried out: the guest takes no interrupt.
    #[inline(never)] // Kept apart from the entries that are carried out.
    pub fn withdraw_interrupt(&mut self) {
        let _none_was_taken = self.sync_interrupts();
    }

    /// The VMCB's interrupt control if no interrupt is offered and no exit requested.
    #[inline(always)]
    fn quiet(&self) -> u64 {
        vintr::MASKING | u64::from(self.lapic.tpr() >> 4)
    }

    #[inline(always)] // It has one caller that matters.
    fn settle_interrupts(&mut self) -> bool {
        let control = self.vmcb.interrupt_control;
        let tpr = (control & vintr::TPR_MASK) as u8;
        // CR8's has four bits.
        if tpr != self.lapic.tpr() >> 4 {
            self.lapic.set_tpr(tpr << 4);
        }
        if control >> vintr::VECTOR_SHIFT == 0 {
            return false;
        }
        self.vmcb.interrupt_control = control & (vintr::MASKING | vintr::TPR_MASK);
        self.vmcb.mark_dirty(clean::TPR);
        if control & vintr::IRQ != 0 {
            self.take_back((control >> vintr::VECTOR_SHIFT) as u8);
            return false;
        }
        true
    }

    /// The guest has not taken the offered interrupt.
    #[cold]
    fn take_back(&mut self, vector: u8) {
        self.lapic.cancel_service(vector);
        if self.vmcb.exit_interrupt_info & event::VALID != 0 {
            // It is what was being delivered: the guest has executed nothing. QEMU reports it as an
            // exception.
            self.vmcb.exit_interrupt_info = event::VALID | event::TYPE_INTERRUPT | u64::from(vector);
        }
    }

    /// Sets the task priority: the local APIC's, and the one that the running guest sees as CR8.
    pub fn set_task_priority(&mut self, tpr: u8) {
        self.lapic.set_tpr(tpr);
        let control = &mut self.vmcb.interrupt_control;
        *control = *control & !vintr::TPR_MASK | u64::from(tpr >> 4);
        self.vmcb.mark_dirty(clean::TPR);
    }
}
