//! The table of exits: a row for each kind. Basic exit reasons: appendix C.

use memslots::Gpa;

use super::processor::Intel64;
use super::vmcs::Vmcs;
use super::{exits, intercepts, refusal};
use crate::vm::{Access, Context, Next};
use crate::x86::exits::nested::NestedFault;
use crate::x86::exits::port::{PortAccess, StringAccess};
use crate::x86::exits::table::exits;
use crate::x86::exits::{control, cpuid, event, hypercall, msr, nested, port};
use crate::x86::vcpu::event as events;

/// The entry has failed before it became one: VMLAUNCH and VMRESUME say so by a flag.
pub const REFUSED: u64 = u64::MAX;
/// In an exit reason: the entry has failed on what it loads.
pub const ENTRY_FAILURE: u64 = 1 << 31;
/// An interrupt of the machine.
pub(super) const INTERRUPT: u64 = 1;
/// Added to the vector of an exception, whose basic exit reason is 0.
pub const EXCEPTION: u64 = 0x100;

/// The processor's description of an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its reason, or an exception's code.
    pub code: u64,
    /// Its meaning depends on the code.
    pub qualification: u64,
    /// The exception, in the format of [`events`].
    pub exception: u64,
    /// The event whose delivery was cut short, in the same format: an instruction's, too.
    pub event: u64,
    /// The guest physical address of a nested fault.
    pub guest_physical: u64,
    /// The address behind the instruction, where the exit is an instruction's.
    pub next_rip: u64,
}

impl Exit {
    /// The exit that has just ended a stay in the guest.
    #[inline(always)]
    pub fn of(vmcs: &Vmcs) -> Self {
        Self {
            code: vmcs.code,
            qualification: vmcs.qualification,
            exception: vmcs.interruption,
            event: vmcs.vectoring,
            guest_physical: vmcs.guest_physical,
            next_rip: vmcs.next_rip(),
        }
    }

    /// Itself, for a handler that takes all of it.
    const fn whole(&self) -> Self {
        *self
    }

    const fn code(&self) -> u64 {
        self.code
    }

    /// The vector of an exception, its error code, and no address: page faults cause no exits.
    const fn exception(&self) -> (u64, u32, u64) {
        (self.exception & 0xff, (self.exception >> 32) as u32, 0)
    }

    /// Table 28-5. The address size and segment of a string are decoded from its instruction.
    #[inline(always)]
    const fn port(&self) -> PortAccess {
        let info = self.qualification;
        let string = StringAccess { is_repeated: info & 1 << 5 != 0, address_size: None, segment: None };
        PortAccess {
            port: (info >> 16) as u16,
            size: (info & 7) as u32 + 1,
            is_input: info & 1 << 3 != 0,
            string: if info & 1 << 4 != 0 { Some(string) } else { None },
            next_rip: self.next_rip,
        }
    }

    /// Table 28-7. The access itself has a linear address that has been translated; all others are
    /// the processor's walks. A misconfigured entry stops any access, and says nothing of it.
    const fn nested_fault(&self) -> NestedFault {
        const ITSELF: u64 = 1 << 7 | 1 << 8;
        let info = if self.code == EPT_MISCONFIGURATION { ITSELF } else { self.qualification };
        NestedFault {
            gpa: Gpa(self.guest_physical),
            access: match info {
                info if info & ITSELF != ITSELF => Access::Walk,
                info if info & 1 << 2 != 0 => Access::Fetch,
                _ => Access::Data,
            },
            is_store: info & 1 << 1 != 0,
            in_delivery: self.event & events::VALID != 0 && self.event & events::TYPE_SOFTWARE == 0,
        }
    }
}

const EPT_MISCONFIGURATION: u64 = 49;

/// Handles the exit that the VMCS describes.
#[inline(always)] // It has one caller.
pub fn handle_exit<A: Intel64>(context: &mut Context<'_, A>) -> Next {
    let exit = Exit::of(&context.state.block);
    exits::settle_nmis(context.state, &exit);
    dispatch(context, exit)
}

