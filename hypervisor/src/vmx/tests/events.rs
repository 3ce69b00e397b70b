//! What an entry delivers, what was cut short, and what holds events off.

use super::processor::{DATA, Guest, TOLD, with_guest, with_guest_of, written};
use super::said::Said;
use crate::devices::pc::lapic::msr::{APIC_BASE, SVR};
use crate::devices::pc::message::Trigger;
use crate::sched::notify::Published;
use crate::vm::Next;
use crate::vm::arch::State;
use crate::vmx::controls::NMI_WINDOW as NMI_WINDOW_EXITING;
use crate::vmx::fields;
use crate::vmx::vmcs::BLOCKING_BY_NMI;
use crate::x86::vcpu::block::Field::{Dr6, Dr7, Rflags};
use crate::x86::vcpu::event;
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::signals;
use crate::x86::vcpu::state::Activity;
use crate::x86::{DR6_SINGLE_STEP, RFLAGS_IF, RFLAGS_TF};

const VECTOR: u8 = 0x51;
const INTERRUPT: u64 = event::VALID | event::TYPE_INTERRUPT | VECTOR as u64;
const NMI: u64 = event::VALID | event::TYPE_NMI | 2;
/// INT1 and INT3, in IDT-vectoring information.
const INT1: u64 = event::VALID | 5 << 8 | 1;
const INT3: u64 = event::VALID | 6 << 8 | 3;
/// Debug exceptions that pend: the first breakpoint, which is enabled.
const WATCHED: u64 = ENABLED | 1;
const ENABLED: u64 = 1 << 12;
/// DR7: accesses to debug registers raise #DB.
const GENERAL_DETECT: u64 = 1 << 13;
/// Exits.
const MACHINE: u64 = 1;
const WINDOW: u64 = 7;
const NMI_WINDOW: u64 = 8;
const EPT_VIOLATION: u64 = 48;
const AC: u64 = 0x111;

/// A fault of memory, in an event's delivery.
fn violation(event: u64) -> Said {
    Said { event, physical: DATA, ..Said::of(EPT_VIOLATION, 2, 1 << 7 | 1 << 8) }
}

fn enable_interrupts(guest: &mut Guest<'_, '_>) {
    guest.set_field(Rflags, RFLAGS_IF | 2);
}

#[test]
fn an_interrupt_goes_in_at_once_or_through_a_window() {
    with_guest(&[], |guest| {
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        assert_eq!(guest.delivered() & event::VALID, 0, "RFLAGS.IF is 0");
        assert_eq!(guest.windows(), [true, false]);
        enable_interrupts(guest);
        guest.leave(WINDOW, 0, 0);
        assert_eq!((guest.delivered(), guest.0.state.lapic.highest_isr()), (INTERRUPT, Some(VECTOR)));
        assert_eq!(guest.windows(), [false; 2], "nothing more waits");
        assert_eq!(guest.delivered() & event::VALID, 0, "once");
    });
}

#[test]
fn an_interrupt_of_an_entry_that_is_called_off_is_not_lost() {
    with_guest(&[], |guest| {
        enable_interrupts(guest);
        assert!(guest.enter(|_, _| {}));
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        guest.0.vm.notify(guest.0.vcpu, Published::NOTHING);
        assert!(!guest.enter(|_, _| panic!("nobody enters with an event pending")));
        assert_eq!(guest.0.state.lapic.highest_isr(), None);
        assert!(guest.0.owner.take_events());
        assert_eq!((guest.delivered(), guest.0.state.lapic.highest_isr()), (INTERRUPT, Some(VECTOR)));
        assert_eq!(guest.delivered() & event::VALID, 0, "once");
    });
}

