//! INIT, which GIF holds, and which is an exit of L2.

use super::moved::{moved_or_not, on_another};
use super::*;
use crate::vm::arch::Arch;
use crate::x86::vcpu::state::Activity;
use crate::{devices::pc::inbox::Inbox, svm::tests::processor::MockSvm};

/// Posts this, and has the vCPU look.
fn post(guest: &mut Guest<'_, '_>, what: impl FnOnce(&Inbox)) {
    what(&guest.0.vcpu.inbox);
    MockSvm::take_signals(guest.0);
}

fn init(inbox: &Inbox) {
    let _ = inbox.post_nmi();
    let _ = inbox.post_startup(1);
    let _ = inbox.post_init();
}

/// A vector from before INIT, and what comes behind it.
fn init_and_more(inbox: &Inbox) {
    let _ = inbox.post_fixed(VECTOR, Trigger::Edge);
    init(inbox);
    let _ = (inbox.post_startup(2), inbox.post_startup(3), inbox.post_nmi());
}

/// INIT acts at the next entry, and what came after it.
fn is_reset(guest: &mut Guest<'_, '_>) {
    assert!(!guest.enter(|_, _| panic!("INIT comes first")));
    let state = &guest.0.state;
    assert!(state.own.is_plain() && state.own.efer() == 0);
    assert!(guest.0.owner.take_events(), "it is looked at again");
    MockSvm::take_signals(guest.0);
    let state = &guest.0.state;
    assert_eq!((state.activity, state.lapic.highest_irr()), (Activity::Running, None));
    assert_eq!(guest.vmcb().cs.base, 0x2000, "the first start-up after INIT");
    assert!(guest.0.state.nmi.contains(Nmi::PENDING) && !guest.0.state.nmi.contains(Nmi::SECOND));
}

#[test]
fn n20_init_waits_for_gif_and_what_comes_after_it_waits_for_init() {
    type End = fn(&mut Guest<'_, '_>);
    let ends: [End; 2] = [
        |guest| _ = execute(guest, 0x84, 0xdc, 0),
        |guest| {
            guest.write_msr(EFER, EFER_LME);
            assert_eq!(guest.raised(), None);
        },
    ];
    for end in ends {
        with_l1(|guest| {
            execute(guest, 0x85, 0xdd, 0);
            post(guest, init_and_more);
            post(guest, |inbox| _ = inbox.post_startup(4));
            assert!(guest.enter(|b, _| b.exit_code = 0x60), "L1 runs on");
            table::handle_exit(guest.0);
            assert!(guest.0.state.is_running() && !guest.0.state.nmi.contains(Nmi::PENDING));
            guest.0.state.activity = Activity::Halted;
            assert!(!guest.0.state.wakes_from_halt(), "it does not spin");
            end(guest);
            assert!(guest.0.state.wakes_from_halt());
            is_reset(guest);
        });
    }
    // A second one cancels what came between them.
    with_l1(|guest| {
        execute(guest, 0x85, 0xdd, 0);
        post(guest, init_and_more);
        post(guest, init);
        execute(guest, 0x84, 0xdc, 0);
        assert!(!guest.enter(|_, _| panic!("INIT comes first")));
        assert_eq!(guest.0.state.activity, Activity::WaitForStartup);
        assert!(!guest.0.state.nmi.contains(Nmi::PENDING));
    });
}

#[test]
fn n20_init_is_an_exit_of_l2_and_waits_for_gif_then_or_ends_l2() {
    let block = |is_wanted| {
        let mut block = plain();
        block.intercept_misc1 = if is_wanted { misc1::INIT } else { 0 };
        block.event_injection = event::VALID | event::TYPE_INTERRUPT | 0x30;
        block
    };
    for (is_held, is_wanted) in [(false, true), (true, true), (false, false), (true, false)] {
        with_l1(|guest| {
            if is_held {
                execute(guest, 0x85, 0xdd, 0);
                post(guest, init_and_more);
            }
            vmrun(guest, &block(is_wanted));
            if !is_held {
                guest.0.state.activity = Activity::Halted;
                post(guest, init_and_more);
            }
            if is_wanted {
                guest.0.state.update_activity();
                assert!(guest.0.state.is_running(), "it wakes");
                assert!(guest.enter(|b, _| b.exit_code = 0x60), "L1");
                table::handle_exit(guest.0);
                let left = vmcb12(guest);
                assert_eq!((is_inside(guest), left.exit_code), (false, 0x63));
                assert_eq!(left.exit_interrupt_info, event::VALID | 0x30, "it was not delivered");
                vmrun(guest, &block(true));
                assert!(guest.enter(|b, _| b.exit_code = 0x60) && !is_inside(guest), "it still waits");
                execute(guest, 0x84, 0xdc, 0);
                is_reset(guest);
            } else if is_held {
                is_reset(guest);
            } else {
                assert!(!is_inside(guest) && guest.0.state.own.is_plain());
                assert_eq!((guest.0.state.activity, guest.vmcb().cs.base), (Activity::Running, 0x2000));
            }
        });
    }
}

#[test]
fn n23_init_that_waits_is_passed_on() {
    let state = with_l1(|guest| {
        execute(guest, 0x85, 0xdd, 0);
        init_and_more(&guest.0.vcpu.inbox);
        moved_or_not(guest)
    });
    on_another(&state, |guest| {
        assert!(guest.0.state.own.holds_events());
        execute(guest, 0x84, 0xdc, 0);
        is_reset(guest);
    });
}
