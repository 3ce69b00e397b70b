//! The exits that only VMX has.

use paging::Gpa;

use super::processor::Intel64;
use super::table::Exit;
use super::vmcs::{BLOCKING_BY_NMI, Vmcs};
use crate::devices::pc::lapic::{Effect, msr};
use crate::vm::{Context, GUEST, Next};
use crate::x86::exits::control::{refuses, write};
use crate::x86::exits::effects::perform_lapic;
use crate::x86::exits::event;
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr6, Efer, Rip};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::checks::Instruction;
use crate::x86::vcpu::event::{TYPE_MASK, VALID, VECTOR_DB};
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::state::VcpuState;
use crate::x86::{
    CR0_DEFINED, CR0_PE, CR0_PG, CR4_PAE, CR4_PCIDE, DR6_BREAKPOINTS, DR6_SINGLE_STEP, EFER_LMA, EFER_LME,
    cpuid,
};

const CR0_NOT_WRITE_THROUGH: u64 = 1 << 29;
const CR0_CACHE_DISABLE: u64 = 1 << 30;

/// DR6: an access to a debug register was detected.
const DR6_DETECTED: u64 = 1 << 13;
/// The causes of a #DB that guests are shown.
const DR6_CAUSES: u64 = DR6_BREAKPOINTS | DR6_DETECTED | DR6_SINGLE_STEP;

/// Whether NMIs are blocked is the processor's to say. An IRET that faults has unblocked them
/// already, though it is executed again: the exit says so (28.2.1, 28.2.2).
#[inline(always)]
pub(super) fn settle_nmis(state: &mut VcpuState<Vmcs>, exit: &Exit) {
    const UNBLOCKED: u64 = 1 << 12;
    let said = match exit.code {
        ..48 => 0,
        48 | 62 => exit.qualification,
        0x101 | 0x111 => exit.exception,
        _ => 0,
    };
    if said & UNBLOCKED != 0 && exit.event & VALID == 0 {
        let blocked = state.block.interruptibility() | BLOCKING_BY_NMI;
        state.block.set_interruptibility(blocked);
    }
    state.nmi.set(Nmi::BLOCKED, state.block.interruptibility() & BLOCKING_BY_NMI != 0);
}

/// A move to CR0 or CR4 that changes a bit which is not the guest's own; CLTS or LMSW, for
/// completeness. Table 28-3.
pub(super) fn on_control<A: Intel64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    const CLTS: u64 = 2;
    const LMSW: u64 = 3;
    const TASK_SWITCHED: u64 = 1 << 3;
    if refuses(context, Instruction::Kernels) {
        return Next::Resume;
    }
    context.state.rsp_from_block();
    let (info, cr0) = (exit.qualification, context.state.block.read(Cr0));
    let number = (info & 0xf) as u32;
    let value = context.state.registers.0.get((info >> 8 & 0xf) as usize).copied().unwrap_or(0);
    let value = if context.state.block.is_64bit() { value } else { value & 0xffff_ffff };
    let accepted = match info >> 4 & 3 {
        0 if number == 0 => write_cr0(context, value),
        0 => write_other(context, number, value),
        CLTS => write_cr0(context, cr0 & !TASK_SWITCHED),
        // It does not clear PE.
        LMSW => write_cr0(context, cr0 & !0xe | info >> 16 & 0xf),
        _ => false,
    };
    if !accepted {
        context.state.raise_protection();
        return Next::Resume;
    }
    let length = exit.next_rip.wrapping_sub(context.state.block.read(Rip));
    context.state.skip(length);
    Next::Resume
}

/// Whether CR0 accepts the value, which it has then (SDM volume 3, section 2.5; volume 2, "MOV to
/// control registers"). With paging long mode is switched on or off.
fn write_cr0<A: Intel64>(context: &mut Context<'_, A>, value: u64) -> bool {
    let block = &*context.state.block;
    let (old, cr4, efer) = (block.read(Cr0), block.read(Cr4), block.read(Efer));
    let [code, task] = [SegmentName::Cs, SegmentName::Tr].map(|name| block.attributes(name));
    let is_on = value & CR0_PG != 0;
    let is_switched = (value ^ old) & CR0_PG != 0;
    let to_long = is_switched && is_on && efer & EFER_LME != 0;
    if value >> 32 != 0
        || is_on && value & CR0_PE == 0
        || value & CR0_NOT_WRITE_THROUGH != 0 && value & CR0_CACHE_DISABLE == 0
        || to_long && (cr4 & CR4_PAE == 0 || code & Segment::LONG != 0 || task & 0xf != BUSY_TASK)
        || is_switched && !is_on && (block.is_64bit() || cr4 & CR4_PCIDE != 0)
    {
        return false;
    }
    let block = &mut *context.state.block;
    block.write(Cr0, value & CR0_DEFINED | CR0_EXTENSION_TYPE);
    if is_switched {
        block.write(Efer, if to_long { efer | EFER_LMA } else { efer & !EFER_LMA });
    }
    if (value ^ old) & CR0_LOADS != 0 && !load_pointers(context) {
        context.state.block.write(Cr0, old);
        context.state.block.write(Efer, efer);
        return false;
    }
    if is_switched {
        A::Block::owe_flush(&mut context.state.own);
    }
    true
}

