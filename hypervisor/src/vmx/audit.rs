//! An auditor of entries and exits, in images for tests: what a guest's confinement rests on, and
//! what an exit loads for the host. An emulator may go on where a processor does not.

use super::controls::{CHOSEN, How, VPID, Word};
use super::copies::Copied;
use super::switch::HostState;
use super::vmcs::Vmcs;
use crate::x86::vcpu::state::Permissions;

/// The address in an EPTP (25.6.11).
const ROOT: u64 = 0xf_ffff_ffff_f000;

/// Called right before an entry.
///
/// # Panics
///
/// If the VMCS is not its guest's.
pub(super) fn check(own: &Permissions, vmcs: &Vmcs) {
    if let Some(name) = find(own, vmcs) {
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

fn find(own: &Permissions, vmcs: &Vmcs) -> Option<&'static str> {
    let [io, _] = vmcs.maps;
    let always = CHOSEN.iter().find(|choice| match choice.how {
        How::Set => !vmcs.control(choice.word, choice.bit),
        How::Clear => vmcs.control(choice.word, choice.bit),
        _ => false,
    });
    match always {
        Some(choice) => Some(choice.name),
        None if vmcs.copy(Copied::EptPointer) & ROOT != own.nested_root => Some("EPTP"),
        None if vmcs.control(Word::Secondary, VPID) && vmcs.vpid() == 0 => Some("VPID 0"),
        None if io != own.io => Some("I/O bitmaps"),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vmx::tests::processor::with_guest;

    #[test]
    fn u61_what_every_vmcs_has_is_looked_at() {
        with_guest(&[], |guest| {
            let own = guest.0.vm.guest.permissions();
            let vmcs = guest.vmcs();
            vmcs.set_vpid(1);
            assert_eq!(find(&own, vmcs), None);
            for choice in CHOSEN {
                let is_fixed = matches!(choice.how, How::Set | How::Clear);
                let is_set = vmcs.control(choice.word, choice.bit);
                vmcs.set_control(choice.word, choice.bit, !is_set);
                assert_eq!(find(&own, vmcs), is_fixed.then_some(choice.name), "{}", choice.name);
                vmcs.set_control(choice.word, choice.bit, is_set);
            }
            vmcs.set_vpid(0);
            assert_eq!(find(&own, vmcs), Some("VPID 0"), "I5");
            vmcs.set_vpid(1);
            vmcs.set_copy(Copied::EptPointer, own.nested_root ^ 0x1000);
            assert_eq!(find(&own, vmcs), Some("EPTP"));
        });
    }

    #[test]
    #[should_panic(expected = "audit: the host has")]
    fn i15_an_exit_that_loads_another_state_is_found() {
        with_guest(&[], |guest| check_host(guest.vmcs(), &HostState { pat: 1, ..HostState::default() }));
    }
}
