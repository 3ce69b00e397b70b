//! Why the processor has refused an entry. It does not say which field it was: the checks of the
//! guest's state are made again, in its order, until one fails (27.3.1). Left out are those of bits
//! that a VMCS cannot have here: what no feature shows, and what the hypervisor alone writes.

use super::controls::{LONG_MODE, Word};
use super::copies::{BASE, FIELDS, LIMIT, RIGHTS, SELECTOR, place};
use super::exits::reserved_in_pointers;
use super::fields::{self as f, Named};
use super::processor::Intel64;
use super::switch::DELIVERABLE;
use super::table::{ENTRY_FAILURE, Exit, REFUSED};
use super::vmcs::{BLOCKING_BY_NMI, SHADOWS, Vmcs};
use crate::vm::{Context, GUEST, Next};
use crate::x86::cpuid::physical_address_bits;
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr7, Efer, Pat, Rflags, Rip, SysenterEip, SysenterEsp};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event::{self, TYPE_EXCEPTION, TYPE_INTERRUPT, TYPE_MASK, TYPE_NMI, VALID};
use crate::x86::{
    CR0_PE, CR0_PG, CR4_PAE, CR4_PCIDE, DR6_SINGLE_STEP, EFER_LMA, EFER_LME, RFLAGS_IF, RFLAGS_TF, RFLAGS_VM,
};

/// The entry has failed: says why (27.8, 31.4).
#[cold]
pub(super) fn on_refusal<A: Intel64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    let (vcpu, about) = (context.vcpu.index, exit.qualification);
    let vmcs = &context.state.block;
    let refused = match exit.code ^ ENTRY_FAILURE {
        _ if exit.code == REFUSED => wrong_event(vmcs).ok_or("a control, or the hypervisor's state"),
        34 => Err("an MSR to load"),
        _ => wrong_field::<A>(vmcs).ok_or("the guest's state"),
    };
    match refused {
        Ok((field, value)) => log::error!(target: GUEST, "vCPU {vcpu}: no entry with {value:#x} in {field}"),
        Err(what) => log::error!(target: GUEST, "vCPU {vcpu}: no entry because of {what} ({about:#x})"),
    }
    Next::Dead
}

const fn is_canonical(address: u64) -> bool {
    matches!(address.cast_signed() >> 47, 0 | -1)
}

/// A field, its value, and whether an entry accepts that.
type Check = (u32, u64, bool);

fn first_wrong(checks: impl IntoIterator<Item = Check>) -> Option<(Named, u64)> {
    let wrong = checks.into_iter().find(|(_, _, is_right)| !is_right);
    wrong.map(|(encoding, value, _)| (Named(encoding), value))
}

/// Of an event: what an entry is given of it, and its error code.
const WRITTEN: u64 = DELIVERABLE | !0 << 32;

/// What the entry delivers, if it is no event that exists (27.2.1.3). An exception has an error
/// code where the manual says so, and in protected mode.
pub(super) fn wrong_event(vmcs: &Vmcs) -> Option<(Named, u64)> {
    let (delivered, is_protected) = (vmcs.delivered() & WRITTEN, vmcs.read(Cr0) & CR0_PE != 0);
    let kind = delivered & (VALID | TYPE_MASK);
    let is_known = kind == VALID | TYPE_NMI || kind == VALID | TYPE_EXCEPTION;
    let is_right = !is_known || event::kept(delivered, is_protected) == delivered;
    first_wrong([(f::ENTRY_EVENT.raw(), delivered, is_right)])
}

/// The first field that an entry would be refused for, and its value.
pub(super) fn wrong_field<A: Intel64>(vmcs: &Vmcs) -> Option<(Named, u64)> {
    use SegmentName::{Cs, Ds, Es, Fs, Gs, Ldtr, Ss, Tr};
    let segments = [Cs, Ss, Ds, Es, Fs, Gs, Tr, Ldtr].into_iter().flat_map(|name| segment(vmcs, name));
    let registers = registers(vmcs, physical_address_bits::<A>()).into_iter();
    let all = registers.chain(segments).chain(tables(vmcs)).chain(state(vmcs));
    first_wrong(all.chain(pointers(vmcs, reserved_in_pointers::<A>())))
}

