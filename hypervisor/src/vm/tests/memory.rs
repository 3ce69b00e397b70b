//! Changes of guest memory while vCPUs use it.

use core::sync::atomic::Ordering;

use super::Op::*;
use super::*;
use crate::page_pool::PagePool;
use crate::vm::mock::largest::use_all_twice;
use crate::vm::mock::processor::{DEVICE, MockArch, OFF, board, counted, create_several};
use crate::vm::mock::{End, MockBoard};
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;
use memslots::{Gpa, SLOTS_MAX};

const ADDED: u64 = 1 << 30;
const SIZE: u64 = 2 << 20;

/// With `paranoid` each change ends with a look at all translations.
fn audits(board: &'static MockBoard<MockArch>) -> u64 {
    board.machine().audits.load(Ordering::Relaxed)
}

/// All vCPUs use memory that is added and removed. Every translation must be dropped from the TLBs
/// before the memory is reused; each access through a TLB entry checks this.
#[test]
fn memory_that_is_given_back_is_in_no_tlb() {
    let touch = |vcpu: u64| {
        [
            Try(ADDED + vcpu * 0x1000),
            StoreTry(ADDED + 0x10_0000 + vcpu * 8),
            Sleep(40_000 + 7000 * vcpu),
            Work(10_000),
        ]
    };
    let starts = [Start(1), Start(2), Start(3)];
    let mut programs: Vec<Vec<Op>> =
        (0..4).map(|vcpu| [&touch(vcpu)[..], &[Back(0, 700), Done]].concat()).collect();
    programs[0] = [&starts[..], &touch(0), &[Back(3, 700), Done]].concat();
    let programs: Vec<&[Op]> = programs.iter().map(Vec::as_slice).collect();
    for (cpus, config) in [
        (1, "vcpus=4\nmemory=4194304"),
        (3, "vcpus=4\nmemory=4194304"),
        (3, "vcpus=4\nmemory=4194304\nboot_cpu=serve\nparanoid=on"),
        (2, "vcpus=4\nmemory=4194304\nzap=everything\nparanoid=on"),
        (2, "vcpus=4\nmemory=4194304\nnested_page=4K\nparanoid=on"),
    ] {
        for seed in 0..4 {
            let board = board(cpus, config, &programs);
            for round in 0..4 {
                let time = 2000 + round * 8_000_000;
                board.ask(time, &format!("{} add {ADDED:#x} {SIZE:#x} rw", 2 * round + 1));
                board.ask(time + 4_000_000, &format!("{} delete 2", 2 * round + 2));
            }
            assert_eq!(board.run(seed), OFF, "{config:?}, seed {seed}");
            let answers = board.answers();
            for number in 1..=8 {
                assert!(answers.contains(&format!("{number} ok")), "{config:?}, seed {seed}: {answers:#?}");
            }
            assert!(counted(board, Counter::FlushTaken) > 0);
            let found = board.machine().guest.cleaned.load(Ordering::Relaxed);
            assert_eq!(found, 2 * 4 * SIZE, "each time it was cleared, and given back");
            assert_eq!(audits(board), if config.contains("paranoid") { 8 } else { 0 });
        }
    }
}

#[test]
fn a_flush_that_a_cpu_does_not_do_its_part_of_ends_the_guest() {
    let programs: &[&[Op]] = &[&[Start(1), Sleep(1000), Sleep(90_000_000)], &[Try(ADDED), SpinFor(9)]];
    let board = board(2, "vcpus=2\nmemory=4194304\nboot_cpu=serve", programs);
    board.machine().guest.stalls.store(true, Ordering::Relaxed);
    board.ask(2000, &format!("1 add {ADDED:#x} {SIZE:#x} rw"));
    board.ask(4_000_000, "2 delete 2");
    // The second vCPU is in guest mode, and the flush gives up waiting for it.
    assert_eq!(board.run(5), End::Exit(ExitCode::GuestStalled));
    let found = board.machine().guest.cleaned.load(Ordering::Relaxed);
    assert_eq!(found, SIZE, "it was cleared, and not given back");
}

