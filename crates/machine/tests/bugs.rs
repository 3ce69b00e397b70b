//! Each mistake that the driver can make is detected.
#![cfg(not(loom))]

use machine::Arch;
use machine::bug::Bug;
use machine::explore::{Effort, Topic, search};

/// Operations within which a mistake must be detected.
const OPERATIONS: u64 = 1_000_000;

/// The mistake is detected, by a failure whose text has one of `signs`.
fn finds(arch: Arch, bug: Bug, topic: Option<Topic>, signs: &[&str]) {
    let effort = Effort { topic, ..Effort::operations(OPERATIONS) };
    match search(arch, Some(bug), effort) {
        Ok(summary) => panic!("{bug:?} was not found in {} operations", summary.operations),
        Err(found) => {
            println!("{bug:?} after {} operations: {}", found.before.operations, found.failure);
            // Where the topic is devices, one of them is what fails.
            let by_device = found.failure.starts_with("device ");
            assert!(by_device || topic != Some(Topic::Devices), "{}", found.failure);
            assert!(signs.iter().any(|sign| found.failure.contains(sign)), "{}", found.failure);
        }
    }
}

const STALE: &str = "must be out of use";
const FREE: &str = "which is free";
const FOREIGN: &str = "a translation of another";
const BREAK: &str = "break-before-make";
const AFTER: &str = "after it was freed";
/// The entry is that of a guest or vCPU that was destroyed.
const FORMER: &str = "that was here before";
const ROOT: &str = "may walk from it";
/// On Intel64 a root is a tag.
const TAG: &str = "may hold what it tags";

/// A page was stored to after it was sent for the last time.
const NOT_SENT: &[&str] = &["not as it was sent"];
/// A log is used that was taken back.
const DROPPED: &[&str] = &["after it was handed back"];

/// The failures when a translation is kept that must be removed.
const KEPT: &[&str] = &[STALE, FREE, FOREIGN, AFTER, BREAK, FORMER];

macro_rules! found {
    ($($name:ident: $arch:ident, $bug:expr, $signs:expr $(, $topic:ident)?;)+) => {
        /// The mistakes that the tests below cover.
        pub(super) const TESTED: &[Bug] = &[$($bug),+];

        $(
            #[test]
            fn $name() {
                let topic = None$(.or(Some(Topic::$topic)))?;
                finds(Arch::$arch, $bug, topic, $signs);
            }
        )+
    };
}

/// Mistakes of the driver, i.e. mistakes that a hypervisor could make around the steps, and of its
/// processors.
mod around {
    use super::*;

