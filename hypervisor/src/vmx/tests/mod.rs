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
#[path = "../../x86/tests/exits.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod exits;
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

use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use mock::{Stay, page};
use processor::{DATA, Guest, INVALIDATED, Invalidated, MockVmx, with_guest, written};

use super::fields;
use super::intercepts::permission_maps;
use crate::vm::Next;
use crate::vm::arch::Arch;
use crate::x86::vcpu::block::ControlBlock;
use memslots::{DirtyLog, Gpa};
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

/// SDM volume 3, 25.6.4 and 25.6.9: a bit for each port, and one for reads of each MSR, then one
/// for writes.
#[test]
fn all_ports_exit_and_all_msrs_but_those_that_pass() {
    let [ports, msrs] = permission_maps::<MockVmx>().map(|pages| {
        let words = pages.words().iter().map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        words.flatten().collect::<Vec<u8>>()
    });
    assert_eq!(ports, [0xff; 2 * 4096]);
    let open = |map: usize| -> Vec<u32> {
        let exits = |at: usize, index: u32| msrs[at + index as usize / 8] >> (index % 8) & 1 != 0;
        let of = |base: u32, at: usize| {
            (0..0x2000).filter(move |&index| !exits(at, index)).map(move |index| base + index)
        };
        of(0, map).chain(of(0xc000_0000, map + 0x400)).collect()
    };
    const SYSENTER: [u32; 3] = [0x174, 0x175, 0x176];
    // STAR, LSTAR, CSTAR, SFMASK, the bases of FS and GS, the other one of GS, TSC_AUX. The guest
    // has instructions for the bases.
    const SYSCALL: [u32; 8] = [
        0xc000_0081, 0xc000_0082, 0xc000_0083, 0xc000_0084, 0xc000_0100, 0xc000_0101, 0xc000_0102,
        0xc000_0103,
    ];
    let reads = [&SYSENTER[..], &SYSCALL].concat();
    let writes = [&SYSENTER[..], &SYSCALL[7..]].concat();
    assert_eq!((open(0), open(0x800)), (reads.clone(), writes.clone()));
    // TPR, PPR, ISR and IRR of the local APIC; TPR, EOI and SELF_IPI.
    let apic: Vec<u32> = [0x808, 0x80a].into_iter().chain(0x810..0x818).chain(0x820..0x828).collect();
    assert_eq!(open(0x1000), [&SYSENTER[..], &apic, &SYSCALL].concat());
    assert_eq!(open(0x1800), [&SYSENTER[..], &[0x808, 0x80b, 0x83f], &SYSCALL[7..]].concat());
}

/// A field is written where its value is another one: a VMWRITE takes time at each entry.
#[test]
fn an_entry_writes_what_has_changed_and_nothing_else() {
    with_guest(&[], |guest| {
        let writes = |guest: &mut Guest<'_, '_>| {
            assert!(guest.enter(|_, _| {}));
            mock::mock(|mock| core::mem::take(&mut mock.writes))
        };
        let first = writes(guest);
        assert!(first.contains(&fields::VPID.raw()));
        assert_eq!(u64::from(guest.vmcs().vpid()), written(fields::VPID.raw()));
        assert_ne!(guest.vmcs().vpid(), 0, "that is the host's");
        assert_eq!(writes(guest), [0; 0], "nothing has changed");
        guest.vmcs().intercept_pause(true);
        assert_eq!(writes(guest), [fields::SECONDARY_CONTROLS.raw()]);
    });
}