fn registers(vmcs: &Vmcs, width: u32) -> [Check; 10] {
    let [cr0, cr3, cr4, efer] = [Cr0, Cr3, Cr4, Efer].map(|field| vmcs.read(field));
    let [dr7, pat, rflags, rip] = [Dr7, Pat, Rflags, Rip].map(|field| vmcs.read(field));
    let [stack, entry] = [SysenterEsp, SysenterEip].map(|field| vmcs.read(field));
    let (is_paged, is_long) = (cr0 & CR0_PG != 0, efer & EFER_LMA != 0);
    let is_active = !is_paged || (efer & EFER_LME != 0) == is_long;
    let is_entered = vmcs.control(Word::Entry, LONG_MODE) == is_long;
    let is_pat = pat.to_le_bytes().iter().all(|byte| matches!(byte, 0 | 1 | 4..=7));
    let is_event = vmcs.delivered() & (VALID | TYPE_MASK) == VALID | TYPE_INTERRUPT;
    let has_flags = rflags & !0x3f_7fd7 == 0 && rflags & 2 != 0;
    let may_take = !is_event || rflags & RFLAGS_IF != 0;
    let is_virtual = rflags & RFLAGS_VM == 0 || !is_long && cr0 & CR0_PE != 0;
    let is_within = if vmcs.is_64bit() { rip >> 48 == 0 || rip >> 48 == 0xffff } else { rip >> 32 == 0 };
    let is_mode = if is_long { is_paged && cr4 & CR4_PAE != 0 } else { cr4 & CR4_PCIDE == 0 };
    [
        (f::GUEST_CR0.raw(), cr0, (!is_paged || cr0 & CR0_PE != 0) && cr0 >> 32 == 0),
        (f::GUEST_CR4.raw(), cr4, is_mode),
        (f::GUEST_CR3.raw(), cr3, cr3.unbounded_shr(width) == 0),
        (f::GUEST_DR7.raw(), dr7, dr7 >> 32 == 0),
        (f::GUEST_SYSENTER_ESP.raw(), stack, is_canonical(stack)),
        (f::GUEST_SYSENTER_EIP.raw(), entry, is_canonical(entry)),
        (f::GUEST_PAT.raw(), pat, is_pat),
        (f::GUEST_EFER.raw(), efer, is_active && is_entered),
        (f::GUEST_RIP.raw(), rip, is_within),
        (f::GUEST_RFLAGS.raw(), rflags, has_flags && may_take && is_virtual),
    ]
}

/// Present, in a segment's attributes.
const PRESENT: u16 = 1 << 7;
/// Another table than the GDT, in a selector.
const LOCAL: u16 = 1 << 2;

/// What cannot be used is not checked, unless it must be usable.
fn segment(vmcs: &Vmcs, name: SegmentName) -> impl Iterator<Item = Check> {
    use SegmentName::{Cs, Fs, Gs, Ldtr, Tr};
    let Segment { selector, attributes, limit, base } = vmcs.segment(name);
    let is_usable = attributes & PRESENT != 0;
    let is_checked = is_usable || matches!(name, Tr | Cs);
    let is_granular = attributes & Segment::GRANULAR != 0;
    let is_limit = if is_granular { limit & 0xfff == 0xfff } else { limit >> 20 == 0 };
    let is_right = if vmcs.read(Rflags) & RFLAGS_VM != 0 && !matches!(name, Tr | Ldtr) {
        [true, attributes == 0xf3, limit == 0xffff, base == u64::from(selector) << 4]
    } else {
        let is_base = match name {
            Tr | Fs | Gs => is_canonical(base),
            Ldtr => !is_usable || is_canonical(base),
            _ => !is_checked || base >> 32 == 0,
        };
        let is_global = !matches!(name, Tr | Ldtr) || selector & LOCAL == 0;
        let has_rights = has_rights(vmcs, name, attributes, is_checked);
        [!is_checked || is_global, has_rights, !is_checked || is_limit, is_base]
    };
    let values = [selector.into(), attributes.into(), limit.into(), base];
    let fields = [SELECTOR, RIGHTS, LIMIT, BASE].map(|part| FIELDS[place(name, part)]);
    let all = fields.into_iter().zip(values).zip(is_right);
    all.map(|((field, value), is_right)| (field, value, is_right))
}

