//! Why the processor has refused an entry. It does not say which field it was: the checks that a
//! guest could fail are made again, in its order, until one fails (27.3.1).

use super::controls::{LONG_MODE, Word};
use super::fields::{self as f, Named};
use super::processor::Intel64;
use super::table::{ENTRY_FAILURE, Exit, REFUSED};
use super::vmcs::{BLOCKING_BY_NMI, SHADOWS, Vmcs};
use crate::vm::{Context, GUEST, Next};
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr7, Efer, Pat, Rflags, Rip};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};
use crate::x86::vcpu::event::{TYPE_INTERRUPT, TYPE_MASK, TYPE_NMI, VALID};
use crate::x86::{
    CR0_PE, CR0_PG, CR4_PAE, CR4_PCIDE, DR6_SINGLE_STEP, EFER_LMA, EFER_LME, RFLAGS_IF, RFLAGS_TF, RFLAGS_VM,
};

/// The entry has failed: says why (27.8, 31.4).
#[cold]
pub(super) fn on_refusal<A: Intel64>(context: &mut Context<'_, A>, exit: Exit) -> Next {
    let (vcpu, about) = (context.vcpu.index, exit.qualification);
    let refused = match (exit.code ^ ENTRY_FAILURE, about) {
        _ if exit.code == REFUSED => Err("a control, or the hypervisor's state"),
        (34, _) => Err("an MSR to load"),
        (_, 2) => Err("an entry of the guest's PAE tables"),
        (_, 3) => Err("an NMI in the shadow of a load of SS"),
        (_, 4) => Err("the VMCS link pointer"),
        _ => wrong_field(&context.state.block).ok_or("the guest's state"),
    };
    match refused {
        Ok((field, value)) => log::error!(target: GUEST, "vCPU {vcpu}: no entry with {value:#x} in {field}"),
        Err(what) => log::error!(target: GUEST, "vCPU {vcpu}: no entry because of {what} ({about:#x})"),
    }
    Next::Dead
}

/// The segments that have selectors, with the fields of their rights.
const SEGMENTS: [(SegmentName, u32); 8] = [
    (SegmentName::Cs, f::GUEST_CS_RIGHTS.raw()),
    (SegmentName::Ss, f::GUEST_SS_RIGHTS.raw()),
    (SegmentName::Ds, f::GUEST_DS_RIGHTS.raw()),
    (SegmentName::Es, f::GUEST_ES_RIGHTS.raw()),
    (SegmentName::Fs, f::GUEST_FS_RIGHTS.raw()),
    (SegmentName::Gs, f::GUEST_GS_RIGHTS.raw()),
    (SegmentName::Tr, f::GUEST_TR_RIGHTS.raw()),
    (SegmentName::Ldtr, f::GUEST_LDTR_RIGHTS.raw()),
];

/// Present, in a segment's attributes.
const PRESENT: u16 = 1 << 7;

const fn is_canonical(address: u64) -> bool {
    matches!(address.cast_signed() >> 47, 0 | -1)
}

/// The first field that an entry would be refused for, and its value.
pub(super) fn wrong_field(vmcs: &Vmcs) -> Option<(Named, u64)> {
    let segments = SEGMENTS.into_iter().map(|(name, encoding)| {
        let segment = vmcs.segment(name);
        (encoding, segment.attributes.into(), is_segment(vmcs, name, segment))
    });
    let mut all = registers(vmcs).into_iter().chain(segments).chain(state(vmcs));
    all.find(|(_, _, is_right)| !is_right).map(|(encoding, value, _)| (Named(encoding), value))
}

/// A field, its value, and whether an entry accepts that.
type Check = (u32, u64, bool);

