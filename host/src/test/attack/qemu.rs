//! QEMU 10, where the system has another version: a selection of tests.

use crate::test::cases::{Case, TestFile, tool};

/// Calls the tool itself for QEMU 10, which ends with this status.
macro_rules! on_ten {
    ($name:literal, $about:literal, [$($arg:expr),+], $status:literal $(,)?) => {
        tool($name, $about, &[$($arg),+, "--qemu", "10"], TestFile::None, ($status, ""))
    };
}

/// Rows of tlbcheck, some of each kind, and those in which processors sleep or move.
const ARM_CHECKS: &str =
    "vae1-*,asid-*,vae1is-*,freed-*,access-flag-*,tlbi-forgotten-asleep,same-asid-*,local-*,former-*";

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    on_ten!(
        "u29_guest_on_qemu_10",
        "a guest runs on QEMU 10, which has x2APIC, TSC deadline and other defects",
        ["run", "--timeout", "120", "--exec", "test $(nproc) = 2 && exit 7"],
        7,
    ),
    on_ten!(
        "u29_arm_guest_on_qemu_10",
        "and on Arm64",
        ["run", "--arch", "aarch64", "--timeout", "120", "--exec", "test $(nproc) = 2 && exit 7"],
        7,
    ),
    on_ten!(
        "u29_checks_on_qemu_10",
        "tlbcheck finds no error there",
        ["check", "--cpus", "2", "--vcpus", "8", "--timeout", "120"],
        0,
    ),
    on_ten!(
        "u29_arm_checks_on_qemu_10",
        "nor on Arm64",
        ["check", "--arch", "aarch64", "--cpus", "2", "--only", ARM_CHECKS, "--timeout", "120"],
        0,
    ),
    on_ten!(
        "u29_wrong_things_on_qemu_10",
        "guest errors have the results that the manuals specify, though the emulator checks later",
        ["test", "--filter", "probe_all"],
        0,
    ),
    on_ten!(
        "u29_no_el2_on_qemu_10",
        "a machine without EL2 is refused there, too, where accesses with the MMU off must be aligned",
        ["test", "--filter", "arm_without_el2"],
        0,
    ),
    on_ten!(
        "u29_counts_on_qemu_10",
        "its plugin counts each instruction once",
        ["test", "--filter", "arm_plugin_counts"],
        0,
    ),
];
