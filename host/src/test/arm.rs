//! The tests of Arm machines: software that runs directly on them, and on Quell there; and QEMU's
//! plugin, with a program that is known instruction by instruction.

use super::cases::{
    Body, Case, Expect, LOOPS, REBOOTS, STALE, Talk, TestFile, act, case, migrate, runs, stock, talk, tool,
};
use super::checks::Check;
use super::room::Room;
use crate::arch::{ArmCpu, Platform};
use crate::bench::phases::Phases;
use crate::check::subject::{Omission, On};
use crate::machine::process::{End, Flow, Machine};
use crate::machine::spec::{Clock, Payload, Spec};
use crate::size::MIB;
use anyhow::{Result, ensure};
use hostlink::ctl::LogWay;
use hostlink::phase::Phase;
use std::fs;
use std::time::Duration;

pub(super) const MAX: Platform = Platform::Aarch64(ArmCpu::Max);
const N1: Platform = Platform::Aarch64(ArmCpu::NeoverseN1);
const A72: Platform = Platform::Aarch64(ArmCpu::CortexA72);

/// The rows.
pub(super) fn rows() -> impl Iterator<Item = &'static Case> {
    BARE.iter().chain(&ON_QUELL).chain(&CHECKS)
}

/// A stock guest directly on a machine with this CPU.
macro_rules! bare {
    ($name:literal, $about:literal, $cpu:literal $(,)?) => {
        tool(
            $name,
            $about,
            &["run", "--arch", "aarch64", "--cpu", $cpu, "--bare", "--timeout", "120", "--exec", NPROC],
            TestFile::None,
            (7, ""),
        )
    };
}

/// Exits with 7 if everything is as expected.
const NPROC: &str = "test $(nproc) = 2 && test $(uname -m) = aarch64 && exit 7";
const EIGHT: &str = "test \"$(nproc)\" = 8";
/// Flushes a lot; reports nothing, because there is no IPI to count.
const THRASH: &str = "thrash --threads 4 --rounds 25 --settle 100 --report /dev/report";

const BARE: [Case; 6] = [
    tool(
        "arm_model_without_its_architecture",
        "a CPU model of another architecture is refused",
        &["run", "--cpu", "cortex-a72"],
        TestFile::None,
        (1, "--arch aarch64"),
    ),
    tool(
        "arm_kernel_that_is_not_an_image",
        "a file that is not an arm64 boot image is refused",
        &["run", "--arch", "aarch64", "--kernel", "{}"],
        TestFile::Text,
        (1, "not an arm64 boot image"),
    ),
    bare!(
        "arm_bare_max",
        "Debian's arm64 kernel runs to power-off, and its command's status is passed on",
        "max",
    ),
    bare!("arm_bare_neoverse_n1", "the same on a neoverse-n1", "neoverse-n1"),
    bare!("arm_bare_cortex_a72", "and on a cortex-a72", "cortex-a72"),
    act("arm_plugin_counts", "QEMU's plugin counts instructions by kind and phase, each once", counts)
        .on(MAX),
];

/// Uses memory until it is ended.
pub(super) const WORK: &str =
    "echo '{\"event\":\"ready\"}' > /dev/report; thrash --threads 4 --rounds 100000";

/// A hypervisor that cannot run a guest because of arguments for QEMU: how it ends, and its
/// message.
macro_rules! refused {
    ($name:literal, $about:literal, [$($arg:literal),+], $status:literal, $says:literal, $file:ident $(,)?) => {
        tool(
            $name,
            $about,
            &["run", "--arch", "aarch64", "--exec", "true", "--timeout", "60", $("--qemu-arg", $arg),+],
            TestFile::$file,
            ($status, $says),
        )
    };
}

