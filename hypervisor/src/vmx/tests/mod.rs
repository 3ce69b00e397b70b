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

use processor::{INVALIDATED, Invalidated, with_guest};

use super::processor::Invvpid;

#[test]
fn a_flush_that_the_tag_owes_is_two_instructions() {
    with_guest(&[], |guest| {
        assert!(guest.enter(|_, _| {}));
        INVALIDATED.take();
        guest.0.state.own.owe_flush();
        assert!(guest.enter(|_, _| {}));
        let (vpid, root) = (guest.vmcs().vpid(), guest.vmcs().nested_root());
        assert_eq!(INVALIDATED.take(), [Invalidated::Guests(Invvpid::Vpid(vpid)), Invalidated::Nested(root)]);
        assert!(guest.enter(|_, _| {}));
        assert_eq!(INVALIDATED.take(), [], "it owes nothing any more");
    });
}
