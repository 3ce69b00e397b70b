//! Whole calls, by memory, by two registers and by XMM registers.
#![no_main]

use guest::Guest;
use libfuzzer_sys::fuzz_target;
use quell_tlfs::{Call, ClusterIpi, Control, FlushScope, InputPage, MAX_VPS, Reject, Status, Targets, decode};

fn check_targets(targets: Targets<'_>) {
    if let Targets::Set(set) = targets {
        assert!(set.iter().count() <= MAX_VPS as usize);
        assert!(set.iter().all(|vp| vp < MAX_VPS && targets.contains(vp)));
    }
}

fuzz_target!(|guest: Guest| {
    let (registers, profile) = (guest.registers(), guest.offers.profile());
    let control = Control::from_bits(registers.control);
    let mut page = InputPage::new();
    match decode(registers, &guest, &mut page, &profile) {
        Ok(Call::Flush(flush)) => {
            check_targets(flush.targets);
            assert_eq!(flush.completed().reps_complete(), control.rep_count());
            if let FlushScope::List(list) = flush.scope {
                assert!(list.elements().map(|(index, _)| index).eq(control.rep_start()..control.rep_count()));
            }
        }
        Ok(Call::ClusterIpi(ClusterIpi { vector, targets })) => {
            assert!(profile.cluster_ipi && vector >= ClusterIpi::VECTOR_MIN);
            check_targets(targets);
        }
        Ok(Call::LongSpinWait { .. }) => {}
        Ok(Call::GuestPhysical { rep_count, .. }) => {
            assert!(profile.guest_physical && rep_count == control.rep_count());
        }
        Err(Reject::Failed(result)) => {
            assert_ne!(result.status(), Status::SUCCESS);
            assert!(result.reps_complete() == 0 || result.reps_complete() == control.rep_start());
        }
        Err(Reject::UndefinedOpcode) => assert!(control.fast() && !profile.xmm_input),
        Err(Reject::InputNotMemory { gpa }) => assert!(!control.fast() && gpa == registers.input),
    }
});
