use super::*;
use crate::x86::hyperv::cpuid::{CpuidResult, PartitionTraits, leaf};
use crate::x86::hyperv::hypercall::tests::{Engine, LONG, Memory};
use crate::x86::hyperv::hypercall::{CallOutcome, handle};
use tlfs::cpuid::{
    LEAF_FEATURES, LEAF_HARDWARE, LEAF_HINTS, LEAF_NESTED, feature, hardware, hint, privilege,
};
use tlfs::{CallRegisters, InputPage, Status};

const PLATFORM: PartitionTraits = PartitionTraits::ALL;

fn partition(platform: PartitionTraits) -> Partition {
    let partition = Partition::new(platform, 0).unwrap();
    let mut vp = Vp::new(VpIndex(0));
    assert_eq!(vp.write_msr(&partition, msr::GUEST_OS_ID, 1, 0), Ok(MsrEffect::None));
    assert!(vp.write_msr(&partition, msr::HYPERCALL, 0x7001, 0).is_ok());
    partition
}

/// A register's number, and whether it can be read and written.
type Access = (u32, bool, bool);

/// Bits of the privilege mask, and the registers that each grants.
const GRANTS: &[(u32, &[Access])] = &[
    (privilege::VP_RUNTIME, &[(0x4000_0010, true, false)]),
    (privilege::REFERENCE_COUNTER, &[(msr::TIME_REF_COUNT, true, false)]),
    (privilege::SYNIC, &[(0x4000_0080, true, true), (0x4000_0084, false, true), (0x4000_0090, true, true)]),
    (
        privilege::SYNTHETIC_TIMERS,
        &[
            (0x4000_00b0, true, true),
            (0x4000_00b1, true, true),
            (0x4000_00b2, true, true),
            (0x4000_00b3, true, true),
            (0x4000_00b4, true, true),
            (0x4000_00b5, true, true),
            (0x4000_00b6, true, true),
            (0x4000_00b7, true, true),
        ],
    ),
    (
        privilege::INTERRUPT_CONTROL,
        &[
            (msr::EOI, false, true),
            (msr::ICR, true, true),
            (msr::TPR, true, true),
            (msr::VP_ASSIST_PAGE, true, true),
        ],
    ),
    (privilege::HYPERCALL, &[(msr::GUEST_OS_ID, true, true), (msr::HYPERCALL, true, true)]),
    (privilege::VP_INDEX, &[(msr::VP_INDEX, true, false)]),
    (privilege::RESET, &[(msr::RESET, true, true)]),
    (privilege::REFERENCE_TSC, &[(msr::REFERENCE_TSC, true, true)]),
    (privilege::GUEST_IDLE, &[(0x4000_00f0, true, false)]),
    (privilege::FREQUENCIES, &[(msr::TSC_FREQUENCY, true, false), (msr::APIC_FREQUENCY, true, false)]),
    (privilege::TSC_INVARIANT, &[(msr::TSC_INVARIANT_CONTROL, true, true)]),
];

#[test]
fn h21_every_privilege_has_its_registers_and_no_other_does() {
    for platform in [PLATFORM, PartitionTraits { invariant_tsc: false, ..PLATFORM }] {
        let offered = leaf(LEAF_FEATURES, &platform).unwrap().eax;
        let known = GRANTS.iter().fold(0, |bits, (bit, _)| bits | bit);
        assert_eq!(offered & !known, 0, "a privilege without a probe");
        for (bit, registers) in GRANTS {
            for (number, readable, writable) in *registers {
                let offered = offered & bit != 0;
                let (partition, mut vp) = (partition(platform), Vp::new(VpIndex(0)));
                let read = vp.read_msr(&partition, *number, 0);
                assert_eq!(read.is_ok(), offered && *readable, "read {number:#x}");
                let write = vp.write_msr(&partition, *number, 0, 0);
                assert_eq!(write.is_ok(), offered && *writable, "write {number:#x}");
            }
        }
    }
}

