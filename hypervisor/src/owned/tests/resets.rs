//! What resets of functions take away, and resets that the guest itself asks for.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use super::{BAR, COMMAND, FIRST, MASTER, MEMORY, board_of_several, on, warnings, with_owned};
use crate::iommu::mock::{Arrived, Machine, NVME, Note, Refusal, SMALL, VIRTIO, device_id};
use crate::svm::tests::memory::{ROM, out};
use crate::svm::tests::processor::{DATA, Guest};
use baremetal::random::Random;
use hostlink::exit::ExitCode;
use hostlink::guests::GuestState;
use tlfs::msr;

const ONE: &str = "vcpus=2\nmemory=16777216\ndevices=nvme";
/// A function that ACS isolates from the other one of its device.
const ISOLATED: &str = "00:0c.0";
/// The control of its services, which are off after a reset: what is needed of them.
const ACS_CONTROL: u16 = 0x104;
const NEEDED: u32 = 0xc;

#[test]
fn a_function_is_isolated_again_after_each_reset_before_it_translates() {
    let machine = Machine::new();
    let found = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&found);
    let control = || machine.bus.word(ISOLATED, ACS_CONTROL) >> 16;
    machine.iommu.watch(move |_| {
        if machine.iommu.entry_in_memory(device_id(ISOLATED))[0] >> 61 != 0 {
            seen.lock().unwrap().push((machine.bus.resets(ISOLATED), control()));
        }
    });
    on(machine, "vcpus=1\nmemory=16777216\ndevices=00:0c.0", |guest| {
        assert_eq!(found.lock().unwrap().first(), Some(&(1, NEEDED)));
        guest.reset();
        assert_eq!((machine.bus.resets(ISOLATED), control()), (2, NEEDED));
        reset(guest);
        assert_eq!((machine.bus.resets(ISOLATED), control()), (3, NEEDED));
    });
}

#[test]
fn dma_of_a_function_snoops_after_each_reset() {
    let machine = Machine::new();
    let asks = || machine.bus.word(NVME, 0x88) & 1 << 11 != 0;
    assert!(asks(), "as firmware has left it");
    on(machine, "vcpus=1\nmemory=16777216\ndevices=nvme", |guest| {
        assert!(!asks());
        guest.reset();
        assert_eq!((machine.bus.resets(NVME), asks()), (2, false));
    });
}

#[test]
fn a_function_that_answers_at_a_later_reset_only_works_from_then_on() {
    let machine = Machine::new();
    machine.bus.answers_late(NVME, 120);
    on(machine, ONE, |guest| {
        guest.write_config(FIRST, COMMAND, MASTER);
        assert_eq!(machine.iommu.dma(device_id(NVME), DATA, true), Err(Refusal::Blocked));
        machine.bus.answers_late(NVME, 0);
        guest.reset();
        guest.write_config(FIRST, COMMAND, MASTER);
        machine.dma_write(NVME, DATA, 1).expect("it is attached");
    });
}

#[test]
fn a_function_that_can_no_more_be_isolated_is_left_alone_and_then_nobodys() {
    let machine = Machine::new();
    let config = "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=00:0c.0";
    let board = board_of_several(machine, &[config]);
    machine.bus.lose_acs(ISOLATED);
    assert_eq!(board.answer(&["guest-create a"]), ["1 ok"]);
    assert_eq!(machine.iommu.dma(device_id(ISOLATED), DATA, true), Err(Refusal::Blocked));
    board.with_vcpu(0, |context| {
        let mut guest = Guest(context);
        guest.begin(&[]);
        guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
        assert_eq!(machine.bus.word(ISOLATED, 4) & 4, 0);
    });
    let found = board.answer(&["guest-destroy a", "guest-create a"]);
    assert!(found[1].contains("00:0c.0 does not answer"), "{found:?}");
}

