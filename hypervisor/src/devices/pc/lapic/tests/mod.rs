use super::*;
use crate::devices::pc::message::{Destination, MessageKind};
use crate::devices::{GeneralProtection, state_checks};

const CLOCK: TimerClock = TimerClock { tsc_hz: 2_000_000_000, apic_hz: 1_000_000_000 };

/// A local APIC in x2APIC mode.
fn x2apic(id: u32, is_bsp: bool) -> Lapic {
    let mut lapic = Lapic::new(ApicId(id), is_bsp, CLOCK);
    set(&mut lapic, msr::APIC_BASE, 0xfee0_0c00);
    lapic
}

fn lapic() -> Lapic {
    let mut lapic = x2apic(3, false);
    set(&mut lapic, msr::SVR, 0x1ff);
    lapic
}

mod timer;
mod xapic;

fn write(lapic: &mut Lapic, msr: u32, value: u64) -> Effect {
    lapic.write_msr(msr, value, 0).unwrap()
}

fn set(lapic: &mut Lapic, msr: u32, value: u64) {
    let _ = write(lapic, msr, value);
}

fn set_at(lapic: &mut Lapic, msr: u32, value: u64, now_tsc: u64) {
    let _ = lapic.write_msr(msr, value, now_tsc).unwrap();
}

fn read(lapic: &Lapic, msr: u32) -> u64 {
    lapic.read_msr(msr, 0).unwrap()
}

fn accept(lapic: &mut Lapic, vectors: &[u8]) {
    vectors.iter().for_each(|&vector| lapic.accept_fixed(vector, Trigger::Edge));
}

fn inject(lapic: &mut Lapic) -> Option<u8> {
    let vector = lapic.pending()?;
    lapic.begin_service(vector);
    Some(vector)
}

/// The manual's register table, transcribed: readable registers, and registers that accept a write
/// of zero.
#[test]
fn access_rights_of_every_register() {
    let read_write = [0x808, 0x80f, 0x828, 0x830, 0x832, 0x833, 0x834, 0x835, 0x836, 0x837, 0x838, 0x83e];
    let read_only: Vec<u32> = [0x802, 0x803, 0x80a, 0x80d, 0x839].into_iter().chain(0x810..=0x827).collect();
    let write_only = [0x80b, 0x83f];
    for msr in 0x800..=0x8ff {
        let mut lapic = lapic();
        let (readable, writable) = (
            read_write.contains(&msr) || read_only.contains(&msr),
            read_write.contains(&msr) || write_only.contains(&msr),
        );
        assert_eq!(lapic.read_msr(msr, 0).is_ok(), readable, "read {msr:#x}");
        assert_eq!(lapic.write_msr(msr, 0, 0).is_ok(), writable, "write {msr:#x}");
    }
    for msr in [0, 0x1a, 0x7ff, 0x900, 0x6df, 0xc000_0080] {
        assert_eq!(lapic().read_msr(msr, 0), Err(GeneralProtection));
        assert_eq!(lapic().write_msr(msr, 0, 0), Err(GeneralProtection));
    }
}

#[test]
fn reserved_bits_fault_and_change_nothing() {
    let writable = [
        (msr::TPR, 0xff),
        (msr::EOI, 0),
        (msr::SVR, 0x3ff),
        (msr::ESR, 0),
        (msr::LVT_TIMER, 0x7_10ff),
        (msr::LVT_THERMAL, 0x1_17ff),
        (msr::LVT_PERF, 0x1_17ff),
        (msr::LVT_LINT0, 0x1_f7ff),
        (msr::LVT_LINT1, 0x1_f7ff),
        (msr::LVT_ERROR, 0x1_10ff),
        (msr::INITIAL_COUNT, 0xffff_ffff),
        (msr::DIVIDE, 0xb),
        (msr::SELF_IPI, 0xff),
    ];
    for (msr, mask) in writable {
        for bit in 0..64 {
            let mut lapic = lapic();
            let before = lapic.read_msr(msr, 0);
            let result = lapic.write_msr(msr, 1 << bit, 0);
            assert_eq!(result.is_ok(), mask >> bit & 1_u64 != 0, "{msr:#x} bit {bit}");
            if result.is_err() {
                assert_eq!(lapic.read_msr(msr, 0), before);
            }
        }
    }
    assert_eq!(lapic().write_msr(msr::LVT_TIMER, 3 << 17 | 0x40, 0), Err(GeneralProtection), "reserved mode");
}

#[test]
fn read_only_bits_of_lvt_entries_stay_clear() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_LINT0, 0x1_f7ff);
    assert_eq!(read(&lapic, msr::LVT_LINT0), 0x1_a7ff);
    set(&mut lapic, msr::LVT_TIMER, 0x1040);
    assert_eq!(read(&lapic, msr::LVT_TIMER), 0x40);
}

