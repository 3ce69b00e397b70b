//! VMRUN (section 15.5): L2's block from what the processor gets of VMCB12, which are known bits
//! only, and from what L1's own block has.

use core::mem;
use hostlink::counters::Counter;
use hostlink::defect::Defect;
use memslots::{Gpa, GuestMemory};
use stay::in_section;
use stay::tagged::Key;

use super::block::{HIDDEN, Limits, STATE, copy};
use super::exit::refuse;
use super::instructions::address;
use super::{Inside, Nested, Now, maps, shadows};
use crate::svm::intercepts::{self, misc1};
use crate::svm::processor::Amd64;
use crate::svm::vmcb::{EFER_SVME, Vmcb, clean, vintr};
use crate::vm::defects::makes;
use crate::vm::{Context, Next};
use crate::x86::cpuid::{guest_efer_mask, physical_address_bits};
use crate::x86::exits::with_translation;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::event;
use crate::x86::vcpu::registers::RAX;
use crate::x86::vcpu::state::{Permissions, VcpuState};
use crate::x86::{CR0_PG, CR4_PAE, CR4_PSE, EFER_LMA, EFER_NXE};

/// Bits of the interrupt control that are L1's to give: V_TPR, V_IRQ, V_INTR_PRIO, V_IGN_TPR and
/// the vector.
pub(super) const CONTROL: u64 = 0xff | vintr::IRQ | 0xf << 16 | vintr::IGNORE_TPR | 0xff << 32;

/// DR7: the enable bits of all breakpoints.
const DR7_ENABLED: u64 = 0xff;

/// VMRUN, an instruction of this length.
pub(super) fn on_vmrun<A: Amd64>(context: &mut Context<'_, A>, length: u64) -> Next {
    let Some(at) = address(context) else {
        context.state.raise_protection();
        return Next::Resume;
    };
    let is_there = with_translation(context, |state, memory| {
        state.own.nested.as_deref_mut().is_some_and(|nested| nested.vmcb12.read(memory, at))
    });
    if !is_there {
        context.state.raise_protection();
        return Next::Resume;
    }
    context.state.skip(length);
    let limits = Limits {
        width: physical_address_bits::<A>(),
        has_paging: context.state.block.cr0 & CR0_PG != 0,
        cr4: context.vm.guest.cr4_mask & !context.state.hidden.cr4,
        efer: guest_efer_mask::<A>() & !context.state.hidden.efer,
    };
    if context.state.own.nested.as_ref().is_none_or(|nested| !nested.vmcb12.is_consistent(limits)) {
        return refuse(context, at);
    }
    context.count(Counter::InnerRuns);
    let permissions = context.vm.guest.permissions();
    let mut owes = false;
    let is_entered = in_section(context, |state, vm| {
        let VcpuState { block, own, registers, exception, debug, code, .. } = state;
        let Some(nested) = own.nested.as_deref_mut() else { return false };
        let theirs = nested.vmcb12.get();
        let control = if makes(Defect::InnerControlIgnored) { 0 } else { theirs.tlb_control };
        let tables =
            nested.vmcb12.has_tables().then_some([block.cr0, theirs.nested_cr3, block.cr4, block.efer]);
        let tells = tables.is_some() && nested.vmcb12.tells_tables();
        let key = Key { asid: theirs.asid, root: tables.map_or(0, root_of), tells };
        nested.merge_maps::<A>(at, &vm.space.slots().memory());
        let context = nested.contexts.enter(key, control, &mut own.asid);
        let shadow = tables.and_then(|_| nested.shadow(context, &vm.space));
        if tables.is_some() && shadow.is_none() {
            return false;
        }
        nested.fill::<A>(block, &permissions);
        if let (Some(tables), Some(root)) = (tables, shadow) {
            let inner = &mut *nested.other;
            (inner.inner, inner.nested_cr3) = (tables, root);
            inner.pat = nested.vmcb12.get().pat;
        }
        owes = nested.contexts.slot(context).owes_flush();
        let rax = mem::replace(&mut registers.0[RAX], nested.vmcb12.get().rax);
        let trap = exception.take();
        nested.inside = Some(Inside { at, context, rax, trap, window: None, fault: None });
        own.now = Now::INSIDE | own.now & Now::INIT;
        own.tsc_shift = nested.vmcb12.get().tsc_offset;
        nested.exchange(block, code);
        nested.auditors[context].begin(block);
        own.auditor.share();
        block.intercept_debug(!debug.are_loaded());
        if block.dr7 & DR7_ENABLED != 0 {
            debug.load::<A>(block);
        }
        true
    });
    if !is_entered {
        shadows::end_without_tables(context);
    }
    if owes {
        context.count(Counter::InnerFlushes);
    }
    Next::Resume
}

