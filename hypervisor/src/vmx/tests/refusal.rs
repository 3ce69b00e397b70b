//! The field that an entry is refused for.

use super::processor::{MockVmx, with_guest};
use crate::devices::pc::message::Trigger;
use crate::vmx::fields::{self as f, Named};
use crate::vmx::refusal::{self, wrong_event};
use crate::vmx::vmcs::{BLOCKING_BY_NMI, Vmcs};
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr7, Efer, Pat, Rflags, Rip, SysenterEip, SysenterEsp};
use crate::x86::vcpu::block::SegmentName::{self, Cs, Ds, Es, Fs, Gdtr, Gs, Idtr, Ldtr, Ss, Tr};
use crate::x86::vcpu::block::{ControlBlock, Field, Segment};
use crate::x86::vcpu::event::{ERROR_VALID, TYPE_NMI, VALID, exception};
use crate::x86::{CR0_PE, CR0_PG, CR4_PAE, CR4_PCIDE, RFLAGS_IF, RFLAGS_VM};

pub(super) fn wrong_field(vmcs: &Vmcs) -> Option<(Named, u64)> {
    refusal::wrong_field::<MockVmx>(vmcs)
}

fn set(vmcs: &mut Vmcs, name: SegmentName, change: impl FnOnce(&mut Segment)) {
    let mut segment = vmcs.segment(name);
    change(&mut segment);
    vmcs.set_segment(name, segment);
}

fn write(vmcs: &mut Vmcs, values: &[(Field, u64)]) {
    values.iter().for_each(|&(field, value)| vmcs.write(field, value));
}

type Change = fn(&mut Vmcs);

