//! Events of L1 and of L2.

use super::*;

/// Enters; returns whether L2 was, with which event.
fn entry(guest: &mut Guest<'_, '_>) -> (bool, u64) {
    let (sender, receiver) = std::sync::mpsc::channel();
    let was_inside = is_inside(guest);
    assert!(guest.enter(move |b, _| {
        sender.send(b.event_injection).expect("is heard");
        b.exit_code = 0x60;
    }));
    table::handle_exit(guest.0);
    (was_inside && is_inside(guest), receiver.recv().expect("it has run"))
}

#[test]
fn n20_interrupts_of_l1_end_l2_where_l1_takes_them_and_wait_for_stgi() {
    let cases = [
        // L1's IF at VMRUN, L2's, V_INTR_MASKING, the intercept; whether L2 ends.
        (true, false, true, true, true),
        (false, true, true, true, false),
        (false, true, false, true, true),
        (true, false, false, true, false),
        (true, true, true, false, false),
    ];
    for (outer, inner, masks, is_intercepted, ends) in cases {
        with_l1(|guest| {
            let mut block = plain();
            block.intercept_misc1 = if is_intercepted { misc1::INTR } else { 0 };
            block.interrupt_control = if masks { vintr::MASKING } else { 0 };
            block.rflags |= if inner { RFLAGS_IF } else { 0 };
            guest.write(VMCB12, block.bytes());
            guest.begin(&[0x0f, 0x01, 0xd8]);
            guest.vmcb().rflags |= if outer { RFLAGS_IF } else { 0 };
            guest.set(RAX, VMCB12);
            guest.exit(VMRUN, 0, 0);
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            let (is_in, injected) = entry(guest);
            let name = std::format!("{outer} {inner} {masks} {is_intercepted}");
            assert_eq!(is_in, !ends, "{name}");
            assert_eq!(injected & event::VALID != 0, !is_intercepted, "{name}");
            if ends {
                assert_eq!(vmcb12(guest).exit_code, 0x60, "{name}");
                assert_eq!(guest.0.state.lapic.pending(), Some(VECTOR), "it still waits");
                assert!(!guest.0.state.wakes_from_halt(), "GIF is 0");
                let flags = guest.vmcb().rflags;
                execute(guest, 0x84, 0xdc, 0);
                guest.vmcb().rflags = flags;
                guest.enter(|b, _| b.exit_code = 0x60);
                let taken = guest.0.state.lapic.highest_isr();
                assert_eq!(taken, outer.then_some(VECTOR), "{name}");
            } else if !masks {
                // An exit comes as soon as L2 takes interrupts, and its own control is back.
                run(guest, |b| {
                    assert_ne!(b.intercept_misc1 & misc1::VINTR, 0);
                    (b.exit_code, b.rflags) = (0x64, b.rflags | RFLAGS_IF);
                });
                assert!(is_inside(guest));
                let l2 = guest.vmcb();
                assert_eq!((l2.intercept_misc1 & misc1::VINTR, l2.interrupt_control), (0, vintr::MASKING));
                assert!(!entry(guest).0);
            }
        });
    }
}

#[test]
fn n19_an_event_of_l1s_is_delivered_once() {
    let fault = event::VALID | event::TYPE_EXCEPTION | event::ERROR_VALID | 14 | 2 << 32;
    for injected in
        [fault, event::VALID | event::TYPE_INTERRUPT | 0x30, event::VALID | event::TYPE_SOFTWARE | 0x80]
    {
        with_l1(|guest| {
            let mut block = plain();
            (block.event_injection, block.intercept_misc1) = (injected, misc1::INTR);
            block.interrupt_control = vintr::MASKING;
            vmrun(guest, &block);
            // An interrupt of the machine's comes before it is delivered: it is delivered again.
            run(guest, move |b| {
                assert_eq!(b.event_injection, injected);
                (b.exit_code, b.exit_interrupt_info) = (0x60, injected);
            });
            assert_eq!(entry(guest), (true, injected));
            assert_eq!(entry(guest), (true, 0), "once");
            // The same by L2 itself is an INT n, which it executes again.
            if injected & event::TYPE_MASK == event::TYPE_SOFTWARE {
                run(guest, move |b| (b.exit_code, b.exit_interrupt_info) = (0x60, injected));
                assert_eq!(entry(guest), (true, 0));
            }
        });
    }
    // An INT n of L2's own is executed again; an exit that is L1's says what it has cut short.
    with_l1(|guest| {
        let mut block = plain();
        block.intercept_exceptions = 1 << 14;
        vmrun(guest, &block);
        let own = event::VALID | event::TYPE_SOFTWARE | 0x80;
        run(guest, move |b| (b.exit_code, b.exit_interrupt_info) = (0x60, own));
        assert_eq!(entry(guest), (true, 0));
        run(guest, move |b| (b.exit_code, b.exit_info_2, b.exit_interrupt_info) = (0x4e, 0x5000, own));
        let left = vmcb12(guest);
        assert_eq!((left.exit_code, left.exit_info_2, left.exit_interrupt_info), (0x4e, 0x5000, own));
    });
}

