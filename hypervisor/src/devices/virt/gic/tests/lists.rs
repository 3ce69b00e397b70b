//! The contents of the list registers, and the number of accesses to them.

use super::system::System;
use crate::devices::virt::gic::{ListRegister, Maintenance, SgiGroup};

/// One vCPU, everything enabled, in group 1, at priority 0xa0.
fn system(list_count: usize) -> System {
    let mut system = System::new(1, list_count);
    system.write(0, 4, 2);
    for word in 0..8 {
        for (bank, value) in [(0x080, u32::MAX), (0x100, u32::MAX)] {
            if word == 0 {
                system.write_own(0, bank, 4, u64::from(value));
            } else {
                system.write(bank + 4 * word, 4, u64::from(value));
            }
        }
    }
    (0..=255).for_each(|intid| system.set_priority(0, intid, 0xa0));
    system.settle();
    system
}

fn lists(system: &System) -> Vec<ListRegister> {
    let lists = &system.vcpus[0].cpu.lists;
    lists.iter().filter(|&&list| list != 0).map(|&list| ListRegister::from_bits(list)).collect()
}

fn send(system: &mut System, intid: u64) {
    system.send(0, intid << 24 | 1, SgiGroup::Group1);
    system.settle();
}

#[test]
fn nothing_in_flight_costs_no_register() {
    let mut system = system(4);
    system.vcpus[0].cpu.accesses = 0;
    for _ in 0..10 {
        system.exit(0);
        system.enter(0);
    }
    assert_eq!((system.vcpus[0].cpu.accesses, system.vcpus[0].cpu.maintenance), (0, Maintenance::empty()));
    send(&mut system, 3);
    assert_eq!(system.vcpus[0].cpu.accesses, 1, "one interrupt, one register");
}

#[test]
fn an_edge_is_a_plain_register_and_a_level_asks_for_its_end() {
    let mut system = system(4);
    send(&mut system, 3);
    let plain = ListRegister::new().with_intid(3).with_priority(0xa0).with_group1(true).with_pending(true);
    assert_eq!(lists(&system), [plain]);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(3));
    system.vcpus[0].cpu.end(3);
    assert!(!system.vcpus[0].cpu.is_maintenance_due(), "no exit for it");
    system.exit(0);
    system.enter(0);
    system.set_line(33, true);
    system.settle();
    assert_eq!(lists(&system), [plain.with_intid(33).with_eoi()]);
}

#[test]
fn a_linked_timer_is_deactivated_by_the_hardware() {
    let mut system = system(4);
    system.forward(0, 27);
    let register = lists(&system)[0];
    assert!(register.hardware() && register.physical() == 27 && register.intid() == 27 && register.pending());
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(27));
    system.exit(0);
    system.enter(0);
    let register = lists(&system)[0];
    assert!(register.hardware() && register.active() && !register.pending());
    system.vcpus[0].cpu.end(27);
    assert_eq!(system.vcpus[0].cpu.physical, 0);
    assert!(!system.vcpus[0].cpu.is_maintenance_due());
    system.exit(0);
    assert!(!system.vcpus[0].private.is_linked(27));
    system.enter(0);
    assert_eq!(lists(&system), []);
}

#[test]
fn a_timer_that_leaves_pending_is_forgotten_and_comes_again() {
    let mut system = system(4);
    system.forward(0, 27);
    system.leave(0);
    assert_eq!(lists(&system), [], "its condition says it again");
    system.forward(0, 27);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(27));
    system.leave(0);
    let register = lists(&system)[0];
    assert!(register.active() && !register.pending() && !register.hardware());
    // It is due again elsewhere, while the guest serves the first.
    system.forward(0, 27);
    let register = lists(&system)[0];
    assert!(register.active() && register.hardware());
    system.vcpus[0].cpu.end(27);
    assert_eq!(system.vcpus[0].cpu.physical, 0, "so that it can fire again");
}

#[test]
fn a_timer_that_is_reprogrammed_is_withdrawn_unless_acknowledged() {
    let mut system = system(4);
    system.forward(0, 27);
    let ppis = system.with(0, |vcpu| {
        vcpu.cpu.physical = 0;
        vcpu.private.withdraw(27).0
    });
    assert_eq!(ppis, 1 << 27);
    assert_eq!(lists(&system), []);
    system.forward(0, 27);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(27));
    assert_eq!(system.with(0, |vcpu| vcpu.private.withdraw(27).0), 0);
    assert!(lists(&system)[0].active());
}

#[test]
fn a_deactivation_by_register_reaches_the_physical_timer() {
    let mut system = system(4);
    system.forward(0, 27);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(27));
    system.write_bit(0, 0x380, 27);
    assert_eq!(system.vcpus[0].cpu.physical, 0);
    assert_eq!(lists(&system), []);
}