#[test]
fn where_there_is_no_memory_is_remembered_until_the_slots_change() {
    let program: &[Op] = &[
        Try(ADDED),
        Try(ADDED),
        Try(ADDED),
        Try(DEVICE),
        Sleep(5_000_000),
        StoreTry(ADDED),
        Load(ADDED, 1),
        Done,
    ];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.ask(1_000_000, &format!("1 add {ADDED:#x} {SIZE:#x} rw"));
    assert_eq!(board.run(1), OFF);
    assert_eq!(counted(board, Counter::MmioCached), 2);
    assert_eq!(counted(board, Counter::MmioSearched) + counted(board, Counter::MmioMarked), 2);
}

#[test]
fn memory_that_is_added_is_zero_whatever_was_there_before() {
    let program: &[Op] = &[
        Sleep(2_000_000),
        Load(ADDED, 0),
        Load(ADDED + SIZE - 8, 0),
        Store(ADDED, 3),
        Store(ADDED + SIZE - 8, 4),
        Sleep(10_000_000),
        Load(ADDED, 0),
        Load(ADDED + SIZE - 8, 0),
        Done,
    ];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.ask(2000, &format!("1 add {ADDED:#x} {SIZE:#x} rw"));
    board.ask(4_000_000, "2 delete 2");
    board.ask(6_000_000, &format!("3 add {ADDED:#x} {SIZE:#x} rw"));
    assert_eq!(board.run(1), OFF);
}

/// A guest that is alone has tables for all memory that there is.
#[test]
fn memory_that_is_added_comes_with_the_tables_for_it() {
    const MUCH: u64 = 8 << 20;
    let programs: &[&[Op]] = &[&[Sleep(20_000_000), Done]];
    let guests = [
        ("name=first\nvcpus=1\nmemory=4194304", programs),
        ("name=second\nvcpus=1\nmemory=4194304", programs),
    ];
    let board = create_several(1, 64 << 20, &guests);
    let tables = || board.host().next_guest(0).expect("it is there").tables.pages().1;
    let before = tables();
    board.ask(2000, &format!("1 @first add {ADDED:#x} {MUCH:#x} rw"));
    assert_eq!(board.run(1), OFF);
    assert_eq!(tables(), before + PagePool::needed_inside(MUCH), "{:?}", board.answers());
}

#[test]
fn a_guest_gets_the_largest_piece_of_memory_and_no_page_more() {
    for more in [0, 0x1000] {
        let board = board(1, "vcpus=1\nmemory=4194304", &[&[Sleep(20_000_000), Done]]);
        let largest = board.host().free.lock().largest();
        board.ask(2000, &format!("1 add {ADDED:#x} {:#x} rw", largest + more));
        assert_eq!(board.run(1), OFF);
        let is_added = board.answers().contains(&"1 ok".to_owned());
        assert_eq!(is_added, more == 0, "{:?}", board.answers());
    }
}

#[test]
fn the_result_of_a_log_is_lent_to_one_at_a_time() {
    let vm = board(1, "vcpus=1\nmemory=4194304", &[&[Done]]).machine();
    let slot = vm.space.slots().memory().find(Gpa(0)).expect("is memory");
    let mut memory = vm.memory_of_slots.lock();
    let _log = memory.make_log(&slot);
    for _ in 0..2 {
        assert!(memory.take_result(slot.id).is_some());
        assert!(memory.take_result(slot.id).is_none(), "it is on loan");
        memory.put_result(slot.id);
    }
    memory.retire_log(slot.id);
    assert!(memory.take_result(slot.id).is_none());
}

#[test]
fn stores_to_memory_that_is_read_only_are_dropped() {
    let program: &[Op] = &[Sleep(2_000_000), Load(ADDED, 0), StoreTry(ADDED), Load(ADDED, 0), Done];
    let board = board(1, "vcpus=1\nmemory=4194304", &[program]);
    board.ask(2000, &format!("1 add {ADDED:#x} {SIZE:#x} ro"));
    assert_eq!(board.run(1), OFF);
}

const MOVED: u64 = ADDED + (1 << 28);

