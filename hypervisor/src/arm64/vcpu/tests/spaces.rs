//! What a CPU has loaded: registers, and the address space.

use super::*;

#[test]
fn a_cpu_that_has_left_a_space_walks_it_no_more_and_loads_it_again() {
    let vm = machine("").machine();
    let (mut place, mut elsewhere) = (workspace(0), workspace(1));
    let [cpu, other] = [0, 1].map(|cpu| MockArm64::cpu(CpuIndex(cpu)).expect("a CPU"));
    turn(vm, 0, 0, &mut place, |context| assert!(enter(context)));
    let loaded = hardware(|hardware| hardware.vttbr);
    assert!(MockArm64::holds_space(vm, cpu) && !MockArm64::holds_space(vm, other));
    let _before = told();
    MockArm64::leave_space(vm.guest.common, other, &mut elsewhere);
    assert_eq!(told(), [], "it has loaded none");
    MockArm64::leave_space(vm.guest.common, cpu, &mut place);
    assert!(!MockArm64::holds_space(vm, cpu));
    assert_eq!(hardware(|hardware| hardware.vttbr), vm.guest.common.nowhere(), "VMID 0, no entries");
    let _left = told();
    MockArm64::leave_space(vm.guest.common, cpu, &mut place);
    assert_eq!(told(), [], "once");
    turn(vm, 0, 0, &mut place, |context| assert!(enter(context)));
    assert_eq!(hardware(|hardware| hardware.vttbr), loaded);
    assert!(MockArm64::holds_space(vm, cpu));
}

#[test]
fn registers_are_in_effect_before_anybody_goes_by_them() {
    let vm = machine("").machine();
    let is_synchronized = || !hardware(|hardware| hardware.is_unsynchronized);
    turn(vm, 0, 0, &mut workspace(0), |context| {
        assert!(is_synchronized(), "a turn begins");
        MockArm64::save_state(context);
        MockArm64::reload_state(context);
        assert!(is_synchronized(), "it goes on");
        context.state.activity = Activity::Off;
        vm.vcpus[0].inbox.power.reset();
        assert!(vm.vcpus[0].inbox.power.turn_on(Start { entry: 0x4000_1000, context: 0 }).is_ok());
        take_signals(context);
        assert_eq!((context.state.registers.pc, is_synchronized()), (0x4000_1000, true), "it starts");
    });
}

#[test]
fn an_interrupt_that_lost_its_list_register_ends_by_the_interfaces_count() {
    /// State of a list register: pending in bit 62, active in bit 63.
    const STATE: u64 = 3 << 62;
    /// GICR_IPRIORITYR, and GICR_ISACTIVER0.
    const PRIORITIES: u32 = 0x1_0400;
    const ACTIVE: u32 = 0x1_0300;
    let vm = machine_on("", |hardware| hardware.list_count = 1).machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        open(context, 1 << 20 | 1 << 21);
        let _no_effect = context.state.gic.write(PRIORITIES + 20, 1, 0x80);
        context.state.gic.set_line(20, true);
        // The guest takes it, and then another one that is more urgent.
        next_stay(|_| {
            hardware(|hardware| hardware.lists[0] = hardware.lists[0] & !STATE | 1 << 63);
            Vector::Synchronous
        });
        assert!(enter(context));
        context.state.gic.set_line(20, false);
        context.state.gic.set_line(21, true);
        next_stay(|_| {
            // It ends both: the second one has no list register.
            let count = Maintenance::eoi_count(MockArm64::interface_control());
            assert_eq!(count, 0);
            hardware(|hardware| (hardware.lists[0], hardware.interface) = (0, hardware.interface | 1 << 27));
            Vector::Synchronous
        });
        assert_eq!(context.state.gic.read(ACTIVE, 4), 1 << 20);
        assert!(enter(context));
        assert_eq!(context.state.gic.read(ACTIVE, 4) & 1 << 20, 0);
    });
}

#[test]
fn a_shared_interrupt_that_was_posted_is_the_vcpus_after_its_next_look() {
    /// GICD_IGROUPR1, GICD_ISENABLER1 and GICD_ISPENDR1.
    const REGISTERS: [u32; 3] = [0x84, 0x104, 0x204];
    let vm = machine("").machine();
    turn(vm, 0, 0, &mut workspace(0), |context| {
        open(context, 0);
        for register in REGISTERS {
            let mut distributor = vm.guest.distributor.lock();
            let effect = distributor.write(register, 4, 1 << 3);
            devices::perform(vm, effect, &distributor);
        }
        assert!(context.owner.take_events(), "it was told");
        assert!(context.state.gic.has_none());
        take_signals(context);
        assert!(!context.state.gic.has_none(), "35 is its own");
    });
}
