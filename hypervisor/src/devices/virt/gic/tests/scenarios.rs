//! Scenarios with whole systems.

use super::system::{SGI_FRAME, System};
use crate::devices::virt::gic::{Bits, Distributor, Inbox, Maintenance, Private, Sgi, SgiGroup};

/// Group 1 on, the SPI enabled in it for vCPU `target`, with the value of GICD_IROUTER.
fn system(vcpu_count: u8, spi: u8, router: u64) -> System {
    let mut system = System::new(vcpu_count, 4);
    system.write(0, 4, 2);
    let (word, bit) = (4 * u32::from(spi / 32), 1 << (spi % 32));
    system.write(0x80 + word, 4, bit);
    system.write(0x100 + word, 4, bit);
    system.write(0x6000 + 8 * u32::from(spi), 8, router);
    system.settle();
    system
}

fn signalled(system: &System) -> Vec<Option<u8>> {
    system.vcpus.iter().map(|vcpu| vcpu.cpu.signalled().map(|(intid, _)| intid)).collect()
}

#[test]
fn an_sgi_of_group_1_is_not_reached_through_group_0() {
    let mut private = Private::new(0, 1);
    let _ = private.write(SGI_FRAME + 0x80, 4, 0b10);
    let inbox = Inbox::default();
    for intid in [1, 2] {
        let sgi = Sgi::new(intid << 24);
        let _ = inbox.post_sgi(sgi, SgiGroup::Group0);
    }
    assert!(!private.look(&inbox));
    assert_eq!(private.read(SGI_FRAME + 0x200, 4), 0b100);
}

#[test]
fn a_pending_spi_moves_with_its_route_and_an_active_one_when_it_ends() {
    let mut system = system(18, 50, 0x101);
    system.set_line(50, true);
    system.settle();
    assert_eq!(system.vcpus[17].cpu.signalled(), Some((50, 0)));
    system.write(0x6000 + 8 * 50, 8, 3);
    system.settle();
    assert_eq!(system.vcpus[17].cpu.signalled(), None);
    assert_eq!(system.vcpus[3].cpu.acknowledge(), Some(50));
    system.write(0x6000 + 8 * 50, 4, 4);
    system.settle();
    assert!(signalled(&system).iter().all(Option::is_none));
    system.vcpus[3].cpu.end(50);
    system.settle();
    assert_eq!(system.vcpus[4].cpu.signalled(), Some((50, 0)));
    system.write(0x6000 + 8 * 50, 8, 0x1_0000_0004);
    system.settle();
    assert!(signalled(&system).iter().all(Option::is_none), "nobody has that affinity");
    assert_eq!((system.read(0x6000 + 8 * 50, 8), system.read(0x6004 + 8 * 50, 4)), (0x1_0000_0004, 1));
    system.write(0x6004 + 8 * 50, 4, 0);
    system.settle();
    assert_eq!(system.vcpus[4].cpu.signalled(), Some((50, 0)));
}

#[test]
fn an_spi_for_any_goes_to_one_that_is_awake() {
    let mut system = system(3, 60, 1 << 31);
    for vcpu in [1, 2] {
        let effect = system.distributor.set_awake(vcpu, true);
        system.perform(effect);
    }
    let mut served = [0; 3];
    for _ in 0..6 {
        system.write_bit(0, 0x200, 60);
        system.settle();
        let takers: Vec<_> = (0..3).filter(|&vcpu| system.vcpus[vcpu].cpu.signalled().is_some()).collect();
        assert_eq!(takers.len(), 1);
        served[takers[0]] += 1;
        assert_eq!(system.vcpus[takers[0]].cpu.acknowledge(), Some(60));
        system.vcpus[takers[0]].cpu.end(60);
        system.settle();
    }
    assert_eq!(served, [0, 3, 3], "in turn");
}

#[test]
fn a_vcpu_that_is_turned_off_leaves_its_spis_to_others() {
    let mut system = system(2, 60, 1 << 31);
    let _ = system.distributor.set_awake(1, true);
    system.set_line(60, true);
    system.settle();
    assert_eq!(signalled(&system), [None, Some(60)]);
    system.exit(1);
    let awake = system.distributor.set_awake(0, true);
    system.perform(awake);
    let asleep = system.distributor.set_awake(1, false);
    system.perform(asleep);
    let vcpu = &mut system.vcpus[1];
    let effect = vcpu.private.release(&mut system.distributor);
    assert_eq!(vcpu.private.held(), Bits::EMPTY);
    system.perform(effect);
    system.exit(0);
    system.enter(0);
    assert_eq!(system.vcpus[0].cpu.signalled(), Some((60, 0)));
}

#[test]
fn state_of_a_held_spi_reads_true_once_its_holder_has_looked() {
    let mut system = system(2, 35, 1);
    system.set_line(35, true);
    system.settle();
    assert_eq!(system.read(0x304, 4), 0);
    assert_eq!(system.vcpus[1].cpu.acknowledge(), Some(35));
    let _ = system.read(0x304, 4);
    system.settle();
    assert_eq!(system.read(0x304, 4), 1 << 3);
    system.set_line(35, false);
    system.vcpus[1].cpu.end(35);
    let _ = system.read(0x384, 4);
    system.settle();
    assert_eq!(system.read(0x304, 4), 0, "who polls for its end sees it");
    assert_eq!(system.read(0x204, 4), 0);
}

