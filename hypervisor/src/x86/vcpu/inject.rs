//! Injection of events into the guest: exceptions, NMIs, interrupts. APM volume 2, sections 15.20
//! and 15.21.
//!
//! Exceptions and NMIs are delivered by the entry. An interrupt is offered only if the guest can
//! take it, and it takes it before its next instruction. The local APIC has it in service from then
//! on. If it was not taken, because an interrupt of the machine came first or its delivery was cut
//! short, it becomes a request again, and the next entry decides anew. The guest executes no
//! instruction while such a request is outstanding, so neither its task priority nor its end of
//! interrupt can interfere. VMX injects it; SVM offers it by V_IRQ, whose bit after the exit shows
//! whether it was taken.

use super::block::Field::{Cr0, Cr2, Dr6, Dr7, Rflags};
use super::block::{ControlBlock, Inner, InterruptRequest, Offered};
use super::checks::Refusal;
use super::event::{self, Combined};
use super::nmi::Nmi;
use super::state::VcpuState;
use crate::vm::Next;
use crate::vm::arch::Cpus;
use crate::x86::{CR0_PE, DR6_BREAKPOINTS, RFLAGS_IF, RFLAGS_RF};

/// DR7: accesses to debug registers raise #DB.
const DR7_GENERAL_DETECT: u64 = 1 << 13;

impl<B: ControlBlock> VcpuState<B> {
    /// Raises #UD at the current instruction.
    pub fn raise_undefined(&mut self) {
        self.exception = Some(event::exception(event::VECTOR_UD));
    }

    /// Raises #GP(0) at the current instruction.
    pub fn raise_protection(&mut self) {
        // Real mode has no error codes.
        let error = if self.block.read(Cr0) & CR0_PE != 0 { event::ERROR_VALID } else { 0 };
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
        self.block.write(Cr2, address);
        let code = event::exception(event::VECTOR_PF) | event::ERROR_VALID;
        self.exception = Some(code | u64::from(error) << 32);
    }

    /// Raises #DB after the completed instruction, with these bits in DR6.
    pub fn raise_debug(&mut self, bits: u64) {
        self.block.write(Dr6, self.block.read(Dr6) & !DR6_BREAKPOINTS | bits);
        self.exception = Some(event::exception(event::VECTOR_DB));
    }

    /// The local APIC gets back what the processor has of it, if it has anything.
    #[inline(always)]
    pub fn take_apic_back(&mut self) {
        self.block.take_back(&mut self.lapic);
    }

    /// An exit cut the delivery of an event short: it is delivered again. Software interrupts and
    /// breakpoints are not, because their instruction is executed again; nor are interrupts, which
    /// the local APIC still has.
    pub fn recover_event(&mut self) {
        let info = self.block.cut_short();
        if info & event::VALID == 0 {
            return;
        }
        match info & event::TYPE_MASK {
            event::TYPE_INTERRUPT => {
                self.take_apic_back();
                self.lapic.cancel_service(info as u8);
            }
            event::TYPE_SOFTWARE => {}
            event::TYPE_EXCEPTION if matches!(info & 0xff, event::VECTOR_BP | event::VECTOR_OF) => {}
            _ => self.block.set_event(info),
        }
    }

    /// The event whose delivery was cut short cannot be delivered, because it needs to read or push
    /// to an address without memory. The guest gets a double fault instead. If the event was a
    /// double fault itself, the guest shuts down.
    pub fn raise_delivery_failure(&mut self) {
        self.exception = Some(event::double_fault(self.block.read(Cr0) & CR0_PE != 0));
    }

    /// Decides what the guest gets when an exception was raised while the delivery of an event was
    /// cut short.
    pub fn settle_delivery(&mut self) -> Next {
        let Some(second) = self.exception else { return Next::Resume };
        match event::combine(self.block.event(), second) {
            // The entry takes care of the interrupted event.
            Combined::Second => {}
            Combined::DoubleFault => {
                self.raise_delivery_failure();
                self.block.set_event(0);
            }
            Combined::Shutdown => return Next::Shutdown,
        }
        Next::Resume
    }

    /// Fills in the event for the next entry, or requests an exit as soon as the guest can take
    /// one.
    pub fn prepare_events<A: Cpus>(&mut self) {
        let is_arranged = self.is_window_arranged();
        if !is_arranged && self.has_no_events() {
            return;
        }
        // There may be one from an entry that was not carried out.
        B::end_step(self);
        if self.own.holds_events() {
            return self.prepare_held::<A>();
        }
        let mut injected = None;
        if self.exception.is_some() {
            self.inject_exception();
        } else if self.block.event() & event::VALID == 0 {
            injected = self.inject_next();
        }
        if !self.nmi.is_idle() {
            self.prepare_nmi::<A>(injected.is_some());
        }
        if is_arranged || self.nmi.is_deliverable() || self.lapic.has_requests() {
            self.request(injected);
        } else if let Some(vector) = injected {
            self.block.offer(vector);
        }
    }

    /// Fills in the exception that was raised, if one was.
    #[cold]
    fn inject_exception(&mut self) {
        let Some(exception) = self.exception.take() else { return };
        // An exception while an event was being delivered: the interrupted event is an NMI, which
        // is raised again, or an exception, which the new one replaces as far as the guest can
        // tell.
        self.requeue_cut_short();
        self.block.set_event(exception);
        if event::pushes_resume_flag(exception) {
            self.block.write(Rflags, self.block.read(Rflags) | RFLAGS_RF);
        }
    }

