//! Functions are reset, attached, and given back.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};

use super::{COMMAND, FIRST, MASTER, MEMORY, board_of_several, on, with_owned};
use crate::iommu::mock::{Arrived, BRIDGED, Machine, NVME, Note, Refusal, SMALL, VIRTIO, device_id};
use crate::svm::tests::processor::{DATA, MockSvm};
use crate::vm::load::Load;
use crate::vm::mock::{End, MockBoard as Board};
use ::iommu::DeviceId;
use paging::Progress;

const ONE: &str = "vcpus=2\nmemory=16777216\ndevices=nvme";

#[test]
fn a_function_is_blocked_and_reset_before_it_translates_and_all_memory_is_mapped_then() {
    let machine = Machine::new();
    assert_eq!(machine.dma_write(NVME, 0x1000, 1), Err(Refusal::Blocked), "as firmware has left it");
    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&found);
    machine.iommu.watch(move |command| {
        let entry = machine.iommu.entry_in_memory(device_id(NVME));
        if command[0] >> 60 == 2 && entry[0] >> 61 != 0 {
            let pages = (0..4096).map(|page| machine.iommu.walk(entry, page << 12));
            seen.lock().unwrap().push((machine.bus.resets(NVME), pages.filter(Result::is_ok).count()));
        }
    });
    on(machine, ONE, |guest| {
        assert_eq!(*found.lock().unwrap(), [(1, 4096)], "one reset, all of 16 MiB");
        assert_eq!(machine.bus.word(NVME, 4) & 0x407, 0x400, "it is silent");
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        for page in 0..4096u64 {
            // Past the guest's own tables and code, which it needs.
            let gpa = (page << 12) + 0xff8;
            machine.dma_write(NVME, gpa, page).expect("it is mapped");
            assert_eq!((guest.read(gpa), machine.dma_read(NVME, gpa)), (page, Ok(page)), "{gpa:#x}");
        }
        assert_eq!(machine.dma_write(NVME, 16 << 20, 0), Err(Refusal::NotMapped));
        assert_eq!(machine.iommu.dma(device_id(VIRTIO), 0x1000, false), Err(Refusal::Blocked));
    });
}

#[test]
fn a_reset_of_the_guest_silences_its_function_before_memory_is_zeroed() {
    with_owned(ONE, |machine, guest| {
        let vm = guest.0.vm;
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        guest.write(DATA, &[7; 8]);
        machine.bus.has_pending(NVME, 3);
        machine.bus.answers_late(NVME, 2);
        let mut load = Load::new(vm).expect("as before");
        let mut steps = 0;
        while machine.bus.resets(NVME) == 1 || machine.bus.word(NVME, 4) & 0x400 == 0 {
            assert_eq!(load.step(vm), Progress::More);
            assert_eq!(guest.read(DATA), 0x0707_0707_0707_0707, "after {steps} steps");
            steps += 1;
            assert!(steps < 1000);
        }
        assert!(steps > 5, "it waits for the function");
        assert_eq!(machine.bus.word(NVME, 4) & 6, 0, "neither memory nor DMA");
        while load.step(vm) != Progress::Done {}
        assert_eq!((guest.read(DATA), machine.bus.resets(NVME)), (0, 2));
        machine.notes.take();
        guest.reset();
        let entries = machine.notes.commands().into_iter().filter(|command| command[0] >> 60 == 2).count();
        assert_eq!(entries, 0, "it stays attached: an entry in use is not written to");
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        machine.dma_write(NVME, DATA, 9).expect("it is attached");
        assert_eq!(guest.read(DATA), 9);
    });
}

#[test]
fn a_function_that_does_not_answer_after_its_reset_does_not_hold_up_the_guest() {
    let machine = Machine::new();
    machine.bus.answers_late(NVME, u32::MAX);
    machine.bus.has_pending(SMALL, u32::MAX);
    on(machine, "vcpus=1\nmemory=16777216\ndevices=nvme 00:05.0", |guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!((machine.bus.resets(NVME), machine.bus.resets(SMALL)), (1, 1));
        assert_eq!(guest.read_config(FIRST, 0), 0x0010_1b36);
    });
}

