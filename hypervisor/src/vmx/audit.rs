//! An auditor of entries and exits, in images for tests: what a guest's confinement rests on, and
//! what an exit loads for the host. An emulator may go on where a processor does not.

use super::switch::HostState;
use super::vmcs::Vmcs;
use crate::x86::vcpu::state::Permissions;

/// The controls on which a guest's confinement rests, by the auditor's own reading of 25.6 to 25.8
/// and appendix B: the field's encoding, bits that are set, bits that are clear, and names.
const CONTROLS: [(u32, u32, u32, &str); 5] = [
    // External interrupts, NMIs, virtual NMIs.
    (0x4000, 0x29, 0, "pin-based controls"),
    // TSC offset, HLT, MWAIT, RDPMC, TPR shadow, I/O and MSR bitmaps, MONITOR, secondary controls;
    // not INVLPG, RDTSC, CR3 and CR8.
    (0x4002, 0xb220_0c88, 0x0019_9200, "primary controls"),
    // EPT, WBINVD, unrestricted guests; not descriptor tables.
    (0x401e, 0xc2, 0x04, "secondary controls"),
    // Debug controls, 64 bits, PAT and EFER both ways.
    (0x400c, 0x003c_0204, 0, "exit controls"),
    // Debug controls, PAT, EFER.
    (0x4012, 0xc004, 0, "entry controls"),
];
/// The same for addresses: the bits of the field that are one.
const ADDRESSES: [(u32, u64, &str); 4] = [
    (0x2000, u64::MAX, "I/O bitmap A"),
    (0x2002, u64::MAX, "I/O bitmap B"),
    (0x2004, u64::MAX, "MSR bitmap"),
    (0x201a, 0xf_ffff_ffff_f000, "EPTP"),
];
/// Secondary controls: VPIDs; delivery of virtual interrupts, which has its own bitmap of MSRs.
const ENABLES_VPID: u32 = 1 << 5;
const DELIVERS: u32 = 1 << 9;

/// Called right before an entry, when the processor has all that was written: looks at the VMCS
/// that it has.
///
/// # Panics
///
/// If the VMCS is not its guest's.
pub(super) fn check(vmcs: &Vmcs, vmread: impl Fn(u32) -> u64) {
    // A test of the switch alone has no guest.
    if let Some(name) = vmcs.own.as_ref().and_then(|own| find(own, vmread)) {
        panic!("audit: {name}");
    }
}

/// Called right after an exit on a CPU that had this state when the vCPU arrived (I15).
///
/// # Panics
///
/// If it has another one.
pub(super) fn check_host(vmcs: &Vmcs, is: &HostState) {
    let should = &vmcs.host;
    assert!(is == should, "audit: the host has {is:x?} after an exit, and not {should:x?}");
}

fn find(own: &Permissions, vmread: impl Fn(u32) -> u64) -> Option<&'static str> {
    let controls = CONTROLS.iter().find(|&&(field, ones, zeros, _)| {
        let is = vmread(field) as u32;
        is & (ones | zeros) != ones
    });
    if let Some((.., name)) = controls {
        return Some(name);
    }
    let secondary = vmread(0x401e) as u32;
    let msr = own.msr + if secondary & DELIVERS != 0 { 0x1000 } else { 0 };
    let should = [own.io, own.io + 0x1000, msr, own.nested_root];
    let mut addresses = ADDRESSES.iter().zip(should);
    if let Some(((.., name), _)) =
        addresses.find(|((field, bits, _), should)| vmread(*field) & bits != *should)
    {
        return Some(name);
    }
    (secondary & ENABLES_VPID != 0 && vmread(0) == 0).then_some("VPID 0")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx::controls::{CHOSEN, DELIVERY, How, Word};
    use crate::vmx::run::Instructions;
    use crate::vmx::tests::mock::Mock;
    use crate::vmx::tests::processor::with_guest;
    use std::collections::BTreeMap;

    #[test]
    fn u61_what_every_vmcs_has_is_looked_at() {
        let own = Permissions { io: 0x1000, msr: 0x4000, nested_root: 0x7000, apic: false };
        // All that is chosen for good; each of them, and only those, is demanded.
        let field = |word| match word {
            Word::Pin => 0x4000,
            Word::Primary => 0x4002,
            Word::Secondary => 0x401e,
            Word::Exit => 0x400c,
            Word::Entry => 0x4012,
        };
        let mut fields: BTreeMap<u32, u64> =
            [(0, 1), (0x2000, 0x1000), (0x2002, 0x2000), (0x2004, 0x4000), (0x201a, 0x705e)].into();
        for choice in CHOSEN.iter().filter(|choice| matches!(choice.how, How::Set)) {
            *fields.entry(field(choice.word)).or_default() |= 1 << choice.bit;
        }
        let found = |fields: &BTreeMap<u32, u64>| find(&own, |field| fields[&field]);
        assert_eq!(found(&fields), None);
        for choice in CHOSEN {
            let mut changed = fields.clone();
            *changed.get_mut(&field(choice.word)).unwrap() ^= 1 << choice.bit;
            // Delivery goes with a bitmap of MSRs of its own.
            let is_delivery = (choice.word, choice.bit) == (Word::Secondary, DELIVERY);
            let is_fixed = is_delivery || matches!(choice.how, How::Set | How::Clear);
            assert_eq!(found(&changed).is_some(), is_fixed, "{}", choice.name);
        }
        for at in [0x2000, 0x2002, 0x2004, 0x201a] {
            let mut changed = fields.clone();
            *changed.get_mut(&at).unwrap() ^= 0x1000;
            assert!(found(&changed).is_some(), "{at:#x}");
        }
        fields.extend([(0, 0), (0x401e, fields[&0x401e] | 1 << 5)]);
        assert_eq!(found(&fields), Some("VPID 0"), "I5");
    }

    #[test]
    #[should_panic(expected = "audit: I/O bitmap A")]
    fn u61_the_vmcs_that_the_processor_has_is_looked_at() {
        with_guest(&[], |guest| {
            assert!(guest.enter(|_, _| {}));
            <Mock as Instructions>::vmwrite(0x2000, 0x1000);
            guest.enter(|_, _| {});
        });
    }

    #[test]
    #[should_panic(expected = "audit: the host has")]
    fn i15_an_exit_that_loads_another_state_is_found() {
        with_guest(&[], |guest| check_host(guest.vmcs(), &HostState { pat: 1, ..HostState::default() }));
    }
}
