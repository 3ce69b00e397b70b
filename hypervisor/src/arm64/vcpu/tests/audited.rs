//! Two vCPUs of different guests, with different settings, take turns on a processor. One after the
//! other each of the registers that they rely on keeps what it has, as if nobody had written it:
//! the auditor finds each (U61).

use super::*;
use crate::arm64::audit::demands::demand;
use crate::arm64::controls::{Control, at_start};
use crate::arm64::mock::{Stuck, machine_on, machines};
use crate::arm64::vcpu::debug;
use crate::vm::arch::State;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;

/// A guest with the default settings, and one whose local invalidations are broadcast.
const GUESTS: [&str; 2] =
    ["name=plain\nmemory=16777216\nvcpus=2", "name=far\nmemory=16777216\nvcpus=2\nlocal_tlbi=broadcast"];

/// A value of a register that is this vCPU's alone.
fn value(register: Register, vcpu: u64) -> u64 {
    match register {
        Register::VirtualControl | Register::PhysicalControl => 2 + vcpu,
        _ => (register as u64) << 8 | (vcpu + 1),
    }
}

/// What the guest of this vCPU leaves in the processor.
fn live(vcpu: u64) -> impl FnMut(&mut Registers) -> Vector {
    move |_| {
        for &register in Register::ALL.iter().filter(|&&register| register != Register::Vmpidr) {
            MockArm64::write(register, value(register, vcpu));
        }
        hardware(|hardware| hardware.float.v[17] = u128::from(vcpu) + 1);
        Vector::Synchronous
    }
}

/// Both vCPUs run in turn, and in between `spoil` is called with the processor. Returns the
/// finding.
fn find(spoil: impl Fn()) -> Option<String> {
    let [plain, far] = machines(GUESTS, |hardware| {
        hardware.features = Features::POINTER_KEYS | Features::ERRORS | Features::MATRICES;
        hardware.preemption_bits = 7;
    });
    let mut place = workspace(0);
    // vCPU 1 of one guest has all settings that there are, vCPU 0 of the other one none.
    turn(far, 0, 1, &mut place, |context| {
        next_stay(live(1));
        assert!(enter(context));
        context.state.intercept_pause(true);
        context.state.raise_serror();
        let counts = MockArm64::debug_counts();
        assert!(context.state.debug.write(debug::Register::Lock, counts, 0));
        assert!(context.state.debug.write(debug::Register::Control, counts, 1 << 15));
        context.state.apply_debug();
        open(context, 1 << 20 | 1 << 21);
        context.state.gic.set_line(20, true);
    });
    turn(plain, 0, 0, &mut place, |context| {
        next_stay(live(0));
        assert!(enter(context));
    });
    spoil();
    let turns = AssertUnwindSafe(|| {
        let mut places = ManuallyDrop::new(place);
        for (vm, vcpu) in [(far, 1), (plain, 0)] {
            turn(vm, 0, vcpu, &mut places, |context| assert!(enter(context)));
        }
    });
    let finding = catch_unwind(turns).err()?;
    Some(finding.downcast_ref::<String>().expect("a formatted message").clone())
}

#[test]
fn u61_two_vcpus_of_different_settings_take_turns() {
    assert_eq!(find(|| {}), None);
}

#[test]
fn m4_a_vcpu_starts_ahead_of_its_machine_and_behind_it() {
    for base in [114, -114] {
        let vm = machine("vcpus=2").machine();
        vm.clock.set(&vm.host.wall, 0, base as u64, 0);
        turn(vm, 0, 0, &mut workspace(0), |context| assert!(enter(context)));
    }
}

#[test]
fn u61_a_register_that_is_not_written_is_found() {
    let hold = |stuck: Stuck| find(move || hardware(|hardware| hardware.stuck = Some(stuck)));
    for &register in Register::ALL {
        let found = hold(Stuck::Register(register)).unwrap_or_default();
        assert!(found.contains(register.name()) || register == Register::Vmpidr, "{register:?}: {found}");
        assert!(found.starts_with("audit: "), "{register:?}");
    }
    for (stuck, name) in [
        (Stuck::Configuration, "HCR_EL2"),
        (Stuck::Vttbr, "VTTBR_EL2"),
        (Stuck::Debug, "MDSCR_EL1"),
        (Stuck::Lists, "ICH_LR_EL2"),
        (Stuck::Float, "floating-point"),
    ] {
        let found = hold(stuck).unwrap_or_default();
        assert!(found.starts_with("audit: ") && found.contains(name), "{stuck:?}: {found}");
    }
}

