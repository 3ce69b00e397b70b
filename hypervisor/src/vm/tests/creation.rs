//! Creation of a machine, and the ways in which it may fail.

use core::sync::atomic::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;
use crate::sched::notify::Published;
use crate::sched::{CpuIndex, VcpuIndex};
use crate::stopping::REQUESTS;
use crate::vm::arch::Clock;
use crate::vm::host::ROWS;
use crate::vm::interrupts::on_serial_interrupt;
use crate::vm::mock::processor::{MockArch, PLACED, board, create, create_several, placed_byte};
use crate::vm::mock::{End, MockBoard};
use crate::vm::{CreateError, Vm};
use coherence::Notify;
use hostlink::config::MAX_GUESTS;
use hostlink::counters::{BEACON_MAGIC, Beacon, Counter};
use hostlink::exit::ExitCode;
use hostlink::guests::CONSOLES;
use hostlink::ring::HEADER_BYTES;

fn refusal(cpus: usize, bytes: u64, config: &'static str) -> String {
    match create(cpus, bytes, config, &[&[Op::Done]]) {
        Ok(_) => panic!("{config:?} makes a machine"),
        Err(why) => why.to_string(),
    }
}

#[test]
fn a_machine_that_cannot_be_is_refused_with_what_to_do() {
    for (cpus, bytes, config, text) in [
        (1, 32 << 20, "memory=4194304\nboot_cpu=serve", "boot_cpu=serve needs a second CPU"),
        (1, 2 << 20, "memory=4194304", "no 2 MiB of free memory for the guest"),
        (1, 32 << 20, "memory=134217728", "no 64 MiB of free memory for the guest"),
        (1, 6 << 20, "memory=4194304\ntables=1000000", "no memory is left for nested page tables"),
        (1, 32 << 20, "vcpus=0", "vcpus"),
        (1, 32 << 20, "color=blue", "color"),
    ] {
        let why = refusal(cpus, bytes, config);
        assert!(why.contains(text), "{config:?}: {why}");
    }
}

#[test]
fn a_vcpu_is_run_by_one_cpu_at_a_time() {
    let board = board(1, "vcpus=2\nmemory=4194304", &[&[Op::Done]]);
    let vm = board.machine();
    let end = board.end_of(|| {
        board.with_vcpu(1, |context| {
            assert!(vm.vcpus[0].target.owner().is_some());
            assert!(vm.vcpus[1].target.owner().is_none());
            context.count(hostlink::counters::Counter::ExitOther);
        });
        assert!(vm.vcpus[1].target.owner().is_some(), "it has let go of it");
        crate::vm::end::refuse::<crate::vm::mock::processor::MockArch>(ExitCode::BadConfig, &"a test");
    });
    assert_eq!(end, Some(End::Exit(ExitCode::BadConfig)));
}

#[test]
fn files_that_are_no_bundle_are_refused() {
    use crate::vm::files::Bundle;
    let why = |bytes: &'static [u8]| match Bundle::read(bytes) {
        Ok(_) => panic!("that is no bundle"),
        Err(why) => why,
    };
    assert!(matches!(why(b""), CreateError::NotABundle));
    assert!(matches!(why(&[0; 511]), CreateError::NotABundle));
    assert!(matches!(why(&[0; 1024]), CreateError::NotABundle));
}

#[test]
fn a_guests_memory_is_its_files_and_zeros_and_cleaned_before_it_runs() {
    let scribbles: &[Op] = &[
        Op::StoreTry(0x3008),
        Op::StoreTry(0x9_0000),
        Op::StoreTry(1 << 32),
        Op::Gone(2 << 20),
        Op::ResetBelow(1),
        Op::PowerOff,
    ];
    // Each finds the memory of the one before, with its guest's data still there.
    for pages in ["4K", "2M", "1G"] {
        let config = String::leak(format!("vcpus=1\nmemory=4194304\ncmdline=placed\nnested_page={pages}"));
        let board = board(1, config, &[scribbles]);
        let vm = board.machine();
        let is_loaded = |stored: &[u64]| {
            let memory = vm.space.slots().memory();
            let mut expected = [(0, vec![0; 2 << 20]), (1 << 32, vec![0; 2 << 20])];
            let mut put = |gpa: u64, bytes: &[u8]| {
                let (start, all) = expected.iter_mut().rfind(|(start, _)| *start <= gpa).expect("its slot");
                all[(gpa - *start) as usize..][..bytes.len()].copy_from_slice(bytes);
            };
            PLACED.iter().for_each(|&(gpa, len)| put(gpa, &(0..len).map(placed_byte).collect::<Vec<_>>()));
            stored.iter().for_each(|gpa| put(*gpa, &1_u64.to_le_bytes()));
            expected.into_iter().all(|(start, expected)| {
                let mut found = vec![0xaa; expected.len()];
                memory.read(memslots::Gpa(start), &mut found).is_ok() && found == expected
            })
        };
        let cleaned = || vm.guest.cleaned_to_load.load(Ordering::Relaxed);
        assert_eq!((is_loaded(&[]), cleaned()), (true, 4 << 20));
        assert_eq!(board.run(1), End::Exit(ExitCode::GuestPowerOff));
        // What it has stored since its reset is there in addition.
        assert_eq!((is_loaded(&[0x3008, 0x9_0000, 1 << 32]), cleaned()), (true, 8 << 20));
    }
}

