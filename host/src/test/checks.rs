//! The tests that run tlbcheck: it has to pass if flushes are right, and to fail, in the row that
//! is named for it, for each defect that can be injected into the hypervisor.

use super::cases::{Body, case};
use crate::check::{Omission, On, vcpus};
use crate::image::Entry;
use crate::test::prelude::*;
use hostlink::defect::Defect;

#[derive(Clone, Copy)]
pub(super) struct Check {
    pub(super) on: On,
    pub(super) cpus: u32,
    pub(super) vcpus: u32,
    pub(super) defect: Option<Defect>,
    /// Instructions that tlbcheck omits itself.
    pub(super) omission: Option<Omission>,
    /// The rows to run, with `*` for any suffix. With a defect one has to fail, else none.
    pub(super) rows: Option<&'static str>,
    /// Prefixes of the names of rows that may be skipped; any row if there are none.
    pub(super) may_skip: Option<&'static [&'static str]>,
}

impl Check {
    /// All rows, any of which may be skipped, on 4 processors.
    pub(super) const fn all(on: On) -> Self {
        Self { on, cpus: 4, vcpus: 4, defect: None, omission: None, rows: None, may_skip: None }
    }
}

/// Features that QEMU's software emulation lacks, and the row that requires a missing feature.
const SKIPPED_ON_QUELL: [&str; 5] =
    ["pcid-mixes", "pcid-cr3", "pcid-toggle", "invpcid-", "xmm-without-offer-accepted"];

const fn clean(name: &'static str, on: On, may_skip: Option<&'static [&'static str]>) -> Case {
    let vcpus = vcpus(Arch::X86_64);
    case(name, Body::Check(Check { cpus: 4, vcpus, may_skip, ..Check::all(on) }))
}

const fn caught(name: &'static str, defect: Defect, row: &'static str) -> Case {
    case(name, Body::Check(Check { defect: Some(defect), rows: Some(row), ..Check::all(On::Quell) }))
}

pub(super) const CHECKS: [Case; 20] = [
    act("disc_checks_by_bios", |room| room.lab.disc(room.platform, Entry::Check, false, " 0 failed"))
        .about("GRUB starts tlbcheck from a CD"),
    act("disc_runs_linux_by_uefi", |room| {
        room.lab.disc(room.platform, Entry::Linux, true, "hello from a disc")
    })
    .about("and Quell with a Debian guest, by UEFI"),
    act("disc_starts_the_linux_protocol_by_uefi", |room| {
        room.lab.disc(room.platform, Entry::CheckLinux, true, " 0 failed")
    })
    .about("and tlbcheck as a Linux kernel, which finds the firmware's tables by UEFI"),
    act("disc_checks_quell_by_bios", |room| {
        room.lab.disc(room.platform, Entry::CheckQuell, false, " 0 failed")
    })
    .about("and Quell with tlbcheck"),
    act("linux_protocol_starts_tlbcheck", |room| {
        room.lab.bzimage("check json report=com2 only=invlpg-*,ipi-*")
    })
    .about("a loader that knows only Linux starts tlbcheck's bzImage"),
    clean("tlbcheck_bare", On::Bare, None).about("tlbcheck finds nothing wrong with the emulated machine"),
    clean("tlbcheck_on_quell", On::Quell, Some(&SKIPPED_ON_QUELL))
        .about("nor with Quell, where VP indices need a second bank; no row of flushes is skipped"),
    caught("tlbcheck_catches_no_kick", Defect::NoKick, "no-kick-*")
        .about("targets that are not interrupted and keep their translations"),
    caught("tlbcheck_catches_early_return", Defect::EarlyReturn, "early-return-*")
        .about("targets that are not waited for"),
    caught("tlbcheck_catches_list_past_15", Defect::ListPast15, "list-tail-ignored")
        .about("ignored elements after the fifteenth"),
    caught("tlbcheck_catches_bank_rank", Defect::BankRank, "empty-banks-shift-list")
        .about("banks of a sparse set that are mixed up"),
    caught("tlbcheck_catches_extended_range", Defect::ExtendedRange, "extended-2m-misread")
        .about("elements for large pages"),
    caught("tlbcheck_catches_non_canonical", Defect::NonCanonical, "range-into-hole-dropped-whole")
        .about("ranges that run into the hole between the canonical halves"),
    caught("tlbcheck_catches_all_processors", Defect::AllProcessors, "flag-of-all-ignored")
        .about("the flag that names all processors"),
    caught("tlbcheck_catches_additional_pages", Defect::AdditionalPages, "range-out-of-hole-dropped-whole")
        .about("pages of an element behind its first"),
    caught("tlbcheck_catches_xmm_input", Defect::XmmInput, "list-ex-xmm-tail-ignored")
        .about("input in XMM registers"),
    caught("tlbcheck_catches_vp_index", Defect::VpIndex, "wrong-processor-by-mask")
        .about("processors that are mistaken for their neighbours"),
    caught("tlbcheck_catches_status", Defect::Status, "unknown-code-accepted").about("calls that must fail"),
    caught("tlbcheck_catches_ring3", Defect::Ring3, "ring3-call-allowed").about("calls from ring 3"),
    caught("tlbcheck_catches_reps_done", Defect::RepsDone, "reps-done-not-from-0")
        .about("a wrong count of completed elements"),
];
