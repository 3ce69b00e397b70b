//! Entry into the guest and the clean-up after it; external events.

use core::sync::atomic::Ordering;
use hostlink::counters::Counter;
use memslots::Gpa;
use tlfs::msr;

use super::processor::{CODE, DATA, Guest, MockSvm, board, processor, with_guest};
use crate::devices::pc::message::Trigger;
use crate::sched::notify::Published;
use crate::svm::intercepts::misc1;
use crate::svm::vmcb::{Vmcb, vintr};
use crate::vm::arch::Board;
use crate::x86::vcpu::block::ControlBlock;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::registers::{RAX, RBX, RCX, RDX};
use crate::x86::vcpu::state::Activity;
use crate::x86::vcpu::{event, signals};
use crate::x86::{RFLAGS_IF, RFLAGS_RF};

const VECTOR: u8 = 0x51;
const INTERRUPT: u64 = event::VALID | event::TYPE_INTERRUPT | VECTOR as u64;
const NMI: u64 = event::VALID | event::TYPE_NMI | 2;

fn event_of_entry(guest: &mut Guest<'_, '_>) -> u64 {
    let (sender, receiver) = std::sync::mpsc::channel();
    assert!(guest.enter(move |vmcb, _| sender.send(vmcb.event_injection).unwrap()));
    let injected = receiver.recv().unwrap();
    match processor(|processor| processor.taken) {
        None => injected,
        Some(vector) => {
            assert_eq!(injected & event::VALID, 0, "one event at a time");
            event::VALID | event::TYPE_INTERRUPT | u64::from(vector)
        }
    }
}

#[test]
fn an_interrupt_goes_in_at_once_or_through_a_window() {
    with_guest(&[], |guest| {
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        assert_eq!(event_of_entry(guest), 0, "RFLAGS.IF is 0");
        assert_ne!(guest.vmcb().intercept_misc1 & misc1::VINTR, 0);
        assert_ne!(guest.vmcb().interrupt_control & vintr::IRQ, 0);
        guest.vmcb().rflags |= RFLAGS_IF;
        guest.exit(0x64, 0, 0);
        assert_eq!((event_of_entry(guest), guest.0.state.lapic.highest_isr()), (INTERRUPT, Some(VECTOR)));
        assert_eq!(guest.vmcb().intercept_misc1 & misc1::VINTR, 0, "nothing more waits");
        assert_eq!(guest.count(Counter::IrqInjected), 1);
    });
}

#[test]
fn an_interrupt_shadow_holds_events_off() {
    with_guest(&[], |guest| {
        guest.vmcb().rflags |= RFLAGS_IF;
        guest.vmcb().interrupt_shadow = 1;
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        guest.0.state.nmi.post();
        assert_eq!(event_of_entry(guest), 0);
        guest.vmcb().interrupt_shadow = 0;
        assert_eq!(event_of_entry(guest), NMI, "before the interrupt");
        assert_ne!(guest.vmcb().intercept_misc1 & misc1::IRET, 0);
        assert_eq!(event_of_entry(guest), INTERRUPT);
    });
}

/// The delivery of an interrupt is cut short by an exit: as in the manual, and as in QEMU, which
/// leaves V_IRQ set and reports the interrupt as an exception.
const CUT_SHORT: [fn(&mut Vmcb); 2] = [
    |vmcb| vmcb.exit_interrupt_info = INTERRUPT,
    |vmcb| {
        vmcb.interrupt_control |= vintr::IRQ;
        vmcb.exit_interrupt_info = event::VALID | event::TYPE_EXCEPTION | u64::from(VECTOR);
    },
];

#[test]
fn an_exception_comes_before_what_was_cut_short() {
    for cut_short in CUT_SHORT {
        with_guest(&[], |guest| {
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            guest.vmcb().rflags |= RFLAGS_IF;
            assert!(guest.enter(move |vmcb, _| cut_short(vmcb)));
            assert_eq!(guest.vmcb().event_injection, 0, "the local APIC has it again");
            assert_eq!(guest.0.state.lapic.highest_isr(), None, "the guest has not got it");
            guest.0.state.raise_page_fault(CODE, 0x10);
            let first = event_of_entry(guest);
            assert_eq!((first & 0xff, first >> 32, guest.vmcb().cr2), (14, 0x10, CODE));
            assert_ne!(guest.vmcb().rflags & RFLAGS_RF, 0);
            guest.vmcb().rflags |= RFLAGS_IF;
            assert_eq!(event_of_entry(guest), INTERRUPT);
            assert_eq!(event_of_entry(guest), 0, "once");
        });
    }
}

