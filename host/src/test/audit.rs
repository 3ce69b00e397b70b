//! Rows for the auditor at the entry. All guests of the suite run with it; these, and some that
//! take turns on few CPUs, also run with features that the emulator lacks, so that their branches
//! are covered, too.

use super::cases::{Case, Expect, MMTEST, ProbeEnd, STALE, act, hostile, probe, stock};

const PRETEND: &[&str] = &["pretend=on"];

/// The rows.
pub(super) const ROWS: &[Case] = &[
    probe("audit_probe", "guest errors, with clean bits and flushes of one ASID", "all", ProbeEnd::AllPassed)
        .with(PRETEND),
    stock("audit_slots", "memory that is added and removed, likewise", (4, 2), MMTEST, Expect::Intact)
        .with(PRETEND),
    hostile(
        "audit_storm",
        "random values for everything, likewise",
        "storm seed=0xa0d17 rounds=1 count=4000 rest",
        (4, 2),
    )
    .with(PRETEND),
    stock(
        "a17_pieces_flush_the_tag",
        "with memory in pages of 4 KiB no list is carried out page by page",
        (4, 2),
        STALE,
        Expect::NothingStale,
    )
    .with(&["nested_page=4K"]),
    act(
        "audit_counts_invalidations",
        "each page of a list is invalidated when a target carries out the flush",
        |room| room.lab.invalidations(room.case, "list_in_parts"),
    )
    .with(&["flush_pages=1000"]),
    stock(
        "audit_finds_a_flush_that_is_taken_and_forgotten",
        "the auditor detects a flush that dropped nothing, which no guest on an emulator can",
        (8, 2),
        STALE,
        Expect::Panic("audit: a flush was taken, and nothing is dropped"),
    )
    .with(&["pretend=on", "defect=debt-forgotten"]),
];
