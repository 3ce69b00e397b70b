//! Messages for several vCPUs, and vectors that are rare.

use ::iommu::DeviceId;
use std::sync::{Arc, Mutex};

use super::interrupts::{ONE, TABLE, enable};
use super::{board_of, with_owned};
use crate::iommu::mock::{Arrived, Machine, NVME};
use crate::iommu::routes::{FUNCTIONS, Receiver};
use crate::iommu::tests::routes::MockReceiver as Other;
use crate::sched::{CpuIndex, Turn, VcpuIndex};
use crate::svm::tests::processor::Guest;

const MANY: &str = "vcpus=8\nmemory=16777216\ndevices=nvme";
/// Addresses of messages: to everybody, and to the members of a logical destination.
const ALL: u32 = 0xfeef_f000;
const MEMBERS: u32 = 0xfee0_0004;

/// Everything that was posted, by vCPU.
fn all(guest: &Guest<'_, '_>) -> Vec<Vec<u8>> {
    (0..8).map(|vcpu| guest.arrived(vcpu)).collect()
}

/// Who has got one interrupt.
fn who(guest: &Guest<'_, '_>) -> Vec<usize> {
    let all = all(guest);
    (0..8).filter(|&vcpu| !all[vcpu].is_empty()).collect()
}

/// The guest enables its function; the first message goes to this address.
fn enable_at(guest: &mut Guest<'_, '_>, address: u32) {
    enable(guest, &[]);
    guest.write_entry(TABLE, 0, address, 0x41);
    guest.set_mask(TABLE, 0, false);
}

/// The members of a logical destination: vCPU 0 moves to this address.
fn move_to(guest: &mut Guest<'_, '_>, members: u32) {
    guest.store(0xfee0_00d0, 4, members << 24);
}

#[test]
fn u42_a_message_for_all_vcpus_is_delivered_in_a_turn_of_the_guests() {
    with_owned(MANY, |machine, guest| {
        enable_at(guest, ALL);
        for _ in 0..3 {
            assert!(matches!(machine.raise(NVME, 0), Arrived::At(..)));
            assert!(who(guest).is_empty(), "not in the interrupt");
            assert!(guest.0.vm.vcpus[0].target.has_event() || guest.0.owner.take_events(), "it is told");
            guest.0.vm.spread_messages();
            assert_eq!(all(guest), vec![vec![0x41]; 8]);
            guest.0.vm.spread_messages();
            assert!(who(guest).is_empty(), "once");
        }
    });
}

#[test]
fn u42_a_message_that_is_masked_meanwhile_comes_when_it_is_unmasked() {
    with_owned(MANY, |machine, guest| {
        enable_at(guest, ALL);
        machine.raise(NVME, 0);
        guest.set_mask(TABLE, 0, true);
        guest.0.vm.spread_messages();
        assert!(who(guest).is_empty());
        guest.set_mask(TABLE, 0, false);
        assert_eq!(all(guest), vec![vec![0x41]; 8]);
        machine.raise(NVME, 0);
        guest.reset();
        guest.0.vm.spread_messages();
        assert!(who(guest).is_empty(), "a reset loses it");
    });
}

#[test]
fn u42_a_logical_destination_of_one_vcpu_is_direct_until_an_address_changes() {
    with_owned(MANY, |machine, guest| {
        move_to(guest, 0b10);
        enable_at(guest, MEMBERS | 0b10 << 12);
        machine.raise(NVME, 0);
        assert!(who(guest).is_empty(), "nobody knows whose it is");
        guest.0.vm.spread_messages();
        assert_eq!(who(guest), [0]);
        for _ in 0..2 {
            machine.raise(NVME, 0);
            assert_eq!(who(guest), [0], "in the interrupt");
        }
        move_to(guest, 0b100);
        machine.raise(NVME, 0);
        assert!(who(guest).is_empty(), "it is elsewhere");
        guest.0.vm.spread_messages();
        assert!(who(guest).is_empty());
        move_to(guest, 0b110);
        machine.raise(NVME, 0);
        guest.0.vm.spread_messages();
        assert_eq!(who(guest), [0]);
    });
}

#[test]
fn u42_interrupts_go_to_cpus_of_the_guests_set() {
    let machine = Machine::new();
    let configs = [
        "name=a\nvcpus=1\nmemory=8388608\ncpus=1\ndevices=nvme",
        "name=b\nvcpus=1\nmemory=8388608\ncpus=2-9\ndevices=00:05.0",
    ];
    let board = board_of(machine, 4, &configs);
    board.with_turn(Turn { vcpu: VcpuIndex(0), migrated: false, waited: 0 }, |context| {
        let mut guest = Guest(context);
        guest.begin(&[]);
        let messages: Vec<_> = (0..5).map(|number| (number, 0x41)).collect();
        enable(&mut guest, &messages);
        for number in 0..5 {
            assert!(matches!(machine.raise(NVME, number), Arrived::At(1, _)), "the only one");
        }
    });
    for (vcpu, cpus) in [(0, vec![1]), (1, vec![2, 3])] {
        board.with_turn(Turn { vcpu: VcpuIndex(vcpu), migrated: false, waited: 0 }, |context| {
            let may = (0..9).filter(|&cpu| context.vm.destination(CpuIndex(cpu)).is_some());
            assert_eq!(may.collect::<Vec<_>>(), cpus);
        });
    }
}

#[test]
fn vectors_are_not_free_before_the_iommu_has_forgotten_them() {
    with_owned(ONE, |machine, guest| {
        enable(guest, &[(0, 0x41)]);
        let Arrived::At(cpu, vector) = machine.raise(NVME, 0) else { panic!("it is sent") };
        let was_known = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&was_known);
        machine.iommu.watch(move |command| {
            if command[0] >> 60 == 5 {
                seen.lock().unwrap().push(machine.devices.routes.deliver(CpuIndex(cpu.into()), vector));
            }
        });
        guest.arrived(1);
        guest.reset();
        assert_eq!(*was_known.lock().unwrap(), [true], "somebody else could have had it");
        assert!(!machine.devices.routes.deliver(CpuIndex(cpu.into()), vector));
        enable(guest, &[(0, 0x41)]);
        guest.arrived(1);
        // It does not answer any more.
        machine.iommu.hold();
        guest.reset();
        machine.arrive(cpu, vector);
        guest.0.vm.spread_messages();
        assert_eq!(guest.arrived(1), [], "nobody gets what still comes");
    });
}

#[test]
fn u41_messages_without_vectors_of_their_own_come_by_one_of_the_functions() {
    with_owned(ONE, |machine, guest| {
        // Others have all vectors but two.
        let other = Other::on(1);
        let count = FUNCTIONS.len() as u16 - 2;
        let take = |id| machine.devices.routes.take(other, DeviceId(0x1000 + id), 0);
        assert!((0..count).all(|id| take(id).is_some()));
        enable(guest, &[(0, 0x41), (1, 0x42), (2, 0x43), (3, 0x44)]);
        let mut vectors = vec![];
        for number in 0..4 {
            let Arrived::At(_, vector) = machine.raise(NVME, number) else { panic!("{number}") };
            vectors.push(vector);
            guest.0.vm.spread_messages();
            assert!(guest.arrived(1).contains(&(0x41 + number as u8)), "{number}");
        }
        assert_eq!(vectors.iter().filter(|&vector| *vector == vectors[0]).count(), 3, "{vectors:x?}");
    });
}
