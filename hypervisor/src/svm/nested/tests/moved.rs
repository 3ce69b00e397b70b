//! Saved, and moved, while L2 runs.

use migration::{Archive, Flaw};
use std::sync::mpsc::{Receiver, channel};

use super::super::{Nested, Now, PageFault};
use super::*;
use crate::svm::features::Features;
use crate::svm::tests::moved::{off, read, written};
use crate::svm::tests::processor::{MockSvm, begin_on, board_of};
use crate::vm::arch::Arch;
use crate::vm::mock::End;
use crate::vm::tests::migration::{Cut, carry};
use crate::x86::vcpu::block::Field::TscOffset;
use crate::x86::vcpu::state::Activity;

const INTERRUPT: u64 = event::VALID | event::TYPE_INTERRUPT;

/// What one machine gives to another: a vCPU, and VMCB12.
pub(super) struct Moved(Vec<u8>, Box<Vmcb>);

fn leave_inner(guest: &mut Guest<'_, '_>) -> Result<(), Flaw> {
    off(guest, |guest| MockSvm::leave_inner(guest.0.vm, guest.0.state))
}

fn moved(guest: &mut Guest<'_, '_>) -> Moved {
    leave_inner(guest).expect("it may be saved");
    assert!(!is_inside(guest) && guest.0.state.own.holds_events());
    Moved(written(guest), vmcb12(guest))
}

/// It goes on on a machine that has never run.
pub(super) fn on_another<R>(Moved(bytes, block): &Moved, act: impl FnOnce(&mut Guest<'_, '_>) -> R) -> R {
    with_guest_of(NESTED, |guest| {
        guest.write(VMCB12, block.bytes());
        read(guest, bytes, 0).expect("it is read");
        act(guest)
    })
}

/// L1 enters L2 again, and injects what was being delivered.
fn again(guest: &mut Guest<'_, '_>) {
    let mut block = vmcb12(guest);
    block.event_injection = block.exit_interrupt_info;
    vmrun(guest, &block);
}

/// Enters L2, which does this; returns the event that it begins with.
fn event_of(guest: &mut Guest<'_, '_>, act: impl Fn(&mut Vmcb) + 'static) -> u64 {
    let (sender, receiver): (_, Receiver<u64>) = channel();
    run(guest, move |b| {
        sender.send(b.event_injection).expect("is heard");
        act(b);
    });
    receiver.recv().expect("it has run")
}

/// L1 as hypervisors are: it asks for interrupts, and has flags of its own for them.
fn usual() -> Box<Vmcb> {
    let mut block = plain();
    block.intercept_misc1 = misc1::INTR;
    block.interrupt_control = vintr::MASKING;
    block
}