/// An entry that delivers an interrupt in a shadow is refused.
#[test]
fn i13_a_shadow_holds_interrupts_and_nmis_off() {
    for shadow in [1, 2] {
        with_guest(&[], |guest| {
            enable_interrupts(guest);
            guest.vmcs().set_interruptibility(shadow);
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            guest.0.state.nmi.post();
            assert_eq!(guest.delivered() & event::VALID, 0);
            // With STI alone the other window could open again and again.
            assert_eq!(guest.windows(), [true, shadow == 2]);
            guest.vmcs().set_interruptibility(0);
            guest.leave(if shadow == 2 { NMI_WINDOW } else { WINDOW }, 0, 0);
            assert_eq!(guest.delivered(), NMI, "before the interrupt");
            guest.vmcs().set_interruptibility(BLOCKING_BY_NMI);
            guest.leave(MACHINE, 0, 0);
            assert_eq!(guest.delivered(), INTERRUPT);
        });
    }
}

#[test]
fn what_was_cut_short_is_delivered_again_or_executed_again() {
    for (info, again) in [
        (event::VALID | event::TYPE_SOFTWARE | 0x80, 0),
        (INT1, 0),
        (INT3, 0),
        (event::exception(6), event::exception(6)),
        // Bit 12 means nothing here, and an entry must not have it.
        (
            event::exception(13) | event::ERROR_VALID | 1 << 12 | 5 << 32,
            event::exception(13) | event::ERROR_VALID | 5 << 32,
        ),
        (NMI, NMI),
        (INTERRUPT & !event::VALID, 0),
    ] {
        with_guest(&[], |guest| {
            assert!(guest.enter(move |stay, _| stay.said = violation(info)));
            assert_eq!(guest.handle(), Next::Resume);
            assert_eq!(guest.delivered(), again, "{info:#x}");
            assert_eq!(guest.delivered() & event::VALID, 0, "once");
        });
    }
    with_guest(&[], |guest| {
        enable_interrupts(guest);
        guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
        assert!(guest.enter(|stay, _| stay.said = violation(INTERRUPT)));
        assert_eq!(guest.0.state.lapic.highest_isr(), None, "the guest has not got it");
        guest.0.state.raise_undefined();
        assert_eq!(guest.delivered(), event::exception(6), "first");
        enable_interrupts(guest);
        assert_eq!((guest.delivered(), guest.delivered() & event::VALID), (INTERRUPT, 0));
    });
}

/// An entry that delivers an NMI while NMIs are blocked is refused.
#[test]
fn i14_an_nmi_that_was_cut_short_comes_once_more_with_none_blocked() {
    with_guest(&[], |guest| {
        guest.0.state.nmi.post();
        assert!(guest.enter(|stay, _| {
            assert_eq!(stay.delivered(), NMI);
            assert_eq!(stay.read(fields::INTERRUPTIBILITY), BLOCKING_BY_NMI.into());
            stay.said = violation(NMI);
        }));
        assert_eq!(guest.vmcs().interruptibility(), 0);
        guest.handle();
        assert_eq!(guest.delivered(), NMI);
        assert_eq!(guest.delivered() & event::VALID, 0, "once");
    });
}

#[test]
fn a_second_nmi_waits_for_the_processor_to_say_that_the_handler_has_ended() {
    with_guest(&[], |guest| {
        guest.0.state.nmi.post();
        guest.0.state.nmi.post();
        assert!(guest.enter(|stay, _| {
            assert_eq!(stay.delivered(), NMI);
            let controls = stay.read(fields::PRIMARY_CONTROLS);
            assert_eq!(controls >> NMI_WINDOW_EXITING & 1, 1, "for the second");
        }));
        guest.handle();
        assert!(guest.0.state.nmi.contains(Nmi::BLOCKED | Nmi::PENDING));
        guest.0.state.activity = Activity::Halted;
        assert!(!guest.0.state.wakes_from_halt(), "it is blocked");
        assert_eq!(guest.delivered() & event::VALID, 0);
        assert_eq!(guest.windows(), [false, true]);
        guest.vmcs().set_interruptibility(0);
        guest.leave(NMI_WINDOW, 0, 0);
        assert!(guest.0.state.wakes_from_halt());
        assert_eq!((guest.delivered(), guest.windows()), (NMI, [false; 2]));
    });
}