/// Each change to a guest of 64 bits breaks one rule of entries (27.3.1); the field that has to be
/// named.
const WRONG: [(u32, Change); 55] = [
    (f::GUEST_CR0.raw(), |vmcs| vmcs.write(Cr0, 1 << 31)),
    (f::GUEST_CR0.raw(), |vmcs| vmcs.write(Cr0, CR0_PG | CR0_PE | 1 << 32)),
    (f::GUEST_CR4.raw(), |vmcs| vmcs.write(Cr4, 0)),
    (f::GUEST_CR4.raw(), |vmcs| write(vmcs, &[(Efer, 0), (Cr0, CR0_PE), (Cr4, CR4_PCIDE)])),
    (f::GUEST_CR3.raw(), |vmcs| vmcs.write(Cr3, 1 << 52)),
    (f::GUEST_DR7.raw(), |vmcs| vmcs.write(Dr7, 1 << 32)),
    (f::GUEST_SYSENTER_ESP.raw(), |vmcs| vmcs.write(SysenterEsp, 1 << 47)),
    (f::GUEST_SYSENTER_EIP.raw(), |vmcs| vmcs.write(SysenterEip, 1 << 63)),
    (f::GUEST_PAT.raw(), |vmcs| vmcs.write(Pat, 2)),
    (f::GUEST_EFER.raw(), |vmcs| vmcs.write(Efer, 1 << 10)),
    (f::GUEST_RIP.raw(), |vmcs| vmcs.write(Rip, 1 << 50)),
    (f::GUEST_RFLAGS.raw(), |vmcs| vmcs.write(Rflags, 0)),
    (f::GUEST_RFLAGS.raw(), |vmcs| vmcs.write(Rflags, 2 | 1 << 15)),
    (f::GUEST_RFLAGS.raw(), |vmcs| vmcs.write(Rflags, 2 | RFLAGS_VM)),
    (f::GUEST_RFLAGS.raw(), |vmcs| write(vmcs, &[(Efer, 0), (Cr0, 0), (Rflags, 2 | RFLAGS_VM)])),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, Cs, |cs| cs.attributes = 0x292)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, Cs, |cs| cs.attributes &= !0x80)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, Cs, |cs| cs.attributes |= Segment::DEFAULT_32)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, Cs, |cs| cs.attributes |= 3 << 5)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, Cs, |cs| cs.attributes |= 4 | 1 << 5)),
    (f::GUEST_CS_BASE.raw(), |vmcs| set(vmcs, Cs, |cs| cs.base = 1 << 32)),
    (f::GUEST_CS_LIMIT.raw(), |vmcs| set(vmcs, Cs, |cs| cs.limit = 0x1_0000)),
    (f::GUEST_SS_RIGHTS.raw(), |vmcs| set(vmcs, Ss, |ss| ss.attributes = 0x9b)),
    (f::GUEST_SS_RIGHTS.raw(), |vmcs| {
        write(vmcs, &[(Efer, 0), (Cr0, 0)]);
        set(vmcs, Cs, |cs| cs.attributes |= 4);
        set(vmcs, Ss, |ss| ss.attributes |= 3 << 5);
    }),
    // CS has not been loaded since real mode.
    (f::GUEST_SS_RIGHTS.raw(), |vmcs| {
        write(vmcs, &[(Efer, 0), (Cr0, CR0_PE)]);
        set(vmcs, Cs, |cs| cs.attributes = cs.attributes & !0x1f | 0x13);
        set(vmcs, Ss, |ss| ss.attributes |= 3 << 5);
    }),
    (f::GUEST_SS_BASE.raw(), |vmcs| set(vmcs, Ss, |ss| ss.base = 1 << 32)),
    (f::GUEST_DS_RIGHTS.raw(), |vmcs| set(vmcs, Ds, |ds| ds.attributes = 0x92)),
    (f::GUEST_DS_RIGHTS.raw(), |vmcs| set(vmcs, Ds, |ds| ds.attributes = 0x99)),
    (f::GUEST_ES_RIGHTS.raw(), |vmcs| set(vmcs, Es, |es| es.attributes = 0x83)),
    (f::GUEST_ES_BASE.raw(), |vmcs| set(vmcs, Es, |es| es.base = 1 << 32)),
    (f::GUEST_FS_BASE.raw(), |vmcs| set(vmcs, Fs, |fs| fs.base = 1 << 47)),
    (f::GUEST_FS_BASE.raw(), |vmcs| set(vmcs, Fs, |fs| (fs.base, fs.attributes) = (1 << 47, 0))),
    (f::GUEST_GS_LIMIT.raw(), |vmcs| set(vmcs, Gs, |gs| gs.limit = 1 << 20)),
    (f::GUEST_TR.raw(), |vmcs| set(vmcs, Tr, |tr| tr.selector = 4)),
    (f::GUEST_TR_RIGHTS.raw(), |vmcs| set(vmcs, Tr, |tr| tr.attributes = 0x89)),
    (f::GUEST_TR_RIGHTS.raw(), |vmcs| set(vmcs, Tr, |tr| tr.attributes = 0x83)),
    (f::GUEST_TR_RIGHTS.raw(), |vmcs| set(vmcs, Tr, |tr| tr.attributes = 0)),
    (f::GUEST_TR_LIMIT.raw(), |vmcs| set(vmcs, Tr, |tr| tr.limit = 1 << 20)),
    (f::GUEST_TR_BASE.raw(), |vmcs| set(vmcs, Tr, |tr| tr.base = 1 << 47)),
    (f::GUEST_LDTR.raw(), |vmcs| set(vmcs, Ldtr, |ldtr| ldtr.selector = 4)),
    (f::GUEST_LDTR_RIGHTS.raw(), |vmcs| set(vmcs, Ldtr, |ldtr| ldtr.attributes = 0x83)),
    (f::GUEST_LDTR_BASE.raw(), |vmcs| set(vmcs, Ldtr, |ldtr| ldtr.base = 1 << 47)),
    (f::GUEST_ES_RIGHTS.raw(), |vmcs| virtual_8086(vmcs, |es| es.attributes = 0x93)),
    (f::GUEST_ES_LIMIT.raw(), |vmcs| virtual_8086(vmcs, |es| es.limit = 0xfffff)),
    (f::GUEST_ES_BASE.raw(), |vmcs| virtual_8086(vmcs, |es| es.base = 0x10)),
    (f::GUEST_GDTR_LIMIT.raw(), |vmcs| set(vmcs, Gdtr, |gdt| gdt.limit = 1 << 16)),
    (f::GUEST_GDTR_BASE.raw(), |vmcs| set(vmcs, Gdtr, |gdt| gdt.base = 1 << 47)),
    (f::GUEST_IDTR_LIMIT.raw(), |vmcs| set(vmcs, Idtr, |idt| idt.limit = 1 << 16)),
    (f::GUEST_IDTR_BASE.raw(), |vmcs| set(vmcs, Idtr, |idt| idt.base = 1 << 47)),
    (f::ACTIVITY.raw(), |vmcs| vmcs.set_activity(1)),
    (f::INTERRUPTIBILITY.raw(), |vmcs| vmcs.set_interruptibility(1)),
    (f::INTERRUPTIBILITY.raw(), |vmcs| vmcs.set_interruptibility(4)),
    (f::PENDING_DEBUG.raw(), |vmcs| {
        vmcs.set_interruptibility(2);
        vmcs.set_pending_debug(1 << 14);
    }),
    (f::PENDING_DEBUG.raw(), |vmcs| vmcs.set_pending_debug(1 << 13)),
    (f::GUEST_PDPTE2.raw(), |vmcs| {
        write(vmcs, &[(Efer, 0), (Cr4, CR4_PAE)]);
        vmcs.set_pointers([0x1001, 2, 3, 0]);
    }),
];

