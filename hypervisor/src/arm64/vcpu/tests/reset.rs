//! A reset as a property: whatever a vCPU and its guest's devices have, they are as new ones
//! afterwards; and so is a vCPU that arrives where another guest's was (U65).

use super::*;
use crate::arm64::mock::machines;
use crate::arm64::processor::{Configuration, FloatState};
use crate::arm64::vcpu::debug;
use crate::arm64::vcpu::exchanged::{MATRIX, Register as R};
use crate::devices::virt::map;
use crate::vm::arch::{Arch, State};
use baremetal::random::Random;
use memslots::Gpa;

const OPTIONAL: Features = Features::POINTER_KEYS
    .union(Features::ERRORS)
    .union(Features::MATRICES)
    .union(Features::FORCED_WRITE_BACK);

/// Random values in everything that the processor and the vCPU's state have.
fn fill(context: &mut Context<'_, MockArm64>, random: &mut Random) {
    for &register in R::ALL {
        MockArm64::write(register, random.word());
    }
    hardware(|hardware| {
        hardware.float.v = core::array::from_fn(|_| u128::from(random.word()) << 64 | 1);
        (hardware.float.control, hardware.float.status) = (random.word() | 1, random.word() | 1);
    });
    let state = &mut *context.state;
    state.registers.x = core::array::from_fn(|_| random.word() | 1);
    (state.registers.pc, state.registers.pstate) = (random.word() | 1, random.word() | 1);
    let counts = MockArm64::debug_counts();
    let points = (0..8).flat_map(|n| {
        [
            debug::Register::BreakValue(n),
            debug::Register::BreakControl(n),
            debug::Register::WatchValue(n),
            debug::Register::WatchControl(n),
        ]
    });
    for register in points.chain([debug::Register::ClaimSet, debug::Register::ChannelInterrupts]) {
        let _may_not_exist = state.debug.write(register, counts, random.word() | 0xff);
    }
    assert!(state.debug.write(debug::Register::Lock, counts, 0));
    assert!(state.debug.write(debug::Register::Control, counts, 1 << 15));
    state.apply_debug();
    for _ in 0..200 {
        let _effect = state.gic.write(0x1_0000 + random.below(0x300) as u32 * 4, 4, random.word());
        let _effect = state.gic.write(random.below(8) as u32 * 4, 4, random.word());
    }
    for line in 16..32 {
        state.gic.set_line(line, random.one_in(2));
    }
    state.gic.forward(27);
    state.activity = Activity::Halted;
    state.exit = Vector::SError;
    state.stolen = random.word() | 1;
    state.alarm = random.word() >> 1;
    state.intercept_pause(random.one_in(2));
    state.raise_serror();
    state.note_walks();
    for _ in 0..10 {
        let _look = state.check_spinning(0, 0);
    }
}

#[test]
fn u65_a_vcpu_that_is_reset_is_as_a_new_one() {
    for seed in 1..50 {
        let vm = machine_on("vcpus=2\nlocal_tlbi=broadcast", |hardware| {
            (hardware.features, hardware.preemption_bits) = (OPTIONAL, 7);
        })
        .machine();
        let mut place = workspace(0);
        let random = &mut Random::new(seed);
        turn(vm, 0, 1, &mut place, |context| fill(context, random));
        let vcpu = &vm.vcpus[1];
        for _ in 0..20 {
            vcpu.inbox.interrupts.post_private(random.word() as u32);
            vcpu.inbox.interrupts.post_spi(32 + random.below(200) as u8);
        }
        assert!(vcpu.inbox.power.turn_on(Start { entry: 1, context: 2 }).is_ok());
        let _owner = vcpu.target.owner().expect("nobody runs it");
        // SAFETY: the owner was just taken.
        let state = unsafe { vcpu.state() };
        let new = vm.guest.new_vcpu::<MockArm64>(1, 0);
        let differing = |state: &VcpuState<MockArm64>| {
            let pairs = state.fields().into_iter().zip(new.fields());
            pairs.filter(|(one, other)| one != other).map(|((name, _), _)| name).collect::<Vec<_>>()
        };
        let changed = differing(state);
        for name in ["registers", "gic", "activity", "configuration", "debug", "system", "float", "interface"]
        {
            assert!(changed.contains(&name), "{name} was to be changed: {changed:?}");
        }
        let is_trapped = state.configuration.bits() & crate::arm64::controls::hcr::TWE != 0;
        state.reset(&vcpu.inbox);
        // Whether WFE is trapped is the scheduler's choice, which goes on.
        assert_eq!(state.configuration, new.configuration.with_wfe_trapped(is_trapped));
        state.configuration = Configuration::new(state.configuration.bits(), true);
        assert_eq!(differing(state), <[&str; 0]>::default(), "seed {seed}");
        assert!(vcpu.inbox.interrupts.is_empty(), "what was posted before is void");
        assert_eq!(vcpu.inbox.power.take_start(), None);
    }
}

