//! The VMCB as a control block: what each operation leaves in it, whole; and what has changed is
//! marked dirty, and nothing else (A6). APM volume 2, sections 15.10, 15.15, 15.21, appendix B.

use hostlink::config::Switches;
use iced_x86::Register;

use super::processor::{CODE, MockSvm, processor, with_guest};
use crate::svm::audit::auditor::words;
use crate::svm::audit::changed;
use crate::svm::features::Features;
use crate::svm::step;
use crate::svm::table::Exit;
use crate::svm::vmcb::{Vmcb, clean};
use crate::x86::processor::Vendor;
use crate::x86::vcpu::block::tests::requests;
use crate::x86::vcpu::block::{ControlBlock, Field, InterruptRequest, Offered, Segment, SegmentName};
use crate::x86::vcpu::nmi::Nmi;
use crate::x86::vcpu::saved_state::REGISTERS;
use crate::x86::vcpu::state::VcpuState;

/// Lets `act` change a block that the processor has.
fn exactly<R>(vmcb: &mut Vmcb, act: impl FnOnce(&mut Vmcb) -> R) -> R {
    vmcb.clean_bits = clean::ALL;
    let before = *words(vmcb);
    let result = act(vmcb);
    assert_eq!(clean::ALL & !vmcb.clean_bits, changed(&before, words(vmcb)), "what is marked");
    result
}

/// The same, where more may be marked.
fn at_least<R>(state: &mut VcpuState<Vmcb>, act: impl FnOnce(&mut VcpuState<Vmcb>) -> R) -> R {
    state.block.clean_bits = clean::ALL;
    let before = *words(&state.block);
    let result = act(state);
    assert_eq!(changed(&before, words(&state.block)) & state.block.clean_bits, 0, "what is not marked");
    result
}

#[test]
fn a6_each_register_has_its_place_and_its_mark() {
    use SegmentName::{Cs, Ds, Es, Fs, Gdtr, Gs, Idtr, Ldtr, Ss, Tr};
    with_guest(&[], |guest| {
        let state = &mut *guest.0.state;
        let fields = || REGISTERS.into_iter().chain([(Field::TscOffset, "TSC")]).zip(0x5500_0001u64..);
        for ((field, _), value) in fields() {
            exactly(&mut state.block, |vmcb| vmcb.write(field, value));
        }
        for ((field, name), value) in fields() {
            let svme = u64::from(matches!(field, Field::Efer)) << 12;
            assert_eq!(state.block.read(field), value | svme, "{name}");
        }
        let segments = [Es, Cs, Ss, Ds, Fs, Gs, Gdtr, Ldtr, Idtr, Tr].into_iter().zip(0x10..);
        let its = |number| Segment { selector: number, attributes: 0x93, limit: number.into(), base: 1 };
        for (name, number) in segments.clone() {
            at_least(state, |state| state.block.set_segment(name, its(number)));
        }
        segments.for_each(|(name, number)| assert_eq!(state.block.segment(name), its(number)));
    });
}

/// What each word of the control area has before the first entry, by the offsets of appendix B.
#[test]
fn a_vcpu_begins_with_what_every_guest_has() {
    for (features, filter) in [(0, 0), (1 << 10, 3000 << 48 | 128 << 32)] {
        with_guest(&[], |guest| {
            processor(|processor| processor.features = Features(features));
            let (vm, vcpu) = (guest.0.vm, guest.0.vcpu);
            let mut state = vm.guest.new_vcpu::<MockSvm>(vcpu.index, vcpu.row.0);
            let own = vm.guest.permissions();
            let expected = |word| match 8 * word {
                0x00 => 0x00af_000f_0010_0000,
                0x08 => 0xdd44_800f_0006_0002,
                0x10 => 0x0000_001b_0000_7e7f,
                0x38 => filter,
                0x40 => own.io,
                0x48 => own.msr,
                0x58 | 0x90 => 1,
                0x60 => 1 << 24,
                0xb0 => vm.space.root().0,
                _ => 0,
            };
            let is_as_expected = |state: &VcpuState<Vmcb>| {
                for (word, &found) in words(&state.block)[..0x80].iter().enumerate() {
                    assert_eq!(found, expected(word), "at {:#x}", 8 * word);
                }
            };
            is_as_expected(&state);
            state.block.request(ASKS);
            state.block.set_event(1 << 31);
            state.block.intercept_debug(false);
            at_least(&mut state, VcpuState::set_init_state);
            state.block.clean_bits = 0;
            is_as_expected(&state);
        });
    }
}

const ASKS: InterruptRequest =
    InterruptRequest { priority: 9, offered: Some(0x51), window: true, priority_exits: true };