/// Four processors work for so long; before and after, the guest reports the time that they had and
/// the time that was stolen, in hundredths of a second.
const STOLEN: &str = "say() { set -- $(head -n 1 /proc/stat); \
        echo \"{\\\"event\\\":\\\"stat\\\",\\\"busy\\\":$(($2 + $3 + $4)),\\\"stolen\\\":$9}\" > /dev/report; }; \
    work() { n=0; while [ $n -lt 30000 ]; do n=$((n + 1)); done; }; \
    say; for i in 1 2 3 4; do work & done; wait; say";

const ON_QUELL: [Case; 28] = [
    tool(
        "arm_exec_status_passed_on",
        "the command's status is the tool's on Arm as well",
        &["run", "--arch", "aarch64", "--timeout", "120", "--exec", NPROC],
        TestFile::None,
        (7, ""),
    ),
    tool(
        "arm_panic_is_reported_with_symbols",
        "a panic of the hypervisor ends the run with status 70 and a backtrace with names",
        &["run", "--arch", "aarch64", "--exec", "reboot -f", "--reset", "panic", "--timeout", "100"],
        TestFile::None,
        (70, "hypervisor::arch::aarch64"),
    ),
    tool(
        "arm_reset_ends_the_run_if_asked_to",
        "with a status of its own",
        &["run", "--arch", "aarch64", "--exec", "reboot -f", "--reset", "exit", "--timeout", "100"],
        TestFile::None,
        (71, ""),
    ),
    refused!(
        "arm_without_el2",
        "a machine without EL2 is refused with the reason",
        ["-machine", "virtualization=off"],
        69,
        "not started at EL2",
        None,
    ),
    refused!(
        "arm_without_gicv3",
        "so is one with an older interrupt controller",
        ["-machine", "gic-version=2"],
        69,
        "no GICv3",
        None,
    ),
    refused!(
        "arm_without_a_bundle",
        "so is a hypervisor without a guest",
        ["-initrd", "/dev/null"],
        66,
        "no bundle",
        None,
    ),
    refused!(
        "arm_bundle_that_is_none",
        "or with something else in its place",
        ["-initrd", "{}"],
        66,
        "no tar archive",
        Text,
    ),
    runs("arm_one_vcpu_on_one_cpu", "the smallest guest boots", (1, 1), "test \"$(nproc)\" = 1").on(MAX),
    runs("arm_nproc_is_8_on_max", "all vCPUs come up, four to a CPU", (8, 2), EIGHT).on(MAX),
    runs("arm_nproc_is_8_on_neoverse_n1", "and on a neoverse-n1", (8, 2), EIGHT).on(N1),
    runs("arm_nproc_is_8_on_cortex_a72", "and on a cortex-a72, which has no VHE", (8, 2), EIGHT).on(A72),
    runs("arm_nproc_is_16", "eight vCPUs to a CPU come up as well", (16, 2), "test \"$(nproc)\" = 16")
        .on(MAX),
    runs("arm_thrash", "four threads flush a lot on two CPUs", (4, 2), THRASH).on(MAX),
    stale("arm_o1_nothing_stale_on_max", "no reader sees a removed page").on(MAX),
    stale("arm_o1_nothing_stale_on_neoverse_n1", "nor on a neoverse-n1").on(N1).only_long(),
    stale("arm_o1_nothing_stale_on_cortex_a72", "nor on a cortex-a72").on(A72),
    stale("a21_nothing_stale_with_broadcast", "nor if local TLB instructions reach all CPUs")
        .with(&["local_tlbi=broadcast"])
        .on(MAX),
    stock(
        "arm_stolen_time_is_what_vcpus_waited",
        "a kernel whose four processors share a CPU accounts three times their work as stolen, as counted",
        (4, 1),
        STOLEN,
        Expect::Stolen,
    )
    .counted()
    .on(MAX),
    stock(
        "arm_loops_and_a_build_find_all_in_order",
        "and they pass on Arm as well",
        (4, 2),
        LOOPS,
        Expect::Loops,
    )
    .on(MAX),
    stock(
        "arm_poweroff_ends_the_run",
        "with the guest's consent and status 0",
        (2, 2),
        "poweroff; sleep 60",
        Expect::PowerOff,
    )
    .on(MAX),
    act("arm_reboot_reboots", "typed at the console; the guest comes up again", REBOOTS).on(MAX),
    talk(
        "arm_ctl_refusals_change_nothing",
        "a slot that overlaps, is unaligned, does not exist or exceeds memory is refused with a reason",
        WORK,
        Talk::Refusals,
    )
    .on(MAX),
    talk(
        "arm_top_shows_what_is_counted",
        "another process reads the rates of a working guest, which match its counters",
        WORK,
        Talk::Watch,
    )
    .on(MAX),
    talk("arm_ctl_memory_comes_and_goes", "while the guest works", WORK, Talk::Memory).on(MAX),
    talk(
        "p14_arm_dirty_state_misses_no_change",
        "every changed page of the guest's memory is in its dirty log, by the processor's dirty state",
        WORK,
        Talk::DirtyLog(LogWay::DirtyBits),
    )
    .on(MAX),
    talk(
        "p14_arm_write_faults_miss_no_change",
        "and by write faults",
        WORK,
        Talk::DirtyLog(LogWay::WriteProtection),
    )
    .on(MAX),
    talk(
        "p14_arm_no_change_missed_without_dirty_state",
        "and on a processor without dirty state, whatever was requested",
        WORK,
        Talk::DirtyLog(LogWay::DirtyBits),
    )
    .on(A72),
    migrate("p14_migration_in_vain_changes_nothing_on_arm").on(MAX),
];