#[test]
fn identification() {
    let lapic = x2apic(0x123, false);
    assert_eq!((read(&lapic, msr::ID), read(&lapic, msr::LDR)), (0x123, 0x0012_0008));
    assert_eq!(read(&lapic, msr::VERSION), 0x0005_0014);
}

#[test]
fn while_disabled_nothing_is_accepted_and_every_lvt_entry_is_masked() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_TIMER, 0x40);
    accept(&mut lapic, &[0x50]);
    set(&mut lapic, msr::SVR, 0xff);
    assert_eq!(lapic.pending(), None);
    accept(&mut lapic, &[0x60]);
    assert_eq!(read(&lapic, msr::LVT_TIMER), 0x1_0040);
    set(&mut lapic, msr::LVT_TIMER, 0x40);
    assert_eq!(read(&lapic, msr::LVT_TIMER), 0x1_0040, "unmasking has no effect");
    set(&mut lapic, msr::SVR, 0x1ff);
    assert_eq!(inject(&mut lapic), Some(0x50), "what was requested before is held");
    assert_eq!(inject(&mut lapic), None);
    assert_eq!(read(&lapic, msr::LVT_TIMER), 0x1_0040, "enabling does not unmask");
}

#[test]
fn higher_class_interrupts_service_and_same_class_waits() {
    let mut lapic = lapic();
    accept(&mut lapic, &[0x51, 0x5f]);
    assert_eq!(inject(&mut lapic), Some(0x5f));
    assert_eq!(lapic.pending(), None, "0x51 is of the class in service");
    assert_eq!(lapic.ppr(), 0x50);
    accept(&mut lapic, &[0x60]);
    assert_eq!(inject(&mut lapic), Some(0x60));
    assert_eq!(lapic.highest_isr(), Some(0x60));
    assert_eq!(lapic.eoi(), Effect::Eoi { vector: 0x60, level: false });
    assert_eq!(lapic.pending(), None);
    assert_eq!(lapic.eoi(), Effect::Eoi { vector: 0x5f, level: false });
    assert_eq!(inject(&mut lapic), Some(0x51));
    assert_eq!(lapic.eoi(), Effect::Eoi { vector: 0x51, level: false });
    assert_eq!(lapic.eoi(), Effect::None, "an EOI too many");
}

#[test]
fn task_priority_holds_back_its_class_and_below() {
    let mut lapic = lapic();
    accept(&mut lapic, &[0x5f]);
    set(&mut lapic, msr::TPR, 0x50);
    assert_eq!((lapic.pending(), lapic.highest_irr()), (None, Some(0x5f)));
    set(&mut lapic, msr::TPR, 0x4f);
    assert_eq!(lapic.pending(), Some(0x5f));
    assert_eq!(read(&lapic, msr::PPR), 0x4f, "the TPR's low bits show while it is the higher");
    lapic.begin_service(0x5f);
    assert_eq!(read(&lapic, msr::PPR), 0x50);
    lapic.set_tpr(0x5a);
    assert_eq!(read(&lapic, msr::PPR), 0x5a, "equal class: the TPR's");
}

#[test]
fn a_vector_can_be_requested_again_while_in_service() {
    let mut lapic = lapic();
    accept(&mut lapic, &[0x40]);
    assert_eq!(inject(&mut lapic), Some(0x40));
    accept(&mut lapic, &[0x40, 0x40]);
    assert_eq!(lapic.pending(), None);
    assert_eq!(lapic.eoi(), Effect::Eoi { vector: 0x40, level: false });
    assert_eq!(inject(&mut lapic), Some(0x40));
    let _ = lapic.eoi();
    assert_eq!(lapic.pending(), None, "two requests were one");
}

#[test]
fn an_injection_that_was_cut_short_is_requested_again() {
    let mut lapic = lapic();
    accept(&mut lapic, &[0x40]);
    assert_eq!(inject(&mut lapic), Some(0x40));
    lapic.cancel_service(0x40);
    assert_eq!((lapic.highest_isr(), lapic.pending()), (None, Some(0x40)));
    lapic.begin_service(0x77);
    assert_eq!(lapic.highest_isr(), None, "what was not requested is not put in service");
    lapic.cancel_service(0x77);
    assert_eq!(lapic.highest_irr(), Some(0x40));
}

#[test]
fn request_service_and_trigger_registers_show_their_vectors() {
    let mut lapic = lapic();
    lapic.accept_fixed(0x41, Trigger::Level);
    accept(&mut lapic, &[0xff]);
    assert_eq!((read(&lapic, msr::IRR0 + 2), read(&lapic, msr::IRR0 + 7)), (1 << 1, 1 << 31));
    assert_eq!(read(&lapic, msr::TMR0 + 2), 1 << 1);
    assert_eq!(inject(&mut lapic), Some(0xff));
    assert_eq!((read(&lapic, msr::ISR0 + 7), read(&lapic, msr::IRR0 + 7)), (1 << 31, 0));
}

