//! SVM's other instructions, which L1 executes, or L2 where L1 lets it; and SVM's MSRs.

use memslots::{Gpa, Pattern};

use super::block::{HIDDEN, write};
use super::enter::on_vmrun;
use super::{Nested, Now};
use crate::devices::GeneralProtection;
use crate::svm::processor::Amd64;
use crate::vm::{Context, Next};
use crate::x86::cpuid::physical_address_bits;
use crate::x86::exits::{Then, complete, measured, with_translation};
use crate::x86::vcpu::block::{ControlBlock, Inner};
use crate::x86::vcpu::checks::Instruction;
use crate::x86::vcpu::msr::canonical;
use crate::x86::vcpu::registers::{RAX, RCX};

/// VM_CR: SVM is locked, and off. The other bits are for debuggers and resets.
const VM_CR: u32 = 0xc001_0114;
pub(super) const VM_CR_LOCK: u64 = 1 << 3;
pub(super) const VM_CR_DISABLED: u64 = 1 << 4;
const HOST_SAVE: u32 = 0xc001_0117;

/// VMRUN, VMLOAD, VMSAVE, STGI, CLGI or INVLPGA, by the code of the exit: #UD unless SVM is on.
#[cold]
pub(crate) fn on_instruction<A: Amd64>(context: &mut Context<'_, A>, code: u64) -> Next {
    let usual = |byte| Pattern::new(&[0x0f, 0x01, byte]);
    if context.state.own.efer() == 0 {
        context.state.raise_undefined();
        return Next::Resume;
    }
    let (byte, handle): (u8, fn(&mut Context<'_, A>) -> Then) = match code {
        0x80 => return measured(context, &usual(0xd8), Instruction::Kernels, on_vmrun),
        0x82 => (0xda, on_vmload),
        0x83 => (0xdb, on_vmsave),
        0x84 => (0xdc, |context| set_gif(context, true)),
        0x85 => (0xdd, |context| set_gif(context, false)),
        _ => (0xdf, on_invlpga),
    };
    complete(context, &usual(byte), Instruction::Kernels, handle)
}

/// RAX as a physical address: aligned, and one that the processor has.
pub(super) fn address<A: Amd64>(context: &Context<'_, A>) -> Option<Gpa> {
    let rax = context.state.registers.0[RAX];
    let address = if context.state.block.is_64bit() { rax } else { rax & 0xffff_ffff };
    (address & 0xfff == 0 && address >> physical_address_bits::<A>() == 0).then_some(Gpa(address))
}

/// VMLOAD. Addresses are loaded sign-extended.
fn on_vmload<A: Amd64>(context: &mut Context<'_, A>) -> Then {
    let Some(at) = address(context) else { return Then::protection(context) };
    let is_loaded = with_translation(context, |state, memory| {
        // The parts are in one page: all of them are memory, or none is.
        let b = &mut *state.block;
        for part in HIDDEN {
            if memory.read(Gpa(at.0 + part.start as u64), &mut b.bytes_mut()[part]).is_err() {
                return false;
            }
        }
        let segments = [&mut b.fs, &mut b.gs, &mut b.ldtr, &mut b.tr].map(|segment| &mut segment.base);
        let calls = [&mut b.lstar, &mut b.cstar, &mut b.kernel_gs_base];
        let entries = [&mut b.sysenter_esp, &mut b.sysenter_eip];
        for address in segments.into_iter().chain(calls).chain(entries) {
            *address = canonical(*address);
        }
        true
    });
    if is_loaded { Then::RESUME } else { Then::protection(context) }
}

/// VMSAVE.
fn on_vmsave<A: Amd64>(context: &mut Context<'_, A>) -> Then {
    let Some(at) = address(context) else { return Then::protection(context) };
    let is_saved = with_translation(context, |state, memory| write(memory, at, &state.block, &HIDDEN));
    if is_saved { Then::RESUME } else { Then::protection(context) }
}

/// STGI, CLGI.
fn set_gif<A: Amd64>(context: &mut Context<'_, A>, to: bool) -> Then {
    context.state.own.now.set(Now::HELD, !to);
    Then::RESUME
}

/// INVLPGA: of the guest's own translations, or of one of its guests'. A tag that is not on this
/// CPU, and a page that the TLB may hold in pieces, owe a flush.
fn on_invlpga<A: Amd64>(context: &mut Context<'_, A>) -> Then {
    let (address, asid) = (context.state.registers.0[RAX], context.state.registers.low(RCX));
    let address = if context.state.block.is_64bit() { address } else { address & 0xffff_ffff };
    let has_pieces = context.vm.space.has_pieces();
    let asids = &context.workspace.asids;
    let own = &mut context.state.own;
    // The TLB may have a page of L2 in pieces of the shadow.
    let slot = match own.nested.as_deref_mut() {
        Some(nested) if asid != 0 => nested.contexts.of(asid),
        _ => Some((&mut own.asid, false)),
    };
    if let Some((slot, has_tables)) = slot
        && canonical(address) == address
    {
        match asids.resident(slot).filter(|_| !has_pieces && !has_tables) {
            Some(tag) => A::invalidate_page(address, tag),
            None => slot.owe_flush(),
        }
    }
    Then::RESUME
}

impl Nested {
    /// EFER.SVME. A guest that switches it off has no guests any more.
    pub(super) fn set_svme(&mut self, to: bool) -> Result<(), GeneralProtection> {
        if to && self.vm_cr & VM_CR_DISABLED != 0 || !to && self.inside.is_some() {
            return Err(GeneralProtection);
        }
        if self.svme && !to {
            self.contexts.forget();
        }
        self.svme = to;
        Ok(())
    }

    /// A reset of the machine, not INIT, clears what locks SVM.
    pub(in crate::svm) const fn reset_msrs(&mut self) {
        (self.vm_cr, self.host_save) = (0, 0);
    }

    pub(super) const fn read_msr(&self, number: u32) -> Result<u64, GeneralProtection> {
        match number {
            VM_CR => Ok(self.vm_cr),
            HOST_SAVE => Ok(self.host_save),
            _ => Err(GeneralProtection),
        }
    }

    /// Sections 15.30.1 and 15.30.4.
    pub(super) const fn write_msr(
        &mut self,
        number: u32,
        value: u64,
        width: u32,
    ) -> Result<(), GeneralProtection> {
        match number {
            VM_CR if value & !(VM_CR_LOCK | VM_CR_DISABLED) != 0 => return Err(GeneralProtection),
            VM_CR if self.vm_cr & VM_CR_LOCK != 0 => {}
            VM_CR if value & VM_CR_DISABLED != 0 && self.svme => return Err(GeneralProtection),
            VM_CR => self.vm_cr = value,
            HOST_SAVE if value & 0xfff == 0 && value >> width == 0 => self.host_save = value,
            _ => return Err(GeneralProtection),
        }
        Ok(())
    }
}
