//! vCPUs of different guests, with different settings, take turns on a processor. One after the
//! other each of the registers and fields that an entry relies on is another one's: the auditor
//! finds each (U61).

use alloc::string::String;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::moved::off;
use super::processor::{Guest, MockSvm, Processor, board_of, processor, with_guest};
use crate::sched::{Turn, VcpuIndex};
use crate::svm::vmcb::{EFER_SVME, Vmcb, clean};
use crate::vm::arch::State;
use crate::vm::mock::MockBoard as Board;
use crate::x86::vcpu::block::ControlBlock;

const GUESTS: [&str; 2] = ["name=one\nmemory=16777216\nvcpus=1", "name=other\nmemory=16777216\nvcpus=1"];

/// Both guests on a new processor.
fn new_board() -> &'static Board<MockSvm> {
    processor(|processor| *processor = Processor::new());
    board_of(1, &GUESTS)
}

fn turn(board: &'static Board<MockSvm>, number: u32, act: impl FnOnce(&mut Guest<'_, '_>)) {
    let row: VcpuIndex = board.host().next_guest(number).expect("it starts with the machine").vcpus[0].row;
    let turn = Turn { vcpu: row, migrated: true, waited: 0 };
    board.with_turn(turn, |context| act(&mut Guest(context)));
}

/// Each guest leaves other values in the processor. The second one uses breakpoints.
fn live(guest: &mut Guest<'_, '_>, number: u64) {
    guest.begin(&[]);
    assert!(guest.enter(move |_, _| {
        processor(|processor| {
            processor.xcr0 = 3 + 4 * number;
            processor.tsc_aux = 0x100 + number;
            processor.xmm = [number + 1; tlfs::XMM_WORDS];
        });
    }));
    if number == 1 {
        guest.0.state.load_debug_registers::<MockSvm>();
        assert!(guest.enter(|vmcb, _| {
            vmcb.dr7 |= 1;
            processor(|processor| processor.breakpoints = [7, 8, 9, 10]);
        }));
    }
}

/// Both vCPUs run in turn, and before the last entry of one of them `spoil` is called. Returns the
/// finding.
fn find(number: u32, spoil: impl FnOnce(&mut Processor, &mut Vmcb)) -> Option<String> {
    let board = new_board();
    turn(board, 0, |guest| live(guest, 0));
    turn(board, 1, |guest| live(guest, 1));
    turn(board, 1 - number, |guest| assert!(guest.enter(|_, _| {})));
    let last = AssertUnwindSafe(|| {
        turn(board, number, |guest| {
            let vmcb = guest.vmcb();
            processor(|processor| spoil(processor, vmcb));
            vmcb.mark_dirty(clean::ALL);
            assert!(guest.enter(|_, _| {}));
        });
    });
    let finding = catch_unwind(last).err()?;
    Some(finding.downcast_ref::<String>().expect("a formatted message").clone())
}

/// A vCPU that had breakpoints once, and whose are not loaded any more, does not take another
/// one's.
#[test]
fn u61_breakpoints_that_are_not_loaded_are_not_saved() {
    let board = new_board();
    turn(board, 0, |guest| {
        guest.begin(&[]);
        guest.0.state.load_debug_registers::<MockSvm>();
        assert!(guest.enter(|_, _| processor(|processor| processor.breakpoints = [1, 2, 3, 4])));
    });
    turn(board, 1, |guest| live(guest, 1));
    turn(board, 0, |guest| assert!(guest.enter(|_, _| {}), "without an access to them"));
    turn(board, 0, |guest| {
        guest.0.state.load_debug_registers::<MockSvm>();
        assert_eq!(processor(|processor| processor.breakpoints), [1, 2, 3, 4]);
    });
}

/// What a vCPU has after a reset or INIT is its own.
#[test]
fn u61_a_vcpu_begins_with_its_own() {
    type Begin = fn(&mut Guest<'_, '_>);
    let begins: [Begin; 2] =
        [|guest| guest.0.state.reset(&guest.0.vcpu.inbox), |guest| guest.0.state.set_init_state()];
    for begin in begins {
        let board = new_board();
        turn(board, 0, |guest| live(guest, 0));
        turn(board, 1, |guest| live(guest, 1));
        turn(board, 1, |guest| {
            off(guest, begin);
            guest.begin(&[]);
            guest.0.state.load_debug_registers::<MockSvm>();
            assert!(guest.enter(|_, _| {}));
        });
    }
}

#[test]
#[should_panic(expected = "audit: a flush was taken, and nothing is dropped")]
fn u61_a_flush_that_is_taken_is_owed() {
    with_guest(&[], |guest| {
        assert!(guest.enter(|_, _| {}));
        Vmcb::note_flush(&mut guest.0.state.own);
        guest.enter(|_, _| {});
    });
}

#[test]
fn u61_what_is_another_vcpus_is_found() {
    type Spoil = fn(&mut Processor, &mut Vmcb);
    let rows: [(&str, Spoil); 11] = [
        ("XCR0", |processor, _| processor.xcr0 = 1),
        ("TSC_AUX", |processor, _| processor.tsc_aux ^= 1),
        ("XMM", |processor, _| processor.xmm[5] ^= 1),
        ("DR", |processor, _| processor.breakpoints[3] ^= 1),
        ("intercepts of debug registers", |_, vmcb| vmcb.intercept_dr = 0xf),
        ("intercepts of control registers", |_, vmcb| vmcb.intercept_cr = 0),
        ("IOPM_BASE_PA", |_, vmcb| vmcb.iopm_base += 0x1000),
        ("MSRPM_BASE_PA", |_, vmcb| vmcb.msrpm_base += 0x1000),
        ("N_CR3", |_, vmcb| vmcb.nested_cr3 += 0x1000),
        ("NP_ENABLE", |_, vmcb| vmcb.nested_control = 0),
        ("EFER.SVME", |_, vmcb| vmcb.efer &= !EFER_SVME),
    ];
    for (name, spoil) in rows {
        let found = find(1, spoil).unwrap_or_default();
        assert!(found.starts_with(&alloc::format!("audit: {name}")), "{name}: {found}");
    }
}