#[test]
fn u32_an_interrupt_that_is_not_taken_is_a_request_again_and_comes_once() {
    with_guest(&[], |guest| {
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        guest.vmcb().rflags |= RFLAGS_IF;
        // An interrupt of the machine ends the stay before its first instruction.
        assert!(guest.enter(|vmcb, _| vmcb.interrupt_control |= vintr::IRQ));
        let found = (guest.0.state.lapic.highest_isr(), guest.0.state.lapic.highest_irr());
        assert_eq!((found, guest.count(Counter::IrqInjected)), ((None, Some(VECTOR)), 0));
        // One of higher priority has arrived meanwhile.
        guest.0.state.lapic.accept_fixed(VECTOR + 0x20, Trigger::Edge);
        assert_eq!((event_of_entry(guest), guest.count(Counter::IrqInjected)), (INTERRUPT + 0x20, 1));
        assert_eq!(event_of_entry(guest), 0, "the other is of lower priority");
        let _nothing_follows = guest.0.state.lapic.eoi();
        assert_eq!(event_of_entry(guest), INTERRUPT);
        assert_eq!(event_of_entry(guest), 0, "once");
        assert_eq!(guest.count(Counter::IrqInjected), 2);
    });
}

#[test]
fn an_interrupt_for_a_vcpu_in_guest_mode_ends_its_stay() {
    with_guest(&[], |guest| {
        let (vm, kicks) = (guest.0.vm, guest.count(Counter::KickEvent));
        assert!(guest.enter(move |_, _| vm.post_fixed_to(&vm.vcpus[0], VECTOR)));
        assert_eq!(guest.count(Counter::KickEvent) - kicks, 1);
    });
}

#[test]
fn an_nmi_behind_an_exception_has_its_exit() {
    with_guest(&[], |guest| {
        guest.0.state.raise_undefined();
        guest.0.state.nmi.post();
        guest.0.state.prepare_events::<MockSvm>();
        assert!(
            crate::vm::mock::board_impl::is_interrupted::<MockSvm>(),
            "the kick ends the stay as it begins"
        );
        assert!(guest.0.state.nmi.contains(Nmi::PENDING));
    });
    with_guest(&[], |guest| {
        guest.vmcb().interrupt_shadow = 1;
        guest.0.state.nmi.post();
        guest.0.state.prepare_events::<MockSvm>();
        assert!(!crate::vm::mock::board_impl::is_interrupted::<MockSvm>(), "it has a window");
    });
}

#[test]
fn a_task_priority_exits_while_it_alone_holds_an_interrupt_off() {
    const CR8_WRITE: u32 = 1 << 24;
    with_guest(&[], |guest| {
        guest.vmcb().rflags |= RFLAGS_IF;
        guest.0.state.set_task_priority(0xf0);
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        assert_eq!(event_of_entry(guest), 0);
        assert_eq!(guest.vmcb().intercept_cr & CR8_WRITE, CR8_WRITE);
        guest.0.state.set_task_priority(0);
        assert_eq!((event_of_entry(guest), guest.vmcb().intercept_cr & CR8_WRITE), (INTERRUPT, 0));
        // A change of the memory types drops translations.
        let before = guest.vmcb().asid;
        guest.write_msr(0x277, 0x0606_0606_0606_0606);
        assert!(guest.enter(move |vmcb, _| assert!(vmcb.asid != before || vmcb.tlb_control != 0)));
    });
}

#[test]
fn software_interrupts_are_executed_again_and_nothing_else_is_lost() {
    for (info, again) in [
        (event::VALID | event::TYPE_SOFTWARE | 0x80, 0),
        (event::exception(3), 0),
        (event::exception(4), 0),
        (event::exception(6), event::exception(6)),
        (NMI, NMI),
        (INTERRUPT, 0),
        (INTERRUPT & !event::VALID, 0),
    ] {
        with_guest(&[], |guest| {
            assert!(guest.enter(move |vmcb, _| vmcb.exit_interrupt_info = info));
            assert_eq!(guest.vmcb().event_injection, again, "{info:#x}");
        });
    }
}