/// Random writes to what a guest's vCPUs share: the partition's registers, both of its pages, the
/// PCI bus with the ROM and a function, and ports of devices.
#[test]
fn u59_after_a_reset_what_a_guests_vcpus_share_is_as_when_it_was_created() {
    const SYNTHETIC: [u32; 9] = [
        msr::GUEST_OS_ID,
        msr::HYPERCALL,
        msr::REFERENCE_TSC,
        msr::CRASH_P0,
        msr::CRASH_P4,
        msr::CRASH_CTL,
        msr::TSC_INVARIANT_CONTROL,
        msr::VP_ASSIST_PAGE,
        msr::STIMER0_CONFIG,
    ];
    let mut changed = BTreeSet::new();
    let random = &mut Random::new(59);
    for round in 0..40 {
        with_owned(ONE, |_, guest| {
            let vm = guest.0.vm;
            let new = vm.guest.fields();
            let contents = guest.read(0x40_0000);
            for _ in 0..random.below(60) {
                let page = 0x40_0000 + (random.below(4) << 12);
                let values = [page | 1, page | 3, 1, 0, random.word()];
                let value = random.one_of(values);
                guest.write_msr(random.one_of(SYNTHETIC.map(u64::from)) as u32, value);
                let bus = [
                    (1, 0x30, ROM | 1),
                    (1, COMMAND, 2),
                    (FIRST, COMMAND, MEMORY.into()),
                    (FIRST, BAR, 0xe400_0000),
                ];
                let (device, register, value) = bus[random.below(4) as usize];
                guest.write_config(device, register, value as u32);
                let port = random.one_of([0x3f9, 0x3fb, 0x2f9, 0x43, 0x40, 0x70, 0x61]) as u16;
                let _next = out(guest, port, random.word() & 0xff);
            }
            changed.extend(differing(&new, &vm.guest.fields()));
            guest.reset();
            assert_eq!(differing(&new, &vm.guest.fields()), <[&str; 0]>::default(), "round {round}");
            // Nobody puts back what pages covered before.
            assert_eq!(guest.read(0x40_0000), contents);
            guest.enable_hypercalls();
            guest.write_msr(msr::HYPERCALL, 0);
            assert_eq!(guest.read(0x40_0000), contents);
        });
    }
    assert!(changed.into_iter().eq(["overlays", "partition", "platform", "rom"]));
}

fn differing(new: &[(&'static str, String)], other: &[(&'static str, String)]) -> Vec<&'static str> {
    new.iter().zip(other).filter(|(one, other)| one != other).map(|(one, _)| one.0).collect()
}

#[test]
fn a_reset_says_once_what_it_has_to_say_while_others_go_on() {
    let machine = Machine::new();
    on(machine, "vcpus=1\nmemory=16777216\ndevices=nvme 00:05.0 00:0c.0", |guest| {
        // The last one is over half a second after the others.
        machine.bus.has_pending(NVME, u32::MAX);
        machine.bus.has_pending(ISOLATED, u32::MAX);
        machine.bus.answers_late(ISOLATED, 50);
        machine.bus.answers_late(SMALL, u32::MAX);
        let lines = warnings(|| guest.reset());
        assert_eq!(lines.len(), 3, "two were reset amid DMA, one does not answer: {lines:?}");
    });
}

/// Resets the first function by its own capability; returns how often the guest has looked for it.
fn reset(guest: &mut Guest<'_, '_>) -> u32 {
    let at = guest.capability(0x13);
    guest.write_config(FIRST, at + 4, 1);
    let mut looks = 0;
    while guest.read_config(FIRST, COMMAND) == u32::MAX {
        looks += 1;
        assert!(looks < 1000, "it is absent for ever");
    }
    looks
}