#[test]
fn writes_of_state_reach_the_holder_and_the_last_counts() {
    let mut system = system(2, 35, 1);
    system.write(0xc08, 4, 2 << 6);
    system.write(0x204, 4, 1 << 3);
    system.settle();
    assert_eq!(signalled(&system), [None, Some(35)]);
    assert_eq!(system.read(0x284, 4), 1 << 3);
    system.write(0x284, 4, 1 << 3);
    assert_eq!(system.read(0x284, 4), 0, "at once");
    system.settle();
    assert_eq!(signalled(&system), [None, None]);
    system.write(0x204, 4, 1 << 3);
    system.settle();
    for bank in [0x284, 0x204] {
        system.write(bank, 4, 1 << 3);
    }
    system.settle();
    assert_eq!(signalled(&system), [None, Some(35)], "cleared, then set");
    for bank in [0x204, 0x284] {
        system.write(bank, 4, 1 << 3);
    }
    system.settle();
    assert_eq!(signalled(&system), [None, None], "set, then cleared");
    system.write(0x204, 4, 1 << 3);
    system.settle();
    assert_eq!(system.vcpus[1].cpu.acknowledge(), Some(35));
    system.write(0x384, 4, 1 << 3);
    system.write(0x204, 4, 1 << 3);
    system.settle();
    system.vcpus[1].cpu.active_priorities = 0;
    assert_eq!(signalled(&system), [None, Some(35)], "deactivated by the write");
}

#[test]
fn an_activated_spi_waits_for_its_deactivation() {
    let mut system = system(2, 35, 1);
    system.write(0x304, 4, 1 << 3);
    system.set_line(35, true);
    system.settle();
    assert_eq!(signalled(&system), [None, None]);
    assert_eq!(system.read(0x304, 4), 1 << 3);
    system.write(0x384, 4, 1 << 3);
    system.settle();
    assert_eq!(signalled(&system), [None, Some(35)]);
}

#[test]
fn masked_or_closed_interrupts_do_not_end_a_wait() {
    let mut system = system(1, 33, 0);
    system.set_priority(0, 33, 0xa0);
    system.set_line(33, true);
    system.settle();
    let mut wakes = |change: fn(&mut super::cpu::Cpu)| {
        system.exit(0);
        let vcpu = &mut system.vcpus[0];
        (vcpu.cpu.pmr, vcpu.cpu.groups, vcpu.cpu.active_priorities) = (0xf0, 3, 0);
        change(&mut vcpu.cpu);
        let wakes = vcpu.private.can_wake(&vcpu.cpu.view());
        system.enter(0);
        wakes
    };
    assert!(wakes(|_| ()));
    assert!(!wakes(|cpu| cpu.pmr = 0xa0));
    assert!(wakes(|cpu| cpu.pmr = 0xa8));
    assert!(!wakes(|cpu| cpu.groups = 1));
    assert!(!wakes(|cpu| cpu.active_priorities = 1 << (0xa0 >> 3)));
    assert!(wakes(|cpu| cpu.active_priorities = 1 << (0xa8 >> 3)));
}

#[test]
fn an_entry_that_is_called_off_loses_nothing() {
    let mut system = system(1, 33, 0);
    system.write(0xc08, 4, 2 << 2);
    system.write_bit(0, 0x200, 33);
    system.settle();
    for _ in 0..3 {
        system.exit(0);
        let vcpu = &mut system.vcpus[0];
        let view = vcpu.cpu.view();
        assert_eq!(vcpu.private.fill(&mut vcpu.cpu, &view), Maintenance::empty());
        assert_eq!(vcpu.private.sync(&mut vcpu.cpu, 0).0, 0);
        system.enter(0);
    }
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(33));
}

#[test]
fn an_edge_that_comes_again_while_active_goes_where_it_is_routed_by_then() {
    let mut system = system(2, 40, 0);
    system.write(0xc08, 4, 2 << 16);
    system.write_bit(0, 0x200, 40);
    system.settle();
    assert_eq!(system.vcpus[0].cpu.acknowledge(), Some(40));
    system.write_bit(0, 0x200, 40);
    system.settle();
    system.write(0x6000 + 8 * 40, 8, 1);
    system.settle();
    system.vcpus[0].cpu.end(40);
    system.settle();
    assert_eq!(signalled(&system), [None, Some(40)]);
}

#[test]
fn a_real_line_is_looked_at_again_when_its_interrupt_has_ended() {
    let mut distributor = Distributor::new(1, 64);
    distributor.forward([40]);
    let _ = distributor.write(0x0104, 4, 1 << 8 | 1 << 9);
    let _ = distributor.write(0x0084, 4, u64::from(u32::MAX));
    let _ = distributor.write(0, 4, 0x12);
    for spi in [40, 41] {
        assert!(distributor.set_line(spi, true).ended.is_empty());
        assert!(distributor.claim(spi, 0).is_some());
        distributor.give_back(spi, false, true);
        assert!(distributor.offer(Bits::EMPTY).ended.is_empty(), "it is active");
        assert!(distributor.claim(spi, 0).is_some());
        distributor.give_back(spi, false, false);
        let ended = distributor.offer(Bits::EMPTY).ended;
        assert_eq!(ended.iter().collect::<Vec<_>>(), if spi == 40 { vec![40] } else { vec![] });
    }
    assert!(distributor.claim(40, 0).is_none(), "its line is low");
    assert!(distributor.claim(41, 0).is_some(), "its device has not said that it is low");
}
