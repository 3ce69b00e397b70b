//! Modes, and the registers in memory.

use super::*;
use crate::devices::GeneralProtection;
use crate::devices::pc::message::{BROADCAST, Destination, Logical, MessageKind};

const PAGE: u64 = APIC_BASE_ADDRESS;

fn xapic(id: u32) -> Lapic {
    let mut lapic = Lapic::new(ApicId(id), id == 0, CLOCK);
    put(&mut lapic, 0xf0, 0x1ff);
    lapic
}

fn put(lapic: &mut Lapic, offset: u64, value: u32) {
    let _ = lapic.write_page(PAGE + offset, value, 0);
}

fn sent(lapic: &mut Lapic, high: u32, low: u32) -> Effect {
    put(lapic, 0x310, high);
    lapic.write_page(PAGE + 0x300, low, 0)
}

fn ipi(kind: MessageKind, destination: Destination) -> Effect {
    Effect::Ipi(Message { kind, destination, trigger: Trigger::Edge })
}

/// Every register that x2APIC mode has as an MSR and writes without a fault is also in the page and
/// reads the same, and vice versa.
#[test]
fn u26_the_page_has_the_registers_of_the_msrs() {
    let same =
        (0x800..0x840).filter(|number| !matches!(number, 0x802 | 0x80b | 0x80d | 0x828 | 0x830 | 0x83f));
    let mut shown = 0;
    for number in same {
        for value in [0, 0x40, 0x1ff, 0x2_0041, 0xb] {
            let (mut by_msr, mut by_page) = (lapic(), xapic(3));
            let offset = u64::from(number & 0xff) << 4;
            if by_msr.write_msr(number, value, 0).is_ok() {
                put(&mut by_page, offset, value as u32);
            }
            match by_msr.read_msr(number, 100) {
                Ok(expected) => {
                    shown += 1;
                    let read = by_page.read_page(PAGE + offset, 100);
                    assert_eq!(u64::from(read), expected, "{offset:#x} = {value:#x}");
                }
                Err(_) => assert!(!matches!(number, 0x80f | 0x832..=0x839), "{offset:#x} is no MSR"),
            }
        }
    }
    assert!(shown > 100, "{shown}");
}

#[test]
fn u26_registers_that_only_the_page_has() {
    let mut lapic = xapic(0x21);
    assert_eq!(lapic.read_page(PAGE + 0x20, 0), 0x2100_0000);
    put(&mut lapic, 0x20, 0x4200_0000);
    assert_eq!(lapic.read_page(PAGE + 0x20, 0), 0x2100_0000, "an id is the processor's");
    assert_eq!((lapic.read_page(PAGE + 0xd0, 0), lapic.read_page(PAGE + 0xe0, 0)), (0, u32::MAX));
    assert_eq!(lapic.address().logical, Logical::Flat(0));
    assert_eq!(lapic.write_page(PAGE + 0xd0, 0x1234_5678, 0), Effect::Readdressed);
    assert_eq!(lapic.read_page(PAGE + 0xd0, 0), 0x1200_0000);
    assert_eq!(lapic.address().logical, Logical::Flat(0x12));
    put(&mut lapic, 0xe0, 0);
    assert_eq!(lapic.read_page(PAGE + 0xe0, 0), 0x0fff_ffff);
    assert_eq!(lapic.address().logical, Logical::Cluster(0x12));
    for offset in [0x90, 0xb0, 0xc0] {
        assert_eq!(lapic.read_page(PAGE + offset, 0), 0);
    }
}