#[test]
fn a_request_replaces_the_one_before() {
    for (first, second) in requests().flat_map(|first| requests().map(move |second| (first, second))) {
        let mut vmcb = Vmcb::boxed();
        (vmcb.intercept_cr, vmcb.intercept_misc1) = (1 << 20, 0xdd44_800f);
        vmcb.request(first);
        exactly(&mut vmcb, |vmcb| vmcb.request(second));
        let InterruptRequest { priority, offered, window, priority_exits } = second;
        // V_INTR_MASKING and V_TPR; V_IRQ, the highest V_INTR_PRIO, V_IGN_TPR; V_INTR_VECTOR.
        let asks = if window || offered.is_some() { 0x1f_0100 } else { 0 };
        let control = 1 << 24 | u64::from(priority) | asks | u64::from(offered.unwrap_or(0)) << 32;
        let intercepts =
            (1 << 20 | u32::from(window || priority_exits) << 24, 0xdd44_800f | u32::from(window) << 4);
        let found = (vmcb.interrupt_control, (vmcb.intercept_cr, vmcb.intercept_misc1));
        assert_eq!(found, (control, intercepts), "{first:?}, {second:?}");
        for its in 0..16 {
            let is_settled = asks == 0 && its == priority;
            let found = (vmcb.is_settled(its), vmcb.is_quiet(its));
            assert_eq!(found, (is_settled, is_settled && !priority_exits), "{second:?}, {its}");
        }
        if window {
            exactly(&mut vmcb, Vmcb::close_window);
            assert_eq!(vmcb.interrupt_control, control & !(1 << 8));
        }
    }
}

#[test]
fn an_offer_is_taken_or_left() {
    for (is_taken, info, after) in [
        (true, 0, 0),
        (true, 0x8000_0306, 0x8000_0306),
        (false, 0, 0),
        (false, 0x51, 0x51),
        (false, 0x8000_0351, 0x8000_0051),
    ] {
        let mut vmcb = Vmcb::boxed();
        vmcb.interrupt_control = 0x0100_0009;
        exactly(&mut vmcb, |vmcb| vmcb.offer(0x51));
        exactly(&mut vmcb, |vmcb| vmcb.set_priority(6));
        assert_eq!(vmcb.interrupt_control, 0x51_011f_0106);
        vmcb.interrupt_control ^= u64::from(is_taken) << 8;
        vmcb.exit_interrupt_info = info;
        let became = if is_taken { Offered::Taken } else { Offered::Left(0x51) };
        assert_eq!(exactly(&mut vmcb, Vmcb::settle), (6, became));
        assert_eq!((vmcb.interrupt_control, vmcb.exit_interrupt_info), (0x0100_0006, after));
        assert_eq!(exactly(&mut vmcb, Vmcb::settle), (6, Offered::Nothing));
    }
}

#[test]
fn what_is_intercepted_at_times_is_one_bit_or_all_of_them() {
    let mut vmcb = Vmcb::boxed();
    vmcb.intercept_misc1 = 0xdd44_800f;
    for wanted in [true, true, false, false] {
        exactly(&mut vmcb, |vmcb| vmcb.intercept_pause(wanted));
        vmcb.intercept_debug(wanted);
        assert_eq!(vmcb.clean_bits & clean::INTERCEPTS, 0);
        assert_eq!(vmcb.intercept_misc1, 0xdd44_800f | u32::from(wanted) << 23);
        assert_eq!(vmcb.intercept_dr, if wanted { 0x00af_000f } else { 0 });
    }
}

