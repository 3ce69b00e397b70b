//! Stepping over the IRET that ends an NMI handler.
//!
//! NMIs are unblocked when IRET has been executed, but its intercept comes before that, and nothing comes after.
//! So the guest executes the IRET with RFLAGS.TF set, and #DB is intercepted: the IRET has replaced the trap flag by
//! the one on the stack, and the next NMI goes in where the processor would take it. What the guest could see of
//! this does not get there: DR6 is put back, and an IRET that faults exits too, so that the flags on its
//! handler's stack are the guest's own. Such an IRET has not been executed; NMIs wait for the handler's.
//! APM volume 2, sections 8.2.3 (NMI), 13.1.4 (single step), 15.12 (exception intercepts).

use bitflags::bitflags;

use super::state::VcpuState;
use super::vmcb::{CR0_PE, DR6_BREAKPOINTS, DR6_SINGLE_STEP, RFLAGS_TF, clean, event, exit};

const INTERCEPT_IRET: u32 = 1 << 20;

const VECTOR_PF: u64 = 14;

/// What an IRET can raise: #DB after it, or #UD, #TS, #NP, #SS, #GP, #PF, #AC in its place.
const IRET_EXCEPTIONS: u32 = 1 << 1 | 1 << 6 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17;

bitflags! {
    /// State of non-maskable interrupts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct Nmi: u8 {
        /// One waits.
        const PENDING = 1 << 0;
        /// One is being handled: the next waits for IRET, which is intercepted.
        const BLOCKED = 1 << 1;
        /// The next instruction is that IRET.
        const AT_IRET = 1 << 2;
        /// The guest is executing it.
        const STEPPING = 1 << 3;
    }
}

impl Nmi {
    /// Whether one waits that the guest would take.
    pub(crate) fn is_deliverable(self) -> bool {
        self & (Self::PENDING | Self::BLOCKED) == Self::PENDING
    }

    /// Whether none waits and no IRET is being watched.
    pub(crate) fn is_idle(self) -> bool {
        !self.intersects(Self::PENDING | Self::AT_IRET | Self::STEPPING)
    }
}

/// What was in the place of what the step needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Step {
    rip: u64,
    dr6: u64,
    trap_flag: u64,
}

impl VcpuState {
    /// The guest takes an NMI: the next waits for IRET.
    pub(crate) fn block_nmis(&mut self) {
        self.nmi.insert(Nmi::BLOCKED);
        self.await_iret();
    }

    fn await_iret(&mut self) {
        self.nmi.remove(Nmi::AT_IRET);
        self.vmcb.intercept_misc1 |= INTERCEPT_IRET;
        self.vmcb.mark_dirty(clean::INTERCEPTS);
    }

    /// The guest is at an IRET that is intercepted: it executes it unless an event comes before.
    pub(crate) fn prepare_iret(&mut self) {
        let vmcb = &mut *self.vmcb;
        if vmcb.event_injection & event::VALID != 0 {
            return self.await_iret();
        }
        self.step = Step { rip: vmcb.rip, dr6: vmcb.dr6, trap_flag: vmcb.rflags & RFLAGS_TF };
        self.nmi.insert(Nmi::STEPPING);
        vmcb.rflags |= RFLAGS_TF;
        // What the processor reports is then known to come from this instruction.
        vmcb.dr6 &= !(DR6_BREAKPOINTS | DR6_SINGLE_STEP);
        vmcb.intercept_misc1 &= !INTERCEPT_IRET;
        vmcb.intercept_exceptions |= IRET_EXCEPTIONS;
        vmcb.mark_dirty(clean::ALL);
    }

    /// Ends the step if there is one, whether the IRET has been executed or not. To be called after each exit, before
    /// anything else looks at RFLAGS and DR6.
    #[inline]
    pub(crate) fn end_step(&mut self) {
        if self.nmi.contains(Nmi::STEPPING) {
            self.finish_step();
        }
    }

    #[cold]
    fn finish_step(&mut self) {
        self.nmi.remove(Nmi::STEPPING);
        let step = self.step;
        let vmcb = &mut *self.vmcb;
        let reported = vmcb.dr6;
        let executed = reported & DR6_SINGLE_STEP != 0 || vmcb.rip != step.rip;
        let mut debug = reported & DR6_BREAKPOINTS;
        if executed {
            self.nmi.remove(Nmi::BLOCKED | Nmi::AT_IRET);
            // A guest that was stepping itself gets the exception that has been intercepted.
            debug |= if step.trap_flag != 0 { DR6_SINGLE_STEP } else { 0 };
        } else {
            vmcb.rflags = vmcb.rflags & !RFLAGS_TF | step.trap_flag;
        }
        vmcb.dr6 = step.dr6;
        vmcb.intercept_exceptions &= !IRET_EXCEPTIONS;
        vmcb.mark_dirty(clean::ALL);
        if debug != 0 {
            self.raise_debug(debug);
        }
    }

    /// Raises in the guest the exception that has been intercepted while it was executing the IRET.
    pub(crate) fn reflect_exception(&mut self) {
        let (error, address) = (self.vmcb.exit_info_1, self.vmcb.exit_info_2);
        match self.vmcb.exit_code - exit::EXCEPTION_0 {
            VECTOR_PF => self.raise_page_fault(address, error as u32),
            // Real mode has no error codes.
            vector @ (10..=13 | 17) if self.vmcb.cr0 & CR0_PE != 0 => {
                let code = event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | vector;
                self.exception = Some(code | error << 32);
            }
            vector => self.exception = Some(event::VALID | event::TYPE_EXCEPTION | vector),
        }
    }
}