/// What L2 has when it is left, and what L1 finds: EXITCODE, EXITINFO1, EXITINTINFO.
type Case = (&'static str, fn(&mut Vmcb), fn(&mut Guest<'_, '_>), [u64; 3]);

const GP: u64 = event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | event::VECTOR_GP;

/// #GP by RDMSR, whose exit is not L1's.
fn raises(guest: &mut Guest<'_, '_>) {
    guest.write(INNER_CODE, &[0x0f, 0x32]);
    guest.set(RCX, 0x1234_5678);
    leaves(guest, [0x7c, 0, 0]);
}

/// All that an entry prepares is there.
fn is_not_entered(guest: &mut Guest<'_, '_>) {
    let _kick = guest.0.vcpu.target.post_event();
    assert!(!guest.enter(|_, _| panic!("an event is to be looked at")));
}

const CASES: [Case; 9] = [
    ("nothing", |_| (), |_| (), [0x60, 0, 0]),
    ("EVENTINJ", |b| b.event_injection = INTERRUPT | 0x30, |_| (), [0x60, 0, INTERRUPT | 0x30]),
    (
        "a delivery that was cut short",
        |_| (),
        |guest| _ = run(guest, |b| (b.exit_code, b.exit_interrupt_info) = (0x60, INTERRUPT | 0x31)),
        [0x60, 0, INTERRUPT | 0x31],
    ),
    ("an exception", |_| (), raises, [0x60, 0, GP]),
    ("an exception for L1", |b| b.intercept_exceptions = 1 << 13, raises, [0x4d, 0, 0]),
    (
        "a nested page fault for L1",
        |_| (),
        |guest| guest.0.state.own.raise_nested(Gpa(HOLE), PageFault::WRITE, true),
        [0x400, 2 | 1 << 33, 0],
    ),
    (
        "an exit is requested",
        |b| b.interrupt_control = 0,
        |guest| {
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            is_not_entered(guest);
            assert_ne!(guest.vmcb().intercept_misc1 & misc1::VINTR, 0);
        },
        [0x60, 0, 0],
    ),
    (
        "an NMI of L1's, which L2 takes",
        |_| (),
        |guest| {
            guest.0.state.nmi.post();
            assert!(guest.enter(|b, _| b.exit_code = 0x60));
            table::handle_exit(guest.0);
            // At its IRET.
            leaves(guest, [0x74, 0, 0]);
            is_not_entered(guest);
            assert!(guest.0.state.nmi.contains(Nmi::STEPPING));
        },
        [0x60, 0, 0],
    ),
    (
        "a halt",
        |_| (),
        |guest| {
            guest.write(INNER_CODE, &[0xf4]);
            leaves(guest, [0x78, 0, 0]);
            assert_eq!(guest.0.state.activity, Activity::Halted);
        },
        [0x60, 0, 0],
    ),
];

#[test]
fn n23_what_l2_has_when_it_is_saved_is_l1s_to_give_it_again() {
    for (name, set, act, found) in CASES {
        let (mut before, mut offset) = ([0; 4], 0);
        let state = |guest: &mut Guest<'_, '_>| {
            let b = guest.vmcb();
            [b.rip, b.rflags, b.interrupt_shadow, b.interrupt_control]
        };
        let moved = with_l1(|guest| {
            guest.0.state.lapic.accept_fixed(VECTOR - 0x10, Trigger::Edge);
            let mut block = usual();
            set(&mut block);
            (block.interrupt_shadow, block.tsc_offset, block.next_rip) = (1, 77, INNER_CODE + 5);
            offset = guest.vmcb().tsc_offset;
            vmrun(guest, &block);
            act(guest);
            let moved = moved(guest);
            before = state(guest);
            assert_eq!(guest.vmcb().tsc_offset, offset, "{name}");
            moved
        });
        on_another(&moved, |guest| {
            let own = &guest.0.state.own;
            assert!(own.holds_events() && !own.is_inside() && own.efer() == EFER_SVME, "{name}");
            assert!(guest.0.state.is_running(), "{name}");
            assert_eq!(state(guest), before, "{name}");
            let left = vmcb12(guest);
            assert_eq!([left.exit_code, left.exit_info_1, left.exit_interrupt_info], found, "{name}");
            let is_shadowed = !matches!(name, "a halt");
            assert_eq!((left.interrupt_shadow, left.tsc_offset), (is_shadowed.into(), 77), "{name}");
            assert_eq!(left.event_injection & event::VALID, 0, "{name}");
            assert_eq!(left.interrupt_control & vintr::IRQ, 0, "{name}");
            assert!(guest.0.state.lapic.highest_irr().is_some(), "{name}");
            let blocked = name.starts_with("an NMI");
            assert_eq!(guest.0.state.nmi.contains(Nmi::BLOCKED), blocked, "{name}");
            again(guest);
            let iret = guest.vmcb().intercept_misc1 & misc1::IRET != 0;
            assert_eq!(iret, blocked, "{name}");
            assert_eq!(event_of(guest, |b| b.exit_code = 0x60), found[2], "{name}");
            assert_eq!(event_of(guest, |b| b.exit_code = 0x60), 0, "{name}: once");
        });
    }
}

/// L1 injects one event after the other; its vCPU is saved wherever it is, also between two.
#[test]
fn n23_each_event_is_delivered_once_wherever_it_is_saved() {
    for seed in 1..=30 {
        let mut random = Random::new(seed);
        let (mut sent, mut taken) = (0_u64, Vec::new());
        let mut state = with_l1(|guest| {
            vmrun(guest, &usual());
            moved(guest)
        });
        for _ in 0..8 {
            state = on_another(&state, |guest| {
                for _ in 0..random.below(8) {
                    if !is_inside(guest) {
                        let mut block = vmcb12(guest);
                        block.intercept_misc1 |= misc1::CPUID;
                        block.event_injection = block.exit_interrupt_info;
                        if block.event_injection & event::VALID == 0 {
                            block.event_injection = INTERRUPT | (0x20 + sent);
                            sent += 1;
                        }
                        vmrun(guest, &block);
                    }
                    let is_short = random.below(3) == 0;
                    let code = [0x60, 0x72][random.below(2) as usize];
                    let came = match random.below(4) {
                        0 => 0,
                        _ => event_of(guest, move |b| {
                            b.exit_code = code;
                            b.exit_interrupt_info = if is_short { b.event_injection } else { 0 };
                            b.event_injection = 0;
                        }),
                    };
                    if came != 0 && !is_short {
                        taken.push(came);
                    }
                }
                moved_or_not(guest)
            });
        }
        let last = state.1.exit_interrupt_info;
        if last & event::VALID != 0 {
            taken.push(last);
        }
        let all: Vec<_> = (0..sent).map(|number| INTERRUPT | (0x20 + number)).collect();
        assert_eq!(taken, all, "seed {seed}");
    }
}

/// As [`moved`], in L1 or in L2.
pub(super) fn moved_or_not(guest: &mut Guest<'_, '_>) -> Moved {
    if is_inside(guest) { moved(guest) } else { Moved(written(guest), vmcb12(guest)) }
}

#[test]
fn n23_an_l1_that_would_not_understand_the_exit_is_not_saved_now() {
    with_l1(|guest| {
        let mut block = usual();
        (block.intercept_misc1, block.event_injection) = (0, INTERRUPT | 0x30);
        vmrun(guest, &block);
        assert!(matches!(leave_inner(guest), Err(Flaw::Unmovable(_))));
        assert!(matches!(off(guest, describes), Err(Flaw::Unmovable(_))), "L2 is in no stream");
        assert_eq!(event_of(guest, |b| b.exit_code = 0x60), INTERRUPT | 0x30, "it goes on");
    });
    with_l1(|guest| {
        vmrun(guest, &usual());
        let nested = guest.0.state.own.nested.as_deref_mut().expect("may nest");
        nested.inside.as_mut().expect("is inside").at = Gpa(HOLE);
        guest.0.state.raise_undefined();
        assert!(matches!(leave_inner(guest), Err(Flaw::Unmovable(_))));
        assert_eq!((is_inside(guest), guest.raised()), (true, Some(event::VECTOR_UD)), "it keeps its fault");
    });
}

fn describes(guest: &mut Guest<'_, '_>) -> Result<(), Flaw> {
    let mut bytes = std::vec![0; 1 << 16];
    crate::svm::tests::moved::describe(guest, &mut Archive::writer(&mut bytes))
}

#[test]
fn n23_l1s_registers_of_svm_are_passed_on() {
    let state = with_l1(|guest| {
        guest.write_msr(HOST_SAVE, 0x5000);
        guest.write_msr(VM_CR, 1 << 3);
        execute(guest, 0x85, 0xdd, 0);
        moved_or_not(guest)
    });
    on_another(&state, |guest| {
        assert!(guest.0.state.own.holds_events() && guest.0.state.own.efer() == EFER_SVME);
        assert_eq!((guest.read_msr(HOST_SAVE), guest.read_msr(VM_CR)), (0x5000, 1 << 3));
    });
    with_guest(&[], |guest| {
        let refused = Err(Flaw::Differs("whether it may have guests", 0, 1));
        assert_eq!(read(guest, &state.0, 0), refused);
    });
    with_guest_of(NESTED, |guest| {
        processor(|processor| processor.features = Features(1 << 3 | 1 << 5));
        let refused = read(guest, &state.0, 0);
        assert!(matches!(refused, Err(Flaw::Differs(what, ..)) if what.contains("SVM")), "{refused:?}");
    });
    type Break = fn(&mut Guest<'_, '_>);
    let wrong: [(&str, Break); 4] = [
        ("VM_CR", |guest| nested(guest).vm_cr = 1),
        ("VM_HSAVE_PA", |guest| nested(guest).host_save = 1 << 40),
        ("EFER.SVME", |guest| nested(guest).vm_cr = 1 << 4),
        ("the interrupt flag of SVM", |guest| {
            nested(guest).svme = false;
            guest.0.state.own.now = Now::HELD;
        }),
    ];
    for (name, set) in wrong {
        with_l1(|guest| {
            set(guest);
            assert_eq!(off(guest, describes), Err(Flaw::Value(name)));
        });
    }
}

fn nested<'a>(guest: &'a mut Guest<'_, '_>) -> &'a mut Nested {
    guest.0.state.own.nested.as_deref_mut().expect("may nest")
}