#[test]
fn rax_and_task_priority_go_in_and_come_out() {
    with_guest(&[], |guest| {
        guest.set(RAX, 5);
        assert!(guest.enter(|vmcb, registers| {
            assert_eq!(vmcb.rax, 5);
            vmcb.rax = 6;
            vmcb.interrupt_control |= 0xa;
            registers.0[RBX] = 7;
        }));
        assert_eq!((guest.get(RAX), guest.get(RBX), guest.0.state.lapic.tpr()), (6, 7, 0xa0));
        assert_eq!(guest.0.cpu.last_exit.load(Ordering::Relaxed), 0x60);
    });
}

/// The page with the field that the guest checks instead of writing EOI.
const ASSIST: u64 = DATA + 0x9000;

fn with_offer(act: impl FnOnce(&mut Guest<'_, '_>)) {
    with_guest(&[], |guest| {
        guest.write_msr(msr::VP_ASSIST_PAGE, ASSIST | 1);
        guest.begin(&[]);
        guest.vmcb().rflags |= RFLAGS_IF;
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        act(guest);
    });
}

fn field() -> u32 {
    let mut bytes = [0; 4];
    let vm = MockSvm::host().unwrap().first_guest().unwrap();
    vm.space.slots().memory().read(Gpa(ASSIST), &mut bytes).unwrap();
    u32::from_le_bytes(bytes)
}

#[test]
fn a_lazy_eoi_that_is_made_use_of_ends_the_interrupt() {
    with_offer(|guest| {
        assert!(guest.enter(|_, _| {
            assert_eq!(field() & 1, 1, "the offer");
            MockSvm::host()
                .unwrap()
                .first_guest()
                .unwrap()
                .space
                .slots()
                .memory()
                .write_u32(Gpa(ASSIST), 0)
                .unwrap();
        }));
        assert_eq!(guest.0.state.lapic.highest_isr(), None);
    });
}

#[test]
fn a_lazy_eoi_that_is_not_made_use_of_is_withdrawn() {
    with_offer(|guest| {
        assert!(guest.enter(|_, _| assert_eq!(field() & 1, 1)));
        assert_eq!((field(), guest.0.state.lapic.highest_isr()), (0, Some(VECTOR)));
    });
}

#[test]
fn an_entry_that_is_called_off_leaves_no_offer() {
    with_offer(|guest| {
        guest.0.vm.notify(guest.0.vcpu, Published::NOTHING);
        assert!(!guest.enter(|_, _| panic!("nobody enters with an event pending")));
        assert_eq!((field(), guest.0.state.lapic.highest_isr()), (0, None));
        assert_eq!(processor(|processor| processor.entries), 0);
        assert!(guest.0.owner.take_events());
        assert_eq!(event_of_entry(guest), INTERRUPT, "what goes in is not lost");
    });
}

#[test]
fn an_assist_page_without_memory_offers_nothing() {
    with_guest(&[], |guest| {
        guest.write_msr(msr::VP_ASSIST_PAGE, super::processor::HOLE | 1);
        guest.begin(&[]);
        guest.vmcb().rflags |= RFLAGS_IF;
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        assert!(guest.enter(|_, _| {}));
        assert_eq!(guest.0.state.lapic.highest_isr(), Some(VECTOR));
    });
}

/// Issues a flush request to all vCPUs: for these pages, or for everything.
pub(crate) fn flush(guest: &mut Guest<'_, '_>, pages: &[u64]) {
    guest.begin(&[0x0f, 0x01, 0xd9]);
    guest.enable_hypercalls();
    let input = DATA + 0x6000;
    for (word, index) in [0, 1, 0].iter().chain(pages).zip(0..) {
        guest.write(input + 8 * index, &word.to_le_bytes());
    }
    let code = if pages.is_empty() { 2 } else { 3 };
    guest.set(RCX, code | (pages.len() as u64) << 32);
    guest.set(RDX, input);
    guest.exit(0x81, 0, 0);
    assert_eq!((guest.get(RAX) & 0xffff, guest.raised()), (0, None), "HV_STATUS_SUCCESS");
}