#[test]
fn eoi_says_level_only_for_level() {
    let mut lapic = lapic();
    lapic.accept_fixed(0x41, Trigger::Level);
    inject(&mut lapic);
    assert_eq!(write(&mut lapic, msr::EOI, 0), Effect::Eoi { vector: 0x41, level: true });
    accept(&mut lapic, &[0x41]);
    inject(&mut lapic);
    assert_eq!(write(&mut lapic, msr::EOI, 0), Effect::Eoi { vector: 0x41, level: false });
}

#[test]
fn lazy_eoi_only_where_nothing_would_follow() {
    let mut lapic = lapic();
    accept(&mut lapic, &[0x50]);
    assert!(!lapic.can_lazy_eoi(0x50), "not in service yet");
    inject(&mut lapic);
    assert!(lapic.can_lazy_eoi(0x50));
    assert!(!lapic.can_lazy_eoi(0x51));
    accept(&mut lapic, &[0x41]);
    assert!(!lapic.can_lazy_eoi(0x50), "its EOI would let 0x41 in");
    let mut nested = self::lapic();
    accept(&mut nested, &[0x50, 0x60]);
    nested.begin_service(0x50);
    nested.begin_service(0x60);
    assert!(!nested.can_lazy_eoi(0x60), "another is in service");
    let mut level = self::lapic();
    level.accept_fixed(0x50, Trigger::Level);
    level.begin_service(0x50);
    assert!(!level.can_lazy_eoi(0x50), "the I/O APIC waits for it");
}

#[test]
fn illegal_vectors_are_errors_that_a_write_latches() {
    let mut lapic = lapic();
    accept(&mut lapic, &[15]);
    assert_eq!(lapic.highest_irr(), None);
    assert_eq!(write(&mut lapic, msr::ICR, 3), Effect::None);
    assert_eq!(read(&lapic, msr::ESR), 0, "not before the write");
    set(&mut lapic, msr::ESR, 0);
    assert_eq!(read(&lapic, msr::ESR), 0x60);
    set(&mut lapic, msr::ESR, 0);
    assert_eq!(read(&lapic, msr::ESR), 0);
    assert_eq!(write(&mut lapic, msr::SELF_IPI, 15), Effect::None);
    set(&mut lapic, msr::ESR, 0);
    assert_eq!(read(&lapic, msr::ESR), 0x20);
}

#[test]
fn errors_interrupt_by_their_lvt_entry_and_do_not_recurse() {
    let mut lapic = lapic();
    set(&mut lapic, msr::LVT_ERROR, 0xfe);
    accept(&mut lapic, &[3]);
    assert_eq!(inject(&mut lapic), Some(0xfe));
    set(&mut lapic, msr::LVT_ERROR, 0x03);
    accept(&mut lapic, &[3]);
    assert_eq!(lapic.highest_irr(), None);
}

#[test]
fn ipis_leave_as_messages() {
    let mut lapic = lapic();
    let fixed = |vector, destination| {
        Effect::Ipi(Message { kind: MessageKind::Fixed(vector), destination, trigger: Trigger::Edge })
    };
    assert_eq!(write(&mut lapic, msr::SELF_IPI, 0x40), fixed(0x40, Destination::SelfOnly));
    assert_eq!(write(&mut lapic, msr::ICR, 5 << 32 | 0xfd), fixed(0xfd, Destination::Physical(ApicId(5))));
    assert_eq!(read(&lapic, msr::ICR), 5 << 32 | 0xfd);
    assert_eq!(lapic.write_msr(msr::ICR, 1 << 20, 0), Err(GeneralProtection));
    assert_eq!(read(&lapic, msr::ICR), 5 << 32 | 0xfd);
    set(&mut lapic, msr::SVR, 0xff);
    let found = write(&mut lapic, msr::ICR, 0xc_00fb);
    assert_eq!(found, fixed(0xfb, Destination::AllButSelf), "sent while disabled");
}

#[test]
fn m7_a_tsc_of_another_rate_is_a_flaw_and_a_close_one_is_as_told() {
    let bytes = state_checks::written(&mut lapic());
    for (tsc_hz, is_close) in
        [(2_000_400_000, true), (1_999_700_000, true), (2_000_500_000, false), (1_999_000_000, false)]
    {
        let mut here = Lapic::new(ApicId(3), false, TimerClock { tsc_hz, ..CLOCK });
        let read = state_checks::read(&mut here, &bytes);
        let differs = Flaw::Rates("the rate of the TSC", tsc_hz, CLOCK.tsc_hz);
        assert_eq!(read, if is_close { Ok(()) } else { Err(differs) });
        assert_eq!(is_close, here.timer.clock() == CLOCK);
    }
    let other = state_checks::read(&mut x2apic(4, false), &bytes);
    assert_eq!(other, Err(Flaw::Differs("id", 4, 3)));
}