/// IRET unblocks NMIs before it reads the stack.
#[test]
fn i14_an_iret_that_faults_leaves_nmis_blocked() {
    const UNBLOCKED: u64 = 1 << 12;
    for (code, cut_short, blocked) in
        [(EPT_VIOLATION, 0, true), (AC, 0, true), (EPT_VIOLATION, event::exception(6), false), (30, 0, false)]
    {
        with_guest(&[], |guest| {
            let said = Said::of(code, 1, UNBLOCKED | 1 << 7 | 1 << 8);
            let exception = event::exception(17) | UNBLOCKED;
            guest.leave_with(Said { exception, event: cut_short, physical: DATA, ..said });
            assert_eq!(guest.0.state.nmi.contains(Nmi::BLOCKED), blocked, "{code:#x}");
            assert_eq!(guest.vmcs().interruptibility() & BLOCKING_BY_NMI != 0, blocked, "{code:#x}");
            guest.0.state.nmi.post();
            guest.0.state.exception = None;
            assert!(cut_short == 0 || guest.delivered() == cut_short);
            assert_eq!(guest.delivered() == NMI, !blocked);
        });
    }
}

/// A step in a shadow: the processor reports it, and has to be told again, or refuses the entry.
#[test]
fn i13_a_step_in_a_shadow_pends_as_the_trap_flag_says() {
    for (shadow, flags, pending) in
        [(1, RFLAGS_TF, DR6_SINGLE_STEP), (2, RFLAGS_TF, DR6_SINGLE_STEP), (2, 0, 0), (0, RFLAGS_TF, 0)]
    {
        with_guest(&[], |guest| {
            guest.vmcs().set_interruptibility(shadow);
            guest.set_field(Rflags, flags | RFLAGS_IF | 2);
            assert_eq!(guest.leave(0x101, 0, DR6_SINGLE_STEP), Next::Resume);
            assert_eq!(guest.delivered(), event::exception(1));
            assert_eq!(written(fields::PENDING_DEBUG.raw()), pending, "{shadow} {flags:#x}");
        });
    }
}

/// MOV SS from a watched word, CPUID, with the trap flag: one #DB for both.
#[test]
fn i13_breakpoints_that_pend_are_part_of_the_next_debug_exception() {
    for (flags, event, dr6) in [(RFLAGS_TF, event::exception(1), 1 << 14 | 1), (0, 0, 0)] {
        with_guest(&[], |guest| {
            guest.set_field(Dr6, 0);
            guest.vmcs().set_interruptibility(2);
            guest.vmcs().set_pending_debug(1 << 12 | flags << 6 | 1);
            guest.set_field(Rflags, flags | 2);
            guest.leave(10, 2, 0);
            assert_eq!((guest.delivered(), guest.field(Dr6)), (event, dr6));
            assert_eq!(written(fields::PENDING_DEBUG.raw()) & 1, 1, "the processor's, if none is delivered");
        });
    }
}

#[test]
fn events_of_real_mode_have_no_error_codes() {
    with_guest(&[], |guest| {
        guest.legacy_mode(0);
        guest.set_field(crate::x86::vcpu::block::Field::Cr0, 0x10);
        guest.leave(15, 2, 0);
        assert_eq!(guest.delivered(), event::exception(13));
    });
}

/// MOV SS from a watched word, and then CPUID, an end of interrupt, a lower priority: an event that
/// the next entry delivers would take the place of the #DB (27.7.3), which comes first (7.9).
#[test]
fn i13_no_event_takes_the_place_of_debug_exceptions_that_pend() {
    const CPUID: u64 = 10;
    for (exit, shadow, pending) in [
        (CPUID, 2, WATCHED),
        (CPUID, 1, WATCHED),
        (43, 0, DR6_SINGLE_STEP),
        (45, 0, WATCHED),
        (56, 0, WATCHED),
    ] {
        with_guest(&[], |guest| {
            guest.set_field(Rflags, RFLAGS_IF | 2);
            guest.set_field(Dr6, 0);
            guest.vmcs().set_interruptibility(shadow);
            guest.vmcs().set_pending_debug(pending);
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            guest.0.state.nmi.post();
            guest.leave(exit, 2, 0);
            assert_eq!(guest.delivered() & event::VALID, 0, "after {exit}");
            assert_eq!(written(fields::PENDING_DEBUG.raw()), pending);
            assert_eq!(guest.windows(), [true; 2]);
            // The processor takes them to the exit.
            guest.vmcs().set_pending_debug(0);
            guest.leave(0x101, 0, pending & !ENABLED);
            assert_eq!((guest.delivered(), guest.field(Dr6)), (event::exception(1), pending & !ENABLED));
            assert_eq!(guest.delivered(), NMI);
        });
    }
}