#[test]
fn nested_interrupts_outside_the_registers_end_in_their_order() {
    let mut system = system(1);
    for (intid, priority) in [(1, 0xc0), (2, 0x80), (3, 0x40)] {
        system.set_priority(0, intid, priority);
        send(&mut system, u64::from(intid));
        assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(intid));
        system.settle();
    }
    for left in [2, 1, 0] {
        system.vcpus[0].cpu.end(left + 1);
        system.settle();
        let active = system.vcpus[0].private.read(super::system::SGI_FRAME + 0x300, 4);
        system.exit(0);
        let after = system.vcpus[0].private.read(super::system::SGI_FRAME + 0x300, 4);
        system.enter(0);
        assert!(active == after || active == after | 1 << (left + 1));
        assert_eq!(after, (2 << left) - 2, "those below are active still");
    }
}

#[test]
fn a_deactivation_that_means_nothing_does_nothing() {
    let mut system = system(2);
    send(&mut system, 5);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(5));
    system.exit(0);
    let vcpu = &mut system.vcpus[0];
    let view = vcpu.cpu.view();
    let before = format!("{:?}", vcpu.private);
    for value in [5, 6, 255, 256, 1023, 8192, 0xff_ffff, u64::MAX] {
        assert_eq!(vcpu.private.deactivate(value, &view).0, 0, "ends deactivate, so ICC_DIR does not");
    }
    vcpu.cpu.splits_eoi = true;
    let view = vcpu.cpu.view();
    for value in [6, 255, 256, 256 + 5, 1023, 8192, 0xff_ffff, u64::MAX] {
        assert_eq!(vcpu.private.deactivate(value, &view).0, 0, "{value}");
    }
    assert_eq!(format!("{:?}", vcpu.private), before);
}

/// Group 0 is open, group 1 is closed, and ten interrupts of it wait for four registers.
fn group1_waits_for_a_closed_switch(confuses_groups: bool) -> System {
    let mut system = system(4);
    system.write(0, 4, 3);
    system.vcpus[0].cpu.confuses_groups = confuses_groups;
    system.vcpus[0].cpu.groups = 1;
    for intid in 40..50 {
        system.write_bit(0, 0x200, intid);
    }
    system.settle();
    system
}

#[test]
fn u4_a_closed_group_asks_for_no_maintenance_of_the_other_ones_switch() {
    for confuses_groups in [false, true] {
        let mut system = group1_waits_for_a_closed_switch(confuses_groups);
        let expected = Maintenance::NO_PENDING | Maintenance::GROUP1_ENABLED;
        assert_eq!(system.vcpus[0].cpu.maintenance, expected);
        // No interrupt is lost: group 0 closes without an exit, and group 1 opens.
        system.vcpus[0].cpu.groups = 2;
        system.settle();
        for _ in 0..10 {
            let intid = system.vcpus[0].cpu.acknowledge().expect("all ten come");
            system.vcpus[0].cpu.end(intid);
            system.settle();
        }
        assert_eq!(system.vcpus[0].cpu.acknowledge(), None);
    }
}

#[test]
fn u4_maintenance_of_which_nothing_comes_is_bounded() {
    let mut system = group1_waits_for_a_closed_switch(false);
    system.vcpus[0].cpu.always_due = true;
    let mut exits = 0;
    while system.vcpus[0].cpu.is_maintenance_due() {
        system.exit(0);
        system.enter(0);
        exits += 1;
        assert!(exits < 20, "without end");
    }
    assert!(exits >= 8, "{exits}");
    // Changes are handled as before.
    system.vcpus[0].cpu.always_due = false;
    system.set_priority(0, 41, 0x20);
    system.exit(0);
    system.vcpus[0].cpu.groups = 3;
    system.enter(0);
    assert!(system.vcpus[0].cpu.maintenance.contains(Maintenance::NO_PENDING));
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(41));
}

#[test]
fn u9_a_linked_interrupt_that_waits_is_told_from_one_that_is_served() {
    let mut system = system(4);
    assert_eq!(system.vcpus[0].private.linked_waiting(), 0);
    system.forward(0, 27);
    system.forward(0, 30);
    assert_eq!(system.with(0, |vcpu| vcpu.private.linked_waiting()), 1 << 27 | 1 << 30);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(27));
    assert_eq!(system.with(0, |vcpu| vcpu.private.linked_waiting()), 1 << 30);
    // The other vCPU's timer has been stopped: it never interrupts.
    system.with(0, |vcpu| {
        vcpu.cpu.physical &= !vcpu.private.withdraw(30).0;
    });
    system.vcpus[0].cpu.end(27);
    assert_eq!(system.vcpus[0].cpu.acknowledge(), None);
    assert_eq!(system.vcpus[0].cpu.physical, 0, "it can come again");
}