#[test]
fn a_change_that_an_access_has_caused_is_over_before_the_vcpu_goes_on() {
    let first: &[Op] = &[
        Start(1),
        Start(2),
        Sleep(4_000_000),
        Store(ADDED, 5),
        Move(MOVED),
        Gone(ADDED),
        Load(MOVED, 5),
        Move(ADDED),
        Gone(MOVED),
        Load(ADDED, 5),
        Back(4, 200),
        Done,
    ];
    let other: &[Op] = &[Try(ADDED), Try(MOVED), Work(10_000), Back(0, 500), Done];
    for (cpus, config) in [
        (1, "vcpus=3\nmemory=4194304"),
        (3, "vcpus=3\nmemory=4194304"),
        (2, "vcpus=3\nmemory=4194304\nboot_cpu=serve\nparanoid=on"),
        (2, "vcpus=3\nmemory=4194304\nzap=everything\nnested_page=4K"),
    ] {
        for seed in 0..4 {
            let board = board(cpus, config, &[first, other, other]);
            board.ask(2000, &format!("0 add {ADDED:#x} {SIZE:#x} rw"));
            (1..50).for_each(|number| board.ask(4_000_000 + number * 60_000, &format!("{number} vms")));
            assert_eq!(board.run(seed), OFF, "{config:?}, seed {seed}");
            assert_eq!(counted(board, Counter::SlotChanges), 400, "{config:?}, seed {seed}");
            assert!(counted(board, Counter::ZapFlushes) >= 400);
            // The request's change, too.
            assert_eq!(audits(board), if config.contains("paranoid") { 400 + 1 } else { 0 });
            let answers = board.answers();
            assert!(answers.contains(&"49 ok".to_owned()), "{config:?}, seed {seed}: {answers:#?}");
        }
    }
}

#[test]
fn a_change_that_is_under_way_is_finished_by_a_reset() {
    let first: &[Op] = &[SkipAfterReset, Sleep(4_000_000), Start(1), Work(50_000), ResetBelow(5), PowerOff];
    let second: &[Op] = &[Move(MOVED), Move(ADDED), Back(0, 100_000)];
    let mut taken_over = 0;
    for cpus in 1..=2 {
        for seed in 0..20 {
            let board = board(cpus, "vcpus=2\nmemory=4194304\nparanoid=on", &[first, second]);
            board.ask(2000, &format!("1 add {ADDED:#x} {SIZE:#x} rw"));
            assert_eq!(board.run(seed), OFF, "{cpus} CPUs, seed {seed}");
            assert_eq!(counted(board, Counter::Resets), 5);
            taken_over += board.machine().guest.taken_over.load(Ordering::Relaxed);
        }
    }
    assert!(taken_over > 0, "no reset has met a change");
}

#[test]
fn u7_the_largest_use_of_tables_fits_twice() {
    for zap in ["", "\nzap=everything"] {
        for pages in ["", "\nnested_page=4K"] {
            let config = format!("vcpus=1\nmemory=4194304{pages}{zap}").leak();
            assert_eq!(use_all_twice(board(1, config, &[&[Done]]).machine()), SLOTS_MAX, "{config}");
        }
    }
}

#[test]
fn u62_pages_and_removals_are_as_the_guests_switches_say() {
    let program: &[Op] = &[
        Sleep(4_000_000),
        Load(0x1000, 0),
        Load(0x2000, 0),
        Store(ADDED, 5),
        Move(MOVED),
        Load(0x1000, 0),
        Load(MOVED, 5),
        Done,
    ];
    // One large page or two small ones; looked up again after a removal of everything.
    for (switches, installed) in
        [("", 3), ("zap=everything", 4), ("nested_page=4K", 4), ("nested_page=4K\nzap=everything", 5)]
    {
        let config: &'static str = format!("vcpus=1\nmemory=4194304\n{switches}").leak();
        let board = board(1, config, &[program]);
        board.ask(2000, &format!("0 add {ADDED:#x} {SIZE:#x} rw"));
        assert_eq!(board.run(1), OFF, "{switches}");
        assert_eq!(counted(board, Counter::NestedInstalled), installed, "{switches}");
    }
}
