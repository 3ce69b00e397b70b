//! The table of exits: a row for each kind. Basic exit reasons: appendix C.

use hostlink::counters::Counter;
use memslots::{Gpa, Pattern};

use super::vmcs::Vmcs;
use crate::vm::{Access, Context, Next};
use crate::x86::exits::nested::{self, NestedFault};
use crate::x86::exits::port::{self, PortAccess, StringAccess};
use crate::x86::exits::{complete, cpuid, event};
use crate::x86::processor::X86;
use crate::x86::vcpu::{checks::Instruction, event as events};

/// An interrupt of the machine.
pub const INTERRUPT: u16 = 1;
/// CPUID.
pub const CPUID: u16 = 10;
/// HLT.
pub const HALT: u16 = 12;
/// IN, OUT, INS, OUTS.
pub const PORT: u16 = 30;
/// A nested page fault.
pub const EPT_VIOLATION: u16 = 48;

/// Handles the exit that the VMCS describes.
pub fn handle_exit<A: X86<Block = Vmcs>>(context: &mut Context<'_, A>) -> Next {
    let vmcs = &context.state.block;
    match vmcs.reason {
        INTERRUPT => {
            context.count_exit(Counter::ExitInterrupt);
            event::on_nothing(context)
        }
        CPUID => {
            context.count_exit(Counter::ExitCpuid);
            let usual = const { &Pattern::new(&[0x0f, 0xa2]) };
            complete(context, usual, Instruction::Anybodys, cpuid::on_cpuid)
        }
        HALT => {
            context.count_exit(Counter::ExitWait);
            let usual = const { &Pattern::new(&[0xf4]) };
            complete(context, usual, Instruction::Kernels, event::on_halt)
        }
        PORT => {
            let access = port_access(vmcs.qualification, vmcs.next_rip());
            context.count_exit(Counter::ExitIo);
            port::on_port(context, access)
        }
        EPT_VIOLATION => {
            let fault = nested_fault(vmcs);
            context.count_exit(Counter::ExitNested);
            nested::on_nested_fault(context, fault)
        }
        reason => {
            context.count_exit(Counter::ExitOther);
            event::on_unexpected(context, reason.into())
        }
    }
}

/// Table 28-5.
const fn port_access(qualification: u64, next_rip: u64) -> PortAccess {
    let string = StringAccess { is_repeated: qualification & 1 << 5 != 0, address_size: None, segment: None };
    PortAccess {
        port: (qualification >> 16) as u16,
        size: (qualification & 7) as u32 + 1,
        is_input: qualification & 1 << 3 != 0,
        string: if qualification & 1 << 4 != 0 { Some(string) } else { None },
        next_rip,
    }
}

/// Table 28-7. With a valid linear address bit 8 tells the access itself from the walk to it.
const fn nested_fault(vmcs: &Vmcs) -> NestedFault {
    const LINEAR_VALID: u64 = 1 << 7;
    const TRANSLATED: u64 = 1 << 8;
    let is_walk = vmcs.qualification & (LINEAR_VALID | TRANSLATED) == LINEAR_VALID;
    NestedFault {
        gpa: Gpa(vmcs.guest_physical),
        access: match vmcs.qualification {
            _ if is_walk => Access::Walk,
            bits if bits & 1 << 2 != 0 => Access::Fetch,
            _ => Access::Data,
        },
        is_store: vmcs.qualification & 1 << 1 != 0,
        in_delivery: vmcs.vectoring & events::VALID != 0,
    }
}
