//! Rows for the auditor at the entry. All guests of the suite run with it; these, and some that
//! take turns on few CPUs, also run with features that the emulator lacks, to cover their branches.

use super::cases::{MMTEST, ProbeEnd, STALE, hostile, probe};
use crate::test::prelude::*;

const PRETEND: &[&str] = &["pretend=on"];

const FORGOTTEN: Expect = Expect::Panic("audit: a flush was taken, and nothing is dropped");

pub(super) const ROWS: &[Case] = &[
    probe("audit_probe", "all", ProbeEnd::AllPassed)
        .about("guest errors, with clean bits and flushes of one ASID")
        .with(PRETEND),
    stock("audit_slots", (4, 2), MMTEST, Expect::Intact).about("memory comes and goes").with(PRETEND),
    hostile("audit_storm", "storm seed=0xa0d17 rounds=1 count=4000 rest", (4, 2))
        .about("random values for everything, likewise")
        .with(PRETEND),
    stock("a17_pieces_flush_the_tag", (4, 2), STALE, Expect::NothingStale)
        .about("with memory in pages of 4 KiB no list is carried out page by page")
        .with(&["nested_page=4K"]),
    act("audit_counts_invalidations", |room| room.lab.invalidations(room.case, "list_in_parts"))
        .about("each page of a list is invalidated when a target carries out the flush")
        .with(&["flush_pages=1000"]),
    stock("audit_finds_a_flush_that_is_taken_and_forgotten", (8, 2), STALE, FORGOTTEN)
        .about("the auditor detects a flush that dropped nothing, which no guest on an emulator can")
        .with(&["pretend=on", "defect=debt-forgotten"]),
];
