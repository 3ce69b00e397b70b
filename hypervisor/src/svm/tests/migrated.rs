//! A guest is sent and received by the hypervisor's requests, with this processor's states.

use hostlink::guests::GuestState;
use memslots::Gpa;
use paging::Progress;

use super::processor::{MockSvm, board_of};
use crate::devices::pc::platform::PortSize;
use crate::devices::pc::{acpi, power};
use crate::vm::load::Load;
use crate::vm::mock::End;
use crate::vm::tests::migration::{Cut, carry};
use crate::x86::vcpu::block::{ControlBlock, Field};
use crate::x86::vcpu::state::Activity;

#[test]
fn m5_a_guest_of_several_vcpus_is_received_as_it_was_sent() {
    let here = "name=here\nvcpus=3\nmemory=16777216";
    let there = "name=there\nvcpus=3\nmemory=16777216\nstart=manual";
    let board = board_of(2, &[here, there]);
    let seen = carry::<MockSvm>(board, Cut::Never, 2);
    board.ask(4_000_000, "1 guest-send here 0x7 live");
    board.ask(4_000_000, "2 guest-receive there 0x9");
    board.enough(2);
    assert_eq!(board.run(1), End::Quiet, "{:?}, {seen:?}", board.answers());
    let states = [0, 1].map(|number| board.host().state_of(number));
    assert_eq!(states, [GuestState::Empty, GuestState::Running], "{:?}, {seen:?}", board.answers());
    let vm = board.host().first_guest().expect("it is there");
    assert_eq!(vm.number, 1);
    let owner = vm.vcpus[0].target.owner().expect("it halts");
    // SAFETY: the owner was just taken.
    let state = unsafe { vm.vcpus[0].state() };
    assert_eq!(state.activity, Activity::Halted, "one that has just been loaded would run");
    assert_ne!(state.block.read(Field::Rip), 0xfff0);
    assert_eq!(state.block.read(Field::TscOffset), vm.clock.base());
    // What it had there was its own business.
    let id = || {
        let mut id = [0; 16];
        vm.space.slots().memory().read(Gpa(acpi::GENERATION), &mut id).expect("is memory");
        u128::from_le_bytes(id)
    };
    assert_eq!(id(), 9);
    let status = || vm.guest.platform.lock().port_read(power::GENERAL, PortSize::Byte, || 0);
    assert_eq!(status(), 1 << power::GENERATION, "its kernel is told, when it has enabled the event");
    vm.space.slots().memory().write(Gpa(acpi::GENERATION), &[0xff; 16]).expect("is memory");
    vm.reset_devices();
    let mut load = Load::new(vm).expect("it was loaded before");
    while load.step(vm) != Progress::Done {}
    assert_eq!(id(), 0, "memory is zero");
    load.finish(vm, state);
    assert_eq!((id(), status()), (9, 0), "a reset keeps it");
    drop(owner);
}
