//! The VMCS as a control block: what each operation leaves in it, whole, and what the next entry
//! has to write. SDM volume 3, sections 25.6, 25.7, 27.6.

use super::processor::{Tested, with_guest, with_guest_of};
use crate::devices::pc::message::Trigger;
use crate::vmx::apic::{ApicLocation, TPR};
use crate::vmx::controls::Word;
use crate::vmx::copies::{CHANGED_BY_EXITS, READ_AT_ONCE, is_current};
use crate::vmx::vmcs::{BLOCKING_BY_NMI, THRESHOLD, Vmcs};
use crate::x86::CR0_PE;
use crate::x86::vcpu::block::tests::requests;
use crate::x86::vcpu::block::{ControlBlock, Field, InterruptRequest, Offered};
use migration::{Archive, Flaw};

/// Of the primary controls: interrupt-window and NMI-window exiting, MOV-DR and PAUSE exiting.
const AT_TIMES: u32 = 1 << 2 | 1 << 22 | 1 << 23 | 1 << 30;

/// What `act` changes of controls and threshold is written by the next entry, and nothing else.
fn exactly<R>(vmcs: &mut Vmcs, act: impl FnOnce(&mut Vmcs) -> R) -> R {
    vmcs.dirty_words = 0;
    let (before, threshold) = (vmcs.controls.words, vmcs.threshold);
    let result = act(vmcs);
    let changed = (0..5).filter(|&word| vmcs.controls.words[word] != before[word]);
    let threshold = if vmcs.threshold == threshold { 0 } else { THRESHOLD };
    assert_eq!(vmcs.dirty_words, changed.fold(threshold, |all, word| all | 1 << word));
    result
}

#[test]
fn a_request_replaces_the_one_before() {
    for (first, second) in requests().flat_map(|first| requests().map(move |second| (first, second))) {
        let mut vmcs = Vmcs::new();
        vmcs.request(first);
        exactly(&mut vmcs, |vmcs| vmcs.request(second));
        let InterruptRequest { priority, offered, window, priority_exits } = second;
        let threshold = if priority_exits { priority } else { 0 };
        let asks = (vmcs.controls.word(Word::Primary), vmcs.threshold, vmcs.apic.read(TPR));
        assert_eq!(asks, (u32::from(window) << 2, threshold, u64::from(priority) << 4), "{second:?}");
        assert_eq!(vmcs.delivered(), if offered.is_some() { 0x8000_0051 } else { 0 });
        for its in 0..16 {
            let is_settled = offered.is_none() && its == priority;
            let found = (vmcs.is_settled(its), vmcs.is_quiet(its));
            assert_eq!(found, (is_settled, is_settled && !window && threshold == 0), "{second:?}, {its}");
        }
        vmcs.set_nmi_window(true);
        exactly(&mut vmcs, Vmcs::close_window);
        vmcs.set_priority(6);
        let found = (vmcs.controls.word(Word::Primary), vmcs.threshold, vmcs.apic.priority());
        assert_eq!(found, (0, threshold, 6));
        for (has_run, became) in [(false, Offered::Left(0x51)), (true, Offered::Taken)] {
            exactly(&mut vmcs, |vmcs| vmcs.request(second));
            vmcs.set_event(0x8000_0306);
            assert_eq!(vmcs.delivered(), 0x8000_0306, "it comes first");
            vmcs.leave(has_run);
            let expected = if offered.is_some() { became } else { Offered::Nothing };
            assert_eq!((vmcs.settle(), vmcs.event), ((priority, expected), 0));
            assert_eq!(vmcs.settle(), (priority, Offered::Nothing));
        }
    }
}

/// Of pending debug exceptions all bits that a guest can have are carried (SDM, 26.4.2).
#[test]
fn m5_pending_debug_exceptions_come_along() {
    let mut bytes = [0; 256];
    let pending = 0xf | 1 << 12 | 1 << 14;
    with_guest(&[], |guest| {
        guest.vmcs().set_pending_debug(pending);
        assert_eq!(guest.vmcs().describe(&mut Archive::writer(&mut bytes)), Ok(()));
    });
    with_guest(&[], |guest| {
        assert_eq!(guest.vmcs().describe(&mut Archive::reader(&bytes)), Ok(()));
        assert_eq!(guest.vmcs().pending_debug(), pending);
    });
}