/// Legacy mode with the registers of virtual-8086 mode, and a change of ES.
fn virtual_8086(vmcs: &mut Vmcs, change: impl FnOnce(&mut Segment)) {
    write(vmcs, &[(Efer, 0), (Rflags, 2 | RFLAGS_VM)]);
    for name in [Cs, Ss, Ds, Es, Fs, Gs] {
        let real = Segment { selector: 0x1234, attributes: 0xf3, limit: 0xffff, base: 0x1_2340 };
        vmcs.set_segment(name, real);
    }
    assert_eq!(wrong_field(vmcs), None);
    set(vmcs, Es, change);
}

#[test]
fn an_entry_that_is_refused_names_its_field() {
    with_guest(&[], |guest| {
        assert_eq!(wrong_field(guest.vmcs()), None);
        guest.legacy_mode(Segment::DEFAULT_32);
        assert_eq!(wrong_field(guest.vmcs()), None);
    });
    for (index, (encoding, change)) in WRONG.into_iter().enumerate() {
        with_guest(&[], |guest| {
            change(guest.vmcs());
            let found = wrong_field(guest.vmcs()).map(|(field, _)| field.0);
            assert_eq!(found, Some(encoding), "change {index} of the list");
        });
    }
}

/// 27.3.1.2, of an unrestricted guest: bits 4 to 0 of the access rights.
#[test]
fn segments_have_the_types_that_the_manual_lists() {
    let data = &[0x11, 0x13, 0x15, 0x17, 0x1b, 0x1f][..];
    let [code, stack, table] = [&[0x13, 0x19, 0x1b, 0x1d, 0x1f][..], &[0x13, 0x17], &[2]];
    for is_long in [true, false] {
        let task: &[u16] = if is_long { &[0xb] } else { &[3, 0xb] };
        let all = [(Cs, code), (Ss, stack), (Ds, data), (Es, data), (Fs, data), (Gs, data)];
        for (name, types) in all.into_iter().chain([(Tr, task), (Ldtr, table)]) {
            with_guest(&[], |guest| {
                if !is_long {
                    guest.legacy_mode(Segment::DEFAULT_32);
                }
                let accepted = |kind: &u16| {
                    set(guest.vmcs(), name, |of| of.attributes = of.attributes & !0x1f | 0x80 | kind);
                    wrong_field(guest.vmcs()).is_none()
                };
                let found: Vec<u16> = (0..32).filter(accepted).collect();
                assert_eq!(found, types, "{name:?}, in 64-bit mode: {is_long}");
            });
        }
    }
    with_guest(&[], |guest| {
        guest.vmcs().write(Rip, 0xffff_8000_0000_1000);
        assert_eq!(wrong_field(guest.vmcs()), None);
        guest.legacy_mode(Segment::DEFAULT_32);
        let found = wrong_field(guest.vmcs()).map(|(field, _)| field.0);
        assert_eq!(found, Some(f::GUEST_RIP.raw()), "32 bits of it");
    });
}