#[test]
fn n7_a_reset_of_the_machine_leaves_l2() {
    with_l1(|guest| {
        vmrun(guest, &usual());
        guest.0.state.reset(&guest.0.vcpu.inbox);
        assert!(guest.0.state.own.is_plain() && guest.0.state.own.efer() == 0);
        assert_eq!((guest.vmcb().rip, guest.0.state.tsc_adjust), (0xfff0, 0));
        assert_eq!(guest.field(TscOffset), guest.0.vm.clock.base());
        assert!(knows_none(guest));
    });
}

/// VMCB12 is written before the log is fetched for the last time.
#[test]
fn n23_the_block_that_is_written_last_is_sent() {
    let guests = [
        "name=here\nvcpus=2\nmemory=16777216\nnested=on",
        "name=there\nvcpus=2\nmemory=16777216\nnested=on\nstart=manual",
    ];
    for way in ["live", "still"] {
        let board = board_of(2, &guests);
        board.with_vcpu(0, |context| {
            begin_on(context, &[], |guest| {
                guest.write_msr(EFER, EFER_LME | EFER_SVME);
                guest.write(INNER_CODE, &[0xf4]);
                vmrun(guest, &usual());
            });
        });
        let seen = carry::<MockSvm>(board, Cut::Never, 2);
        board.ask(4_000_000, &std::format!("1 guest-send here 0x7 {way}"));
        board.ask(4_000_000, "2 guest-receive there 0x9");
        board.enough(2);
        assert_eq!(board.run(1), End::Quiet, "{:?}, {seen:?}", board.answers());
        let vm = board.host().first_guest().expect("it is there");
        assert_eq!(vm.number, 1, "{way}: {:?}", board.answers());
        let _owner = vm.vcpus[0].target.owner().expect("it halts");
        // SAFETY: the owner was just taken.
        let state = unsafe { vm.vcpus[0].state() };
        assert!(state.own.holds_events() && !state.own.is_inside(), "{way}");
        let mut left = Vmcb::boxed();
        vm.space.slots().memory().read(Gpa(VMCB12), left.bytes_mut()).expect("is memory");
        assert_eq!((left.exit_code, left.rip), (0x60, INNER_CODE + 1), "{way}");
    }
}