#[test]
fn u61_what_is_written_once_is_looked_at_each_time() {
    for (index, &control) in Control::ALL.iter().enumerate() {
        let found = find(|| hardware(|hardware| hardware.controls[index] ^= 1));
        let is_switched = matches!(control, Control::Hcr | Control::Mdscr | Control::Vdisr);
        let is_there = at_start(control, &MockArm64::description()).is_some();
        let expected = is_there && !is_switched;
        let finds = |text: String| text.starts_with(&format!("audit: {} is ", control.name()));
        assert_eq!(found.is_some_and(finds), expected, "{}", control.name());
    }
    // One that has been written wrongly from the beginning.
    for (index, &control) in Control::ALL.iter().enumerate() {
        let processor = MockArm64::description();
        let (bits, _) = demand(control, &processor);
        let machine = machine_on("", |hardware| hardware.controls[index] ^= bits & bits.wrapping_neg());
        let mut place = ManuallyDrop::new(workspace(0));
        let enters = AssertUnwindSafe(|| {
            turn(machine.machine(), 0, 0, &mut place, |context| assert!(enter(context)));
        });
        let is_found = catch_unwind(enters).is_err();
        // That one is not among the mock's controls.
        let is_other = control == Control::Hcr;
        let is_wrong = bits != 0 && at_start(control, &processor).is_some() && !is_other;
        assert_eq!(is_found, is_wrong, "{}", control.name());
    }
    let found = find(|| hardware(|hardware| hardware.interface |= 1 << 3)).unwrap_or_default();
    assert!(found.starts_with("audit: ICH_HCR_EL2 is "), "{found}");
}

#[test]
fn u61_each_bit_of_the_configuration_is_the_vcpus_own() {
    for bit in 0..64 {
        // A bit that the processor has and the vCPU has not, or the other way round.
        let finding = {
            let vm = machine("").machine();
            let mut place = workspace(0);
            let turns = AssertUnwindSafe(|| {
                turn(vm, 0, 0, &mut place, |context| {
                    hardware(|hardware| hardware.configuration ^= 1 << bit);
                    assert!(enter(context));
                });
            });
            catch_unwind(turns).err()
        };
        assert!(finding.is_some(), "bit {bit}");
    }
}

#[test]
fn u61_an_serror_that_was_taken_does_not_come_again() {
    const VSE: u64 = crate::arm64::controls::hcr::VSE;
    let vm = machine("vcpus=2").machine();
    let mut place = workspace(0);
    turn(vm, 0, 0, &mut place, |context| {
        context.state.raise_serror();
        next_stay(|_| {
            hardware(|hardware| hardware.configuration &= !VSE);
            Vector::Synchronous
        });
        assert!(enter(context));
    });
    for vcpu in [1, 0] {
        turn(vm, 0, vcpu, &mut place, |context| {
            assert_eq!(hardware(|hardware| hardware.configuration) & VSE, 0, "vCPU {vcpu}");
            assert!(enter(context));
        });
    }
}

#[test]
fn u61_a_timers_interrupt_is_not_active_when_another_vcpu_arrives() {
    for (intid, control, value) in [
        (27, Register::VirtualControl, Register::VirtualValue),
        (30, Register::PhysicalControl, Register::PhysicalValue),
    ] {
        let vm = machine("vcpus=2").machine();
        let mut place = workspace(0);
        turn(vm, 0, 0, &mut place, |context| {
            open(context, 1 << intid);
            // Enabled, and due.
            MockArm64::write(control, 5);
            MockArm64::write(value, 77);
        });
        turn(vm, 0, 0, &mut place, |context| {
            context.cpu.arch.timers_fired.set(1 << intid);
            open_window(context);
            assert!(enter(context));
            assert!(!told().contains(&Recorded::Deactivate(intid)), "the guest has not ended it");
        });
        assert!(told().contains(&Recorded::Deactivate(intid)), "{intid}");
    }
}