/// The root of nested tables, and the bits of L1's registers that their meaning depends on.
fn root_of([_, root, cr4, efer]: [u64; 4]) -> u64 {
    let bits = [cr4 & CR4_PAE != 0, cr4 & CR4_PSE != 0, efer & EFER_LMA != 0, efer & EFER_NXE != 0];
    bits.into_iter().fold(1, |word, bit| word << 1 | u64::from(bit)) << 52 | root
}

impl Nested {
    /// Reads the map of MSRs of the block there, unless it is as it was when it was read last.
    fn merge_maps<A: Amd64>(&mut self, at: Gpa, memory: &GuestMemory<'_>) {
        let map = self.wants(misc1::MSR).then_some(self.vmcb12.get().msrpm_base);
        if !self.vmcb12.keeps_msr_map() || self.msr_map_of != Some((at, map)) {
            maps::merge::<A>(&self.msr_map, memory, map);
            self.msr_map_of = Some((at, map));
        }
    }

    /// Fills the other block for L2; `own` is L1's.
    fn fill<A: Amd64>(&mut self, own: &Vmcb, permissions: &Permissions) {
        let (theirs, block) = (self.vmcb12.get(), &mut *self.other);
        block.set_up(permissions, A::features());
        if theirs.intercept_misc1 & misc1::PAUSE != 0 {
            // Each is an exit: no filter is offered.
            (block.pause_filter_count, block.pause_filter_threshold) = (0, 0);
        }
        block.msrpm_base = self.msr_map.start();
        block.inner = [0; 4];
        // What is ours of the rest is added before each entry.
        block.intercept_cr = own.intercept_cr & intercepts::CR_WRITE_4;
        block.intercept_exceptions = own.intercept_exceptions;
        block.intercept_misc1 = own.intercept_misc1 & !misc1::VINTR;
        block.intercept_misc2 = own.intercept_misc2;
        block.intercept_misc3 = own.intercept_misc3;
        block.tsc_offset = own.tsc_offset.wrapping_add(theirs.tsc_offset);
        block.interrupt_control = theirs.interrupt_control & CONTROL | vintr::MASKING;
        block.interrupt_shadow = theirs.interrupt_shadow & 1;
        let injects = theirs.event_injection & event::VALID != 0;
        block.event_injection = if injects { theirs.event_injection } else { 0 };
        block.next_rip = theirs.next_rip;
        copy(theirs, block, &STATE);
        block.efer |= EFER_SVME;
        copy(own, block, &HIDDEN);
        block.pat = own.pat;
    }

    /// Adds L1's intercepts to those that the block has. To be called before each entry into L2:
    /// who changes ours does not know of L1's.
    pub(super) fn add_intercepts(&self, block: &mut Vmcb) {
        let theirs = self.vmcb12.get();
        block.intercept_cr |= theirs.intercept_cr;
        block.intercept_dr |= theirs.intercept_dr;
        block.intercept_exceptions |= theirs.intercept_exceptions;
        block.intercept_misc1 |= theirs.intercept_misc1;
        block.intercept_misc2 |= theirs.intercept_misc2;
        block.intercept_misc3 |= theirs.intercept_misc3;
        if block.interrupt_control & vintr::IRQ != 0 {
            // A write of CR8 ends an emulator then (docs/qemu.md).
            block.intercept_cr |= intercepts::CR_WRITE_8;
        }
        block.mark_dirty(clean::INTERCEPTS);
    }
}
