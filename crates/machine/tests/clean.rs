//! Without a mistake, nothing fails.
#![cfg(not(loom))]

use machine::Arch;
use machine::explore::{Effort, explore};

/// For each architecture: some seconds.
const OPERATIONS: u64 = 400_000;

fn clean(arch: Arch) {
    match explore(arch, None, Effort::from_environment(OPERATIONS)) {
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
