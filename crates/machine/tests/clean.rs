//! Without a mistake, nothing fails.
#![cfg(not(loom))]

use machine::Arch;
use machine::explore::{Effort, Topic, explore};

/// For each architecture: some seconds.
const OPERATIONS: u64 = 400_000;

fn clean(arch: Arch) {
    clean_with(arch, Effort::from_environment(OPERATIONS));
}

fn clean_with(arch: Arch, effort: Effort) {
    match explore(arch, None, effort) {
        Ok(summary) => println!("{} programs, {} operations", summary.programs, summary.operations),
        Err(report) => panic!("{report}"),
    }
}

#[test]
fn random_programs_are_clean_on_amd64() {
    clean(Arch::Amd64);
}

#[test]
fn random_programs_are_clean_on_intel64() {
    clean(Arch::Intel64);
}

#[test]
fn random_programs_are_clean_on_arm64() {
    clean(Arch::Arm64);
}

#[test]
fn m1_guests_that_are_migrated_are_clean() {
    let effort = Effort::from_environment(OPERATIONS / 10).about(Topic::Migrations);
    for arch in [Arch::Intel64, Arch::Amd64, Arch::Arm64] {
        clean_with(arch, effort);
    }
}
