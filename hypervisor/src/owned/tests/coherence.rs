//! What the IOMMU keeps of a guest's memory is gone before the memory is.

use std::sync::{Arc, Mutex};

use super::{COMMAND, FIRST, MASTER, MEMORY, board_of_several, with_owned};
use crate::iommu::mock::{Machine, NVME, Note, Refusal, device_id};
use crate::svm::tests::processor::MockSvm;
use crate::vm::mock::{End, MockBoard as Board};
use hostlink::exit::ExitCode;

const ADDED: u64 = 0x1_0000_0000;

/// A guest with the NVMe controller and added memory, which the controller has used, and one
/// without functions.
fn with_added_memory() -> (&'static Machine, &'static Board<MockSvm>, u64) {
    let machine = Machine::new();
    let board = board_of_several(
        machine,
        &[
            "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme",
            "name=c\nvcpus=1\nmemory=16777216\nstart=manual",
        ],
    );
    let added = format!("@a add {ADDED:#x} 0x400000 rw");
    let others = format!("@c add {ADDED:#x} 0x400000 rw");
    let found = board.answer(&["guest-create a", "guest-create c", &added, &others]);
    assert!(found.iter().all(|line| !line.contains("error")), "{found:?}");
    machine.bus.set_master(NVME);
    // Nobody has touched it: it was mapped ahead, up to its end.
    let host = machine.dma_write(NVME, ADDED, 7).expect("it is mapped");
    machine.dma_write(NVME, ADDED + 0x3f_fff8, 8).expect("it is mapped");
    machine.dma_write(NVME, 0x1000, 9).expect("as is the rest");
    assert_eq!(machine.dma_write(NVME, ADDED + 0x40_0000, 0), Err(Refusal::NotMapped));
    machine.notes.take();
    (machine, board, host)
}

/// The slot that was added is the third: RAM is in two.
fn added_slot(board: &'static Board<MockSvm>) -> String {
    let slots = board.answer(&["@a slots"]);
    let line = slots.iter().find(|line| line.contains("gpa=0x100000000")).expect("it was added");
    line.split("slot=").nth(1).and_then(|rest| rest.split(' ').next()).expect("a number").to_owned()
}

#[test]
fn p16_a_removed_slot_is_forgotten_by_the_iommu_before_its_memory_is_free() {
    let (machine, board, host) = with_added_memory();
    let slot = added_slot(board);
    let free = board.host().free.lock().total();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let at_command = Arc::clone(&seen);
    machine.iommu.watch(move |command| {
        let entry = machine.iommu.entry_in_memory(device_id(NVME));
        let is_mapped = machine.iommu.walk(entry, ADDED).is_ok();
        at_command.lock().unwrap().push((command[0] >> 60, is_mapped, board.host().free.lock().total()));
    });
    let deleted = board.answer(&[&format!("@a delete {slot}")]);
    assert!(deleted[0].starts_with("1 : visited="), "{deleted:?}");
    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.iter().map(|found| found.0).collect::<Vec<_>>().last(), Some(&1), "{seen:?}");
    assert!(seen.iter().any(|found| found.0 == 3), "{seen:?}");
    assert!(seen.iter().all(|&(_, is_mapped, total)| !is_mapped && total == free), "{seen:?}");
    let commands = machine.notes.commands();
    let pages: Vec<_> = commands.iter().filter(|command| command[0] >> 60 == 3).collect();
    assert!(pages.iter().all(|command| command[0] >> 32 & 0xffff == 1), "its domain: {commands:x?}");
    // 4 MiB from the address on: ones below the size's bit.
    assert!(pages.iter().all(|command| command[1] >> 32 == 1), "no more than that: {commands:x?}");
    assert_eq!(board.host().free.lock().total(), free + 0x40_0000);
    assert_eq!(machine.dma_write(NVME, ADDED, 1), Err(Refusal::NotMapped));
    assert_eq!(machine.dma_write(NVME, ADDED + 0x3f_fff8, 1), Err(Refusal::NotMapped));
    machine.dma_write(NVME, 0x1000, 1).expect("what stays is still mapped");
    // SAFETY: the board's memory is never freed.
    assert_eq!(unsafe { *(host as *const u64) }, 7);
}

#[test]
fn p16_without_completion_nothing_is_freed_and_the_run_ends() {
    let (machine, board, host) = with_added_memory();
    let slot = added_slot(board);
    let free = board.host().free.lock().total();
    machine.iommu.hold();
    board.ask(board.time() + 1, &format!("1 @a delete {slot}"));
    assert_eq!(board.run(1), End::Exit(ExitCode::GuestStalled));
    assert_eq!(board.host().free.lock().total(), free);
    // The function still reaches it, and nobody else has it.
    assert_eq!(machine.dma_write(NVME, ADDED, 10), Ok(host));
}

#[test]
fn p16_a_guest_without_functions_tells_no_iommu() {
    let (machine, board, _) = with_added_memory();
    let slot = added_slot(board);
    machine.notes.take();
    let found = board.answer(&[&format!("@c delete {slot}"), "guest-destroy c"]);
    assert_eq!(found.last().map(String::as_str), Some("2 ok"), "{found:?}");
    assert_eq!(machine.notes.take(), []);
}

#[test]
fn p16_registers_that_move_are_forgotten_by_the_iommu() {
    with_owned("vcpus=1\nmemory=16777216\ndevices=nvme 00:05.0", |machine, guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        let bar = 0xefff_8000;
        guest.load(bar, 4);
        assert_eq!(machine.iommu.dma(device_id(NVME), bar, false), Ok(0xfeb8_0000));
        machine.notes.take();
        guest.write_config(FIRST, COMMAND, MASTER);
        let notes = machine.notes.take();
        assert!(notes.iter().any(|note| matches!(note, Note::Command([first, _]) if first >> 60 == 3)));
        let gone = machine.iommu.dma(device_id(NVME), bar, false);
        assert_eq!(gone, Err(Refusal::NotMapped));
    });
}
