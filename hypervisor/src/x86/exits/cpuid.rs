//! CPUID.

use super::Then;
use crate::vm::Context;
use crate::x86::processor::X86;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::Cr4;
use crate::x86::vcpu::checks::CR4_OSXSAVE;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::{cpuid, hyperv};

#[inline(always)] // Like the others that make up most exits.
pub(crate) fn on_cpuid<A: X86>(context: &mut Context<'_, A>) -> Then {
    let registers = &mut context.state.registers;
    let (leaf, subleaf) = (registers.low(RAX), registers.low(RCX));
    let (eax, ebx, ecx, edx) = match hyperv::cpuid::leaf(leaf, context.vm.guest.partition.platform()) {
        Some(answer) => {
            let hints = context.vm.guest.turns.as_ref().map_or(0, |turns| turns.hints(leaf));
            (answer.eax | hints, answer.ebx, answer.ecx, answer.edx)
        }
        None => {
            let view = cpuid::View {
                apic: context.state.lapic.is_on(),
                // Read, and checked, only for the leaf that shows it: the check takes a lock.
                osxsave: leaf == 1 && context.state.block.read(Cr4) & CR4_OSXSAVE != 0,
                invariant_tsc: leaf == 0x8000_0007 && context.vm.guest.partition.shows_invariant_tsc(),
                ..context.state.view
            };
            let answer = cpuid::answer::<A>(leaf, subleaf, view, &context.state.hidden);
            (answer.eax, answer.ebx, answer.ecx, answer.edx)
        }
    };
    registers.set_low(RAX, eax);
    registers.set_low(RBX, ebx);
    registers.set_low(RCX, ecx);
    registers.set_low(RDX, edx);
    Then::RESUME
}
