//! A guest is sent and received by the hypervisor's requests, with this processor's states.

use hostlink::guests::GuestState;

use super::processor::{MockSvm, board_of};
use crate::vm::mock::End;
use crate::vm::tests::moving::{Cut, carry};
use crate::x86::vcpu::block::{ControlBlock, Field};
use crate::x86::vcpu::state::Activity;

#[test]
fn m5_a_guest_of_several_vcpus_is_received_as_it_was_sent() {
    let here = "name=here\nvcpus=3\nmemory=16777216";
    let there = "name=there\nvcpus=3\nmemory=16777216\nstart=manual";
    let board = board_of(2, &[here, there]).unwrap_or_else(|why| panic!("{why}"));
    let seen = carry::<MockSvm>(board, Cut::Never, 2);
    board.ask(4_000_000, "1 guest-send here 0x7 live");
    board.ask(4_000_000, "2 guest-receive there");
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
    drop(owner);
}