#[test]
fn u65_a_vcpu_meets_nothing_of_another_guests_before_it() {
    let vms = machines(
        ["name=one\nmemory=16777216\nvcpus=2", "name=other\nmemory=16777216\nvcpus=2\nlocal_tlbi=broadcast"],
        |hardware| (hardware.features, hardware.preemption_bits) = (OPTIONAL, 7),
    );
    for (seed, (before, after)) in (1..).zip([(0, 1), (1, 0)]) {
        let mut place = workspace(0);
        turn(vms[before], 0, 1, &mut place, |context| fill(context, &mut Random::new(seed)));
        let vm = vms[after];
        assert!(vm.vcpus[1].inbox.power.turn_on(Start { entry: 0x4000, context: 9 }).is_ok() || seed == 2);
        turn(vm, 0, 1, &mut place, |context| {
            if seed == 2 {
                // It has run already: its guest is reset.
                MockArm64::write(R::Tcr, 0);
                context.state.save();
                context.state.reset(&context.vcpu.inbox);
                context.state.load();
                assert!(vm.vcpus[1].inbox.power.turn_on(Start { entry: 0x4000, context: 9 }).is_ok());
            }
            take_signals(context);
            let _events = context.owner.take_events();
            next_stay(|_| {
                for &register in R::ALL.iter().filter(|&&register| register != R::Vmpidr) {
                    assert_eq!(MockArm64::read(register), register.at_reset(), "{}", register.name());
                }
                hardware(|hardware| {
                    assert_eq!(hardware.float, FloatState::default());
                    assert_eq!(hardware.lists, [0; 16]);
                });
                Vector::Synchronous
            });
            assert!(enter(context), "and the auditor has looked at the rest");
        });
    }
    assert_eq!(MATRIX.len(), 1);
}

/// But for the time, which goes on as on battery.
#[test]
fn u65_devices_that_are_reset_are_as_new_ones() {
    let mut all_changed = std::collections::BTreeSet::new();
    for seed in 1..20 {
        let vm = machine("vcpus=2").machine();
        let random = &mut Random::new(seed);
        let new = vm.guest.fields();
        let changed = || {
            let pairs = new.iter().zip(vm.guest.fields());
            pairs.filter(|(one, other)| **one != *other).map(|(one, _)| one.0).collect::<Vec<_>>()
        };
        for _ in 0..500 {
            let offset = random.below(0x2000) as u32 & !3;
            let _effect = vm.guest.distributor.lock().write(offset, 4, random.word());
        }
        {
            let mut uart = vm.guest.uart.lock();
            assert!((0..40).all(|byte| uart.queue(byte)));
            uart.pass_on();
            for offset in (0..0x48).step_by(4) {
                let _effect = uart.device.write(offset, random.word() as u32);
            }
        }
        for offset in [0x4, 0xc, 0x10, 0x1c] {
            vm.guest.rtc.lock().write(offset, random.word() as u32 | 1, random.word());
        }
        all_changed.extend(changed());
        vm.guest.reset();
        assert_eq!(changed(), <[&str; 0]>::default(), "seed {seed}");
    }
    assert!(all_changed.into_iter().eq(["distributor", "rtc", "uart"]));
}

#[test]
fn m11_a_new_generation_id_is_in_memory_and_interrupts() {
    let vm = machine("vcpus=2").machine();
    let pending = || {
        let distributor = vm.guest.distributor.lock();
        distributor.read(moved::GICD_ISPENDR1, 4).0 & 1 << (map::GENERATION_INTID - 32) != 0
    };
    let id = || {
        let mut id = [0; 16];
        vm.space.slots().memory().read(Gpa(map::GENERATION), &mut id).expect("is memory");
        u128::from_le_bytes(id)
    };
    assert_eq!((id(), pending()), (*vm.generation.lock(), false), "it has been loaded");
    vm.renew(0x1234 << 64 | 0x5678);
    assert_eq!((id(), pending()), (0x1234 << 64 | 0x5678, true));
    assert!(vm.space.slots().memory().write(Gpa(map::GENERATION), &[1; 16]).is_err());
    MockArm64::reset_devices(vm);
    assert_eq!((id(), pending()), (0x1234 << 64 | 0x5678, false), "a reset keeps it");
}