#[test]
fn unassigned_registers_fault() {
    let assigned = |number| {
        let crash = msr::CRASH_P0..=msr::CRASH_CTL;
        GRANTS.iter().any(|(_, list)| list.iter().any(|(n, ..)| *n == number)) || crash.contains(&number)
    };
    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    for number in (0x3fff_ff00..0x4000_0400).chain([0, 0x10, u32::MAX]).filter(|number| !assigned(*number)) {
        assert_eq!(vp.read_msr(&partition, number, 0), Err(GpFault), "{number:#x}");
        assert_eq!(vp.write_msr(&partition, number, 0, 0), Err(GpFault), "{number:#x}");
    }
}

#[test]
fn h21_every_feature_works() {
    let offered = leaf(LEAF_FEATURES, &PLATFORM).unwrap().edx;
    let probed = feature::FREQUENCIES | feature::CRASH | feature::HYPERCALL_LOCK | feature::DIRECT_TIMERS;
    let by_call = feature::XMM_INPUT | feature::EXTENDED_GVA_RANGES;
    assert_eq!(offered, probed | by_call, "each feature is probed below, and no other is offered");

    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    assert_eq!(vp.read_msr(&partition, msr::TSC_FREQUENCY, 0), Ok(MsrRead::Value(2_000_000_000)));
    assert!(matches!(vp.write_msr(&partition, msr::CRASH_CTL, 1 << 63, 0), Ok(MsrEffect::Crash(_))));
    assert!(vp.write_msr(&partition, msr::HYPERCALL, 0x7003, 0).is_ok());
    assert_eq!(vp.write_msr(&partition, msr::HYPERCALL, 0x7001, 0), Err(GpFault), "locked");
    assert_eq!(vp.write_msr(&partition, msr::STIMER0_CONFIG, 0x1ed9, 0), Ok(MsrEffect::Timers));
    assert_eq!(vp.write_msr(&partition, msr::STIMER0_COUNT, 1, 0), Ok(MsrEffect::Timers));
    assert_eq!(vp.expire(&partition, 1_000_000).as_slice(), [0xed], "direct timer");

    // A list of one, in registers; and one of 2 MiB pages.
    assert_eq!(succeeds(&partition, 1 << 32 | 1 << 16 | 0x03, &[1, 0x5000]), [1, 0]);
    let pages = succeeds(&partition, 1 << 32 | 0x03, &[0, 1 << 3, 1, 1 << 21 | 1 << 11]);
    assert_eq!(pages, [1, 0]);
}

/// Makes a call whose input is `words`; returns the outcome, and how often it flushes and
/// interrupts.
fn call(partition: &Partition, control: u64, words: &'static [u64]) -> (CallOutcome, [usize; 2]) {
    // A fast call has words of zero in its two general registers.
    let input = if control >> 16 & 1 == 0 { 0x1000 } else { 0 };
    let parameters = CallRegisters { control, input, output: 0 };
    let (mut engine, mut page) = (Engine::default(), InputPage::new());
    let outcome = handle(&LONG, parameters, partition, &Memory(words), &mut engine, &mut page);
    (outcome, [engine.flushes.len(), engine.interrupts.len()])
}

fn succeeds(partition: &Partition, control: u64, words: &'static [u64]) -> [usize; 2] {
    let (outcome, counts) = call(partition, control, words);
    let CallOutcome::Complete(result) = outcome else { panic!("{control:#x}: {outcome:?}") };
    assert_eq!(result.status(), Status::SUCCESS, "{control:#x}");
    counts
}