#[test]
fn virtio_is_reset_by_its_status_and_its_table_is_masked() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=virtio-net", |machine, guest| {
        assert_eq!(machine.bus.resets(VIRTIO), 1);
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        let table = u64::from(guest.read_config(FIRST, 0x14) & !0xf);
        let at = guest.capability(0x11);
        guest.write_config(FIRST, at, 1 << 31);
        guest.write_entry(table, 2, 0xfee0_0000, 0x61);
        guest.set_mask(table, 2, false);
        assert!(!machine.bus.entry(VIRTIO, 2).2);
        guest.reset();
        assert_eq!((machine.bus.resets(VIRTIO), machine.bus.entry(VIRTIO, 2).2), (2, true));
        assert_eq!(machine.bus.word(VIRTIO, 0x98) >> 30, 1, "off, and all masked");
        assert_eq!(machine.bus.word(VIRTIO, 4) & 0x407, 0x400);
    });
}

#[test]
fn what_firmware_left_in_a_table_is_masked() {
    let machine = Machine::new();
    machine.bus.set_register(VIRTIO, 1, 3 * 16 + 12, 0);
    machine.bus.set_command(VIRTIO, 0);
    assert!(!machine.bus.entry(VIRTIO, 3).2);
    on(machine, "vcpus=1\nmemory=16777216\ndevices=virtio-net", |_| {
        assert!(machine.bus.entry(VIRTIO, 3).2);
        assert_eq!(machine.bus.word(VIRTIO, 4) & 0x407, 0x400);
    });
}

#[test]
fn a_function_behind_a_bridge_translates_by_the_bridges_id() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=01:00.0", |machine, guest| {
        assert_eq!(machine.bus.resets(BRIDGED), 1, "by its bus");
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        machine.dma_write(BRIDGED, DATA, 5).expect("it is attached");
        assert_eq!(guest.read(DATA), 5);
        let owner =
            |name| machine.devices.owner_of(0, DeviceId(device_id(name))).map(|name| name.to_string());
        assert_eq!(owner(BRIDGED).as_deref(), Some("guest"), "events name the guest");
        assert_eq!((owner(NVME), owner(SMALL)), (None, None));
        let other = machine.devices.owner_of(1, DeviceId(device_id(BRIDGED)));
        assert_eq!(other, None, "behind another IOMMU it would be another function");
        machine.devices.report_events();
    });
}

fn several() -> (&'static Machine, &'static Board<MockSvm>) {
    let machine = Machine::new();
    let board = board_of_several(
        machine,
        &[
            "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme 00:05.0",
            "name=b\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme",
            "name=c\nvcpus=1\nmemory=16777216\nstart=manual",
        ],
    );
    (machine, board)
}

#[test]
fn what_a_destroyed_guest_owned_is_the_next_ones() {
    let (machine, board) = several();
    let first = board.answer(&["guest-create a", "memory", "guest-create b"]);
    assert_eq!(first[0], "1 ok");
    let seen = first.last().unwrap();
    assert_eq!(seen, "3 error devices: there is no 'nvme': the log lists the machine's functions");
    let entry = machine.iommu.entry_in_memory(device_id(NVME));
    assert_eq!(entry[1] & 0xffff, 1, "the first domain");
    for round in 0..70 {
        let (go, come) = if round % 2 == 0 { ("a", "b") } else { ("b", "a") };
        let requests = [format!("guest-destroy {go}"), "memory".into(), format!("guest-create {come}")];
        let found = board.answer(&requests.each_ref().map(String::as_str));
        assert!(found.iter().all(|line| !line.contains("error")), "{found:?}");
        let entry = machine.iommu.entry_in_memory(device_id(NVME));
        assert_eq!((entry[0] >> 61, entry[1] & 0xffff), (3, 1), "round {round}");
    }
}

