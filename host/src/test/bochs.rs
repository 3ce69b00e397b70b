//! The tests on the machine that remembers: Bochs, whose TLB keeps what a processor may keep.
//!
//! A flush that is owed and forgotten shows there, and on QEMU it does not. All rows fail, too, if
//! Bochs complains of what no sound hypervisor does.

use super::cases::{Body, ProbeEnd, REBOOTS, STALE, THRASH, WORK, case, hostile, probe, talk};
use super::checks::Check;
use super::several::{cycles, moving};
use crate::check::On;
use crate::image::Entry;
use crate::machine::bochs::{Bochs, Tlb};
use crate::test::prelude::*;
use crate::test::room::Act;
use hostlink::defect::Defect;

const RYZEN: Platform = Platform::Bochs(Bochs::RYZEN);
const DROPPING: Platform =
    Platform::Bochs(Bochs { tlb: Tlb { dropping: Some(1), ..Tlb::TAGGED }, ..Bochs::RYZEN });
pub(super) const SKYLAKE: Platform = Platform::Bochs(Bochs::SKYLAKE);

/// How rows end that run there, too, where VMX runs the guests.
pub(super) const ON_VMX: &str = "_on_vmx";

const THRASH_SHORT: &str = "thrash --threads 4 --rounds 4 --settle 100 --report /dev/report";

const fn check(name: &'static str, check: Check) -> Case {
    case(name, Body::Check(check)).on(RYZEN)
}

const fn on(cpus: u32, on: On) -> Check {
    Check { cpus, vcpus: cpus, ..Check::all(on) }
}

const PLANTED_ABOUT: &str = "a planted mistake shows: something is stale, or Bochs complains";

/// tlbcheck notices a planted mistake that QEMU hides; or Bochs complains of it.
const fn caught(name: &'static str, defect: Defect, rows: &'static str) -> Case {
    let on = Check { vcpus: 4, ..on(2, On::Quell) };
    check(name, Check { defect: Some(defect), rows: Some(rows), ..on }).about(PLANTED_ABOUT)
}

/// With more vCPUs than tags: they begin anew all the time.
const FEW_TAGS: Platform =
    Platform::Bochs(Bochs { tlb: Tlb { asids: Some(3), ..Tlb::TAGGED }, ..Bochs::RYZEN });

/// Guests share CPUs that have fewer tags than vCPUs: one gets a tag with translations of another,
/// and panics.
const fn handed_on(name: &'static str, defect: &'static [&'static str]) -> Case {
    act(name, |room| with_defects(room, cycles::spoil_each_other))
        .on(FEW_TAGS)
        .with(defect)
        .about(PLANTED_ABOUT)
}

fn with_defects(room: &Room<'_>, act: Act) -> Result<()> {
    let hypervisor = Hypervisor::with_defects(room.platform.arch())?;
    act(&Room { other: Some(&hypervisor), ..*room })
}

pub(super) const PLANTED: [Case; 25] = [
    caught("bochs_catches_debt_forgotten", Defect::DebtForgotten, "no-kick-space").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_tag_not_written", Defect::TagNotWritten, "no-kick-space").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_control_not_written", Defect::ControlNotWritten, "no-kick-space")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_tag_shared", Defect::TagShared, "*").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_entered_in_spite", Defect::EnteredInSpite, "no-kick-space").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_flush_not_carried_out", Defect::FlushNotCarriedOut, "no-kick-list")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_page_not_invalidated", Defect::PageNotInvalidated, "no-kick-list")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_wrong_tag_invalidated", Defect::WrongTagInvalidated, "no-kick-list")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_list_cut_short", Defect::ListCutShort, "list-tail-ignored").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_range_left_out", Defect::RangeLeftOut, "list-tail-ignored").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_page_left_out", Defect::PageLeftOut, "element-tail-ignored").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_controls_forgotten", Defect::ControlsForgotten, "pge-toggle-*"),
    caught("bochs_catches_no_kick", Defect::NoKick, "no-kick-space").also(ON_VMX, SKYLAKE),
    caught("bochs_catches_early_return", Defect::EarlyReturn, "early-return-*,no-kick-space")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_pieces_kept", Defect::PiecesKept, "*")
        .with(&["nested_page=4K"])
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_space_not_masked", Defect::SpaceNotMasked, "flush-of-halted-forgotten")
        .also(ON_VMX, SKYLAKE),
    caught("bochs_catches_globals_spared", Defect::GlobalsSpared, "flush-of-halted-forgotten")
        .also(ON_VMX, SKYLAKE),
    caught(
        "bochs_catches_called_off_entry_settles",
        Defect::CalledOffEntrySettles,
        "list-settles-earlier-flush",
    ),
    caught("bochs_catches_starts_over_with_all", Defect::StartsOverWithAll, "init-keeps-translations"),
    caught("bochs_catches_rest_of_list_forgotten", Defect::RestOfListForgotten, "*")
        .with(&["flush_pages=1000"])
        .also(ON_VMX, SKYLAKE),
    check(
        "bochs_catches_first_bank_only",
        Check {
            vcpus: 66,
            defect: Some(Defect::FirstBankOnly),
            rows: Some("flag-of-all-ignored"),
            ..on(2, On::Quell)
        },
    )
    .about(PLANTED_ABOUT),
    handed_on("bochs_catches_tag_kept", &["defect=tag-kept"]),
    handed_on("bochs_catches_rollover_kept", &["defect=rollover-kept"]),
    handed_on("bochs_catches_rollover_by_tag", &["defect=rollover-by-tag"]),
    handed_on("bochs_catches_tag_of_another_guest", &["defect=tag-shared"]),
];