/// The entries of the highest level are looked at where they are used: with PAE paging that is not
/// long mode's.
#[test]
fn wrong_entries_do_no_harm_where_paging_has_others() {
    for (cr0, cr4, efer, is_used) in [
        (CR0_PG | CR0_PE, CR4_PAE, 0, true),
        (CR0_PE, CR4_PAE, 0, false),
        (CR0_PG | CR0_PE, 0, 0, false),
        (CR0_PG | CR0_PE, CR4_PAE, 0x500, false),
    ] {
        with_guest(&[], |guest| {
            let vmcs = guest.vmcs();
            write(vmcs, &[(Efer, efer), (Cr4, cr4), (Cr0, cr0)]);
            vmcs.set_pointers([0x1001, 2, 3, 0]);
            let wrong = wrong_field(vmcs).map(|(field, _)| field.0);
            assert_eq!(wrong, is_used.then_some(f::GUEST_PDPTE2.raw()), "{cr0:#x} {cr4:#x} {efer:#x}");
        });
    }
}

/// After a reset, and after a start-up IPI, there is nothing to refuse.
#[test]
fn real_mode_is_accepted() {
    with_guest(&[], |guest| {
        guest.vmcs().set_event(exception(6));
        guest.0.state.set_init_state();
        assert_eq!((wrong_field(guest.vmcs()), guest.vmcs().event()), (None, 0));
        guest.0.state.start_up(0x9a);
        assert_eq!(wrong_field(guest.vmcs()), None);
    });
}

#[test]
fn what_is_delivered_is_not_held_off() {
    for (nmi, state, refused) in
        [(true, 2, true), (true, BLOCKING_BY_NMI, true), (true, 0, false), (false, 2, true)]
    {
        with_guest(&[], |guest| {
            guest.set_field(Rflags, RFLAGS_IF | 2);
            if nmi {
                guest.0.state.nmi.post();
            } else {
                guest.0.state.lapic.accept_fixed(0x51, Trigger::Edge);
            }
            guest.0.state.prepare_events::<super::processor::MockVmx>();
            guest.vmcs().set_interruptibility(state);
            let expected = refused.then_some(f::INTERRUPTIBILITY.raw());
            assert_eq!(wrong_field(guest.vmcs()).map(|(field, _)| field.0), expected);
        });
    }
}

/// An error code that the exception does not have is a control that is wrong (27.2.1.3).
#[test]
fn an_event_that_is_none_is_named() {
    let page_fault = exception(14) | ERROR_VALID | 5 << 32;
    for (event, cr0, is_right) in [
        (0, CR0_PE, true),
        (page_fault, CR0_PE, true),
        (page_fault, 0, false),
        (exception(13), CR0_PE, false),
        (exception(13), 0, true),
        (exception(1) | ERROR_VALID, CR0_PE, false),
        (VALID | TYPE_NMI | 2, 0, true),
        // What an exit has said besides, an entry is not given.
        (VALID | TYPE_NMI | 1 << 12 | 2, 0, true),
        (VALID | TYPE_NMI | 3, 0, false),
    ] {
        with_guest(&[], |guest| {
            guest.set_field(Cr0, cr0);
            guest.vmcs().set_event(event);
            let expected = (!is_right).then_some((Named(f::ENTRY_EVENT.raw()), event));
            assert_eq!(wrong_event(guest.vmcs()), expected, "{event:#x}");
        });
    }
}