#[test]
fn h21_every_hint_can_be_followed() {
    let ipi = PartitionTraits { flush_hypercall: false, ..PLATFORM };
    let (hypercall, ipi) = (leaf(LEAF_HINTS, &PLATFORM).unwrap(), leaf(LEAF_HINTS, &ipi).unwrap());
    assert_eq!(hypercall.eax ^ ipi.eax, hint::REMOTE_FLUSH, "the one difference between the modes");
    let probed = hint::APIC_REGISTERS | hint::RELAXED_TIMING | hint::NO_AUTO_EOI | hint::EX_PROCESSOR_MASKS;
    assert_eq!(ipi.eax, probed | hint::CLUSTER_IPI, "each hint is probed below, and no other is given");

    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    // Remote flush, and its form with VP sets.
    for (control, words) in [
        (0x02, &[0, 0, 1][..]),
        (1 << 32 | 0x03, &[0, 0, 1, 0x5000]),
        (1 << 17 | 0x13, &[0, 0, 0, 2, 1]),
        (1 << 32 | 1 << 17 | 0x14, &[0, 0, 0, 2, 1, 0x5000]),
    ] {
        assert_eq!(succeeds(&partition, control, words), [1, 0]);
    }
    // Interrupts, and their form with VP sets.
    for (control, words) in [(0x0b, &[0x40, 1][..]), (1 << 17 | 0x15, &[0x40, 0, 2, 1])] {
        assert_eq!(succeeds(&partition, control, words), [0, 1]);
    }
    // The spin limit in EBX is useful only if the notification is accepted.
    assert!(matches!(call(&partition, 1 << 16 | 0x08, &[]).0, CallOutcome::Yield(_)));
    // EOI, ICR, TPR and the assist page; no auto-EOI interrupts.
    assert_eq!(vp.write_msr(&partition, msr::EOI, 0, 0), Ok(MsrEffect::ApicEoi));
    assert!(vp.write_msr(&partition, msr::VP_ASSIST_PAGE, 0x3001, 0).is_ok());
    let quiet = ApicView { in_service: Some(0x40), level: false, pending: false };
    assert_eq!(vp.arm_eoi(&quiet), Some(0x3000));
    assert_eq!(leaf(LEAF_FEATURES, &PLATFORM).unwrap().eax & privilege::SYNIC, 0);
}

#[test]
fn leaves_name_the_interface_and_end() {
    let vendor = leaf(0x4000_0000, &PLATFORM).unwrap();
    let name: Vec<u8> = [vendor.ebx, vendor.ecx, vendor.edx].iter().flat_map(|r| r.to_le_bytes()).collect();
    assert_eq!((name.as_slice(), vendor.eax), (&b"Microsoft Hv"[..], LEAF_NESTED));
    let version = [env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR")];
    let [major, minor] = version.map(|part| part.parse::<u32>().expect("a number"));
    let [features, hints] = [LEAF_FEATURES, LEAF_HINTS].map(|number| leaf(number, &PLATFORM).unwrap());
    for (number, [eax, ebx, ecx, edx]) in [
        (0x4000_0001, [0x3123_7648, 0, 0, 0]),
        (0x4000_0002, [0, major << 16 | minor, 0, 0]),
        (LEAF_FEATURES, [features.eax, 0, 0, features.edx]),
        (LEAF_HINTS, [hints.eax, 0x1000, 40, 0]),
        (0x4000_0005, [255, 0, 0, 0]),
        (LEAF_HARDWARE, [hardware::MSR_BITMAPS | hardware::NESTED_PAGING, 0, 0, 0]),
        (LEAF_NESTED, [1 << 22 | 1 << 19 | 1 << 17, 0, 0, 0]),
    ] {
        assert_eq!(leaf(number, &PLATFORM), Some(CpuidResult { eax, ebx, ecx, edx }), "{number:#x}");
    }
    let shadowed = leaf(LEAF_HARDWARE, &PartitionTraits { nested_paging: false, ..PLATFORM });
    assert_eq!(shadowed.map(|leaf| leaf.eax), Some(hardware::MSR_BITMAPS));
    let single = PartitionTraits { may_nest: false, ..PLATFORM };
    let leaves = [0x4000_0000, LEAF_NESTED].map(|number| leaf(number, &single).map(|leaf| leaf.eax));
    assert_eq!(leaves, [Some(LEAF_HARDWARE), None], "a guest without guests");
    for number in
        [0, 1, 0x3fff_ffff, 0x4000_0007, 0x4000_0009, 0x4000_0080, 0x4000_0100, 0x8000_0000, u32::MAX]
    {
        assert_eq!(leaf(number, &PLATFORM), None, "{number:#x}");
    }
}

#[test]
fn h13_the_index_is_the_one_assigned() {
    let partition = partition(PLATFORM);
    for index in [7, 3, 65, 2, 4095] {
        assert_eq!(
            Vp::new(VpIndex(index)).read_msr(&partition, msr::VP_INDEX, 0),
            Ok(MsrRead::Value(index.into()))
        );
        assert_eq!(Vp::new(VpIndex(index)).write_msr(&partition, msr::VP_INDEX, 0, 0), Err(GpFault));
    }
}

#[test]
fn the_run_time_is_the_schedulers_and_cannot_be_written() {
    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(1)));
    assert_eq!(vp.read_msr(&partition, msr::VP_RUNTIME, 5), Ok(MsrRead::RunTime));
    for value in [0, 1, u64::MAX] {
        assert_eq!(vp.write_msr(&partition, msr::VP_RUNTIME, value, 5), Err(GpFault));
    }
    assert_ne!(leaf(LEAF_FEATURES, &PLATFORM).unwrap().eax & privilege::VP_RUNTIME, 0);
}

