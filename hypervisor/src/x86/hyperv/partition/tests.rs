use super::*;

fn partition() -> Partition {
    Partition::new(PartitionTraits::ALL, 1_000).unwrap()
}

const ID: u64 = 0x8100_0006_0001_0000;
const PAGE: u64 = 0x7000;

fn identified() -> Partition {
    let partition = partition();
    assert_eq!(partition.write_msr(msr::GUEST_OS_ID, ID), Ok(MsrEffect::None));
    partition
}

fn moved(from: Option<u64>, to: Option<u64>) -> Result<MsrEffect, GpFault> {
    Ok(MsrEffect::HypercallPage(PageMove { from, to }))
}

#[test]
fn h17_the_page_cannot_be_enabled_without_an_identity() {
    let partition = partition();
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE | 1), Ok(MsrEffect::None));
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(PAGE), "all but the enable bit is kept");
    assert!(!partition.hypercalls_enabled());
    assert_eq!(partition.write_msr(msr::GUEST_OS_ID, ID), Ok(MsrEffect::None));
    assert!(!partition.hypercalls_enabled(), "the identity alone enables nothing");
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE | 1), moved(None, Some(PAGE)));
    assert!(partition.hypercalls_enabled());
}

#[test]
fn h17_taking_the_identity_back_disables_the_page() {
    let partition = identified();
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE | 1), moved(None, Some(PAGE)));
    assert_eq!(partition.write_msr(msr::GUEST_OS_ID, ID + 1), Ok(MsrEffect::None), "another is fine");
    assert_eq!(partition.write_msr(msr::GUEST_OS_ID, 0), moved(Some(PAGE), None));
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(PAGE));
    assert!(!partition.hypercalls_enabled());
}

#[test]
fn h17_a_locked_register_stays() {
    let partition = identified();
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE | 3), moved(None, Some(PAGE)));
    for value in [0, PAGE | 1, PAGE | 3, 0x9001] {
        assert_eq!(partition.write_msr(msr::HYPERCALL, value), Err(GpFault), "{value:#x}");
    }
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(PAGE | 3));
    assert_eq!(partition.write_msr(msr::GUEST_OS_ID, 0), moved(Some(PAGE), None));
    partition.reset();
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(0), "only a reset unlocks it");
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE), Ok(MsrEffect::None));
}

#[test]
fn h18_a_move_names_both_places() {
    let partition = identified();
    assert_eq!(partition.write_msr(msr::HYPERCALL, PAGE | 1), moved(None, Some(PAGE)));
    assert_eq!(partition.write_msr(msr::HYPERCALL, 0x9001), moved(Some(PAGE), Some(0x9000)));
    assert_eq!(partition.write_msr(msr::HYPERCALL, 0x9001), Ok(MsrEffect::None), "it is there already");
    assert_eq!(partition.write_msr(msr::HYPERCALL, 0xa000), moved(Some(0x9000), None));
    assert_eq!(partition.write_msr(msr::HYPERCALL, 0xaffd), moved(None, Some(0xa000)), "RsvdP is ignored");
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(0xaffd), "and preserved");
}

#[test]
fn h17_the_hypercall_page_lies_in_the_address_space_or_faults() {
    let partition = identified();
    assert_eq!(partition.write_msr(msr::HYPERCALL, 1 << 40 | 1), Err(GpFault));
    assert_eq!(partition.write_msr(msr::HYPERCALL, !2), Err(GpFault));
    assert_eq!(partition.read_msr(msr::HYPERCALL, 0), Some(0));
    let last = (1 << 40) - 4096;
    assert_eq!(partition.write_msr(msr::HYPERCALL, last | 1), moved(None, Some(last)));
}

