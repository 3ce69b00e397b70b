//! Each mistake that the driver can make is found.
#![cfg(not(loom))]

use machine::bug::Bug;
use machine::explore::{Effort, search};
use machine::hw::format::Arch;

/// Operations within which a mistake must be found.
const OPERATIONS: u64 = 1_000_000;

/// The mistake is found, by a failure whose text has one of `signs`.
fn finds(arch: Arch, bug: Bug, signs: &[&str]) {
    match search(arch, Some(bug), Effort::operations(OPERATIONS)) {
        Ok(summary) => panic!("{bug:?} was not found in {} operations", summary.operations),
        Err(found) => {
            println!("{bug:?} after {} operations: {}", found.before.operations, found.failure);
            assert!(signs.iter().any(|sign| found.failure.contains(sign)), "{}", found.failure);
        }
    }
}

const STALE: &str = "must be out of use";
const FREE: &str = "which is free";

macro_rules! found {
    ($($name:ident: $arch:ident, $bug:ident, [$($sign:expr),+];)+) => {
        $(
            #[test]
            fn $name() {
                finds(Arch::$arch, Bug::$bug, &[$($sign),+]);
            }
        )+
    };
}

found! {
    o1_no_kick: Amd64, NoKick, [STALE, FREE];
    g5_lost_kick: Amd64, LostKick, ["G5"];
    p2_flush_before_unmap: Amd64, FlushBeforeUnmap, [STALE, FREE];
    p2_flush_before_unmap_arm64: Arm64, FlushBeforeUnmap, [STALE, FREE];
    p1_table_freed_early: Amd64, TableFreedEarly, [FREE, "after it was freed"];
    p1_table_freed_early_arm64: Arm64, TableFreedEarly, [FREE, "after it was freed", "break-before-make"];
    p2_memory_freed_early: Amd64, MemoryFreedEarly, [STALE, FREE];
    p2_memory_freed_early_arm64: Arm64, MemoryFreedEarly, [STALE, FREE];
    p10_mmio_cached_during_an_update: Amd64, MmioDuringUpdate, ["G8"];
    p9_generations_of_three_bits: Amd64, ShortGeneration, ["G8"];
    p1_walk_cache_kept: Amd64, WalkCacheKept, [STALE];
    p1_walk_cache_kept_arm64: Arm64, WalkCacheKept, [STALE, FREE, "break-before-make"];
    a1_tag_used_again: Amd64, TagReused, [STALE, FREE, "a translation of another"];
    a17_pieces_kept: Amd64, PiecesKept, [STALE];
    p18_wrong_level_hint_arm64: Arm64, WrongLevelHint, [STALE, FREE, "break-before-make"];
    p19_combined_translations_kept_arm64: Arm64, CombinedKept, [STALE, FREE, "break-before-make"];
    p3_no_break_arm64: Arm64, NoBreak, ["break-before-make"];
    p14_fetch_without_a_flush: Amd64, FetchWithoutFlush, ["lacks it", "leaves no trace"];
    p14_protection_without_a_flush: Amd64, ProtectWithoutFlush, [STALE];
    h30_fault_outside_of_a_section: Amd64, NoSection, [FREE, "after it was freed", "lacks it"];
    h30_fault_outside_of_a_section_arm64: Arm64, NoSection, [FREE, "after it was freed", "lacks it"];
    a3_another_vcpu_is_met_arm64: Arm64, VcpuMet, [STALE];
    a21_migration_is_forgotten_arm64: Arm64, MigrationForgotten, [STALE];
    a4_vmid_is_stolen_arm64: Arm64, VmidStolen, ["a translation of another", FREE];
    a4_former_generation_is_kept_arm64: Arm64, GenerationKept, [STALE, FREE, "a translation of another"];
    a4_generation_is_flushed_before_the_vmid_is_loaded_arm64:
        Arm64, GenerationFlushedEarly, [STALE, FREE, "a translation of another", "break-before-make"];
    a4_former_vmid_is_invalidated_arm64: Arm64, VmidRemembered, [STALE, FREE, "break-before-make"];
    o11_completed_on_the_own_processor_alone_arm64: Arm64, CompletedLocally, [STALE, FREE, "break-before-make"];
}