fn registers(vmcs: &Vmcs) -> [Check; 8] {
    let [cr0, cr3, cr4, efer] = [Cr0, Cr3, Cr4, Efer].map(|field| vmcs.read(field));
    let [dr7, pat, rflags, rip] = [Dr7, Pat, Rflags, Rip].map(|field| vmcs.read(field));
    let (is_paged, is_long) = (cr0 & CR0_PG != 0, efer & EFER_LMA != 0);
    let is_active = !is_paged || (efer & EFER_LME != 0) == is_long;
    let is_entered = vmcs.control(Word::Entry, LONG_MODE) == is_long;
    let is_pat = pat.to_le_bytes().iter().all(|byte| matches!(byte, 0 | 1 | 4..=7));
    let is_event = vmcs.delivered() & (VALID | TYPE_MASK) == VALID | TYPE_INTERRUPT;
    let has_flags = rflags & !0x3f_7fd7 == 0 && rflags & 2 != 0;
    let may_take = !is_event || rflags & RFLAGS_IF != 0;
    let is_within = if vmcs.is_64bit() { rip >> 48 == 0 || rip >> 48 == 0xffff } else { rip >> 32 == 0 };
    [
        (f::GUEST_CR0.raw(), cr0, (!is_paged || cr0 & CR0_PE != 0) && cr0 >> 32 == 0),
        (f::GUEST_CR4.raw(), cr4, (is_long || cr4 & CR4_PCIDE == 0) && (!is_long || cr4 & CR4_PAE != 0)),
        (f::GUEST_CR3.raw(), cr3, cr3 >> 52 == 0),
        (f::GUEST_DR7.raw(), dr7, dr7 >> 32 == 0),
        (f::GUEST_PAT.raw(), pat, is_pat),
        (f::GUEST_EFER.raw(), efer, is_active && is_entered),
        (f::GUEST_RIP.raw(), rip, is_within),
        (f::GUEST_RFLAGS.raw(), rflags, has_flags && may_take && !(is_long && rflags & RFLAGS_VM != 0)),
    ]
}

/// What cannot be used is not checked, unless it must be usable.
fn is_segment(vmcs: &Vmcs, name: SegmentName, segment: Segment) -> bool {
    let Segment { attributes, limit, base, .. } = segment;
    let is_long = vmcs.read(Efer) & EFER_LMA != 0;
    let (kind, is_present) = (attributes & 0x1f, attributes & PRESENT != 0);
    let is_granular = attributes & Segment::GRANULAR != 0;
    let is_limit = if is_granular { limit & 0xfff == 0xfff } else { limit >> 20 == 0 };
    let is_base = match name {
        SegmentName::Tr | SegmentName::Fs | SegmentName::Gs | SegmentName::Ldtr => is_canonical(base),
        _ => base >> 32 == 0,
    };
    if !is_present && !matches!(name, SegmentName::Tr | SegmentName::Cs) {
        return matches!(name, SegmentName::Ldtr) || is_base;
    }
    let is_kind = match name {
        SegmentName::Tr => kind == 11 || kind == 3 && !is_long,
        SegmentName::Ldtr => kind == 2,
        SegmentName::Cs => kind == 0x13 || kind & 0x19 == 0x19,
        SegmentName::Ss => matches!(kind, 0x13 | 0x17),
        // Accessed, and code only if it can be read.
        _ => kind & 0x11 == 0x11 && (kind & 8 == 0 || kind & 2 != 0),
    };
    is_present && is_kind && is_limit && is_base
}

fn state(vmcs: &Vmcs) -> [Check; 5] {
    let [gdt, idt] = [SegmentName::Gdtr, SegmentName::Idtr].map(|name| vmcs.segment(name).limit);
    let (state, rflags) = (vmcs.interruptibility(), vmcs.read(Rflags));
    let delivered = vmcs.delivered() & (VALID | TYPE_MASK);
    let holds_off = match delivered {
        delivered if delivered == VALID | TYPE_INTERRUPT => SHADOWS,
        delivered if delivered == VALID | TYPE_NMI => BLOCKING_BY_NMI | 2,
        _ => 0,
    };
    let is_held = state & SHADOWS == SHADOWS || state & 1 != 0 && rflags & RFLAGS_IF == 0;
    let steps = (vmcs.pending_debug() & DR6_SINGLE_STEP != 0) == (rflags & RFLAGS_TF != 0);
    [
        (f::GUEST_GDTR_LIMIT.raw(), gdt.into(), gdt >> 16 == 0),
        (f::GUEST_IDTR_LIMIT.raw(), idt.into(), idt >> 16 == 0),
        (f::ACTIVITY.raw(), vmcs.activity().into(), vmcs.activity() == 0),
        (f::INTERRUPTIBILITY.raw(), state.into(), state & !0xf == 0 && !is_held && state & holds_off == 0),
        (f::PENDING_DEBUG.raw(), vmcs.pending_debug(), state & SHADOWS == 0 || steps),
    ]
}
