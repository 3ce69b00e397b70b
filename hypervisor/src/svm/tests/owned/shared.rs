//! Memory that guests share, and its doorbell. The guests own nothing of the machine.

use memslots::Gpa;

use super::{BAR, Board, COMMAND, FIRST, MASTER, MEMORY, SECOND, arrived};
use crate::devices::pc::pci::WINDOW;
use crate::sched::Turn;
use crate::svm::tests::machine::set_machine;
use crate::svm::tests::processor::{Guest, MockSvm, board_of};
use crate::vm::Vm;

/// Where the guest finds registers, table and memory first.
const REGISTERS: u64 = 0xefff_f000;
const TABLE: u64 = 0xefff_e000;
const PLACED: u64 = 0xefff_c000;
const SIZE: u64 = 0x2000;
const STATUS: u64 = REGISTERS + 4;
const POSITION: u64 = REGISTERS + 8;
const DOORBELL: u64 = REGISTERS + 12;
const PENDING: u64 = TABLE + 0x800;
/// MSI-X's control, and its bits: enabled, all masked.
const MSIX: u32 = 0x40;
const ENABLE: u32 = 1 << 31;
const ALL_MASKED: u32 = 1 << 30;

const ONE: &str = "name=one\nvcpus=1\nmemory=8388608\nshared=ring:8192:0";
const TWO: &str = "name=two\nvcpus=2\nmemory=8388608\nshared=ring:8192:1";
const OTHER: &str = "name=other\nvcpus=1\nmemory=8388608";