#[test]
fn the_tsc_page_may_lie_anywhere() {
    let partition = partition();
    for (value, from, to) in
        [(0x5001, None, Some(0x5000)), (!0xffe, Some(0x5000), Some(!0xfff)), (0x6ffe, Some(!0xfff), None)]
    {
        let effect = Ok(MsrEffect::TscPage(PageMove { from, to }));
        assert_eq!(partition.write_msr(msr::REFERENCE_TSC, value), effect);
        assert_eq!(partition.read_msr(msr::REFERENCE_TSC, 0), Some(value), "RsvdP is preserved");
    }
}

#[test]
fn time_starts_with_the_partition_and_cannot_be_set() {
    let partition = partition();
    assert_eq!(partition.read_msr(msr::TIME_REF_COUNT, 1_000), Some(0));
    let second = partition.read_msr(msr::TIME_REF_COUNT, 1_000 + 2_000_000_000).unwrap();
    assert!(second.abs_diff(10_000_000) <= 1, "{second}");
    for number in [msr::TIME_REF_COUNT, msr::TSC_FREQUENCY, msr::APIC_FREQUENCY] {
        assert_eq!(partition.write_msr(number, 0), Err(GpFault), "{number:#x}");
    }
    assert_eq!(partition.read_msr(msr::TSC_FREQUENCY, 0), Some(2_000_000_000));
    assert_eq!(partition.read_msr(msr::APIC_FREQUENCY, 0), Some(1_000_000_000));
}

#[test]
fn a_crash_is_reported_with_and_without_text() {
    let partition = partition();
    for (number, value) in (msr::CRASH_P0..=msr::CRASH_P4).zip([1, 2, 3, 0x4000, 55]) {
        assert_eq!(partition.write_msr(number, value), Ok(MsrEffect::None));
        assert_eq!(partition.read_msr(number, 0), Some(value));
    }
    assert_eq!(partition.read_msr(msr::CRASH_CTL, 0), Some(3 << 62), "what is supported");
    assert_eq!(partition.write_msr(msr::CRASH_CTL, 1 << 62), Ok(MsrEffect::None), "no notification");
    let parameters = [1, 2, 3, 0x4000, 55];
    let report = CrashReport { parameters, message: None };
    assert_eq!(partition.write_msr(msr::CRASH_CTL, 1 << 63), Ok(MsrEffect::Crash(report)));
    let report = CrashReport { parameters, message: Some(CrashMessage { gpa: 0x4000, len: 55 }) };
    assert_eq!(partition.write_msr(msr::CRASH_CTL, 3 << 62), Ok(MsrEffect::Crash(report)));
}

#[test]
fn u5_few_crashes_are_reported_before_a_reset() {
    let partition = partition();
    let report = |_| matches!(partition.write_msr(msr::CRASH_CTL, 1 << 63), Ok(MsrEffect::Crash(_)));
    assert_eq!((0..1000).filter(|&time| report(time)).count(), crash::REPORTS_MAX as usize);
    partition.reset();
    assert!(report(0));
}

#[test]
fn invariant_tsc_is_shown_on_request_and_only_if_there_is_one() {
    let partition = partition();
    assert!(!partition.shows_invariant_tsc());
    assert_eq!(partition.write_msr(msr::TSC_INVARIANT_CONTROL, 2), Err(GpFault), "reserved bits");
    assert_eq!(partition.write_msr(msr::TSC_INVARIANT_CONTROL, 1), Ok(MsrEffect::None));
    assert!(partition.shows_invariant_tsc());
    let without = PartitionTraits { invariant_tsc: false, ..*partition.platform() };
    let without = Partition::new(without, 0).unwrap();
    assert_eq!(without.read_msr(msr::TSC_INVARIANT_CONTROL, 0), None);
    assert_eq!(without.write_msr(msr::TSC_INVARIANT_CONTROL, 1), Err(GpFault));
}

#[test]
fn the_reset_register() {
    let partition = partition();
    assert_eq!(partition.write_msr(msr::RESET, 0), Ok(MsrEffect::None));
    assert_eq!(partition.write_msr(msr::RESET, 1), Ok(MsrEffect::Reset));
    assert_eq!(partition.read_msr(msr::RESET, 0), Some(0));
}