#[test]
fn a_function_that_does_not_answer_after_its_guests_end_is_nobodys() {
    let (machine, board) = several();
    board.answer(&["guest-create a"]);
    machine.bus.answers_late(NVME, u32::MAX);
    assert!(board.answer(&["guest-destroy a"]).contains(&"1 ok".to_owned()));
    let found = board.answer(&["guest-create b"]);
    assert_eq!(found, ["1 error devices: there is no 'nvme': the log lists the machine's functions"]);
    machine.bus.answers_late(NVME, 0);
    assert!(board.answer(&["guest-create a"])[0].contains("error"), "it is not tried again");
    assert_eq!(machine.iommu.dma(device_id(NVME), DATA, true), Err(Refusal::Blocked));
}

#[test]
fn a_destroyed_guests_functions_are_blocked_before_its_slots_go_and_reset_before_they_are_free() {
    let (machine, board) = several();
    board.answer(&["guest-create a"]);
    let free = board.host().free.lock().total();
    machine.bus.set_master(NVME);
    let host = machine.dma_write(NVME, DATA, 7).expect("it is attached");
    machine.bus.has_pending(NVME, 2);
    machine.notes.take();
    let at_detach = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&at_detach);
    machine.iommu.watch(move |command| {
        if command[0] >> 60 == 2 {
            // SAFETY: the board's memory is never freed.
            let value = unsafe { *(host as *const u64) };
            seen.lock().unwrap().push((value, board.host().free.lock().total()));
        }
    });
    board.answer(&["guest-destroy a"]);
    let at_detach = at_detach.lock().unwrap();
    assert_eq!(at_detach.len(), 2, "two functions");
    assert!(at_detach.iter().all(|&found| found == (7, free)), "memory is as it was");
    assert!(board.host().free.lock().total() > free);
    assert_eq!(machine.iommu.dma(device_id(NVME), DATA, true), Err(Refusal::Blocked));
    assert_eq!(machine.forge(NVME, 0), Arrived::Refused(Refusal::Blocked));
    let notes = machine.notes.take();
    let place = |wanted: &dyn Fn(&Note) -> bool| notes.iter().position(wanted).expect("it has happened");
    let blocked = place(&|note| matches!(note, Note::Command([first, _]) if first >> 60 == 2));
    let dropped = place(&|note| matches!(note, Note::Command([first, _]) if first >> 60 == 3));
    let reset = place(&|note| matches!(note, Note::Reset(_)));
    assert!(blocked < dropped && dropped < reset, "{notes:x?}");
    assert_eq!(machine.iommu.kept(1), 0);
}

#[test]
fn an_iommu_that_does_not_go_on_ends_the_run_before_anything_is_freed() {
    // Also if it goes on later.
    for stops in [true, false] {
        let (machine, board) = several();
        board.answer(&["guest-create a"]);
        let free = board.host().free.lock().total();
        if stops {
            machine.iommu.hold()
        } else {
            machine.iommu.hold_once()
        }
        board.ask(board.time() + 10_000_000, "1 guest-destroy a");
        assert_eq!(board.run(1), End::Exit(hostlink::exit::ExitCode::GuestStalled));
        assert_eq!(board.host().free.lock().total(), free);
    }
}

#[test]
fn a_guest_that_runs_is_destroyed_with_its_functions() {
    let (machine, board) = several();
    board.answer(&["guest-create a", "guest-start a"]);
    assert_eq!(machine.iommu.entry_in_memory(device_id(NVME))[0] >> 61, 3);
    machine.notes.take();
    assert_eq!(board.answer(&["guest-destroy a", "guest-create b"]), ["1 ok", "2 ok"]);
    let commands: Vec<u64> = machine.notes.commands().iter().map(|command| command[0] >> 60).collect();
    // Both functions' entries go before anything else is dropped.
    assert_eq!(commands[..4], [2, 2, 1, 3], "{commands:?}");
}

