//! The table of exits: one row for each kind. Exit codes: appendix C.
//!
//! Codes below 0xc0 are 32 times the number of the intercept vector plus the bit (appendix B). So
//! intercepts and rows can be compared: an intercept without a row, or a row that is never
//! intercepted, does not compile.

use iced_x86::Register;
use memslots::Gpa;

use super::intercepts;
use super::nested as inner;
use super::processor::Amd64;
use super::step;
use super::vmcb::Vmcb;
use crate::vm::{Access, Context, Next};
use crate::x86::exits::nested::NestedFault;
use crate::x86::exits::port::{PortAccess, StringAccess};
use crate::x86::exits::table::exits;
use crate::x86::exits::{control, cpuid, event, hypercall, msr, nested, port};
use crate::x86::vcpu::event as events;

/// VMRUN has refused the guest's state.
pub const INVALID: u64 = u64::MAX;
/// QEMU 7.2's encoding of the same: only the lower half.
const INVALID_LOW: u64 = 0xffff_ffff;

/// An exit of a guest of the guest that was dealt with: a code that no processor has.
pub const INNER: u64 = 1 << 62;

/// The processor's description of an exit. Any bytes that it fetched of a faulting instruction stay
/// in the VMCB, for the handler that decodes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    /// Its code.
    pub code: u64,
    /// Its meaning depends on the code.
    pub info_1: u64,
    /// Its meaning depends on the code.
    pub info_2: u64,
    /// The event whose delivery was cut short, in the format of [`events`].
    pub event: u64,
}

impl Exit {
    /// The exit that has just ended a stay in the guest.
    #[inline(always)]
    pub const fn of(vmcb: &Vmcb) -> Self {
        Self {
            code: vmcb.exit_code,
            info_1: vmcb.exit_info_1,
            info_2: vmcb.exit_info_2,
            event: vmcb.exit_interrupt_info,
        }
    }

    const fn code(&self) -> u64 {
        self.code
    }

    /// Whether an access to an MSR is a read.
    #[inline(always)]
    const fn is_msr_read(&self) -> bool {
        self.info_1 & 1 == 0
    }

    /// The vector of an intercepted exception, whose codes begin at a multiple of 32; its error
    /// code and address.
    const fn exception(&self) -> (u64, u32, u64) {
        (self.code % 32, self.info_1 as u32, self.info_2)
    }

    /// The access of an exit because of a port (section 15.10.2).
    #[inline(always)]
    pub(super) const fn port(&self) -> PortAccess {
        let info = self.info_1;
        PortAccess {
            port: (info >> 16) as u16,
            size: (info >> 4 & 7) as u32,
            is_input: info & 1 != 0,
            string: if info & 1 << 2 != 0 { Some(string_access(info)) } else { None },
            next_rip: self.info_2,
        }
    }

    /// The access that nested translation refused (section 15.25.6).
    pub(super) const fn nested_fault(&self) -> NestedFault {
        let info = self.info_1;
        let access = match info {
            info if info & FAULT_IN_WALK != 0 => Access::Walk,
            info if info & FAULT_FETCH != 0 => Access::Fetch,
            _ => Access::Data,
        };
        NestedFault {
            gpa: Gpa(self.info_2),
            access,
            is_store: info & FAULT_WRITE != 0,
            in_delivery: self.event & events::VALID != 0,
        }
    }
}

/// What the processor reports of INS and OUTS.
#[cold]
#[inline(never)]
const fn string_access(info: u64) -> StringAccess {
    let address_size = match info >> 7 & 7 {
        1 => Some(2),
        2 => Some(4),
        4 => Some(8),
        _ => None,
    };
    // ES, which is 0, looks like no report.
    let segment = match info >> 10 & 7 {
        1 => Some(Register::CS),
        2 => Some(Register::SS),
        3 => Some(Register::DS),
        4 => Some(Register::FS),
        5 => Some(Register::GS),
        _ => None,
    };
    StringAccess { is_repeated: info & 1 << 3 != 0, address_size, segment }
}

/// `info_1` of a nested page fault: the access was a store.
const FAULT_WRITE: u64 = 1 << 1;
/// An instruction fetch caused the fault.
const FAULT_FETCH: u64 = 1 << 4;
/// The access itself caused the fault.
pub(super) const FAULT_IN_ACCESS: u64 = 1 << 32;
/// The walk of the guest's page tables caused the fault, not the access itself.
pub(super) const FAULT_IN_WALK: u64 = 1 << 33;