#[test]
fn u26_what_is_reserved_in_the_page_is_ignored() {
    let mut lapic = xapic(3);
    for (offset, read) in [
        (0x80, 0xff),
        (0xf0, 0x3ff),
        (0x300, 0x000c_cfff),
        (0x310, 0xff00_0000),
        (0x320, 0x1_00ff),
        (0x350, 0x1_a7ff),
        (0x370, 0x1_00ff),
        (0x380, u32::MAX),
        (0x3e0, 0xb),
    ] {
        put(&mut lapic, offset, u32::MAX);
        assert_eq!(lapic.read_page(PAGE + offset, 0), read, "{offset:#x}");
    }
    let mut lapic = xapic(3);
    let before = lapic.clone();
    for offset in [0x20, 0x30, 0x90, 0xa0, 0xc0, 0x100, 0x180, 0x270, 0x390] {
        put(&mut lapic, offset, u32::MAX);
    }
    assert_eq!(format!("{lapic:?}"), format!("{before:?}"), "read-only");
}

#[test]
fn u26_a_register_that_is_none_is_an_error_that_is_told() {
    let mut lapic = xapic(3);
    put(&mut lapic, 0x370, 0xfe);
    for offset in [0, 0x10, 0x40, 0x290, 0x2f0, 0x3a0, 0x3f0, 0x400, 0xff0] {
        assert_eq!(lapic.read_page(PAGE + offset, 0), 0);
        put(&mut lapic, 0x280, 0);
        assert_eq!(lapic.read_page(PAGE + 0x280, 0), 1 << 7, "{offset:#x}, read");
        put(&mut lapic, 0x280, 0);
        put(&mut lapic, offset, 1);
        put(&mut lapic, 0x280, 0);
        assert_eq!(lapic.read_page(PAGE + 0x280, 0), 1 << 7, "{offset:#x}, written");
        put(&mut lapic, 0x280, 0);
    }
    assert_eq!(inject(&mut lapic), Some(0xfe));
}

#[test]
fn u26_commands_of_two_registers() {
    let mut lapic = xapic(3);
    let fixed = MessageKind::Fixed(0xfd);
    assert_eq!(sent(&mut lapic, 0x0500_0000, 0x40fd), ipi(fixed, Destination::Physical(ApicId(5))));
    assert_eq!((lapic.read_page(PAGE + 0x300, 0), lapic.read_page(PAGE + 0x310, 0)), (0x40fd, 0x0500_0000));
    assert_eq!(sent(&mut lapic, 0x0500_0000, 0x08fd), ipi(fixed, Destination::Logical(5)));
    for logical in [0, 0x800] {
        let Effect::Ipi(message) = sent(&mut lapic, 0xff00_0000, 0x0500 | 0x4000 | logical) else { panic!() };
        assert!(matches!(
            message.destination,
            Destination::Physical(ApicId::BROADCAST) | Destination::Logical(BROADCAST)
        ));
        assert_eq!(message.kind, MessageKind::Init);
    }
    assert_eq!(lapic.read_page(PAGE + 0x310, 0), 0xff00_0000);
    assert_eq!(sent(&mut lapic, 0, 0xc_40fd), ipi(fixed, Destination::AllButSelf));
    assert_eq!(sent(&mut lapic, 0, 0x4_40fd), ipi(fixed, Destination::SelfOnly));
    assert_eq!(sent(&mut lapic, 0x0500_0000, 0x8500), Effect::None, "INIT de-assert");
    assert_eq!(sent(&mut lapic, 0x0500_0000, 0x05), Effect::None, "an illegal vector");
    put(&mut lapic, 0x280, 0);
    assert_eq!(lapic.read_page(PAGE + 0x280, 0), ESR_SEND_ILLEGAL_VECTOR);
    // Hyper-V's register also sends in this mode.
    assert_eq!(lapic.write_icr(7 << 32 | 0xfd), Ok(ipi(fixed, Destination::Physical(ApicId(7)))));
    assert_eq!(lapic.icr(), 7 << 32 | 0xfd);
    let all = ipi(fixed, Destination::Physical(ApicId::BROADCAST));
    assert_eq!(lapic.write_icr(0xffff_ffff_0000_00fd), Ok(all));
    assert_eq!(lapic.icr(), 0xffff_ffff_0000_00fd);
}

