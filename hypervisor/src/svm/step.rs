//! Stepping over the IRET that ends an NMI handler.
//!
//! NMIs are unblocked once IRET has been executed, but its intercept occurs before that, and no
//! exit follows. So the guest executes the IRET with RFLAGS.TF set, and #DB is intercepted. The
//! IRET has replaced the trap flag by the one on the stack, and the next NMI is injected where the
//! processor would take it. The guest sees none of this: DR6 is restored, and an IRET that faults
//! exits too, so that the flags on its handler's stack are the guest's own. Such an IRET has not
//! been executed; NMIs wait for the handler's IRET.
//!
//! An IRET that returns to another task stores its flags with the task that ends, and there the
//! guest would see the trap flag. It is executed without it: if RIP or the task differs at the next
//! exit, the IRET has been executed. If an NMI waits for that, the timer forces an exit.
//!
//! APM volume 2, sections 8.2.3 (NMI), 13.1.4 (single step), 15.12 (exception intercepts).

use super::event;
use super::intercepts::{self, misc1};
use super::processor::Amd64;
use super::vmcb::{DR6_BREAKPOINTS, DR6_SINGLE_STEP, RFLAGS_TF, clean};
use crate::x86::CR0_PE;
use crate::x86::exits::Exit;
use crate::x86::vcpu::nmi::{self, Nmi};
use crate::x86::vcpu::state::VcpuState;

/// DR7: accesses to debug registers raise #DB.
const DR7_GENERAL_DETECT: u64 = 1 << 13;

/// Maximum time that an NMI waits for an exit after an IRET to another task.
const TASK_PATIENCE_US: u64 = 1000;

/// The values that the step replaced.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    rip: u64,
    /// The task that the IRET ends, if any.
    task: Option<u16>,
    dr6: u64,
    trap_flag: u64,
}

impl VcpuState {
    /// The guest takes an NMI: the next waits for IRET.
    pub fn take_nmi(&mut self) {
        self.nmi.take();
        self.await_iret();
    }

    fn await_iret(&mut self) {
        self.nmi.remove(Nmi::AT_IRET);
        self.vmcb.intercept_misc1 |= misc1::IRET;
        self.vmcb.mark_dirty(clean::INTERCEPTS);
    }

    /// The guest is at an intercepted IRET: it executes it unless an event comes first.
    pub fn prepare_iret<A: Amd64>(&mut self, is_interrupted: bool) {
        let vmcb = &mut *self.vmcb;
        if is_interrupted || vmcb.event_injection & event::VALID != 0 {
            return self.await_iret();
        }
        let task = nmi::iret_switches_tasks(vmcb.cr0, vmcb.efer, vmcb.rflags).then_some(vmcb.tr.selector);
        self.step = Step { rip: vmcb.rip, task, dr6: vmcb.dr6, trap_flag: vmcb.rflags & RFLAGS_TF };
        self.nmi.insert(Nmi::STEPPING);
        vmcb.intercept_misc1 &= !misc1::IRET;
        vmcb.intercept_exceptions |= intercepts::IRET_EXCEPTIONS;
        vmcb.mark_dirty(clean::ALL);
        if task.is_some() {
            return self.hasten_exit::<A>();
        }
        vmcb.rflags |= RFLAGS_TF;
        // Any bits that the processor then reports come from this instruction.
        vmcb.dr6 &= !(DR6_BREAKPOINTS | DR6_SINGLE_STEP);
    }

    /// Forces an exit after an IRET that causes none, if an NMI waits for it.
    #[cold]
    fn hasten_exit<A: Amd64>(&self) {
        if self.nmi.contains(Nmi::PENDING) {
            let now = A::now();
            A::this_cpu().set_timer(now + A::ticks_of_us(TASK_PATIENCE_US), now);
        }
    }

    /// Ends the step if there is one, whether the IRET has been executed or not. To be called after
    /// each exit, before other code looks at RFLAGS and DR6. Returns whether a #DB is the step's
    /// own.
    #[inline]
    pub fn end_step(&mut self) -> bool {
        self.nmi.contains(Nmi::STEPPING) && self.finish_step()
    }

    #[cold]
    fn finish_step(&mut self) -> bool {
        self.nmi.remove(Nmi::STEPPING);
        let step = self.step;
        let vmcb = &mut *self.vmcb;
        vmcb.intercept_exceptions = intercepts::EXCEPTIONS;
        vmcb.mark_dirty(clean::ALL);
        if let Some(task) = step.task {
            // Neither flags nor debug registers have been changed.
            if vmcb.rip != step.rip || vmcb.tr.selector != task {
                self.nmi.remove(Nmi::BLOCKED | Nmi::AT_IRET);
            }
            return false;
        }
        let reported = vmcb.dr6;
        let executed = reported & DR6_SINGLE_STEP != 0 || vmcb.rip != step.rip;
        let mut debug = reported & DR6_BREAKPOINTS;
        if executed {
            self.nmi.remove(Nmi::BLOCKED | Nmi::AT_IRET);
            // A guest that was single-stepping itself gets the intercepted exception.
            debug |= if step.trap_flag != 0 { DR6_SINGLE_STEP } else { 0 };
        } else {
            vmcb.rflags = vmcb.rflags & !RFLAGS_TF | step.trap_flag;
        }
        vmcb.dr6 = step.dr6;
        if debug != 0 {
            // The part of the step's #DB that the guest must see.
            self.raise_debug(debug);
        }
        true
    }

    /// Raises the intercepted exception in the guest.
    pub fn reflect_exception(&mut self, exit: &Exit) {
        let (error, address) = (exit.info_1, exit.info_2);
        // Exit codes of exceptions begin at a multiple of 32.
        match exit.code % 32 {
            event::VECTOR_DB => {
                // DR6 already has the cause. Delivery disables the detection of accesses to debug
                // registers (section 13.1.1.4), and injection leaves that to the hypervisor
                // (section 15.20).
                self.vmcb.dr7 &= !DR7_GENERAL_DETECT;
                self.vmcb.mark_dirty(clean::ALL);
                self.exception = Some(event::exception(event::VECTOR_DB));
            }
            event::VECTOR_PF => self.raise_page_fault(address, error as u32),
            // Real mode has no error codes.
            vector @ (10..=13 | 17) if self.vmcb.cr0 & CR0_PE != 0 => {
                self.exception = Some(event::exception(vector) | event::ERROR_VALID | error << 32);
            }
            vector => self.exception = Some(event::exception(vector)),
        }
    }
}
