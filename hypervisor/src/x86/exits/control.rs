//! Control registers: CR4, CR8, XCR0.

use super::{Then, protection_fault, with_translation};
use crate::vm::{Context, Next};
use crate::x86::processor::X86;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::block::Field::{Cr3, Cr4, Efer};
use crate::x86::vcpu::checks::{self, Instruction};
use crate::x86::vcpu::fpu;
use crate::x86::vcpu::instruction::decode_control_write;
use crate::x86::vcpu::registers::RCX;
use crate::x86::{CR4_PAE, CR4_PCIDE, EFER_LMA};

pub(crate) fn on_xsetbv<A: X86>(context: &mut Context<'_, A>) -> Then {
    let value = context.state.registers.edx_eax();
    let register = context.state.registers.low(RCX);
    if refuses(context, Instruction::SetExtendedControl) {
        return Then::Stay(Next::Resume);
    }
    if register != 0 || !fpu::is_valid_xcr0(value, A::components() & !context.state.hidden.components) {
        return Then::protection(context);
    }
    // The guest's XCR0 is in the processor while the vCPU is on the CPU.
    A::write_xcr0(value);
    Then::RESUME
}

/// A move to CR4 or CR8.
pub(crate) fn on_write<A: X86>(context: &mut Context<'_, A>) -> Next {
    if refuses(context, Instruction::Kernels) {
        return Next::Resume;
    }
    context.state.rsp_from_block();
    let decoded = with_translation(context, |state, memory| decode_control_write::<A>(&state.block, memory));
    let (number, from, length) = match decoded {
        Ok(decoded) => decoded,
        Err(error) => {
            context.state.raise_fetch_error(error);
            return Next::Resume;
        }
    };
    let value = from.read(&context.state.registers.0);
    if !write(context, number, value) {
        return protection_fault(context);
    }
    context.state.skip(length);
    Next::Resume
}

/// Whether CR4 or CR8 accepts the value, which it has then.
pub(crate) fn write<A: X86>(context: &mut Context<'_, A>, number: u32, value: u64) -> bool {
    match number {
        4 => return write_cr4(context, value),
        8 if value < 16 => context.state.set_task_priority((value << 4) as u8),
        _ => return false,
    }
    true
}

/// CR4: only bits that CPUID shows can be set (APM volume 2, section 3.1.3).
fn write_cr4<A: X86>(context: &mut Context<'_, A>, value: u64) -> bool {
    let block = &mut context.state.block;
    let long = block.read(Efer) & EFER_LMA != 0;
    let enables_pcid = value & !block.read(Cr4) & CR4_PCIDE != 0;
    if value & !(context.vm.guest.cr4_mask & !context.state.hidden.cr4) != 0
        || long && value & CR4_PAE == 0
        || enables_pcid && (!long || block.read(Cr3) & 0xfff != 0)
    {
        return false;
    }
    let old = block.translation_controls();
    block.write(Cr4, value);
    context.state.settle_translations(old);
    true
}

/// Whether the instruction is refused; if so, its fault has been raised.
pub(crate) fn refuses<A: X86>(context: &mut Context<'_, A>, instruction: Instruction) -> bool {
    let refused = checks::check(instruction, context.state.block.conditions());
    if let Err(refusal) = refused {
        context.state.raise_refusal(refusal);
    }
    refused.is_err()
}