    found! {
        o1_no_kick: Amd64, Bug::NoKick, KEPT;
        p19_flush_of_guests_for_nested_tables: Intel64, Bug::FlushOfGuests, KEPT;
        g5_lost_kick: Amd64, Bug::LostKick, &["G5"];
        g5_wrong_cpu_kicked: Amd64, Bug::WrongCpuKicked, &["G5"];
        h13_wrong_bank: Amd64, Bug::WrongBank, KEPT;
        p2_flush_before_unmap: Amd64, Bug::FlushBeforeUnmap, KEPT;
        p2_flush_before_unmap_arm64: Arm64, Bug::FlushBeforeUnmap, KEPT;
        p1_table_freed_early: Amd64, Bug::TableFreedEarly, KEPT;
        p1_table_freed_early_arm64: Arm64, Bug::TableFreedEarly, KEPT;
        p2_memory_freed_early: Amd64, Bug::MemoryFreedEarly, KEPT;
        p2_memory_freed_early_arm64: Arm64, Bug::MemoryFreedEarly, KEPT;
        p10_mmio_marked_during_an_update: Amd64, Bug::MmioDuringUpdate, &["G8"];
        p9_generations_of_three_bits: Amd64, Bug::ShortGeneration, &["G8"];
        p1_walk_cache_kept: Amd64, Bug::WalkCacheKept, &[STALE];
        p1_walk_cache_kept_arm64: Arm64, Bug::WalkCacheKept, KEPT;
        p19_combined_translations_kept_arm64: Arm64, Bug::CombinedKept, KEPT;
        p14_fetch_without_a_flush: Amd64, Bug::FetchWithoutFlush, &["lacks it", "leaves no trace"];
        p14_protection_without_a_flush: Amd64, Bug::ProtectWithoutFlush, &[STALE];
        a3_another_vcpu_is_met_arm64: Arm64, Bug::VcpuMet, &[STALE, FORMER], Lives;
        a21_migration_is_forgotten_arm64: Arm64, Bug::MigrationForgotten, &[STALE], Guests;
        a4_vmid_is_stolen_arm64: Arm64, Bug::VmidStolen, KEPT;
        a4_generation_is_flushed_before_the_vmid_is_loaded_arm64: Arm64, Bug::GenerationFlushedEarly, KEPT, Lives;
        a4_former_vmid_is_invalidated_arm64: Arm64, Bug::VmidRemembered, KEPT;
        o11_completed_on_the_own_processor_alone_arm64: Arm64, Bug::CompletedLocally, KEPT;
        a1_tag_handed_on: Amd64, Bug::TagHandedOn, KEPT, Lives;
        a1_tag_handed_on_arm64: Arm64, Bug::TagHandedOn, KEPT, Lives;
        a4_rollover_misses_a_cpu: Amd64, Bug::RolloverMissesCpu, KEPT, Lives;
        a4_rollover_misses_a_cpu_arm64: Arm64, Bug::RolloverMissesCpu, KEPT, Lives;
        a20_vttbr_is_not_synchronized_arm64: Arm64, Bug::VttbrNotSynchronized, &[STALE, FREE, FOREIGN, FORMER, BREAK, ROOT];
        a20_wrong_vmid_is_invalidated_arm64: Arm64, Bug::WrongTagFlushed, KEPT;
        p2_memory_of_a_guest_handed_on_early: Amd64, Bug::MemoryHandedOnEarly, KEPT, Lives;
        p2_memory_of_a_guest_handed_on_early_arm64: Arm64, Bug::MemoryHandedOnEarly, KEPT, Lives;
        p1_tables_of_a_guest_handed_on_early_arm64: Arm64, Bug::TablesHandedOnEarly, &[ROOT], Lives;
        p1_root_of_a_guest_handed_on_early_vmx: Intel64, Bug::TablesHandedOnEarly, &[TAG], Lives;
        p14_fetch_without_an_invept_vmx: Intel64, Bug::FetchWithoutFlush, &["lacks it", "leaves no trace"];
        i7_a_list_is_marked_after_the_next_stay_vmx: Intel64, Bug::ListedLater, &["lacks it", "leaves no trace"];
        p14_protection_without_an_invept_vmx: Intel64, Bug::ProtectWithoutFlush, &[STALE];
        a3_arrival_under_the_former_vpid_vmx: Intel64, Bug::FormerVpid, KEPT;
        a4_rollover_misses_a_cpu_vmx: Intel64, Bug::RolloverMissesCpu, KEPT, Lives;
        a3_vcpu_is_taken_for_its_former_arm64: Arm64, Bug::VcpuTakenForFormer, &[FORMER], Lives;
        a3_resident_by_index_arm64: Arm64, Bug::ResidentByIndex, &[STALE, FORMER], Lives;
        p16_devices_not_told: Amd64, Bug::DevicesNotTold, KEPT, Devices;
        p16_devices_not_told_arm64: Arm64, Bug::DevicesNotTold, KEPT, Devices;
        p16_devices_not_told_vmx: Intel64, Bug::DevicesNotTold, KEPT, Devices;
        p16_devices_told_before_the_unmap_vmx: Intel64, Bug::DevicesToldEarly, KEPT, Devices;
        p16_marks_where_devices_walk_vmx: Intel64, Bug::MarksForDevices, KEPT, Devices;
        p16_mirror_of_former_slots_arm64: Arm64, Bug::MirrorOfFormerSlots, KEPT, Devices;
        p16_devices_told_before_the_unmap: Amd64, Bug::DevicesToldEarly, KEPT, Devices;
        p16_devices_told_before_the_unmap_arm64: Arm64, Bug::DevicesToldEarly, KEPT, Devices;
        m1_page_is_sent_before_the_flush: Amd64, Bug::CopiedBeforeFlush, NOT_SENT, Migrations;
        m1_page_is_sent_before_the_flush_vmx: Intel64, Bug::CopiedBeforeFlush, NOT_SENT, Migrations;
        m1_page_is_sent_before_the_flush_arm64: Arm64, Bug::CopiedBeforeFlush, NOT_SENT, Migrations;
        m1_dirty_bits_are_taken_after_the_copy: Amd64, Bug::CopiedBeforeFetch, NOT_SENT, Migrations;
        m1_dirty_bits_are_taken_after_the_copy_vmx: Intel64, Bug::CopiedBeforeFetch, NOT_SENT, Migrations;
        m1_dirty_bits_are_taken_after_the_copy_arm64: Arm64, Bug::CopiedBeforeFetch, NOT_SENT, Migrations;
        m1_last_round_while_it_runs: Amd64, Bug::LastRoundRunning, NOT_SENT, Migrations;
        m1_last_round_while_it_runs_vmx: Intel64, Bug::LastRoundRunning, NOT_SENT, Migrations;
        m1_last_round_while_it_runs_arm64: Arm64, Bug::LastRoundRunning, NOT_SENT, Migrations;
        m1_owed_flush_is_left_behind: Amd64, Bug::OwedLeftBehind, KEPT, Migrations;
        m8_log_is_dropped_at_a_cut: Amd64, Bug::LogDroppedEarly, DROPPED, Migrations;
        m8_log_is_dropped_at_a_cut_vmx: Intel64, Bug::LogDroppedEarly, DROPPED, Migrations;
        m8_log_is_dropped_at_a_cut_arm64: Arm64, Bug::LogDroppedEarly, DROPPED, Migrations;
        m8_log_is_left_on: Amd64, Bug::LogLeftOn, &["still on"], Migrations;
        m8_large_page_before_the_flush: Amd64, Bug::LargeBeforeFlush, KEPT, Migrations;
        m8_large_page_before_the_flush_vmx: Intel64, Bug::LargeBeforeFlush, KEPT, Migrations;
        m8_large_page_before_the_flush_arm64: Arm64, Bug::LargeBeforeFlush, KEPT, Migrations;
    }
}