/// What is executed again in the shadow of MOV SS finds the shadow, and what pends.
#[test]
fn i13_what_pends_in_a_shadow_stays_for_what_is_executed_again() {
    const MOV_DR: u64 = 29;
    const INT_N: u64 = event::VALID | event::TYPE_SOFTWARE | 0x80;
    for (exit, vectoring) in [(MOV_DR, 0), (EPT_VIOLATION, INT_N), (EPT_VIOLATION, INT3)] {
        with_guest(&[], |guest| {
            guest.set_field(Rflags, RFLAGS_IF | 2);
            guest.set_field(Dr6, 0);
            guest.set_field(Dr7, GENERAL_DETECT | 1);
            guest.0.state.lapic.accept_fixed(VECTOR, Trigger::Edge);
            guest.vmcs().set_interruptibility(2);
            guest.vmcs().set_pending_debug(WATCHED);
            let said = Said { physical: DATA, event: vectoring, ..Said::of(exit, 3, 1 << 1) };
            assert_eq!(guest.leave_with(said), Next::Resume);
            assert_eq!(guest.delivered() & event::VALID, 0);
            let of_shadow = [fields::PENDING_DEBUG.raw(), fields::INTERRUPTIBILITY.raw()].map(written);
            assert_eq!((of_shadow, guest.advanced()), ([WATCHED, 2], 0), "{exit}");
            if exit == MOV_DR {
                // The access is detected before it happens: both causes.
                guest.vmcs().set_pending_debug(0);
                guest.leave(0x101, 0, 1 << 13 | 1);
                assert_eq!(guest.delivered(), event::exception(1));
                assert_eq!((guest.field(Dr6), guest.field(Dr7)), (1 << 13 | 1, 1));
            }
        });
    }
}

#[test]
fn i13_a_debug_exception_ends_a_halt() {
    for (flags, pending) in [(RFLAGS_TF, DR6_SINGLE_STEP), (0, WATCHED), (0, 0)] {
        with_guest(&[], |guest| {
            guest.set_field(Rflags, flags | 2);
            guest.vmcs().set_interruptibility(2);
            guest.vmcs().set_pending_debug(pending);
            let next = if pending == 0 { Next::Halt } else { Next::Resume };
            assert_eq!((guest.leave(12, 1, 0), guest.advanced()), (next, 1));
            assert_eq!(guest.0.state.activity == Activity::Halted, pending == 0);
        });
    }
}

/// Its end would exit to the I/O APIC for ever.
#[test]
fn u54_an_edge_triggered_interrupt_is_not_posted_while_its_vector_is_level_triggered() {
    with_guest_of("memory=16777216", |guest| {
        guest.write_msr(APIC_BASE, 0xfee0_0d00);
        guest.write_msr(SVR, 0x1ff);
        let vm = guest.0.vm;
        let (id, inbox) = (guest.0.state.lapic.apic_id(), &vm.vcpus[0].inbox);
        let _ = inbox.post_fixed(VECTOR, Trigger::Level);
        signals::take_signals(guest.0);
        for is_level in [true, false] {
            assert!(guest.enter(move |stay, _| {
                assert_eq!(stay.read(fields::EOI_EXITS_1) >> (VECTOR % 64) & 1 != 0, is_level);
                assert_eq!((vm.post_fixed(id, VECTOR), TOLD.take().is_empty()), (1, is_level));
                assert_eq!(inbox.posted().has(VECTOR), !is_level, "what the processor may take");
            }));
            assert!(guest.0.owner.take_events());
            signals::take_signals(guest.0);
            assert_eq!(guest.0.state.lapic.highest_irr(), Some(VECTOR));
        }
        // An illegal one is the model's.
        assert_eq!((vm.post_fixed(id, 8), inbox.posted().has(8)), (1, false));
    });
}
