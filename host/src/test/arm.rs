//! The tests of Arm machines: software that runs directly on them, and on Quell there; and QEMU's
//! plugin, with a program that is known instruction by instruction.

use super::cases::{Body, LOOPS, REBOOTS, STALE, case, runs, talk};
use super::checks::Check;
use crate::bench::phases::Phases;
use crate::check::{Omission, On};
use crate::machine::spec::Payload;
use crate::test::prelude::*;

pub(super) const MAX: Platform = Platform::Aarch64(ArmCpu::Max);
pub(super) const N1: Platform = Platform::Aarch64(ArmCpu::NeoverseN1);
pub(super) const A72: Platform = Platform::Aarch64(ArmCpu::CortexA72);

const EIGHT: &str = "test \"$(nproc)\" = 8";
/// Flushes a lot; reports nothing, because there is no IPI to count.
const THRASH: &str = "thrash --threads 4 --rounds 25 --settle 100 --report /dev/report";

/// Rows for [`MAX`], except for those that say another platform.
pub(super) const fn on_max<const N: usize>(mut rows: [Case; N]) -> [Case; N] {
    let mut index = 0;
    while index < N {
        if matches!(rows[index].platform, Platform::X86_64) {
            rows[index].platform = MAX;
        }
        index += 1;
    }
    rows
}

pub(super) const BARE: [Case; 6] = [
    tool("arm_model_without_its_architecture", "run --cpu cortex-a72")
        .ends(1, "--arch aarch64")
        .about("a CPU model of another architecture is refused"),
    tool("arm_kernel_that_is_not_an_image", "run --arch aarch64 --kernel {text}")
        .ends(1, "not an arm64 boot")
        .about("a file that is not an arm64 boot image is refused"),
    tool("arm_bare_max", "{arm} {seven} --cpu max --bare")
        .ends(7, "")
        .about("Debian's arm64 kernel runs to power-off, and its command's status is passed on"),
    tool("arm_bare_neoverse_n1", "{arm} {seven} --cpu neoverse-n1 --bare").ends(7, "").about("the same"),
    tool("arm_bare_cortex_a72", "{arm} {seven} --cpu cortex-a72 --bare").ends(7, "").about("likewise"),
    act("arm_plugin_counts", counts).about("QEMU's plugin counts instructions by kind and phase").on(MAX),
];

/// Uses memory until it is ended.
pub(super) const WORK: &str =
    "echo '{\"event\":\"ready\"}' > /dev/report; thrash --threads 4 --rounds 100000";

/// Four processors work for so long; before and after, the guest reports the time that they had and
/// the time that was stolen, in hundredths of a second.
const STOLEN: &str = "say() { set -- $(head -n 1 /proc/stat); \
        echo \"{\\\"event\\\":\\\"stat\\\",\\\"busy\\\":$(($2 + $3 + $4)),\\\"stolen\\\":$9}\" > /dev/report; }; \
    work() { n=0; while [ $n -lt 30000 ]; do n=$((n + 1)); done; }; \
    say; for i in 1 2 3 4; do work & done; wait; say";