#[test]
fn a_new_guest_owes_nothing_and_may_use_its_cpus() {
    let first = "name=first\nvcpus=2\nmemory=4194304\ncpus=0,2";
    let later = "name=later\nvcpus=1\nmemory=2097152\nstart=manual";
    let host = create_several(3, 64 << 20, &[(first, &[]), (later, &[])]).host();
    // The host tool has asked for something meanwhile.
    let _nobody_runs = host.set_requests_wait(true);
    let _created = host.create_guest(1, &host.bundle.guests[1]).unwrap_or_else(|why| panic!("{why}"));
    for (number, cpus, vcpus) in [(0, &[0, 2][..], 2), (1, &[0, 1, 2], 1)] {
        let vm = host.guest(number).expect("it is there");
        assert_eq!(vm.cpus().map(|cpu| cpu.index.0).collect::<Vec<_>>(), cpus);
        let flags = [&vm.pauses, &vm.turn_wanted].map(|flag| flag.load(Ordering::Relaxed));
        assert_eq!((vm.attention(), flags, vm.is_changing()), (REQUESTS, [false; 2], false));
        let begun = (vm.given.load(Ordering::Relaxed), vm.clock.base(), vm.has_stopped(), vm.vcpu_count());
        assert_eq!(begun, (0, 0, false, vcpus));
    }
    let serving = board(2, "vcpus=1\nmemory=4194304\nboot_cpu=serve", &[]).machine();
    assert_eq!([0, 1, 2].map(|cpu| serving.may_use(CpuIndex(cpu))), [false, true, false]);
}

#[test]
fn the_host_tool_finds_all_counters_and_each_guests_entry() {
    let several: [(_, &[&[Op]]); 2] =
        [("name=first\nmemory=4194304", &[]), ("name=second\nmemory=4194304", &[])];
    let several = || create_several(2, 64 << 20, &several);
    for (board, rows, guests) in
        [(several(), ROWS, MAX_GUESTS), (board(2, "vcpus=3\nmemory=4194304", &[]), 3, 0)]
    {
        let (host, beacon) = (board.host(), Beacon::new());
        host.publish_counters(&beacon);
        let addresses = [host.counters_of(VcpuIndex(0)).as_ptr().addr(), host.entries.as_ptr().addr()];
        let words = [&beacon.magic, &beacon.counters, &beacon.guests, &beacon.tsc_hz];
        let words = words.map(|word| word.load(Ordering::Relaxed));
        assert_eq!(words, [BEACON_MAGIC, addresses[0] as u64, addresses[1] as u64, MockArch::hz()]);
        let counts = [&beacon.vcpu_count, &beacon.counter_count, &beacon.cpu_count, &beacon.guest_count];
        let counts = counts.map(|count| count.load(Ordering::Relaxed));
        assert_eq!(counts, [rows, Counter::COUNT as u32, 2, guests]);
    }
}