/// Loops are found by the processor where it can, else each PAUSE exits.
#[test]
fn pauses_exit_by_the_control_that_there_is() {
    for pause_loop in [false, true] {
        let mut vmcs = Vmcs::new();
        vmcs.controls.pause_loop = pause_loop;
        for wanted in [true, false] {
            exactly(&mut vmcs, |vmcs| vmcs.intercept_pause(wanted));
            let exits = vmcs.controls.word(Word::Primary) >> 30 & 1;
            let loops = vmcs.controls.word(Word::Secondary) >> 10 & 1;
            let expected = if pause_loop { (0, wanted.into()) } else { (wanted.into(), 0) };
            assert_eq!((exits, loops), expected, "{pause_loop} {wanted}");
        }
    }
}

/// An NMI is delivered where nothing holds it off, and nobody waits for it any more.
#[test]
fn an_nmi_that_is_set_closes_its_window() {
    for (event, stays) in [(0x8000_0202, false), (0x8000_0306, true)] {
        let mut vmcs = Vmcs::new();
        vmcs.set_interruptibility(BLOCKING_BY_NMI);
        vmcs.set_nmi_window(true);
        exactly(&mut vmcs, |vmcs| vmcs.set_event(event));
        let is_open = vmcs.controls.word(Word::Primary) >> 22 & 1 != 0;
        assert_eq!((vmcs.interruptibility() != 0, is_open), (stays, stays), "{event:#x}");
    }
}

/// An exception that waits may have an error code, but not in real mode.
#[test]
fn m5_an_exception_comes_along_with_its_error_code() {
    let event = 0x1234_8000_0b0d;
    for (cr0, expected) in [(CR0_PE, Ok(())), (0, Err(Flaw::Value("")))] {
        let mut bytes = [0; 256];
        with_guest(&[], |guest| {
            guest.vmcs().set_event(event);
            assert_eq!(guest.vmcs().describe(&mut Archive::writer(&mut bytes)), Ok(()));
        });
        with_guest(&[], |guest| {
            guest.set_field(Field::Cr0, cr0);
            assert_eq!(guest.vmcs().describe(&mut Archive::reader(&bytes)), expected, "{cr0:#x}");
            assert_eq!(guest.vmcs().event() == event, expected.is_ok(), "{cr0:#x}");
        });
    }
}

#[test]
fn what_is_read_at_once_is_listed() {
    for place in 0..64 {
        let is_older = CHANGED_BY_EXITS >> place & 1 != 0 && !READ_AT_ONCE.contains(&place);
        assert_eq!(is_current(place), !is_older, "{place}");
    }
}

/// No vCPU begins with requests, or with what another one's local APIC had.
#[test]
fn a_vcpu_begins_with_an_empty_page_and_asks_for_nothing() {
    with_guest(&[], |guest| {
        let (vm, vcpu) = (guest.0.vm, guest.0.vcpu);
        let vmcs = vm.guest.new_vcpu::<Tested>(vcpu.index, vcpu.row.0).block;
        assert!((0..512).all(|word| vmcs.apic.read(word) == 0));
        let asks = vmcs.controls.word(Word::Primary) & AT_TIMES;
        assert_eq!((asks, vmcs.delivered(), vmcs.threshold), (1 << 23, 0, 0));
        assert_eq!((vmcs.interruptibility(), vmcs.activity(), vmcs.pending_debug()), (0, 0, 0));
        assert_eq!(vmcs.apic.location, ApicLocation::Model);
    });
    with_guest_of("emulated_apic=on\nmemory=16777216", |guest| {
        let state = &mut *guest.0.state;
        state.lapic.accept_fixed(0x51, Trigger::Edge);
        assert_eq!(
            (state.block.apic.location, state.block.hand_over(&mut state.lapic)),
            (ApicLocation::Never, false)
        );
        assert_eq!(state.lapic.highest_irr(), Some(0x51));
    });
}