/// CR0.ET, which is always set.
const CR0_EXTENSION_TYPE: u64 = 1 << 4;
/// The type of a TSS in use that is none of 16 bits: long mode has no other.
const BUSY_TASK: u16 = 0xb;
/// Bits whose change loads the entries of PAE paging: CD, NW, PG; PSE, PAE, PGE, SMEP.
const CR0_LOADS: u64 = CR0_NOT_WRITE_THROUGH | CR0_CACHE_DISABLE | CR0_PG;
const CR4_LOADS: u64 = 1 << 4 | CR4_PAE | 1 << 7 | 1 << 20;

/// Whether CR4 or CR8 accepts the value, which it has then.
fn write_other<A: Intel64>(context: &mut Context<'_, A>, number: u32, value: u64) -> bool {
    let old = context.state.block.read(Cr4);
    if !write(context, number, value) {
        return false;
    }
    if number != 4 || (value ^ old) & CR4_LOADS == 0 || load_pointers(context) {
        return true;
    }
    context.state.block.write(Cr4, old);
    false
}

/// Loads what a processor keeps of the tables of legacy PAE paging, if the guest has them: the four
/// entries of the highest level (SDM volume 3, section 4.4.1). False if one of them has a reserved
/// bit set.
fn load_pointers<A: Intel64>(context: &mut Context<'_, A>) -> bool {
    let block = &*context.state.block;
    let is_pae = block.read(Cr0) & CR0_PG != 0 && block.read(Cr4) & CR4_PAE != 0;
    if !is_pae || block.read(Efer) & EFER_LMA != 0 {
        return true;
    }
    let at = block.read(Cr3) & 0xffff_ffe0;
    let memory = context.vm.space.slots().memory();
    let reserved = reserved_in_pointers::<A>();
    let pointers = [0, 8, 16, 24].map(|offset| memory.read_u64(Gpa(at + offset)).ok());
    if pointers.iter().any(|entry| entry.is_none_or(|entry| entry & 1 != 0 && entry & reserved != 0)) {
        return false;
    }
    context.state.block.set_pointers(pointers.map(|entry| entry.unwrap_or(0)));
    true
}

/// The reserved bits of these entries.
pub(super) fn reserved_in_pointers<A: Intel64>() -> u64 {
    !0 << cpuid::physical_address_bits::<A>() | 0x1e6
}

/// #DB: DR6 gets its causes, which the exit has kept out of it (28.2.1). INT1 has been executed,
/// and the exit is at it.
pub(super) fn on_debug<A: Intel64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    const TYPE_INT1: u64 = 5 << 8;
    let block = &mut *context.state.block;
    block.write(Dr6, block.read(Dr6) & !DR6_BREAKPOINTS | exit.qualification & DR6_CAUSES);
    if exit.exception & TYPE_MASK == TYPE_INT1 {
        block.write(Rip, exit.next_rip);
        block.end_shadow();
    }
    event::on_exception(context, (VECTOR_DB, 0, 0))
}

/// The list of pages whose dirty bits are set is full.
pub(super) fn on_full_list<A: Intel64>(context: &mut Context<'_, A>) -> Next {
    context.state.block.begin_list();
    Next::Resume
}

/// A vector that came from a level-triggered pin has left service: the I/O APIC is told. One that
/// is edge-triggered meanwhile does no harm there.
pub(super) fn on_end_of_interrupt<A: Intel64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    perform_lapic(context, Effect::Eoi { vector: exit.qualification as u8, level: true })
}

/// The guest has interrupted itself by a vector that does not exist. No other write exits so.
pub(super) fn on_apic_write<A: Intel64>(context: &mut Context<'_, A>) -> Next {
    let vector = context.state.block.self_ipi();
    match context.state.write_lapic(msr::SELF_IPI, vector, A::now()) {
        Ok(effect) => perform_lapic(context, effect),
        Err(_) => Next::Resume,
    }
}

/// VMX leaves a task switch to the hypervisor, which does not know how: kernels of 32 bits have a
/// task for their double faults, and no kernel here has another. The guest ends.
#[cold]
pub(super) fn on_task_switch<A: Intel64>(context: &mut Context<'_, A>) -> Next {
    let vcpu = context.vcpu.index;
    log::error!(target: GUEST, "vCPU {vcpu} switches tasks, which is not emulated on this processor");
    Next::Dead
}