const CHECKS: [Case; 9] = [
    check("arm_tlbcheck_bare_max", "tlbcheck finds nothing wrong with the emulated machine", On::Bare)
        .on(MAX),
    check("arm_tlbcheck_bare_neoverse_n1", "nor with a neoverse-n1", On::Bare).on(N1).only_long(),
    check("arm_tlbcheck_bare_cortex_a72", "nor with a cortex-a72", On::Bare).on(A72).only_long(),
    check("arm_tlbcheck_on_quell_max", "nor with Quell, two vCPUs to a CPU", On::Quell).on(MAX),
    check("arm_tlbcheck_on_quell_neoverse_n1", "nor on a neoverse-n1", On::Quell).on(N1).only_long(),
    check("arm_tlbcheck_on_quell_cortex_a72", "nor on a cortex-a72", On::Quell).on(A72).only_long(),
    omitted(
        "arm_tlbcheck_catches_no_tlbi",
        "tlbcheck detects a page remapped without a TLBI",
        Omission::Tlbi,
        "page-of-before-seen-after-remap",
    ),
    omitted(
        "arm_tlbcheck_catches_no_vmalle1",
        "and a table freed without one",
        Omission::Vmalle1,
        "freed-table-walked-after-vmalle1is",
    ),
    omitted(
        "arm_tlbcheck_catches_no_broadcast",
        "and a TLBI that is not broadcast",
        Omission::Broadcast,
        "freed-table-walked",
    ),
];

/// All rows of tlbcheck, on 4 processors.
const fn check(name: &'static str, about: &'static str, on: On) -> Case {
    case(
        name,
        about,
        Body::Check(Check { cpus: if matches!(on, On::Quell) { 2 } else { 4 }, ..Check::all(on) }),
    )
}

/// A row of tlbcheck that has to fail on the emulated machine when tlbcheck omits this.
const fn omitted(name: &'static str, about: &'static str, omission: Omission, row: &'static str) -> Case {
    let check = Check { omission: Some(omission), rows: Some(row), ..Check::all(On::Bare) };
    case(name, about, Body::Check(check)).on(MAX)
}

/// The hunter for stale translations, on Quell.
const fn stale(name: &'static str, about: &'static str) -> Case {
    stock(name, about, (8, 2), STALE, Expect::NothingStale)
}