#[test]
fn a_guest_resets_its_function_which_reaches_nothing_before_it_is_used_again() {
    with_owned(ONE, |machine, guest| {
        let msix = guest.capability(0x11);
        let bar = guest.read_config(FIRST, BAR);
        let works = |guest: &mut Guest<'_, '_>| {
            guest.write_config(FIRST, BAR, bar);
            guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
            let table = u64::from(bar & !0xf) + 0x2000;
            guest.write_entry(table, 3, 0xfee0_0000, 0x61);
            guest.set_mask(table, 3, false);
            guest.write_config(FIRST, msix, 1 << 31);
            machine.dma_write(NVME, DATA, 5).expect("it is attached");
            assert!(matches!(machine.raise(NVME, 3), Arrived::At(..)));
            assert_eq!((guest.device_slots().len(), guest.arrived(0)), (2, vec![0x61]));
        };
        works(guest);
        machine.bus.has_pending(NVME, 3);
        machine.bus.answers_late(NVME, 2);
        let at = guest.capability(0x13);
        assert_eq!(guest.read_config(FIRST, at) >> 16, 0x0306, "a reset, and no transaction is pending");
        machine.notes.take();
        guest.write_config(FIRST, at + 4, 1);
        let off = |note: &Note| matches!(note, Note::Config(_, 4, command) if command & 6 == 0);
        assert!(machine.notes.take().first().is_some_and(off), "it is silent first of all");
        for look in 0.. {
            assert_eq!(machine.bus.word(NVME, 4) & 6, 0, "after {look} looks");
            assert_eq!((guest.device_slots(), machine.raise(NVME, 3)), (vec![], Arrived::Off));
            guest.write_config(FIRST, COMMAND, MEMORY | MASTER);
            if guest.read_config(FIRST, 0) != u32::MAX {
                assert!(look > 3, "it takes its time");
                break;
            }
            assert!(look < 1000);
        }
        assert_eq!(machine.bus.resets(NVME), 2);
        assert_eq!([COMMAND, BAR, BAR + 4].map(|at| guest.read_config(FIRST, at)), [0x10_0000, 4, 0]);
        assert_eq!(guest.read_config(FIRST, msix) >> 30, 0, "off");
        assert_eq!(guest.read_config(FIRST, at + 4), 0);
        assert!(machine.bus.entry(NVME, 3).2, "the real one is masked");
        works(guest);
        for round in 0..300 {
            reset(guest);
            assert_eq!(machine.bus.resets(NVME), 3 + round);
        }
        works(guest);
    });
}

#[test]
fn a_reset_of_the_guest_ends_one_of_its_function_and_a_lost_one_stays_absent() {
    with_owned(ONE, |machine, guest| {
        let at = guest.capability(0x13);
        guest.write_config(FIRST, at + 4, 1);
        assert_eq!(guest.read_config(FIRST, 0), u32::MAX);
        guest.reset();
        assert_eq!((guest.read_config(FIRST, 0), machine.bus.resets(NVME)), (0x0010_1b36, 2));
        machine.bus.answers_late(NVME, u32::MAX);
        guest.write_config(FIRST, at + 4, 1);
        for _ in 0..1000 {
            assert_eq!(guest.read_config(FIRST, 0), u32::MAX);
        }
        assert_eq!(machine.bus.resets(NVME), 3, "it is not tried again");
        machine.bus.answers_late(NVME, 0);
        guest.reset();
        assert_eq!(guest.read_config(FIRST, 0), 0x0010_1b36);
    });
    // By the status of virtio, at once.
    with_owned("vcpus=1\nmemory=16777216\ndevices=virtio-net", |machine, guest| {
        assert!(reset(guest) < 3);
        guest.write_config(FIRST, COMMAND, MASTER);
        assert_eq!(machine.bus.resets(VIRTIO), 2);
        machine.dma_write(VIRTIO, DATA, 1).expect("it is attached");
    });
}

#[test]
fn functions_of_a_guest_that_has_ended_are_silent_and_those_of_a_paused_one_go_on() {
    let machine = Machine::new();
    let board = board_of_several(
        machine,
        &[
            "name=a\nvcpus=1\nmemory=16777216\nstart=manual\ndevices=nvme",
            "name=c\nvcpus=1\nmemory=16777216\nstart=manual",
        ],
    );
    let state = || board.host().state_of(0);
    board.answer(&["guest-create a", "guest-create c", "guest-start c", "guest-start a"]);
    machine.bus.set_master(NVME);
    assert_eq!(board.answer(&["guest-pause a"]), ["1 ok"]);
    assert_eq!((state(), machine.dma_write(NVME, DATA, 1).is_ok()), (GuestState::Paused, true));
    board.answer(&["guest-resume a"]);
    for code in [ExitCode::GuestPowerOff, ExitCode::GuestInvalid] {
        let vm = board.machine();
        vm.end(code);
        let mut requests = 0;
        while state() == GuestState::Running {
            board.answer(&["memory"]);
            requests += 1;
            assert!(requests < 100, "it does not end");
        }
        assert_eq!(machine.bus.word(NVME, 4) & 0x404, 0x400, "neither DMA nor its pin: {code:?}");
        assert_eq!(board.answer(&["guest-start a"]), ["1 ok"]);
        machine.bus.set_master(NVME);
        machine.dma_write(NVME, DATA, 2).expect("it is attached, after a reset");
    }
}