exits! {
    on Intel64;
    instructions {
        ReadMsr: 31 => ExitRegisterRead; 0x0f 0x32; Kernels; msr::on_read; // RDMSR
        WriteMsr: 32 => ExitRegisterWrite; 0x0f 0x30; Kernels; msr::on_write; // WRMSR
        Cpuid: 10 => ExitCpuid; 0x0f 0xa2; Anybodys; cpuid::on_cpuid; // CPUID
        Hypercall: 18 => ExitHypercall; 0x0f 0x01 0xc1; Anybodys; hypercall::on_hypercall; // VMCALL
        Halt: 12 => ExitWait; 0xf4; Kernels; event::on_halt; // HLT
        Pause: 40 => ExitPause; 0xf3 0x90; Anybodys; event::on_pause; // PAUSE, one or many
        // XSETBV.
        SetExtendedControl: 55 => ExitControl; 0x0f 0x01 0xd1; SetExtendedControl; control::on_xsetbv;
        WriteBack: 54 => ExitOther; 0x0f 0x09; Kernels; event::on_cache; // WBINVD
        Invalidate: 13 => ExitOther; 0x0f 0x08; Kernels; event::on_cache; // INVD
    }
    events {
        // An interrupt, or an NMI, of the machine.
        Interrupt: 1 | 0x102 => ExitInterrupt; event::on_nothing;
        // INIT, start-up and SMIs of the machine.
        Signal: 3..=6 => ExitOther; event::on_nothing;
        Window: 7 | 8 => ExitWindow; event::on_window; // The guest can take an interrupt, or an NMI
        Port: 30 => ExitIo; port::on_port, Exit::port; // IN, OUT, INS, OUTS
        // An EPT violation, or a misconfigured entry.
        NestedFault: 48 | 49 => ExitNested; nested::on_nested_fault, Exit::nested_fault;
        ControlAccess: 28 => ExitControl; exits::on_control, Exit::whole; // A move to CR0 or CR4
        FullList: 62 => ExitOther; exits::on_full_list; // Page-modification logging has no more room
        // The end of a level-triggered interrupt, by a local APIC that is the processor's.
        EndOfInterrupt: 45 => ExitControl; exits::on_end_of_interrupt, Exit::whole;
        ApicWrite: 56 => ExitControl; exits::on_apic_write; // An illegal vector for itself
        Priority: 43 => ExitControl; event::on_nothing; // The guest has lowered its task priority
        // An access to a debug register while they are not in the processor.
        DebugRegister: 29 => ExitControl; event::on_debug_register;
        Debug: 0x101 => ExitOther; exits::on_debug, Exit::whole; // #DB
        Exception: 0x111 => ExitOther; event::on_exception, Exit::exception; // #AC
        // #MC, in the guest or while it was entered.
        MachineCheck: 0x112 | 0x8000_0029 => ExitOther; event::on_machine_check;
        Refused: 15 => ExitOther; event::on_refused; // RDPMC
        // Instructions that CPUID does not show: VMX's own, GETSEC, RSM, MONITOR and MWAIT, ENCLS,
        // XSAVES and XRSTORS, PCONFIG, UMWAIT, TPAUSE, LOADIWKEY, ENCLV, SEAMCALL, TDCALL.
        Undefined: 11 | 17 | 19..=27 | 36 | 39 | 50 | 53 | 59 | 60 | 63..=65 | 67..=70 | 76 | 77
            => ExitOther; event::on_undefined;
        Shutdown: 2 => ExitOther; event::on_shutdown; // A triple fault
        TaskSwitch: 9 => ExitOther; exits::on_task_switch; // By a task gate, CALL, JMP or IRET
        // The entry has failed: on the guest's state, or on an MSR (33, 34); or it was none.
        Invalid: ENTRY_FAILURE..=REFUSED => ExitOther; refusal::on_refusal, Exit::whole;
    }
    otherwise {
        Unexpected; ExitOther; event::on_unexpected, Exit::code; // An exit that was not requested
    }
}

const _: () = {
    let mut vector = 0;
    while vector < 32 {
        let is_intercepted = intercepts::EXCEPTIONS >> vector & 1 != 0 || vector == 2;
        assert!(has_row(EXCEPTION + vector) == is_intercepted, "exceptions that exit have a row");
        vector += 1;
    }
};