/// Each IRET that is stepped over: whether it switches tasks, and the guest steps itself; what the
/// processor then reports.
#[test]
fn u22_a_step_leaves_what_the_guest_has_done() {
    const HANDLED: Nmi = Nmi::BLOCKED.union(Nmi::AT_IRET);
    with_guest(&[0x48, 0xcf], |guest| {
        for bits in 0..64 {
            let [tasks, traps, moves, steps, breaks, switches] =
                core::array::from_fn(|bit| bits >> bit & 1 != 0);
            guest.long_mode();
            if tasks {
                guest.legacy_mode(Segment::DEFAULT_32);
            }
            let rflags = 2 | u64::from(traps) << 8 | u64::from(tasks) << 14;
            let state = &mut *guest.0.state;
            (state.nmi, state.exception) = (HANDLED, None);
            (state.block.rflags, state.block.dr6, state.block.tr.selector) = (rflags, 0xffff_4ff2, 0x18);
            at_least(state, |state| Vmcb::prepare_iret::<MockSvm>(state, true));
            assert_eq!((state.nmi, state.block.intercept_misc1), (Nmi::BLOCKED, 0xdd54_800f), "not yet");
            state.nmi = HANDLED;
            at_least(state, |state| Vmcb::prepare_iret::<MockSvm>(state, false));
            let vmcb = &mut *state.block;
            let begun = if tasks { (rflags, 0xffff_4ff2) } else { (rflags | 1 << 8, 0xffff_0ff0) };
            assert_eq!((vmcb.rflags, vmcb.dr6), begun);
            assert_eq!((vmcb.intercept_exceptions, vmcb.intercept_misc1), (0x6_7c42, 0xdd44_800f));
            assert_eq!(state.nmi, HANDLED | Nmi::STEPPING);
            vmcb.rip += 2 * u64::from(moves);
            vmcb.dr6 |= u64::from(steps) << 14 | u64::from(breaks);
            vmcb.tr.selector += 8 * u16::from(switches);
            let dr6 = vmcb.dr6;
            let is_executed = moves || if tasks { switches } else { steps };
            if is_executed && !tasks {
                vmcb.rflags = 0x46;
            }
            assert_eq!(at_least(state, step::end), !tasks);
            let vmcb = &*state.block;
            assert_eq!(state.nmi, if is_executed { Nmi::empty() } else { HANDLED }, "{bits:#b}");
            assert_eq!(vmcb.intercept_exceptions, 0x6_0002);
            let seen = u64::from(traps && is_executed) << 14 | u64::from(breaks);
            let expected = match seen {
                _ if tasks => (rflags, dr6, None),
                0 => (if is_executed { 0x46 } else { rflags }, 0xffff_4ff2, None),
                _ => (if is_executed { 0x46 } else { rflags }, 0xffff_4ff0 | seen, Some(0x8000_0301)),
            };
            assert_eq!((vmcb.rflags, vmcb.dr6, state.exception), expected, "{bits:#b}");
            assert!(!step::end(state), "it is over");
        }
    });
}

#[test]
fn what_an_exit_says_of_a_port_is_where_the_manual_has_it() {
    let exit = |info_1| Exit { code: 0, info_1, info_2: CODE, event: 0 };
    for bits in 0..1 << 9 {
        let (number, flags, info) = (bits & 7, bits >> 3 & 7, bits >> 6);
        // The port; segment, sizes of addresses and of data; REP, STR, IN.
        let (segment, address, data) = (number, [0, 1, 2, 4, 3, 1, 2, 4][info as usize], 1 << (info % 3));
        let [is_input, is_string, is_repeated] = [0, 1, 2].map(|bit| flags >> bit & 1);
        let info = 0x3f8 << 16 | segment << 10 | address << 7 | data << 4;
        let found = exit(info | is_repeated << 3 | is_string << 2 | is_input).port();
        assert_eq!((found.port, found.size, found.next_rip), (0x3f8, data as u32, CODE));
        let registers = [Register::CS, Register::SS, Register::DS, Register::FS, Register::GS];
        let segment = (segment as usize).checked_sub(1).and_then(|number| registers.get(number).copied());
        let size = [None, Some(2), Some(4), None, Some(8)][address as usize];
        let string = (is_string != 0).then_some((is_repeated != 0, size, segment));
        let its = found.string.map(|string| (string.is_repeated, string.address_size, string.segment));
        assert_eq!((found.is_input, its), (is_input != 0, string), "{bits:#b}");
    }
}

#[test]
fn what_a_processor_does_not_report_is_not_used() {
    let mut vmcb = Vmcb::boxed();
    vmcb.fetched_bytes = core::array::from_fn(|index| index as u8);
    for bits in 0..4u32 {
        processor(|processor| processor.features = Features((bits & 1) << 3 | (bits >> 1) << 7));
        for (rip, count) in [(0, 0), (5, 3), (5, 15), (5, 16), (5, 255)] {
            (vmcb.next_rip, vmcb.fetched_count) = (rip, count);
            let next = (bits & 1 != 0 && rip != 0).then_some(rip);
            let bytes = if bits & 2 != 0 { usize::from(count).min(15) } else { 0 };
            let found = (MockSvm::next_rip(&vmcb), <MockSvm as Vendor>::fetched(&vmcb));
            assert_eq!(found, (next, &vmcb.fetched_bytes[..bytes]));
        }
    }
    for pretend in [false, true] {
        processor(|processor| processor.features = Features(0));
        MockSvm::heed(&Switches { pretend, ..Switches::default() });
        assert_eq!(processor(|processor| processor.features), Features(if pretend { 0x60 } else { 0 }));
    }
}
