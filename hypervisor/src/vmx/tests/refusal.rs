//! The field that an entry is refused for.

use super::processor::with_guest;
use crate::devices::pc::message::Trigger;
use crate::vmx::fields as f;
use crate::vmx::refusal::wrong_field;
use crate::vmx::vmcs::{BLOCKING_BY_NMI, Vmcs};
use crate::x86::RFLAGS_IF;
use crate::x86::vcpu::block::Field::{Cr0, Cr3, Cr4, Dr7, Efer, Pat, Rflags, Rip};
use crate::x86::vcpu::block::{ControlBlock, Segment, SegmentName};

fn set(vmcs: &mut Vmcs, name: SegmentName, change: impl FnOnce(&mut Segment)) {
    let mut segment = vmcs.segment(name);
    change(&mut segment);
    vmcs.set_segment(name, segment);
}

type Change = fn(&mut Vmcs);

/// Each change breaks one rule of entries; the field that has to be named.
const WRONG: [(u32, Change); 22] = [
    (f::GUEST_CR0.raw(), |vmcs| vmcs.write(Cr0, 1 << 31)),
    (f::GUEST_CR4.raw(), |vmcs| vmcs.write(Cr4, 0)),
    (f::GUEST_CR3.raw(), |vmcs| vmcs.write(Cr3, 1 << 52)),
    (f::GUEST_DR7.raw(), |vmcs| vmcs.write(Dr7, 1 << 32)),
    (f::GUEST_PAT.raw(), |vmcs| vmcs.write(Pat, 2)),
    (f::GUEST_EFER.raw(), |vmcs| vmcs.write(Efer, 1 << 10)),
    (f::GUEST_RIP.raw(), |vmcs| vmcs.write(Rip, 1 << 50)),
    (f::GUEST_RFLAGS.raw(), |vmcs| vmcs.write(Rflags, 0)),
    (f::GUEST_RFLAGS.raw(), |vmcs| vmcs.write(Rflags, 2 | 1 << 17)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Cs, |cs| cs.attributes = 0x292)),
    (f::GUEST_CS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Cs, |cs| cs.attributes &= !0x80)),
    (f::GUEST_SS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Ss, |ss| ss.attributes = 0x9b)),
    (f::GUEST_DS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Ds, |ds| ds.attributes = 0x92)),
    (f::GUEST_ES_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Es, |es| es.base = 1 << 32)),
    (f::GUEST_FS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Fs, |fs| fs.base = 1 << 47)),
    (f::GUEST_GS_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Gs, |gs| gs.limit = 1 << 20)),
    (f::GUEST_TR_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Tr, |tr| tr.attributes = 0x89)),
    (f::GUEST_LDTR_RIGHTS.raw(), |vmcs| set(vmcs, SegmentName::Ldtr, |ldtr| ldtr.attributes = 0x83)),
    (f::GUEST_GDTR_LIMIT.raw(), |vmcs| set(vmcs, SegmentName::Gdtr, |gdt| gdt.limit = 1 << 16)),
    (f::ACTIVITY.raw(), |vmcs| vmcs.set_activity(1)),
    (f::INTERRUPTIBILITY.raw(), |vmcs| vmcs.set_interruptibility(1)),
    (f::PENDING_DEBUG.raw(), |vmcs| {
        vmcs.set_interruptibility(2);
        vmcs.set_pending_debug(1 << 14);
    }),
];

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

/// After a reset, and after a start-up IPI, there is nothing to refuse.
#[test]
fn real_mode_is_accepted() {
    with_guest(&[], |guest| {
        guest.0.state.set_init_state();
        assert_eq!(wrong_field(guest.vmcs()), None);
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
