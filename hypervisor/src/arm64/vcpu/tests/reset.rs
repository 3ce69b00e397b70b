//! A reset as a property, and the move of a guest: all that a vCPU and its guest's devices have
//! arrives, and is as new after a reset. So is a vCPU that arrives where another guest's was (U65).

use core::fmt;

use super::moved::Moved;
use super::*;
use crate::arm64::mock::machines;
use crate::arm64::processor::FloatState;
use crate::arm64::vcpu::debug;
use crate::arm64::vcpu::exchanged::{MATRIX, Register as R};
use crate::devices::state_checks::{Kept, Reasons, Reset, listed};
use crate::devices::virt::map;
use crate::vm::arch::{Arch, State};
use baremetal::random::Random;
use memslots::Gpa;
use migration::{Archive, Described, Flaw};

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

const OWN: Reasons = &[
    ("by the date of the clock's", "alarm"),
    ("the clock's", "base"),
    ("where it runs", "exit gic.changes gic.linked gic.loaded* gic.progress walks"),
    ("the configuration's", "gic.is_last"),
    ("it is compared", "gic.vcpu place"),
    ("each page is looked up again", "mmio"),
    ("it is watched anew", "look_every spin"),
];

const LEFT: Reasons = &[
    ("it is read when it has been posted", "inbox.interrupts.groups"),
    ("it is read when a start has been posted", "inbox.power.entry inbox.power.context"),
];

#[test]
fn m5_m6_u65_a_vcpu_moves_with_all_that_it_is_and_a_reset_leaves_nothing() {
    let vm = machine_on("vcpus=2\nlocal_tlbi=broadcast", |hardware| {
        (hardware.features, hardware.preemption_bits) = (OPTIONAL, 7);
    });
    let vm = vm.machine();
    let spoil = |moved: &mut Moved, random: &mut Random| moved.act(|context| fill(context, random));
    let resets: [Reset<'_, _>; 1] = [("a reset", Moved::reset, &[LEFT])];
    let (new, play) = (|| Moved::new(vm), |moved: &mut Moved, _: &mut Random| moved.play());
    Kept { own: &[OWN], spoil: &spoil, resets: &resets, ..Kept::of(&new, &play) }.holds();
}

/// What the vCPUs of a guest share.
struct SharedOf(MadeVm);

impl Described for SharedOf {
    fn describe(&mut self, archive: &mut Archive<'_>) -> Result<(), Flaw> {
        MockArm64::describe_shared(self.0, archive)
    }
}

impl fmt::Debug for SharedOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Shared {{ {} }}", listed(self.0.guest.fields()))
    }
}

const SHARED_OWN: Reasons = &[
    ("the machine's", "configuration root"),
    ("it has no real lines", "distributor.data.ended distributor.data.forwarded"),
    ("it is compared", "distributor.data.intid_count distributor.data.vcpu_count"),
    ("by their number", "distributor.data.spis"),
    ("what the guest sees is compared", "former"),
    ("it has none", "has_functions pci wires"),
    ("the configuration's", "local_maintenance vcpus vmid_churn"),
];

const SHARED_LEFT: Reasons = &[("time goes on, as on battery", "rtc.data.ahead")];

#[test]
fn m5_m6_u65_devices_move_with_all_that_they_are_and_a_reset_leaves_nothing() {
    let play = |SharedOf(vm): &mut SharedOf, random: &mut Random| {
        let mut distributor = vm.guest.distributor.lock();
        for offset in (0..0x1_0000).step_by(4) {
            let _ = (distributor.read(offset, 4), distributor.write(offset, 4, random.word()));
        }
        for spi in 0..=255 {
            let effect = distributor.set_line(spi, random.one_in(3));
            assert!(effect.posts(&distributor).all(|post| post.vcpu < 2));
        }
        let _effect = distributor.set_awake(1, random.one_in(2));
        drop(distributor);
        for offset in (0..=0x1000).step_by(4) {
            let mut uart = vm.guest.uart.lock();
            let _ = (uart.device.read(offset), uart.device.write(offset, random.word() as u32));
            let _byte = vm.guest.rtc.lock().read(offset, random.word());
            vm.guest.rtc.lock().write(offset, random.word() as u32 | 1, random.word());
        }
        let _taken = MockArm64::type_in(vm, 0, b"typed");
        MockArm64::receive_console(Some(vm));
        MockArm64::wake(vm);
    };
    let resets: [Reset<'_, SharedOf>; 1] = [("a reset", |shared| shared.0.guest.reset(), &[SHARED_LEFT])];
    let new = || SharedOf(machine("vcpus=2").machine());
    Kept { own: &[SHARED_OWN], resets: &resets, seeds: 20, ..Kept::of(&new, &play) }.holds();
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

#[test]
fn m11_a_guest_that_bypasses_the_caches_finds_its_generation_id() {
    for features in [Features::empty(), Features::FORCED_WRITE_BACK] {
        let vm = machine_on("", |hardware| hardware.features = features).machine();
        let words = vm.shown.as_ref().expect("there is one").words().as_ptr().addr() as u64;
        let _before = told();
        vm.renew(7);
        let is_cleaned = told().contains(&Recorded::Cleaned(words..words + 16));
        assert_eq!(is_cleaned, features.is_empty());
    }
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
    // The vCPU that it is sent to is told.
    super::turn(vm, 0, 0, &mut super::workspace(0), |context| {
        super::open(context, 0);
        let word = 4 * u32::from(map::GENERATION_INTID / 32);
        for register in [0x80, 0x100] {
            let mut distributor = vm.guest.distributor.lock();
            let effect = distributor.write(register + word, 4, 1 << (map::GENERATION_INTID % 32));
            devices::perform(vm, effect, &distributor);
        }
        let _events = context.owner.take_events();
        devices::show_generation(vm, false);
        assert!(!context.owner.take_events());
        devices::show_generation(vm, true);
        assert!(context.owner.take_events());
    });
}
