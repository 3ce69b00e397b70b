//! Exits, entries and events, on a [mock processor](processor) with VMX. What is the same on SVM
//! has the same tests.

mod apic;
mod block;
mod control;
#[path = "../../x86/tests/cpuid.rs"]
#[expect(clippy::duplicate_mod, reason = "the same tests for both kinds of processors")]
mod cpuid;
mod delivery;
mod events;
#[path = "../../x86/tests/memory.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod memory;
pub(super) mod mock;
#[path = "../../x86/tests/moved.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
pub(crate) mod moved;
#[path = "../../x86/tests/ports.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod ports;
pub(crate) mod processor;
mod random;
mod refusal;
#[path = "../../x86/tests/registers.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod registers;
#[path = "../../x86/tests/reset.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod reset;
mod rows;
mod said;

use alloc::format;
use core::sync::atomic::{AtomicU64, Ordering};
use mock::{Stay, page};
use processor::{DATA, Guest, INVALIDATED, Invalidated, MockVmx, with_guest, with_guest_of, written};

use super::fields;
use crate::vm::Next;
use crate::vm::arch::Arch;
use crate::vm::mock::largest::use_all_twice;
use memslots::{DirtyLog, Gpa, SLOTS_MAX};
use paging::Tables;
use stay::tagged::two_flushes::{Invept, Invvpid};

#[test]
fn u7_the_largest_use_of_tables_fits_twice() {
    for switches in ["", "\nzap=everything"] {
        let config = format!("vcpus=2\nmemory=16777216\nnested_page=4K{switches}").leak();
        assert_eq!(with_guest_of(config, |guest| use_all_twice(guest.0.vm)), SLOTS_MAX, "{switches}");
    }
}

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

#[test]
fn i7_what_a_processor_lists_is_in_the_log_before_its_stay_is_over() {
    with_guest(&[], |guest| {
        const FULL: u64 = 0xffff;
        let vm = guest.0.vm;
        let slot = vm.space.slots().memory().find(Gpa(DATA)).expect("is memory");
        let lists = |entry: usize, gpa: u64, index: u64| {
            move |stay: &mut Stay, _: &mut _| {
                page(stay.read(fields::LIST))[entry].store(gpa, Ordering::Relaxed);
                stay.write(fields::LIST_INDEX, index);
            }
        };
        let is_marked = |gpa| vm.space.slots().memory().is_marked(Gpa(gpa));
        assert!(guest.enter(lists(511, DATA, 510)));
        assert!(!vm.space.has_lists() && !is_marked(DATA), "no log needs it");
        let words = Vec::leak((0..DirtyLog::words_for(slot.size)).map(|_| AtomicU64::new(0)).collect());
        // SAFETY: the words live forever.
        let job = unsafe { vm.space.start_log(slot.id, DirtyLog::new(words), MockVmx::log_way()) };
        drop(job.expect("there is no log"));
        assert!(guest.enter(lists(511, DATA, 510)) && is_marked(DATA));
        assert!(guest.enter(lists(511, DATA, 511)));
        assert_eq!(written(fields::LIST_INDEX.raw()), 511, "it begins anew");
        assert!(guest.enter(lists(0, DATA + 0x1000, FULL)) && is_marked(DATA + 0x1000));
        assert_eq!(guest.leave(62, 0, 0), Next::Resume);
    });
}
