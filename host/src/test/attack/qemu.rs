//! QEMU 10, where the system has another version: a selection of tests.

use crate::test::prelude::*;

/// Rows of tlbcheck, some of each kind, and those in which processors sleep or move.
const ARM_CHECKS: &str = "check --qemu 10 --arch aarch64 --cpus 2 --timeout 120 --only \
    vae1-*,asid-*,vae1is-*,freed-*,access-flag-*,tlbi-forgotten-asleep,same-asid-*,local-*,former-*";

pub(in crate::test) const ROWS: &[Case] = &[
    tool("u29_guest_on_qemu_10", "run --qemu 10 --timeout 120 --exec 'test $(nproc) = 2 && exit 7'")
        .ends(7, "")
        .about("a guest runs on QEMU 10, which has x2APIC, TSC deadline and other defects"),
    tool("u29_arm_guest_on_qemu_10", "{arm} {seven} --qemu 10").ends(7, "").about("and on Arm64"),
    tool("u29_checks_on_qemu_10", "check --qemu 10 --cpus 2 --vcpus 8 --timeout 120")
        .about("tlbcheck finds no error there"),
    tool("u29_arm_checks_on_qemu_10", ARM_CHECKS).about("nor on Arm64"),
    tool("u29_wrong_things_on_qemu_10", "test --qemu 10 --filter probe_all")
        .about("guest errors have the results that the manuals specify, though the emulator checks later"),
    tool("u29_no_el2_on_qemu_10", "test --qemu 10 --filter arm_without_el2")
        .about("a machine without EL2 is refused there, too, where accesses have to be aligned"),
    tool("u29_counts_on_qemu_10", "test --qemu 10 --filter arm_plugin_counts")
        .about("its plugin counts each instruction once"),
];