#[test]
fn apic_registers_are_forwarded_or_fault() {
    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    let mut write = |number, value| vp.write_msr(&partition, number, value, 0);
    assert_eq!(write(msr::EOI, 1 << 32), Err(GpFault), "reserved");
    assert_eq!(write(msr::EOI, 0xffff_ffff), Ok(MsrEffect::ApicEoi));
    assert_eq!(write(msr::TPR, 0x100), Err(GpFault), "reserved");
    assert_eq!(write(msr::TPR, 0xf0), Ok(MsrEffect::ApicTpr(0xf0)));
    assert_eq!(write(msr::ICR, 0x0200_0000_0000_0030), Ok(MsrEffect::ApicIcr(0x0000_0002_0000_0030)));
    assert_eq!(vp.read_msr(&partition, msr::EOI, 0), Err(GpFault), "write only");
    assert_eq!(vp.read_msr(&partition, msr::ICR, 0), Ok(MsrRead::ApicIcr));
    assert_eq!(vp.read_msr(&partition, msr::TPR, 0), Ok(MsrRead::ApicTpr));
}

#[test]
fn lazy_eoi_through_the_assist_page() {
    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    let quiet = ApicView { in_service: Some(0x40), level: false, pending: false };
    assert_eq!((vp.arm_eoi(&quiet), vp.armed_eoi()), (None, None), "there is no page");
    let on = vp.write_msr(&partition, msr::VP_ASSIST_PAGE, 0x3001, 0);
    assert_eq!(on, Ok(MsrEffect::VpAssistPage(PageMove { from: None, to: Some(0x3000) })));
    assert_eq!((vp.arm_eoi(&quiet), vp.armed_eoi()), (Some(0x3000), Some(0x3000)));
    assert_eq!(vp.settle_eoi(0), Some(Settled::Ended(0x40)));
    assert_eq!((vp.armed_eoi(), vp.settle_eoi(0)), (None, None));
    let off = vp.write_msr(&partition, msr::VP_ASSIST_PAGE, 0, 0);
    assert_eq!(off, Ok(MsrEffect::VpAssistPage(PageMove { from: Some(0x3000), to: None })));
    assert_eq!(vp.arm_eoi(&quiet), None);
}

#[test]
fn timers_are_four_and_the_nearest_counts() {
    let (partition, mut vp) = (partition(PLATFORM), Vp::new(VpIndex(0)));
    assert_eq!(vp.next_deadline_tsc(), None);
    for (index, (vector, count)) in
        [(0x41, 900), (0x42, 300), (0x43, 600), (0x44, 300)].into_iter().enumerate()
    {
        let number = msr::STIMER0_CONFIG + 2 * index as u32;
        assert_eq!(vp.write_msr(&partition, number, 1 << 12 | vector << 4 | 1, 0), Ok(MsrEffect::Timers));
        assert_eq!(vp.write_msr(&partition, number + 1, count, 0), Ok(MsrEffect::Timers));
        assert_eq!(vp.read_msr(&partition, number + 1, 0), Ok(MsrRead::Value(count)));
    }
    let at = |time| partition.clock().tsc_at(time).unwrap();
    assert_eq!(vp.next_deadline_tsc(), Some(at(300)));
    assert_eq!(vp.expire(&partition, at(300) - 1).as_slice(), []);
    assert_eq!(vp.expire(&partition, at(300)).as_slice(), [0x42, 0x44]);
    assert_eq!(vp.next_deadline_tsc(), Some(at(600)));
    assert_eq!(vp.expire(&partition, at(2_000)).as_slice(), [0x41, 0x43]);
    assert_eq!(vp.next_deadline_tsc(), None);
    assert_eq!(vp.write_msr(&partition, 0x4000_00b6, 1 << 20, 0), Err(GpFault), "reserved bit of timer 3");
}