/// The probe on VMX notices a planted mistake.
const fn probed(name: &'static str, test: &'static str, defect: &'static [&'static str]) -> Case {
    probe(name, test, ProbeEnd::Failed(2, 2)).on(SKYLAKE).with(defect).about(PLANTED_ABOUT)
}

/// Few VPIDs begin anew without a flush, whenever a third vCPU has the only CPU: a process runs by
/// the tables of another one.
const fn mixed_up(name: &'static str, defect: &'static [&'static str]) -> Case {
    stock(name, (5, 1), THRASH_SHORT, Expect::Damage).on(SKYLAKE).with(defect).about(PLANTED_ABOUT)
}

pub(super) const PLANTED_ON_VMX: [Case; 13] = [
    probed("bochs_catches_nested_taken_as_guests", "rom_toggles", &["defect=nested-taken-as-guests"]),
    probed("bochs_catches_invvpid_for_invept", "rom_toggles", &["defect=invvpid-for-invept"]),
    probed("bochs_catches_stamp_not_compared", "rom_toggles", &["defect=stamp-not-compared"]),
    probed("bochs_catches_other_root_dropped", "rom_toggles", &["defect=other-root-dropped"]),
    probed("bochs_catches_entry_trusted", "rom_toggles", &["defect=entry-trusted", "vpids=0"]),
    probed("bochs_catches_controls_forgotten_on_vmx", "toggles_flush", &["defect=controls-forgotten"]),
    act("bochs_catches_former_root_dropped", |room| with_defects(room, cycles::see_former_roms))
        .on(SKYLAKE)
        .with(&["defect=former-root-dropped"])
        .only_long()
        .about(PLANTED_ABOUT),
    caught("bochs_catches_guests_taken_as_nested", Defect::GuestsTakenAsNested, "no-kick-space").on(SKYLAKE),
    caught("bochs_catches_invvpid_spares_globals", Defect::InvvpidSparesGlobals, "global-page-kept")
        .on(SKYLAKE),
    check(
        "bochs_catches_tag_kept_on_vmx",
        Check {
            vcpus: 12,
            defect: Some(Defect::TagKept),
            rows: Some("ipi-misses-a-processor"),
            ..on(2, On::Quell)
        },
    )
    .on(SKYLAKE)
    .about(PLANTED_ABOUT),
    mixed_up("bochs_catches_rollover_kept_on_vmx", &["defect=rollover-kept", "vpids=2"]),
    mixed_up("bochs_catches_rollover_by_tag_on_vmx", &["defect=rollover-by-tag", "vpids=2"]),
    probe("bochs_refuses_vpid_zero", "rom_toggles", ProbeEnd::Ended(ExitCode::GuestInvalid))
        .on(SKYLAKE)
        .with(&["defect=vpid-zero"])
        .about("and a processor refuses the host's tag for a guest"),
];

pub(super) const ROWS: [Case; 25] = [
    check("bochs_tlbcheck_on_2_cpus", on(2, On::Quell)).about("tlbcheck finds nothing wrong with Quell"),
    check("bochs_tlbcheck_on_4_cpus", on(4, On::Quell)).about("nor on four CPUs"),
    check("bochs_tlbcheck_amid_drops", on(2, On::Quell))
        .on(DROPPING)
        .about("nor where entries are dropped at random"),
    check("bochs_tlbcheck_with_few_tags", Check { vcpus: 12, ..on(2, On::Quell) })
        .on(FEW_TAGS)
        .about("nor where tags begin anew all the time"),
    act("bochs_several_share_few_tags", cycles::share_cpus)
        .on(FEW_TAGS)
        .about("nor do guests that share CPUs get translations of others with their tags"),
    check("bochs_tlbcheck_with_long_lists", on(2, On::Quell))
        .with(&["flush_pages=1000"])
        .about("nor where long lists are done page by page, and in parts"),
    check("bochs_tlbcheck_with_small_nested_pages", on(2, On::Quell))
        .with(&["nested_page=4K"])
        .about("nor where the guest's large pages are kept in pieces"),
    check("bochs_tlbcheck_bare", on(2, On::Bare))
        .on(SKYLAKE)
        .about("nor with a processor that has PCIDs and INVPCID"),
    check("bochs_tlbcheck_on_vmx", on(2, On::Quell))
        .on(SKYLAKE)
        .about("nor where VMX runs the guests, with PCIDs"),
    check("bochs_tlbcheck_on_vmx_with_many_vcpus", Check { vcpus: 66, ..on(4, On::Quell) })
        .on(SKYLAKE)
        .about("nor with vCPUs that come from one CPU to another"),
    check("bochs_tlbcheck_with_few_vpids", Check { vcpus: 12, ..on(2, On::Quell) })
        .on(SKYLAKE)
        .with(&["vpids=2"])
        .about("nor where VPIDs begin anew all the time"),
    check("bochs_tlbcheck_without_vpids", on(2, On::Quell))
        .on(SKYLAKE)
        .with(&["vpids=0"])
        .about("nor where entry and exit drop everything but nested translations"),
    probe("bochs_probe_all", "all", ProbeEnd::AllPassed)
        .about("all errors of guests end as specified")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    probe("bochs_probe_with_an_emulated_apic", "all", ProbeEnd::AllPassed)
        .with(&["emulated_apic=on"])
        .about("nor where VMX could be the local APIC, and is not")
        .on(SKYLAKE),
    stock("bochs_nothing_stale_with_hypercalls", (4, 2), STALE, Expect::NothingStale)
        .about("no reader sees a page that was removed")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    stock("bochs_nothing_stale_with_ipis", (4, 2), STALE, Expect::NothingStale)
        .about("nor without the hint")
        .by_ipis()
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    stock("bochs_thrash_by_hypercall", (4, 2), THRASH, Expect::TlbIpis(false))
        .about("vCPUs that move between CPUs flush each other by hypercalls")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    stock("bochs_thrash_by_ipis", (4, 2), THRASH_SHORT, Expect::TlbIpis(true))
        .about("or by IPIs")
        .by_ipis()
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    act("bochs_several_come_and_go", cycles::come_and_go)
        .about("guests are created and destroyed, and their tags and roots are used again")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    talk("bochs_memory_comes_and_goes", WORK, Talk::Memory)
        .about("while the guest works")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    act("bochs_migration_in_vain_changes_nothing", |room| room.lab.migrate(room.case))
        .about("what a processor lists of the pages that it stores to is in the guest's log")
        .with(&["paranoid=on", "nested_page=2M"])
        .on(SKYLAKE),
    act("bochs_a_guest_moves_often", moving::moves_often)
        .about("a guest that looks for what is stale moves to another machine and back, and finds nothing")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    act("bochs_reboot_reboots", REBOOTS)
        .about("a guest that is reset finds none of its former entries")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
    act("bochs_disc_runs_linux", |room| {
        room.lab.disc(room.platform, Entry::Linux, false, "hello from a disc")
    })
    .about("one CD starts Quell where there is SVM, and where there is VMX")
    .on(RYZEN)
    .also(ON_VMX, SKYLAKE),
    hostile("bochs_fuzz", "storm seed=0x5eed rounds=2 count=4000 rest", (4, 2))
        .about("a guest that tries everything")
        .on(RYZEN)
        .also(ON_VMX, SKYLAKE),
];