fn has_rights(vmcs: &Vmcs, name: SegmentName, attributes: u16, is_checked: bool) -> bool {
    const DATA: u16 = 0x13;
    const fn level(attributes: u16) -> u16 {
        attributes >> 5 & 3
    }
    let is_long = vmcs.read(Efer) & EFER_LMA != 0;
    let [code, stack] = [SegmentName::Cs, SegmentName::Ss].map(|name| vmcs.attributes(name));
    let kind = attributes & 0x1f;
    let is_kind = match name {
        SegmentName::Tr => kind == 11 || kind == 3 && !is_long,
        SegmentName::Ldtr => kind == 2,
        SegmentName::Cs => match kind {
            DATA => level(attributes) == 0,
            0x19 | 0x1b => level(attributes) == level(stack),
            0x1d | 0x1f => level(attributes) <= level(stack),
            _ => false,
        },
        SegmentName::Ss => matches!(kind, DATA | 0x17),
        // Accessed, and code only if it can be read.
        _ => kind & 0x11 == 0x11 && (kind & 8 == 0 || kind & 2 != 0),
    };
    let is_real = vmcs.read(Cr0) & CR0_PE == 0 || code & 0x1f == DATA;
    let is_level = name != SegmentName::Ss || level(attributes) == 0 || !is_real;
    let is_both = name == SegmentName::Cs
        && is_long
        && attributes & (Segment::LONG | Segment::DEFAULT_32) == Segment::LONG | Segment::DEFAULT_32;
    is_level && (!is_checked || attributes & PRESENT != 0 && is_kind && !is_both)
}

fn tables(vmcs: &Vmcs) -> [Check; 4] {
    let [gdt, idt] = [SegmentName::Gdtr, SegmentName::Idtr].map(|name| vmcs.segment(name));
    [
        (f::GUEST_GDTR_BASE.raw(), gdt.base, is_canonical(gdt.base)),
        (f::GUEST_IDTR_BASE.raw(), idt.base, is_canonical(idt.base)),
        (f::GUEST_GDTR_LIMIT.raw(), gdt.limit.into(), gdt.limit >> 16 == 0),
        (f::GUEST_IDTR_LIMIT.raw(), idt.limit.into(), idt.limit >> 16 == 0),
    ]
}

fn state(vmcs: &Vmcs) -> [Check; 3] {
    /// What may pend: four breakpoints, one of them enabled, a step.
    const DEBUG: u64 = 0xf | 1 << 12 | DR6_SINGLE_STEP;
    let (state, rflags, pending) = (vmcs.interruptibility(), vmcs.read(Rflags), vmcs.pending_debug());
    let delivered = vmcs.delivered() & (VALID | TYPE_MASK);
    let holds_off = match delivered {
        delivered if delivered == VALID | TYPE_INTERRUPT => SHADOWS,
        delivered if delivered == VALID | TYPE_NMI => BLOCKING_BY_NMI | 2,
        _ => 0,
    };
    let is_held = state & SHADOWS == SHADOWS || state & 1 != 0 && rflags & RFLAGS_IF == 0;
    let is_state = state & !(SHADOWS | BLOCKING_BY_NMI) == 0 && !is_held && state & holds_off == 0;
    let steps = (pending & DR6_SINGLE_STEP != 0) == (rflags & RFLAGS_TF != 0);
    [
        (f::ACTIVITY.raw(), vmcs.activity().into(), vmcs.activity() == 0),
        (f::INTERRUPTIBILITY.raw(), state.into(), is_state),
        (f::PENDING_DEBUG.raw(), pending, pending & !DEBUG == 0 && (state & SHADOWS == 0 || steps)),
    ]
}

/// The entries of the highest level, with legacy PAE paging.
fn pointers(vmcs: &Vmcs, reserved: u64) -> impl Iterator<Item = Check> {
    let [cr0, cr4, efer] = [Cr0, Cr4, Efer].map(|field| vmcs.read(field));
    let is_used = cr0 & CR0_PG != 0 && cr4 & CR4_PAE != 0 && efer & EFER_LMA == 0;
    let all = f::POINTERS.into_iter().zip(vmcs.pointers);
    all.map(move |(field, entry)| (field.raw(), entry, !is_used || entry & 1 == 0 || entry & reserved == 0))
}