/// Handles the exit that the VMCB describes.
#[inline(always)] // It has one caller, and saves that caller's registers for nothing otherwise.
pub fn handle_exit<A: Amd64>(context: &mut Context<'_, A>) -> Next {
    let exit = Exit::of(&context.state.block);
    // The part of the IRET's own #DB that the guest must see has been raised; nothing else is to be
    // handled.
    if step::end(context.state) && Row::of(&exit) == Row::Event(Event::Debug) {
        context.count_exit(Row::of(&exit).counter());
        return Next::Resume;
    }
    dispatch(context, exit)
}

exits! {
    on Amd64;
    instructions {
        ReadMsr: 0x7c if is_msr_read => ExitRegisterRead; 0x0f 0x32; Kernels; msr::on_read; // RDMSR
        WriteMsr: 0x7c => ExitRegisterWrite; 0x0f 0x30; Kernels; msr::on_write; // WRMSR
        Cpuid: 0x72 => ExitCpuid; 0x0f 0xa2; Anybodys; cpuid::on_cpuid; // CPUID
        Hypercall: 0x81 => ExitHypercall; 0x0f 0x01 0xd9; Anybodys; hypercall::on_hypercall; // VMMCALL
        Halt: 0x78 => ExitWait; 0xf4; Kernels; event::on_halt; // HLT
        Pause: 0x77 => ExitPause; 0xf3 0x90; Anybodys; event::on_pause; // PAUSE
        // XSETBV.
        SetExtendedControl: 0x8d => ExitControl; 0x0f 0x01 0xd1; SetExtendedControl; control::on_xsetbv;
        WriteBack: 0x89 => ExitOther; 0x0f 0x09; Kernels; event::on_cache; // WBINVD
        Invalidate: 0x76 => ExitOther; 0x0f 0x08; Kernels; event::on_cache; // INVD
    }
    events {
        // An interrupt, or an NMI, of the machine.
        Interrupt: 0x60 | 0x61 => ExitInterrupt; event::on_nothing;
        Signal: 0x62 | 0x63 => ExitOther; event::on_nothing; // SMI and INIT of the machine
        Window: 0x64 => ExitWindow; event::on_window; // The guest can take an interrupt
        Port: 0x7b => ExitIo; port::on_port, Exit::port; // IN, OUT, INS, OUTS
        NestedFault: 0x400 => ExitNested; nested::on_nested_fault, Exit::nested_fault; // A nested page fault
        ControlWrite: 0x14 | 0x18 => ExitControl; control::on_write; // A move to CR4 or CR8
        // An access to a debug register that is not in the processor.
        DebugRegister: 0x20..=0x23 | 0x30..=0x33 | 0x35 | 0x37 => ExitControl; event::on_debug_register;
        InterruptReturn: 0x74 => ExitOther; event::on_iret; // The IRET that may end an NMI's handler
        Debug: 0x41 => ExitOther; event::on_exception, Exit::exception; // #DB
        // #UD, #TS, #NP, #SS, #GP, #PF, #AC.
        Exception: 0x46 | 0x4a..=0x4e | 0x51 => ExitOther; event::on_exception, Exit::exception;
        MachineCheck: 0x52 => ExitOther; event::on_machine_check; // #MC
        // RDPMC, and a floating-point error that is signalled on the processor's pin.
        Refused: 0x6f | 0x7e => ExitOther; event::on_refused;
        // VMRUN, VMLOAD, VMSAVE, STGI, CLGI and INVLPGA, which a guest that has guests executes.
        Svm: 0x7a | 0x80 | 0x82..=0x85 => ExitSvm; inner::on_instruction, Exit::code;
        // Instructions that CPUID does not show: SKINIT, MONITOR and MWAIT, RDPRU, INVLPGB, MCOMMIT
        // and TLBSYNC (A10).
        Undefined: 0x86 | 0x8a..=0x8c | 0x8e | 0xa0 | 0xa1 | 0xa3 | 0xa4 => ExitOther; event::on_undefined;
        Inner: INNER => ExitInner; event::on_nothing;
        Shutdown: 0x7f => ExitOther; event::on_shutdown; // A triple fault
        // VMRUN has refused the guest's state.
        Invalid: INVALID | INVALID_LOW => ExitOther; event::on_invalid;
    }
    otherwise {
        Unexpected; ExitOther; event::on_unexpected, Exit::code; // An exit that was not requested
    }
}

const _: () = {
    let mut code = 0;
    while code < 32 * intercepts::EVER.len() {
        let is_intercepted = intercepts::EVER[code / 32] >> (code % 32) & 1 != 0;
        assert!(
            has_row(code as u64) == is_intercepted,
            "what is intercepted has a row, and nothing else has one"
        );
        code += 1;
    }
};
