//! Stepping over the IRET that ends an NMI handler.
//!
//! NMIs are unblocked when IRET has been executed, but its intercept comes before that, and nothing
//! comes after. So the guest executes the IRET with RFLAGS.TF set, and #DB is intercepted: the IRET
//! has replaced the trap flag by the one on the stack, and the next NMI goes in where the processor
//! would take it. What the guest could see of this does not get there: DR6 is put back, and an IRET
//! that faults exits too, so that the flags on its handler's stack are the guest's own. Such an
//! IRET has not been executed; NMIs wait for the handler's.
//!
//! An IRET that goes back to another task stores its flags with the task that ends, and there the
//! guest would see the trap flag. It is executed without: where RIP or the task is another one at
//! the next exit, it has been. If an NMI waits for that, the timer sees to an exit.
//!
//! APM volume 2, sections 8.2.3 (NMI), 13.1.4 (single step), 15.12 (exception intercepts).

use super::CR0_PE;
use super::event;
use super::exits::Exit;
use super::intercepts::{self, misc1};
use super::nmi::{self, Nmi};
use super::processor::Amd64;
use super::state::VcpuState;
use super::vmcb::{DR6_BREAKPOINTS, DR6_SINGLE_STEP, RFLAGS_TF, clean};

/// DR7: accesses to debug registers raise #DB.
const DR7_GENERAL_DETECT: u64 = 1 << 13;

/// Most that an NMI waits for an exit behind an IRET to another task.
const TASK_PATIENCE_US: u64 = 1000;

/// What was in the place of what the step needs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Step {
    rip: u64,
    /// The task that the IRET ends, if it does.
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

    /// The guest is at an IRET that is intercepted: it executes it unless an event comes before.
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
        // What the processor reports is then known to come from this instruction.
        vmcb.dr6 &= !(DR6_BREAKPOINTS | DR6_SINGLE_STEP);
    }

    /// Sees to an exit behind an IRET that causes none, if an NMI waits for it.
    #[cold]
    fn hasten_exit<A: Amd64>(&self) {
        if self.nmi.contains(Nmi::PENDING) {
            let now = A::now();
            A::this_cpu().set_timer(now + A::ticks_of_us(TASK_PATIENCE_US), now);
        }
    }

    /// Ends the step if there is one, whether the IRET has been executed or not. To be called after
    /// each exit, before anything else looks at RFLAGS and DR6. Whether a #DB is the step's own.
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
            // A guest that was stepping itself gets the exception that has been intercepted.
            debug |= if step.trap_flag != 0 { DR6_SINGLE_STEP } else { 0 };
        } else {
            vmcb.rflags = vmcb.rflags & !RFLAGS_TF | step.trap_flag;
        }
        vmcb.dr6 = step.dr6;
        if debug != 0 {
            // What the guest is to see of the step's #DB.
            self.raise_debug(debug);
        }
        true
    }

    /// Raises in the guest the exception that has been intercepted.
    pub fn reflect_exception(&mut self, exit: &Exit) {
        let (error, address) = (exit.info_1, exit.info_2);
        // Exit codes of exceptions begin at a multiple of 32.
        match exit.code % 32 {
            event::VECTOR_DB => {
                // DR6 says already what it is for. Delivery turns the detection of accesses to
                // debug registers off (section 13.1.1.4), and one by injection leaves that to the
                // hypervisor (section 15.20).
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