/// Mistakes in the steps of a stay, as shipped.
mod steps {
    use super::*;
    use stay::Mistake::*;

    const fn step(mistake: stay::Mistake) -> Bug {
        Bug::Step(mistake)
    }

    found! {
        called_off_entry_settles: Amd64, step(CalledOffEntrySettles), KEPT;
        refused_entry_settles: Amd64, step(RefusedEntrySettles), KEPT;
        tag_not_written: Amd64, step(TagNotWritten), KEPT;
        control_not_written: Amd64, step(ControlNotWritten), KEPT;
        a2_tag_kept: Amd64, step(TagKept), KEPT;
        a3_tag_shared: Amd64, step(TagShared), KEPT;
        a1_rollover_kept: Amd64, step(RolloverKept), KEPT;
        a1_rollover_by_tag: Amd64, step(RolloverByTag), KEPT;
        page_not_invalidated: Amd64, step(PageNotInvalidated), KEPT;
        list_cut_short: Amd64, step(ListCutShort), KEPT, Guests;
        a1_wrong_asid_is_invalidated: Amd64, step(WrongTagInvalidated), KEPT;
        entered_in_spite: Amd64, step(EnteredInSpite), KEPT;
        flush_not_carried_out: Amd64, step(FlushNotCarriedOut), KEPT;
        debt_forgotten: Amd64, step(DebtForgotten), KEPT;
        a2_tag_elsewhere_forgotten: Amd64, step(TagElsewhereForgotten), KEPT;
        p19_nested_taken_as_guests: Intel64, step(NestedTakenAsGuests), KEPT;
        debt_forgotten_vmx: Intel64, step(DebtForgotten), KEPT, Guests;
        p19_nested_settled_where_taken_vmx: Intel64, step(NestedSettledEarly), KEPT, Moves;
        p19_invvpid_for_invept_vmx: Intel64, step(InvvpidForInvept), KEPT;
        p19_guests_taken_as_nested_vmx: Intel64, step(GuestsTakenAsNested), KEPT, Guests;
        a3_arrival_without_invept_vmx: Intel64, step(ArrivalWithoutInvept), KEPT, Moves;
        a3_stamp_not_compared_vmx: Intel64, step(StampNotCompared), KEPT;
        p19_former_root_dropped_vmx: Intel64, step(FormerRootDropped), KEPT;
        p19_other_root_dropped_vmx: Intel64, step(OtherRootDropped), KEPT;
        p1_root_pushed_out_vmx: Intel64, step(RootPushedOut), &[STALE, FREE, AFTER, FORMER, TAG];
        p1_root_kept_vmx: Intel64, step(RootKept), &[TAG], Lives;
        p19_entry_trusted_without_vpids_vmx: Intel64, step(EntryTrusted), KEPT;
        a1_rollover_kept_vmx: Intel64, step(RolloverKept), KEPT;
        a1_rollover_by_vpid_vmx: Intel64, step(RolloverByTag), KEPT;
        a1_vpids_shared_vmx: Intel64, step(TagShared), KEPT;
        a1_wrong_vpid_is_invalidated_vmx: Intel64, step(WrongTagInvalidated), KEPT, Guests;
        a5_vpid_zero_vmx: Intel64, step(VpidZero), &["VPID 0"];
        a17_pieces_kept_vmx: Intel64, step(PiecesKept), KEPT, Anything;
        invvpid_spares_globals_vmx: Intel64, step(InvvpidSparesGlobals), KEPT, Guests;
        starts_over_with_all: Amd64, step(StartsOverWithAll), KEPT, Guests;
        page_left_out: Amd64, step(PageLeftOut), KEPT, Guests;
        range_left_out: Amd64, step(RangeLeftOut), KEPT, Guests;
        a17_pieces_kept: Amd64, step(PiecesKept), KEPT, Anything;
        pcids_kept: Amd64, step(PcidsKept), KEPT, Guests;
        h25_rest_of_list_forgotten: Amd64, step(RestOfListForgotten), KEPT, Guests;
        a11_space_not_masked: Amd64, step(SpaceNotMasked), KEPT, Halts;
        h13_first_bank_only: Amd64, step(FirstBankOnly), KEPT;
        o1_not_kicked: Amd64, step(NotKicked), KEPT, Guests;
        o1_not_waited: Amd64, step(NotWaited), KEPT, Anything;
        a22_halt_in_one_space: Amd64, step(HaltInOneSpace), KEPT, Halts;
        h30_no_section: Amd64, step(NoSection), &[STALE, FREE, AFTER, "lacks it"], Tables;
        h30_no_section_arm64: Arm64, step(NoSection), &[STALE, FREE, AFTER, "lacks it"];
        h30_section_in_spite: Amd64, step(SectionInSpite), &[STALE, FREE, AFTER, "lacks it"], Tables;
        p10_generation_read_late: Amd64, step(GenerationReadLate), &["G8"], Slots;
        walk_not_read_again: Amd64, step(WalkNotReadAgain), &["as remembered"];
        regime_ignored: Amd64, step(RegimeIgnored), &["as remembered"];
        a3_arrival_without_drop_arm64: Arm64, step(ArrivalWithoutDrop), KEPT, Guests;
        a3_drop_with_vmid_only_arm64: Arm64, step(DropWithVmidOnly), KEPT, Guests;
        a4_vmid_not_loaded_arm64: Arm64, step(VmidNotLoaded), &["of another machine", STALE, FREE, FOREIGN, BREAK];
        a4_generation_kept_arm64: Arm64, step(GenerationKept), KEPT;
        p18_wrong_level_hint_arm64: Arm64, step(WrongLevelHint), KEPT;
        p18_stale_range_left_out_arm64: Arm64, step(StaleRangeLeftOut), KEPT;
        p3_no_break_arm64: Arm64, step(NoBreak), &[BREAK];
        p16_iommu_not_waited: Amd64, step(IommuNotWaited), KEPT, Devices;
        p16_wrong_domain: Amd64, step(WrongDomain), KEPT, Devices;
        p16_page_of_a_range_left_out: Amd64, step(DmaPageLeftOut), KEPT, Devices;
        p16_block_misaligned: Amd64, step(BlockMisaligned), KEPT, Devices;
        p16_upper_levels_kept: Amd64, step(DmaTablesKept), KEPT, Devices;
        p16_device_tlb_forgotten: Amd64, step(DeviceTlbForgotten), KEPT, Devices;
        p16_device_tlb_told_before_the_iommu_has_dropped: Amd64, step(DeviceTlbEarly), KEPT, Devices;
        p16_domain_handed_on_with_translations: Amd64, step(DomainKept), KEPT, Devices;
        p16_domain_dropped_before_its_devices_entries: Amd64, step(DomainDroppedEarly), KEPT, Devices;
        p16_device_entry_kept: Amd64, step(DeviceEntryKept), KEPT, Devices;
        p16_iommu_not_waited_vmx: Intel64, step(IommuNotWaited), KEPT, Devices;
        p16_wrong_domain_vmx: Intel64, step(WrongDomain), KEPT, Devices;
        p16_page_of_a_range_left_out_vmx: Intel64, step(DmaPageLeftOut), KEPT, Devices;
        p16_block_misaligned_vmx: Intel64, step(BlockMisaligned), KEPT, Devices;
        p16_upper_levels_kept_vmx: Intel64, step(DmaTablesKept), KEPT, Devices;
        p16_domain_handed_on_with_translations_vmx: Intel64, step(DomainKept), KEPT, Devices;
        p16_domain_dropped_before_its_devices_entries_vmx: Intel64, step(DomainDroppedEarly), KEPT, Devices;
        p16_device_entry_kept_vmx: Intel64, step(DeviceEntryKept), KEPT, Devices;
        p16_entry_of_another_domain_vmx: Intel64, step(EntryOfOtherDomain), KEPT, Devices;
        p16_smmu_not_waited_arm64: Arm64, step(IommuNotWaited), KEPT, Devices;
        p16_wrong_domain_arm64: Arm64, step(WrongDomain), KEPT, Devices;
        p16_page_of_a_range_left_out_arm64: Arm64, step(DmaPageLeftOut), KEPT, Devices;
        p16_domain_handed_on_with_translations_arm64: Arm64, step(DomainKept), KEPT, Devices;
        p16_domain_dropped_before_its_devices_entries_arm64: Arm64, step(DomainDroppedEarly), KEPT, Devices;
        p16_stream_entry_kept_arm64: Arm64, step(DeviceEntryKept), KEPT, Devices;
        p16_mirror_keeps_what_no_slot_has_arm64: Arm64, step(MirrorKept), KEPT, Devices;
        p16_mirror_not_waited_arm64: Arm64, step(MirrorNotWaited), KEPT, Devices;
    }
}

#[test]
fn each_mistake_in_a_step_has_a_test() {
    for &mistake in stay::Mistake::ALL {
        // Guests of the machine have no global pages: `quell-stay` has the test.
        let is_elsewhere = mistake == stay::Mistake::GlobalsSpared;
        assert!(is_elsewhere || steps::TESTED.contains(&Bug::Step(mistake)), "{mistake:?}");
    }
    assert!(!around::TESTED.is_empty());
}