#[test]
fn u26_interrupts_are_served_by_the_page() {
    let mut lapic = xapic(3);
    lapic.accept_fixed(0x41, Trigger::Level);
    assert_eq!(lapic.read_page(PAGE + 0x220, 0), 2);
    assert_eq!(inject(&mut lapic), Some(0x41));
    assert_eq!((lapic.read_page(PAGE + 0x120, 0), lapic.read_page(PAGE + 0xa0, 0)), (2, 0x40));
    let end = Effect::Eoi { vector: 0x41, level: true };
    assert_eq!(lapic.write_page(PAGE + 0xb0, 0xdead_beef, 0), end, "whatever is written");
    put(&mut lapic, 0x320, 0x2_0042);
    put(&mut lapic, 0x3e0, 0xb);
    assert_eq!(lapic.write_page(PAGE + 0x380, 100, 0), Effect::TimerChanged);
    assert_eq!(lapic.next_deadline(), Some(PERIOD_US_MIN * 2000), "a longer one than asked for");
}

#[test]
fn u26_no_msr_of_a_register_is_there_but_in_x2apic_mode() {
    let mut off = lapic();
    set(&mut off, msr::APIC_BASE, 0xfee0_0000);
    for mut lapic in [xapic(3), off] {
        for msr in 0x800..=0x8ff {
            assert_eq!(lapic.read_msr(msr, 0), Err(GeneralProtection), "{msr:#x}");
            assert_eq!(lapic.write_msr(msr, 0, 0), Err(GeneralProtection), "{msr:#x}");
        }
        assert!(!lapic.is_x2apic());
        assert!(lapic.write_msr(msr::TSC_DEADLINE, 0, 0).is_ok());
    }
}

#[test]
fn u26_what_is_turned_off_forgets_everything_and_takes_nothing() {
    let mut lapic = x2apic(0, true);
    for (msr, value) in [(msr::SVR, 0x1ff), (msr::TPR, 0x20), (msr::LVT_TIMER, 0x2_0040)] {
        set(&mut lapic, msr, value);
    }
    set(&mut lapic, msr::INITIAL_COUNT, 1_000_000);
    accept(&mut lapic, &[0x41]);
    assert!(lapic.next_deadline().is_some());
    assert_eq!(write(&mut lapic, msr::APIC_BASE, 0xfee0_0100), Effect::Readdressed);
    assert_eq!((lapic.address().logical, lapic.is_on()), (Logical::Off, false));
    assert_eq!((lapic.next_deadline(), lapic.pending(), lapic.tpr()), (None, None, 0));
    accept(&mut lapic, &[0x42]);
    assert_eq!(lapic.highest_irr(), None);
    assert!(!lapic.has_page(PAGE));
    assert_eq!(lapic.write_icr(0x40), Err(GeneralProtection));
    assert_eq!(write(&mut lapic, msr::APIC_BASE, 0xfee0_0100), Effect::None, "nothing changes");
    set(&mut lapic, msr::APIC_BASE, 0xfee0_0900);
    assert_eq!(format!("{lapic:?}"), format!("{:?}", Lapic::new(ApicId(0), true, CLOCK)));
}

#[test]
fn u26_all_but_the_destination_goes_along_into_x2apic_mode() {
    let mut lapic = xapic(3);
    for (offset, value) in [(0x80, 0x20), (0x320, 0x2_0040), (0xd0, 0x0800_0000), (0x310, 0x0500_0000)] {
        put(&mut lapic, offset, value);
    }
    put(&mut lapic, 0x300, 0x40fd);
    accept(&mut lapic, &[0x41]);
    assert_eq!(write(&mut lapic, msr::APIC_BASE, 0xfee0_0c00), Effect::Readdressed);
    assert_eq!(lapic.address(), Address { id: ApicId(3), logical: Logical::X2Apic });
    assert_eq!((read(&lapic, msr::TPR), read(&lapic, msr::LVT_TIMER)), (0x20, 0x2_0040));
    assert_eq!((read(&lapic, msr::ICR), read(&lapic, msr::LDR)), (0x40fd, 8));
    assert_eq!(lapic.highest_irr(), Some(0x41));
}