pub(super) const ON_QUELL: [Case; 27] = on_max([
    tool("arm_exec_status_passed_on", "{arm} {seven}").ends(7, "").about("the status is passed on, too"),
    tool("arm_panic_is_reported_with_symbols", "{arm} 'reboot -f' --reset panic")
        .ends(70, "hypervisor::arch::aarch64")
        .about("a panic of the hypervisor ends the run with status 70 and a backtrace with names"),
    tool("arm_reset_ends_the_run_if_asked_to", "{arm} 'reboot -f' --reset exit")
        .ends(71, "")
        .about("with a status of its own"),
    tool("arm_without_el2", "{arm} true --qemu-arg -machine --qemu-arg virtualization=off")
        .ends(69, "not started at EL2")
        .about("a machine without EL2 is refused with the reason"),
    tool("arm_without_gicv3", "{arm} true --qemu-arg -machine --qemu-arg gic-version=2")
        .ends(69, "no GICv3")
        .about("so is one with an older interrupt controller"),
    tool("arm_without_a_bundle", "{arm} true --qemu-arg -initrd --qemu-arg /dev/null")
        .ends(66, "no bundle")
        .about("so is a hypervisor without a guest"),
    tool("arm_bundle_that_is_none", "{arm} true --qemu-arg -initrd --qemu-arg {text}")
        .ends(66, "no tar archive")
        .about("or with something else in its place"),
    runs("arm_one_vcpu_on_one_cpu", (1, 1), "test \"$(nproc)\" = 1").about("the smallest guest boots"),
    runs("arm_nproc_is_8_on_max", (8, 2), EIGHT).about("all vCPUs come up, four to a CPU"),
    runs("arm_nproc_is_8_on_neoverse_n1", (8, 2), EIGHT).about("and on a neoverse-n1").on(N1),
    runs("arm_nproc_is_8_on_cortex_a72", (8, 2), EIGHT).about("on a cortex-a72, which has no VHE").on(A72),
    runs("arm_nproc_is_16", (16, 2), "test \"$(nproc)\" = 16").about("eight vCPUs to a CPU come up as well"),
    runs("arm_thrash", (4, 2), THRASH).about("four threads flush a lot on two CPUs"),
    stale("arm_o1_nothing_stale_on_max").about("no reader sees a removed page"),
    stale("arm_o1_nothing_stale_on_neoverse_n1").about("nor on a neoverse-n1").on(N1).only_long(),
    stale("arm_o1_nothing_stale_on_cortex_a72").about("nor on a cortex-a72").on(A72),
    stale("a21_nothing_stale_with_broadcast")
        .about("nor if local TLB instructions reach all CPUs")
        .with(&["local_tlbi=broadcast"]),
    stock("arm_stolen_time_is_what_vcpus_waited", (4, 1), STOLEN, Expect::Stolen)
        .about("four processors that share a CPU account three times their work as stolen, as is counted")
        .counted(),
    stock("arm_loops_and_a_build_find_all_in_order", (4, 2), LOOPS, Expect::Loops)
        .about("and they pass on Arm as well"),
    stock("arm_poweroff_ends_the_run", (2, 2), "poweroff; sleep 60", Expect::PowerOff)
        .about("with the guest's consent and status 0"),
    act("arm_reboot_reboots", REBOOTS).about("typed at the console; the guest comes up again"),
    talk("arm_ctl_refusals_change_nothing", WORK, Talk::Refusals)
        .about("a slot that overlaps, is unaligned, is not there or exceeds memory is refused with a reason"),
    talk("arm_top_shows_what_is_counted", WORK, Talk::Watch)
        .about("another process reads the rates of a working guest, which match its counters"),
    talk("arm_ctl_memory_comes_and_goes", WORK, Talk::Memory).about("while the guest works"),
    talk("p14_arm_dirty_state_misses_no_change", WORK, Talk::DirtyLog(LogWay::DirtyBits))
        .about("every changed page of the guest's memory is in its log, by the processor's dirty state"),
    talk("p14_arm_write_faults_miss_no_change", WORK, Talk::DirtyLog(LogWay::WriteProtection))
        .about("and by write faults"),
    talk("p14_arm_no_change_missed_without_dirty_state", WORK, Talk::DirtyLog(LogWay::DirtyBits))
        .about("and on a processor without dirty state, whatever was requested")
        .on(A72),
]);

pub(super) const CHECKS: [Case; 9] = on_max([
    check("arm_tlbcheck_bare_max", On::Bare).about("tlbcheck finds nothing wrong with the emulated machine"),
    check("arm_tlbcheck_bare_neoverse_n1", On::Bare).about("nor with a neoverse-n1").on(N1).only_long(),
    check("arm_tlbcheck_bare_cortex_a72", On::Bare).about("nor with a cortex-a72").on(A72).only_long(),
    check("arm_tlbcheck_on_quell_max", On::Quell).about("nor with Quell, two vCPUs to a CPU"),
    check("arm_tlbcheck_on_quell_neoverse_n1", On::Quell).about("nor on a neoverse-n1").on(N1).only_long(),
    check("arm_tlbcheck_on_quell_cortex_a72", On::Quell).about("nor on a cortex-a72").on(A72).only_long(),
    omitted("arm_tlbcheck_catches_no_tlbi", Omission::Tlbi, "page-of-before-seen-after-remap")
        .about("tlbcheck detects a page remapped without a TLBI"),
    omitted("arm_tlbcheck_catches_no_vmalle1", Omission::Vmalle1, "freed-table-walked-after-vmalle1is")
        .about("and a table freed without one"),
    omitted("arm_tlbcheck_catches_no_broadcast", Omission::Broadcast, "freed-table-walked")
        .about("and a TLBI that is not broadcast"),
]);

const fn check(name: &'static str, on: On) -> Case {
    let cpus = if matches!(on, On::Quell) { 2 } else { 4 };
    case(name, Body::Check(Check { cpus, ..Check::all(on) }))
}

/// A row of tlbcheck that has to fail on the emulated machine when tlbcheck omits this.
const fn omitted(name: &'static str, omission: Omission, row: &'static str) -> Case {
    let check = Check { omission: Some(omission), rows: Some(row), ..Check::all(On::Bare) };
    case(name, Body::Check(check))
}

const fn stale(name: &'static str) -> Case {
    stock(name, (8, 2), STALE, Expect::NothingStale)
}

/// The program that is counted: an arm64 boot image's header, which begins with a branch, and code.
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
    outcome.ended_by(&[End::PowerOff]).with_context(|| outcome.qemu_messages.to_string())?;
    Phases::read(&counting)
}
