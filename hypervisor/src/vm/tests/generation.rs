//! A guest's generation id, from its beginning to its end.

use super::migration::{Cut, carry};
use crate::vm::generation::of_start;
use crate::vm::mock::processor::Op::*;
use crate::vm::mock::processor::{OFF, Op, create_several};

/// One that has a bit which is the same in all of them is easier to guess.
#[test]
fn each_bit_of_an_id_is_drawn() {
    let host = create_several(1, 16 << 20, &[(HERE, &[])]).host();
    let ids: Vec<u128> = (0..64).map(|identity| of_start(host, identity)).collect();
    assert_eq!((ids.iter().fold(0, |any, id| any | id), ids.iter().fold(!0, |all, id| all & id)), (!0, 0));
}

const HERE: &str = "name=here\nvcpus=2\nmemory=4194304";
const THERE: &str = "name=there\nvcpus=2\nmemory=4194304\nstart=manual";

#[test]
fn m11_a_guest_that_arrives_gets_another_id_and_a_reset_keeps_it() {
    let board = {
        let resets: &[&[Op]] = &[&[Start(1), Sleep(8_000_000), ResetBelow(2), Done], &[Done]];
        create_several(2, 64 << 20, &[(HERE, resets), (THERE, resets)])
    };
    let begun = *board.host().first_guest().expect("it is there").generation.lock();
    let _seen = carry(board, Cut::Never, 1);
    board.ask(4_000_000, "1 guest-send here 0x7 live");
    board.ask(4_000_000, "2 guest-receive there 0x1234");
    board.ask(4_000_000, "3 guest-create here");
    assert_eq!(board.run(1), OFF, "{:?}", board.answers());
    let vm = board.host().guest(1).expect("it has ended, and is there");
    assert_eq!(*vm.guest.shown.lock().unwrap(), [(0x1234, true), (0x1234, false), (0x1234, false)]);
    let again = *board.host().guest(0).expect("was created again").generation.lock();
    assert!(begun != again && ![begun, again].contains(&0x1234), "{begun:x} {again:x}");
}