#[test]
fn exceptions_and_nmis_are_l1s_if_it_asks_for_them() {
    for is_wanted in [false, true] {
        with_l1(|guest| {
            let mut block = plain();
            block.intercept_exceptions = if is_wanted { 1 << 13 } else { 0 };
            block.intercept_misc1 = if is_wanted { misc1::NMI } else { 0 };
            // #GP by RDMSR, whose exit is not L1's.
            guest.write(INNER_CODE, &[0x0f, 0x32]);
            vmrun(guest, &block);
            guest.set(RCX, 0x1234_5678);
            leaves(guest, [0x7c, 0, 0]);
            let (is_in, injected) = entry(guest);
            assert_eq!((is_in, injected & 0xff), (!is_wanted, if is_wanted { 0 } else { 13 }));
            if is_wanted {
                assert_eq!(vmcb12(guest).exit_code, 0x4d);
                vmrun(guest, &block);
            }
            guest.0.state.nmi.post();
            let (is_in, injected) = entry(guest);
            assert_eq!((is_in, injected != 0), (!is_wanted, !is_wanted));
            assert_eq!(guest.0.state.nmi.contains(Nmi::PENDING), is_wanted, "it still waits");
        });
    }
}

/// NMIs are blocked once, for L1 and L2 together: an IRET of either ends that.
#[test]
fn n21_an_nmi_that_l1_handles_holds_the_next_one_off_in_l2_until_an_iret() {
    with_l1(|guest| {
        guest.0.state.nmi.post();
        guest.enter(|b, _| b.exit_code = 0x60);
        assert!(guest.0.state.nmi.contains(Nmi::BLOCKED), "L1 handles it");
        let mut block = plain();
        block.intercept_misc1 = misc1::NMI | misc1::CPUID;
        vmrun(guest, &block);
        guest.0.state.nmi.post();
        assert_eq!(entry(guest), (true, 0), "the next one waits");
        leaves(guest, [0x72, 0, 0]);
        assert!(!is_inside(guest) && guest.vmcb().intercept_misc1 & misc1::IRET != 0, "L1's IRET ends it");
        vmrun(guest, &block);
        run(guest, |b| {
            assert_ne!(b.intercept_misc1 & misc1::IRET, 0, "and so does L2's");
            b.exit_code = 0x74;
        });
        // It is stepped over.
        run(guest, |b| {
            assert_ne!(b.rflags & RFLAGS_TF, 0);
            // It has taken its flags from the stack.
            (b.exit_code, b.dr6, b.rip, b.rflags) = (0x41, b.dr6 | 1 << 14, b.rip + 2, 2);
        });
        assert!(is_inside(guest) && guest.raised().is_none(), "L2 sees none of it");
        assert!(!entry(guest).0);
        let (left, nmi) = (vmcb12(guest), guest.0.state.nmi);
        assert_eq!(left.exit_code, 0x61);
        assert!(nmi.contains(Nmi::PENDING) && !nmi.contains(Nmi::BLOCKED));
    });
    with_l1(|guest| {
        // One that L1 injects blocks none.
        let mut block = plain();
        block.event_injection = event::VALID | event::TYPE_NMI | 2;
        vmrun(guest, &block);
        assert_eq!(entry(guest), (true, block.event_injection));
        assert!(!guest.0.state.nmi.contains(Nmi::BLOCKED));
    });
}