#[test]
fn p16_functions_that_still_translate_are_never_free() {
    with_owned(ONE, |machine, guest| {
        let functions = &guest.0.vm.guest.owned.functions;
        let give_back = || while functions.lock().give_back() != Progress::Done {};
        for _ in 0..2 {
            assert!(catch_unwind(AssertUnwindSafe(give_back)).is_err(), "they are attached");
        }
        let owner = || machine.devices.owner_of(0, DeviceId(device_id(NVME)));
        assert_eq!(owner().map(|name| name.to_string()).as_deref(), Some("guest"));
        functions.lock().detach(guest.0.vm.guest.owned.domains.as_ref()).expect("it goes on");
        give_back();
        assert_eq!(owner(), None);
    });
}

#[test]
fn a_table_that_is_nowhere_is_not_written_to() {
    let machine = Machine::new();
    machine.bus.break_table();
    on(machine, ONE, |guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!(guest.device_slots(), [(0xefff_8000, 0x8000, 0xfeb8_0000)]);
        guest.reset();
        assert_eq!(machine.bus.word(NVME, 0x40) >> 30, 1, "off, and masked");
    });
}

#[test]
fn an_attachment_that_is_not_confirmed_leaves_a_guest_with_a_dead_device() {
    let machine = Machine::new();
    machine.iommu.hold();
    assert_eq!(machine.iommu.dma(device_id(NVME), 0x1000, false), Err(Refusal::Blocked));
    on(machine, ONE, |guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!(machine.dma_write(NVME, DATA, 1), Err(Refusal::Blocked));
    });
}

#[test]
fn a_guest_with_too_few_tables_for_all_its_memory_gets_dead_devices() {
    with_owned("vcpus=1\nmemory=16777216\nnested_page=4K\ntables=8\ndevices=nvme", |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!(machine.bus.word(NVME, 4) & 4, 0, "it is not let loose");
        machine.bus.set_master(NVME);
        assert_eq!(machine.dma_write(NVME, DATA, 1), Err(Refusal::Blocked));
    });
    with_owned("vcpus=1\nmemory=16777216\nnested_page=4K\ndevices=nvme", |machine, _| {
        machine.bus.set_master(NVME);
        assert_eq!(machine.dma_write(NVME, DATA, 1).map(|_| ()), Ok(()));
    });
}

#[test]
fn a_guest_that_cannot_be_created_keeps_nothing() {
    let machine = Machine::new();
    // The NVMe controller is given first; then the second name is refused.
    let board = board_of_several(
        machine,
        &[
            "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme 00:07.0",
            "name=b\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme",
            "name=d\nvcpus=1\nmemory=134217728\nstart=manual\ndevices=00:05.0",
            "name=e\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=00:05.0",
        ],
    );
    let requests = ["guest-create a", "guest-create b", "guest-create d", "guest-create e"];
    let found = board.answer(&requests);
    assert!(found[0].starts_with("1 error devices: 00:07.0 cannot be reset"), "{found:?}");
    assert_eq!(found[1], "2 ok");
    assert!(found[2].starts_with("3 error"), "there is not as much memory: {found:?}");
    assert_eq!(found[3], "4 ok");
    // The domain of the guest that was dropped is in use again.
    let entry = |name| machine.iommu.entry_in_memory(device_id(name))[1] & 0xffff;
    assert_eq!((entry(NVME), entry(SMALL)), (1, 2));
}

#[test]
fn stores_to_a_guests_memory_are_not_logged_while_it_owns_functions() {
    let (_, board) = several();
    let found = board.answer(&[
        "guest-create a",
        "guest-create c",
        "@a log-start 0 dirty-bits",
        "guest-send a 0x1 still",
    ]);
    let refused = "error the guest owns devices: what they store would be missing in a log";
    assert_eq!(found, ["1 ok", "2 ok", &format!("3 {refused}"), &format!("4 {refused}")]);
    assert_eq!(board.answer(&["@c log-start 0 dirty-bits"]), ["1 ok"]);
}