/// The program whose instructions are counted: an arm64 boot image's header, whose first word
/// branches past it, and code.
const PROGRAM: [u32; 38] = [
    0x1400_0010, // b 1f
    0, 0x0020_0000, // text_offset
    0, 0x0000_1000, // image_size
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0x644d_5241, // magic
    0, 0xd503_2c3f, // 1: hint #0x61
    0xd503_3a9f, // dsb ishst
    0xd508_831f, // tlbi vmalle1is
    0xd503_3b9f, // dsb ish
    0xd503_3fdf, // isb
    0xd280_0c80, // mov x0, #100
    0xf100_0400, // 2: subs x0, x0, #1
    0x54ff_ffe1, // b.ne 2b
    0xd503_2c5f, // hint #0x62
    0xd508_871f, // tlbi vmalle1
    0xd503_379f, // dsb nsh
    0xd508_751f, // ic iallu
    0xd2a1_2001, // movz x1, #0x900, lsl #16: the PL011
    0xd280_0640, // mov x0, #50
    0xb940_1822, // 3: ldr w2, [x1, #0x18]: QEMU translates code that accesses devices a second time
    0xf100_0400, // subs x0, x0, #1
    0x54ff_ffc1, // b.ne 3b
    0xd503_2c1f, // hint #0x60
    0xd280_0100, // mov x0, #8
    0xf2b0_8000, // movk x0, #0x8400, lsl #16: PSCI's SYSTEM_OFF
    0xd400_0002, // hvc #0
    0x1400_0000, // b .
];

/// Counts the program twice, the second time with one more iteration of a loop.
fn counts(room: &Room<'_>) -> Result<()> {
    let counted = count(room, &PROGRAM)?;
    let first = counted.of(Phase::Blocking)?;
    ensure!(first.instructions == 206, "{} instructions instead of 206", first.instructions);
    ensure!(
        (first.of_kind("vmalle1is"), first.of_kind("ishst"), first.of_kind("ish")) == (1, 1, 1)
            && (first.tlbi(), first.dsb(), first.dc, first.eret) == (1, 2, 0, 0),
        "the first phase is counted as {first:?}"
    );
    let second = counted.of(Phase::Reclaim)?;
    ensure!(
        (second.instructions, second.of_kind("vmalle1"), second.of_kind("nsh")) == (156, 1, 1)
            && (second.entries, second.tlbi(), second.dsb()) == (1, 1, 1),
        "the second phase is counted as {second:?}"
    );
    ensure!(counted.of(Phase::PerPage).is_err(), "a phase was counted that never began");
    let mut longer = PROGRAM;
    longer[21] += 1 << 5; // mov x0, #101
    let counted = count(room, &longer)?;
    let longer = counted.of(Phase::Blocking)?.instructions;
    ensure!(longer == 208, "one more turn of the loop makes {longer} instructions instead of 208");
    Ok(())
}

fn count(room: &Room<'_>, program: &[u32]) -> Result<Phases> {
    let kernel = room.directory.join("counted.img");
    fs::write(&kernel, program.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>())?;
    let payload = Payload::Bare { kernel, initrd: None, cmdline: String::new() };
    let counting = Phases::counting(room.directory)?;
    let spec = Spec {
        clock: Clock::Instructions,
        timeout: Some(Duration::from_secs(60)),
        counting: Some(counting.clone()),
        ..Spec::new(room.platform, payload, 1, 128 * MIB)
    };
    let outcome = Machine::start(&spec, room.signals)?.run(|_, _| Ok(Flow::Continue))?;
    ensure!(
        outcome.end == End::PowerOff,
        "the machine ended with {:?}: {}",
        outcome.end,
        outcome.qemu_messages
    );
    Phases::read(&counting)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        let others = || super::super::cases::CASES.iter().chain(&super::super::checks::CHECKS);
        let all: Vec<_> = others().chain(rows()).map(|case| case.name).collect();
        for (index, name) in all.iter().enumerate() {
            assert!(!all[..index].contains(name), "{name} twice");
        }
    }
}