#[test]
fn a_flush_of_everything_is_owed_to_the_tag() {
    with_guest(&[], |guest| {
        assert!(guest.enter(|_, _| {}));
        flush(guest, &[]);
        assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
        assert_eq!((guest.count(Counter::FlushTaken), guest.count(Counter::FlushWhole)), (1, 1));
        let before = guest.vmcb().asid;
        assert!(guest.enter(move |vmcb, _| assert!(vmcb.asid != before || vmcb.tlb_control != 0)));
        assert!(guest.enter(|vmcb, _| assert_eq!(vmcb.tlb_control, 0, "once")));
    });
}

#[test]
fn pages_are_dropped_one_by_one_and_counted() {
    with_guest(&[], |guest| {
        assert!(guest.enter(|_, _| {}));
        let asid = guest.vmcb().asid;
        flush(guest, &[0x7000, 0x9001]);
        assert!(!guest.enter(|_, _| panic!("nobody enters with a flush pending")));
        let dropped = processor(|processor| processor.dropped.clone());
        assert_eq!(dropped, [(0x7000, asid), (0x9000, asid), (0xa000, asid)]);
        let counts = [Counter::FlushTaken, Counter::FlushRanges, Counter::FlushPages, Counter::FlushWhole];
        assert_eq!(counts.map(|counter| guest.count(counter)), [1, 2, 3, 0]);
        assert!(guest.enter(|vmcb, _| assert_eq!(vmcb.tlb_control, 0)));
    });
}

#[test]
fn an_entry_that_the_processor_refuses_leaves_the_flush_owed() {
    with_guest(&[], |guest| {
        assert!(guest.enter(|vmcb, _| vmcb.exit_code = u64::MAX));
        assert_eq!(guest.exit(u64::MAX, 0, 0), crate::vm::Next::Dead);
        assert!(guest.enter(|vmcb, _| assert_ne!(vmcb.tlb_control, 0, "nothing was dropped")));
    });
}

#[test]
fn start_up_is_for_those_that_wait_for_it() {
    board().with_vcpu(1, |context| {
        let guest = &mut Guest(context);
        let _ = guest.0.vcpu.inbox.post_startup(0x9a);
        signals::take_signals(guest.0);
        assert_eq!(guest.0.state.activity, Activity::Running);
        assert_eq!((guest.vmcb().cs.base, guest.vmcb().rip, guest.vmcb().cs.selector), (0x9a000, 0, 0x9a00));
        assert_eq!(guest.get(RDX), 0x0080_0f12, "the processor's signature");
        guest.vmcb().rip = 77;
        let _ = guest.0.vcpu.inbox.post_startup(0x10);
        signals::take_signals(guest.0);
        assert_eq!(guest.vmcb().rip, 77, "it runs already");
        let _ = guest.0.vcpu.inbox.post_init();
        signals::take_signals(guest.0);
        assert_eq!((guest.0.state.activity, guest.vmcb().rip), (Activity::WaitForStartup, 0xfff0));
    });
}

#[test]
fn nmis_that_are_posted_are_taken_one_after_the_other() {
    with_guest(&[], |guest| {
        for _ in 0..3 {
            let _ = guest.0.vcpu.inbox.post_nmi();
        }
        signals::take_signals(guest.0);
        assert_eq!(event_of_entry(guest), NMI);
        assert_eq!(event_of_entry(guest), 0, "the next waits for IRET");
        assert!(guest.0.state.nmi.contains(Nmi::PENDING | Nmi::BLOCKED));
    });
}

/// Takes the virtual interrupt that the guest is offered, before its first instruction; returns its
/// vector (APM volume 2, section 15.21.4).
pub(super) fn take_virtual_interrupt(vmcb: &mut Vmcb) -> Option<u8> {
    let control = vmcb.interrupt_control;
    let is_open = vmcb.takes_virtual() && vmcb.interrupt_shadow & 1 == 0;
    // With an event by EVENTINJ, the handler begins with interrupts off.
    let is_free = vmcb.event_injection & event::VALID == 0 && vmcb.intercept_misc1 & misc1::VINTR == 0;
    if !is_open || !is_free {
        return None;
    }
    vmcb.interrupt_control = control & !vintr::IRQ;
    Some((control >> vintr::VECTOR_SHIFT) as u8)
}