/// Whoever has a reference left to a guest that has gone is found at once.
#[test]
fn a_guest_that_has_gone_answers_nobody() {
    let works: [(_, &[&[Op]]); 2] = [
        ("name=first\nmemory=4194304", &[&[Op::Work(u64::MAX)]]),
        ("name=second\nmemory=4194304", &[&[Op::Work(u64::MAX)]]),
    ];
    let board = create_several(2, 64 << 20, &works);
    let (vm, other) = (board.machine(), board.host().guest(1).expect("it is there"));
    let vcpu = &vm.vcpus[0];
    assert_eq!(board.answer(&["guest-destroy first"]), ["1 ok"]);
    assert!(!board.host().is_leaving(), "CPUs that idle may keep what they have loaded");
    assert_eq!(vcpu.index.0, 0xdbdb_dbdb, "its vCPUs have gone, too");
    let uses: [&dyn Fn(); 5] = [
        &|| _ = vm.vcpu_count(),
        &|| _ = vm.attention(),
        &|| vm.set_requests_wait(true),
        &|| vm.notify(&other.vcpus[0], Published::NOTHING),
        &|| vm.notified(&other.vcpus[0], Notify::None),
    ];
    for (place, use_it) in uses.into_iter().enumerate() {
        let why = catch_unwind(AssertUnwindSafe(use_it)).expect_err("it has been freed");
        let text = why.downcast_ref::<String>().map_or("", String::as_str);
        assert!(text.contains("a freed guest is used"), "{place}: {text}");
    }
}

/// A board with two guests.
fn two(start: &str) -> &'static MockBoard<MockArch> {
    let second = format!("name=second\nvcpus=3\nmemory=4194304\nstart={start}").leak();
    let guests: [(_, &[&[Op]]); 2] = [("name=first\nvcpus=2\nmemory=4194304", &[]), (second, &[])];
    create_several(1, 64 << 20, &guests)
}

#[test]
fn what_guests_send_is_where_the_host_tool_looks_for_it() {
    let host = two("auto").host();
    let ports = || (0..2).flat_map(|guest| (0..CONSOLES).map(move |port| (guest, port)));
    let byte = |guest: u32, port: usize| 1 + 10 * guest as u8 + port as u8;
    for (guest, port) in ports() {
        let vm = host.next_guest(guest).expect("it is there");
        vm.transmit(port, byte(guest, port), || unreachable!("a guest among several has rings"));
    }
    for (guest, port) in ports() {
        let vm = host.next_guest(guest).expect("it is there");
        let (at, _) = vm.rings.as_ref().expect("it has them").places()[port];
        // SAFETY: the ring is there as long as the guest, and nobody writes.
        let found = unsafe { (*(at as *const u64), *((at + HEADER_BYTES) as *const [u8; 2])) };
        assert_eq!(found, (1, [byte(guest, port), 0]), "guest {guest}, port {port}");
    }
}

#[test]
fn the_screen_shows_the_guest_that_is_chosen_and_what_is_typed_is_for_it() {
    let board = two("auto");
    let guests = [0, 1].map(|guest| board.host().next_guest(guest).expect("it is there"));
    let send = |number: usize, port: usize, text: &str| {
        text.bytes().for_each(|byte| guests[number].transmit(port, byte, || unreachable!("it has rings")));
    };
    let choose = |number: u32| {
        board.choose(number);
        on_serial_interrupt::<MockArch>();
    };
    send(0, 0, "first");
    send(0, 1, "report");
    send(1, 0, "second");
    assert_eq!(board.screen(), b"first");
    choose(1);
    send(0, 0, " hidden");
    send(1, 0, " shown");
    assert_eq!(board.screen(), b"second shown");
    board.type_in(b"ls");
    choose(2);
    assert_eq!(board.screen(), b"second shown", "there is no such guest");
    let typed = guests.map(|guest| guest.guest.console.lock().unwrap().clone());
    assert_eq!((typed, guests.map(Vm::has_input)), ([vec![], b"ls".to_vec()], [false, true]));
    choose(0);
    assert_eq!(board.screen(), b"first hidden");
    let long = "0123456789abcdef".repeat(1 << 12);
    send(0, 0, &long[1..]);
    choose(0);
    assert_eq!(board.screen(), [b"n", &long.as_bytes()[1..]].concat(), "as much as the ring has");
}

#[test]
fn a_guest_takes_no_heap_that_is_not_there() {
    let board = two("manual");
    let needed = (1 << 20) + 3 * (48 << 10);
    for (left, refused) in [(needed - 1, true), (needed, false)] {
        board.heap_left.store(left, Ordering::Relaxed);
        let created = board.host().create_guest(1, &board.host().bundle.guests[1]);
        assert_eq!(matches!(created, Err(CreateError::NoHeap)), refused, "{left}");
    }
}