fn board(configs: &[&'static str]) -> &'static Board<MockSvm> {
    set_machine(None);
    board_of(1, configs).unwrap_or_else(|why| panic!("{why}"))
}

fn at_row<R>(
    board: &'static Board<MockSvm>,
    row: u32,
    act: impl FnOnce(&mut Guest<'_, '_>, &'static Vm<MockSvm>) -> R,
) -> R {
    board.with_turn(Turn { vcpu: row, migrated: false, waited: 0 }, |context| {
        let vm = context.vm;
        let mut guest = Guest(context);
        guest.begin(&[]);
        act(&mut guest, vm)
    })
}

/// The guest enables its function, and its vectors from 0x40 on, for its vCPU of this number.
fn enable(guest: &mut Guest<'_, '_>, vcpu: u32) {
    guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
    for number in 0..8 {
        guest.write_entry(TABLE, number, 0xfee0_0000 | vcpu << 12, 0x40 + number as u32);
        guest.set_mask(TABLE, number, false);
    }
    guest.write_config(FIRST, MSIX, ENABLE);
}

/// The slots of a guest's bus: where, and how many bytes.
fn slots(vm: &Vm<MockSvm>) -> Vec<(u64, u64)> {
    let mut found = Vec::new();
    vm.space.slots().memory().for_each(|slot| {
        if WINDOW.contains(&slot.gpa.0) {
            assert!(!slot.is_device() && !slot.is_read_only());
            found.push((slot.gpa.0, slot.size));
        }
    });
    found
}

fn read(vm: &Vm<MockSvm>, gpa: u64) -> Option<u64> {
    let mut word = [0; 8];
    vm.space.slots().memory().read(Gpa(gpa), &mut word).ok()?;
    Some(u64::from_le_bytes(word))
}

fn write(vm: &Vm<MockSvm>, gpa: u64, value: u64) {
    vm.space.slots().memory().write(Gpa(gpa), &value.to_le_bytes()).expect("memory is there");
}

/// The second guest, which listens with its vCPU 1.
fn listener(board: &'static Board<MockSvm>) -> &'static Vm<MockSvm> {
    at_row(board, 1, |guest, vm| {
        enable(guest, 1);
        vm
    })
}

#[test]
fn the_function_is_what_drivers_expect() {
    let board = board(&[ONE, TWO, OTHER]);
    at_row(board, 0, |guest, vm| {
        let found = [0, 8, 0x2c].map(|at| guest.read_config(FIRST, at));
        assert_eq!(found, [0x1110_1af4, 0x0500_0001, 0x1100_1af4]);
        let bars = [REGISTERS as u32, TABLE as u32, PLACED as u32 | 0xc, 0];
        assert_eq!([0, 4, 8, 12].map(|at| guest.read_config(FIRST, BAR + at)), bars);
        assert_eq!(guest.read_config(SECOND, 0), u32::MAX, "it is the only one");
        assert_eq!(guest.capability(0x11), MSIX);
        assert_eq!([0, 4, 8].map(|at| guest.read_config(FIRST, MSIX + at)), [0x0007_0011, 1, 0x801]);
        assert_eq!(guest.write_config(FIRST, COMMAND, MEMORY), 0);
        assert_eq!(slots(vm), [(PLACED, SIZE)]);
        assert_eq!((guest.load(POSITION, 4), guest.load(DOORBELL, 4)), (0, 0));
        assert_eq!(guest.load(POSITION, 1), 0xff, "registers are read as a whole");
        assert_eq!(guest.load(REGISTERS + 0x100, 4), u32::MAX, "there are 256 bytes");
        guest.store(REGISTERS, 4, 5);
        guest.store(POSITION, 4, 9);
        assert_eq!((guest.load(REGISTERS, 4), guest.load(POSITION, 4)), (5, 0));
    });
    at_row(board, 1, |guest, _| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!((guest.load(POSITION, 4), guest.load(REGISTERS, 4)), (1, 0));
    });
    at_row(board, 3, |guest, vm| {
        assert_eq!(guest.read_config(FIRST, 0), u32::MAX, "it shares nothing");
        guest.write_config(FIRST, COMMAND, MEMORY);
        assert_eq!((slots(vm), guest.load(POSITION, 4)), (vec![], u32::MAX));
    });
}

#[test]
fn what_one_guest_stores_the_other_sees_wherever_it_has_put_the_memory() {
    let board = board(&[ONE, TWO]);
    let other = listener(board);
    at_row(board, 0, |guest, vm| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        let found = (read(vm, PLACED), read(vm, PLACED + SIZE - 8), read(vm, PLACED + SIZE));
        assert_eq!(found, (Some(0), Some(0), None));
        write(vm, PLACED + 8, 0x1234);
        assert_eq!(read(other, PLACED + 8), Some(0x1234));
        guest.write_config(FIRST, BAR + 8, 0xe800_0000);
        assert_eq!((slots(vm), read(vm, 0xe800_0008)), (vec![(0xe800_0000, SIZE)], Some(0x1234)));
        write(other, PLACED + 8, 0x5678);
        assert_eq!(read(vm, 0xe800_0008), Some(0x5678));
        // Over RAM, over its own registers, and nowhere: it is not seen.
        for gone in [0x10_0000, REGISTERS as u32, 0xf000_0000] {
            guest.write_config(FIRST, BAR + 8, gone);
            assert_eq!(slots(vm), [], "{gone:#x}");
        }
        assert_ne!(read(vm, 0x10_0008), Some(0x5678), "RAM is where it was");
        guest.write_config(FIRST, BAR + 12, 1);
        assert_eq!(slots(vm), [], "nor is it above 4 GiB");
        guest.write_config(FIRST, BAR + 12, 0);
        guest.write_config(FIRST, BAR + 8, PLACED as u32);
        assert_eq!(read(vm, PLACED + 8), Some(0x5678));
    });
}

#[test]
fn a_doorbell_posts_the_message_of_its_vector() {
    let board = board(&[ONE, TWO]);
    let other = listener(board);
    at_row(board, 0, |guest, vm| {
        enable(guest, 0);
        for vector in 0..8 {
            guest.store(DOORBELL, 4, 1 << 16 | vector);
            assert_eq!((arrived(other, 0), arrived(other, 1)), (vec![], vec![0x40 + vector as u8]));
        }
        // Unknown guests and vectors; not the whole register.
        for nothing in [2 << 16, 0xffff_0000, 1 << 16 | 8, 1 << 16 | 64, 1 << 16 | 0xffff] {
            guest.store(DOORBELL, 4, nothing);
        }
        guest.store(DOORBELL, 2, 0);
        guest.store(DOORBELL + 1, 4, 0);
        assert_eq!((arrived(other, 0), arrived(other, 1), arrived(vm, 0)), (vec![], vec![], vec![]));
        // Itself.
        guest.store(DOORBELL, 4, 3);
        assert_eq!((arrived(vm, 0), arrived(other, 1)), (vec![0x43], vec![]));
        assert_eq!(guest.load(STATUS, 4), 0, "messages leave no status");
    });
}

/// The first guest rings these of the second.
fn ring(board: &'static Board<MockSvm>, vectors: &[u32]) {
    at_row(board, 0, |guest, _| {
        guest.write_config(FIRST, COMMAND, MEMORY);
        vectors.iter().for_each(|vector| guest.store(DOORBELL, 4, 1 << 16 | vector));
    });
}

#[test]
fn u42_a_ring_for_several_vcpus_is_delivered_by_the_one_that_is_rung() {
    let board = board(&[ONE, TWO]);
    let other = listener(board);
    let ring = |vectors: &[u32]| {
        ring(board, vectors);
        assert_eq!((arrived(other, 0), arrived(other, 1)), (vec![], vec![]), "not by the one that rings");
    };
    at_row(board, 1, |guest, _| {
        (2..4).for_each(|number| guest.write_entry(TABLE, number, 0xfeef_f000, 0x60 + number as u32));
    });
    ring(&[2, 3, 2]);
    at_row(board, 1, |guest, _| guest.set_mask(TABLE, 3, true));
    // The turn has begun with it.
    assert_eq!(arrived(other, 1), [0x62, 0x63]);
    ring(&[2, 3]);
    at_row(board, 1, |guest, _| {
        assert_eq!(guest.load(PENDING, 4), 8);
        guest.set_mask(TABLE, 3, false);
        other.spread_messages();
        assert_eq!(guest.load(PENDING, 4), 0);
    });
    assert_eq!(arrived(other, 1), [0x62, 0x63]);
}

#[test]
fn what_is_masked_pends_and_what_is_off_is_lost() {
    let board = board(&[ONE, TWO]);
    let other = listener(board);
    let ring = |vectors: &[u32]| ring(board, vectors);
    let then = |act: &dyn Fn(&mut Guest<'_, '_>)| at_row(board, 1, |guest, _| act(guest));
    then(&|guest| guest.set_mask(TABLE, 2, true));
    ring(&[2, 2]);
    assert_eq!(arrived(other, 1), []);
    then(&|guest| {
        assert_eq!((guest.load(PENDING, 4), guest.load(PENDING + 4, 4)), (4, 0));
        guest.set_mask(TABLE, 2, false);
        assert_eq!((arrived(other, 1), guest.load(PENDING, 4)), (vec![0x42], 0));
        guest.write_config(FIRST, MSIX, ENABLE | ALL_MASKED);
    });
    ring(&[1, 5]);
    then(&|guest| {
        assert_eq!(arrived(other, 1), []);
        guest.write_config(FIRST, MSIX, ENABLE);
        assert_eq!(arrived(other, 1), [0x41, 0x45]);
        guest.write_config(FIRST, MSIX, 0);
    });
    ring(&[1]);
    then(&|guest| {
        guest.write_config(FIRST, MSIX, ENABLE);
        guest.write_config(FIRST, COMMAND, MEMORY);
    });
    ring(&[2]);
    then(&|guest| {
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
    });
    assert_eq!(arrived(other, 1), [], "messages need a bus master");
}

#[test]
fn a_reset_forgets_vectors_and_keeps_memory() {
    let board = board(&[ONE, TWO]);
    let other = listener(board);
    at_row(board, 0, |guest, vm| {
        enable(guest, 0);
        write(vm, PLACED, 7);
        guest.store(REGISTERS, 4, 1);
        guest.reset();
        assert_eq!(slots(vm), []);
        guest.store(DOORBELL, 4, 1 << 16);
        assert_eq!(arrived(other, 1), [], "nothing is decoded");
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!((read(vm, PLACED), guest.load(REGISTERS, 4)), (Some(7), 0));
        guest.store(DOORBELL, 4, 0);
        assert_eq!(arrived(vm, 0), [], "it has no vector now");
        assert_eq!(read(other, PLACED), Some(7));
    });
}

#[test]
fn guests_come_and_go_and_the_memory_stays() {
    const LATER: &str = "name=two\nvcpus=2\nmemory=8388608\nshared=ring:8192:1\nstart=manual";
    let board = board(&[ONE, LATER]);
    at_row(board, 0, |guest, vm| {
        enable(guest, 0);
        write(vm, PLACED, 99);
    });
    let mut free = None;
    for _ in 0..5 {
        assert_eq!(board.answer(&["guest-create two"]), ["1 ok"]);
        let other = listener(board);
        assert_eq!(read(other, PLACED), Some(99));
        at_row(board, 0, |guest, _| guest.store(DOORBELL, 4, 1 << 16));
        assert_eq!(arrived(other, 1), [0x40]);
        assert_eq!(board.answer(&["guest-destroy two"]), ["1 ok"]);
        at_row(board, 0, |guest, vm| {
            guest.store(DOORBELL, 4, 1 << 16);
            assert_eq!(read(vm, PLACED), Some(99));
        });
        let now = board.host().free.lock().total();
        assert_eq!(now, *free.get_or_insert(now));
    }
    let found = board.answer(&["guest-destroy one", "guest-create one"]);
    assert_eq!(found, ["1 ok", "2 ok"]);
    assert_eq!(board.host().free.lock().total(), free.expect("it was counted"));
}

#[test]
fn stores_are_not_logged_and_the_memory_is_no_ones_own() {
    let board = board(&[ONE, OTHER]);
    at_row(board, 0, |guest, _| guest.write_config(FIRST, COMMAND, MEMORY));
    let found = board.answer(&["@one log-start 0 dirty-bits", "guest-send one 0x1 still", "vms"]);
    let refused = "error the guest shares memory: what others store would be missing in a log";
    assert_eq!(found[..2], [format!("1 {refused}"), format!("2 {refused}")]);
    assert!(found[2].contains("memory=0x800000 "), "{found:?}");
    assert_eq!(board.answer(&["@other log-start 0 dirty-bits"]), ["1 ok"]);
}

#[test]
fn guests_that_disagree_are_refused() {
    set_machine(None);
    let refused = |other| board_of(1, &[ONE, other]).err().map(|why| why.to_string());
    let disagree = "shared: guests disagree about the size of 'ring', or have the same number";
    for other in ["memory=8388608\nshared=ring:4096:1", "memory=8388608\nshared=ring:8192:0"] {
        assert_eq!(refused(other).as_deref(), Some(disagree), "{other}");
    }
    let found = refused("memory=8388608\nshared=big:67108864:0").map(|why| why.contains("64 MiB"));
    assert_eq!((found, refused("memory=8388608\nshared=ring:8192:63 own:4096:0")), (Some(true), None));
}