    /// Interrupts and NMIs are held, and no exit is requested for them: they are looked at again
    /// when they no longer are.
    #[cold]
    fn prepare_held<A: Cpus>(&mut self) {
        self.inject_exception();
        if self.nmi.contains(Nmi::AT_IRET) {
            B::prepare_iret::<A>(self, false);
        }
        let (priority, offered) = (self.priority(), None);
        self.block.request(InterruptRequest { priority, offered, window: false, priority_exits: false });
    }

    /// An NMI waits, or its IRET is being watched.
    #[cold]
    fn prepare_nmi<A: Cpus>(&mut self, is_interrupted: bool) {
        if self.nmi.contains(Nmi::AT_IRET) {
            B::prepare_iret::<A>(self, is_interrupted);
        }
        if self.nmi.contains(Nmi::PENDING) && self.block.await_nmi() {
            return;
        }
        if self.nmi.is_deliverable() && self.block.event() & event::VALID != 0 {
            // The NMI is next: the kick is taken once the event is delivered.
            A::kick(A::this_cpu());
        }
    }

    /// Whether the control block requests an exit when an event can be delivered, or has another
    /// task priority than the local APIC.
    #[inline]
    fn is_window_arranged(&self) -> bool {
        !self.block.is_quiet(self.priority())
    }

    /// Whether no event waits to be delivered, as for most entries.
    #[inline]
    fn has_no_events(&self) -> bool {
        self.block.event() & event::VALID == 0
            && self.exception.is_none()
            && self.nmi.is_idle()
            && !self.lapic.has_requests()
    }

    fn requeue_cut_short(&mut self) {
        let info = self.block.event();
        if info & (event::VALID | event::TYPE_MASK) == event::VALID | event::TYPE_NMI {
            self.nmi.give_back();
        }
    }

    /// Selects the event that the guest can take next: an NMI, which the entry injects, or an
    /// interrupt, whose vector is returned.
    fn inject_next(&mut self) -> Option<u8> {
        let shadow = self.block.has_shadow() || self.block.has_debug_pending();
        if self.nmi.is_deliverable() && !shadow {
            self.nmi.take();
            B::begin_nmi(self);
            self.block.set_event(event::VALID | event::TYPE_NMI | 2);
            return None;
        }
        let vector = self.lapic.pending()?;
        if self.block.read(Rflags) & RFLAGS_IF == 0 || shadow {
            return None;
        }
        self.lapic.begin_service(vector);
        Some(vector)
    }

    /// Offers the guest the interrupt that it can take, or requests an exit when a waiting event
    /// can be taken, or when the task priority that alone blocks it changes.
    #[inline(never)] // Kept apart from the interrupts that can be taken at once, which are most.
    fn request(&mut self, offered: Option<u8>) {
        let requested = self.lapic.has_requests();
        let waiting = requested && self.lapic.pending().is_some();
        let masked = requested && !waiting;
        // If one is offered no other could be taken: it has the highest priority, and an NMI would
        // have gone first.
        let window = waiting || self.nmi.is_deliverable();
        let priority = self.priority();
        self.block.request(InterruptRequest { priority, offered, window, priority_exits: masked });
    }

    /// Takes over the guest's changes to its task priority, and settles the offered interrupt.
    /// Returns whether the guest has taken it.
    #[inline(always)]
    pub fn sync_interrupts(&mut self) -> bool {
        !self.block.is_settled(self.priority()) && self.settle_interrupts()
    }

    /// The entry was not carried out: the guest takes no interrupt.
    #[inline(never)] // Kept apart from the entries that are carried out.
    pub fn withdraw_interrupt(&mut self) {
        let _none_was_taken = self.sync_interrupts();
    }

    /// The task priority as CR8 shows it: it has four bits.
    #[inline(always)]
    fn priority(&self) -> u8 {
        self.lapic.tpr() >> 4
    }

    #[inline(always)] // It has one caller that matters.
    fn settle_interrupts(&mut self) -> bool {
        let (priority, offered) = self.block.settle();
        if priority != self.priority() {
            self.lapic.set_tpr(priority << 4);
        }
        match offered {
            Offered::Nothing => false,
            Offered::Taken => true,
            Offered::Left(vector) => {
                self.lapic.cancel_service(vector);
                false
            }
        }
    }

    /// Sets the task priority: the local APIC's, unless what runs has one of its own, and the one
    /// that it sees as CR8.
    pub fn set_task_priority(&mut self, tpr: u8) {
        if !self.own.has_priority() {
            self.lapic.set_tpr(tpr);
        }
        self.block.set_priority(tpr >> 4);
    }

    /// Raises the intercepted exception in the guest, with this error code and address if it has
    /// them.
    pub fn reflect_exception(&mut self, vector: u64, error: u32, address: u64) {
        match vector {
            event::VECTOR_DB => {
                // DR6 already has the cause. Delivery disables the detection of accesses to debug
                // registers (section 13.1.1.4), and injection leaves that to the hypervisor
                // (section 15.20).
                self.block.write(Dr7, self.block.read(Dr7) & !DR7_GENERAL_DETECT);
                self.exception = Some(event::exception(event::VECTOR_DB));
            }
            event::VECTOR_PF => self.raise_page_fault(address, error),
            // Real mode has no error codes.
            10..=13 | 17 if self.block.read(Cr0) & CR0_PE != 0 => {
                let error = u64::from(error) << 32;
                self.exception = Some(event::exception(vector) | event::ERROR_VALID | error);
            }
            _ => self.exception = Some(event::exception(vector)),
        }
    }
}
