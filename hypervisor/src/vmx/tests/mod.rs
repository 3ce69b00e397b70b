//! Exits, entries and events, on a [mock processor](processor) with VMX. What is the same on SVM
//! has the same tests.

mod control;
#[path = "../../svm/tests/cpuid.rs"]
#[expect(clippy::duplicate_mod, reason = "the same tests for both kinds of processors")]
mod cpuid;
mod events;
#[path = "../../svm/tests/memory.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod memory;
#[path = "../../svm/tests/ports.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod ports;
mod processor;
mod random;
mod refusal;
#[path = "../../svm/tests/registers.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod registers;
mod rows;

use processor::{Guest, INVALIDATED, Invalidated, MockVmx, with_guest};

use crate::vm::arch::Arch;
use paging::Tables;
use stay::tagged::two_flushes::{Invept, Invvpid};

#[test]
fn a_flush_of_the_tag_and_one_of_nested_tables_are_an_instruction_each() {
    with_guest(&[], |guest| {
        let enter = |guest: &mut Guest<'_, '_>| {
            assert!(guest.enter(|_, _| {}));
            INVALIDATED.take()
        };
        enter(guest);
        guest.0.state.own.owe_flush();
        let vpid = guest.vmcs().vpid();
        assert_eq!(enter(guest), [Invalidated::Guests(Invvpid::Vpid(vpid))]);
        assert_eq!(enter(guest), [], "it owes nothing any more");
        let root = guest.0.vm.space.root().0;
        guest.vmcs().nested_debt.set(true);
        assert_eq!(enter(guest), [], "nothing was changed");
        let editor = guest.0.vm.space.tables().edit().expect("nobody else does");
        let _gather = editor.zap(0..1 << 30, Tables::Keep).into_gather();
        guest.vmcs().nested_debt.set(true);
        assert_eq!(enter(guest), [Invalidated::Nested(Invept::Root(root))]);
        assert!(MockVmx::holds_space(guest.0.vm, guest.0.cpu), "it is free for nobody yet");
    });
}
