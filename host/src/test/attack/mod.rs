//! The tests of hostile guests, foreign kernels and careless operators: section "Under attack" of
//! `docs/pitfalls.md`, by its ids.

mod isolation;
mod operator;

use super::arm::{A72, N1, on_max};
use super::bochs::{ON_VMX, SKYLAKE};
use super::cases::{FLOOD, ProbeEnd, REBOOTS, ended, hostile, probe, runs};
use super::siege::Siege;
use crate::test::prelude::*;

pub(super) const ROWS: [&[Case]; 6] = [ON_ARM, FUZZ, ON_PC, QEMU, isolation::ROWS, operator::ROWS];

/// Guests that try everything: random values, and every register.
const FUZZ: &[Case] = &[
    hostile("fuzz_amd64", "storm seed=0x5eed rounds=12 count=4000 rest", (4, 2))
        .about("random MSRs, ports, devices, instructions, hypercalls and requests lose nothing")
        .or_long("storm seed=0x10000 rounds=720 count=4000 rest"),
    hostile("fuzz_arm64", "storm seed=0x5eed rounds=24 count=4000 rest", (4, 2))
        .about("random system registers, instructions, devices, PSCI calls and requests lose nothing")
        .on(MAX)
        .or_long("storm seed=0x10000 rounds=1500 count=4000 rest"),
    hostile("hostile_guest_is_alive", "alive", (4, 2)).about("the guest runs on all vCPUs").on_both(),
    hostile("open_state_is_in_the_table", "walk", (2, 1))
        .about("each MSR, port and CPUID leaf is in the table or absent, and none belongs to another vCPU")
        .also(ON_VMX, SKYLAKE),
    hostile("open_state_is_in_the_table_on_max", "walk", (2, 1))
        .about("so is each system register and instruction of Arm64")
        .on(MAX),
    hostile("open_state_is_in_the_table_on_neoverse_n1", "walk", (2, 1)).about("on each model").on(N1),
    hostile("open_state_is_in_the_table_on_cortex_a72", "walk", (2, 1)).about("and on this one").on(A72),
];

const EIGHT_THRASH: &str = "test $(nproc) = 8 && thrash --threads 8 --rounds 5";
/// Allocates and frees memory on all processors at the same time.
const LOAD: &str = "uname -r | grep -q '^6\\.1\\.' && exit 3; \
    for round in 1 2 3; do thrash --threads 8 --rounds 25 || exit; done; \
    for worker in 1 2 3 4 5 6 7 8; do \
        (for file in $(seq 200); do mkdir -p /tmp/$worker/$file && rm -r /tmp/$worker || exit; done) & \
        workers=\"$workers $!\"; \
    done; \
    for worker in $workers; do wait $worker || exit; done; ! dmesg | grep -E 'Oops|BUG:|general protection'";

const HALTED: Siege = Siege { test: "u2_halted_timers", vcpus: 8, cpus: 1, memory: 64 * MIB, least: &[] };
const RESETS: Siege = Siege {
    test: "u6_reset_storm",
    vcpus: 1,
    cpus: 1,
    memory: 512 * MIB,
    least: &[(Counter::Resets, 1), (Counter::ResetRequests, 20)],
};
const IN_XAPIC_MODE: &str = "test $(nproc) = 4 && thrash --threads 4 --rounds 50 && \
    dmesg | grep -q 'Hyper-V: Using enlightened APIC (xapic mode)'";
const BY_INTERVAL_TIMER: &str = "test $(nproc) = 4 && ! dmesg | grep -q Hyper-V && \
    dmesg | grep -qE 'tsc: Detected (999|1000)\\.[0-9]+ MHz' && thrash --threads 4 --rounds 20";

const ON_PC: &[Case] = &[
    act("u2_halted_timers", |room| room.lab.siege(room.case, &HALTED))
        .about("vCPUs that halt with interrupts off and timers expired keep no interrupts from the CPU")
        .also(ON_VMX, SKYLAKE),
    probe("u3_debug_exceptions_reach_the_guest", "debug_registers", ProbeEnd::Passed)
        .about("#DB, which is intercepted, comes to the guest as if it were not")
        .also(ON_VMX, SKYLAKE),
    probe("u5_crash_reports", "u5_crash_reports", ProbeEnd::Passed)
        .about("a guest that constantly reports crashes does not flood the log"),
    act("u6_requests_during_resets", |room| room.lab.siege(room.case, &RESETS))
        .about("outside requests are served while a guest is constantly reset and its memory zeroed"),
    ended("u7_guest_without_tables", "alive", (2, 1), ExitCode::GuestOutOfTables)
        .about("a guest ends with a separate status if there is no page for a nested page table")
        .with(&["nested_page=4K", "tables=4"]),
    probe("u12_debug_registers_by_their_other_names", "u12_debug_names", ProbeEnd::SharedPassed)
        .about("a breakpoint enabled through DR5 affects only its own vCPU")
        .also(ON_VMX, SKYLAKE),
    probe("u13_idt_in_nothing", "u13_idt_in_nothing", ProbeEnd::Ended(ExitCode::GuestReset))
        .about("an exception whose descriptor is not in memory shuts the guest down")
        .also(ON_VMX, SKYLAKE),
    stock("u15_late_processor", (8, 4), EIGHT_THRASH, Expect::WithoutCpus(&[1, 2]))
        .about("CPUs that are given up, and come late, get no vCPUs and take nobody's stack")
        .with(&["defect=late-cpu"]),
    stock("u18_flood", (1, 1), FLOOD, Expect::Flood)
        .about("the guest's output is limited, and lines that imitate the hypervisor are not believed"),
    runs("u20_linux_6_12_under_load", (8, 2), LOAD)
        .about("a kernel that uses CMPXCHG16B survives an emulator that gets it wrong")
        .with_newer_kernel(),
    probe("u23_second_nmi", "u23_second_nmi", ProbeEnd::SharedPassed)
        .about("neither of two NMIs for a vCPU without a CPU is lost")
        .also(ON_VMX, SKYLAKE),
    runs("u26_linux_in_xapic_mode", (4, 2), IN_XAPIC_MODE)
        .about("a kernel that avoids x2APIC mode starts its processors and works")
        .by_ipis()
        .told("nox2apic"),
    runs("u26_linux_by_the_interval_timer", (4, 1), BY_INTERVAL_TIMER)
        .about("a kernel that knows no hypervisor calibrates its clock by the interval timer, and works")
        .by_ipis()
        .told("nopv nox2apic")
        .counted(),
];

/// A guest counts its vCPUs, and ends with status 7 if all are present.
const VCPUS_64: &str =
    "run --arch aarch64 --vcpus 64 --cpus 2 --timeout 300 --exec 'test $(nproc) = 64 && exit 7'";
const VCPUS_128: &str =
    "run --arch aarch64 --vcpus 128 --cpus 2 --timeout 600 --exec 'test $(nproc) = 128 && exit 7'";
const VCPUS_255: &str =
    "run --arch aarch64 --vcpus 255 --cpus 2 --timeout 600 --exec 'test $(nproc) = 255 && exit 7'";

const ON_ARM: &[Case] = &on_max([
    hostile("u1_compare_values", "u1_compare_values", (2, 1))
        .about("timers set to the end of time do not stop the machine"),
    hostile("u4_maintenance", "u4_maintenance", (1, 1))
        .about("a guest continues while interrupts of a disabled group wait for list registers"),
    act("u6_reset_without_forced_write_back", REBOOTS)
        .about("a guest whose memory is cleaned from the caches in pieces comes up again")
        .on(A72),
    ended("u7_arm_guest_without_tables", "alive", (2, 1), ExitCode::GuestOutOfTables)
        .about("a guest ends with a separate status if there is no page for a nested page table")
        .with(&["nested_page=4K", "tables=3"]),
    hostile("u8_registers_are_own", "u8_registers_are_own", (4, 1))
        .about("no vCPU reads a value that another one on its CPU wrote to a register"),
    hostile("u9_stopped_timer", "u9_stopped_timer", (1, 1))
        .about("a timer that is stopped while its interrupt is pending does not interrupt"),
    stock("u15_arm_late_processor", (8, 4), "test $(nproc) = 8", Expect::WithoutCpus(&[1]))
        .about("a CPU that starts after it was given up gets no vCPUs")
        .with(&["defect=late-cpu"]),
    stock("u18_flood_on_arm", (1, 1), FLOOD, Expect::Flood)
        .about("nor is it if the guest's reports arrive on its console"),
    hostile("u26_physical_timer", "u26_physical_timer", (2, 1)).about("its interrupts come, and end WFI"),
    hostile("u26_debug_registers", "u26_debug_registers", (4, 1))
        .about("breakpoints and watchpoints stop the vCPU that has set them, and no other"),
    hostile("u26_device_accesses", "u26_device_accesses", (1, 1))
        .about("device registers are accessed in pairs and with write-back"),
    tool("u30_64_vcpus_on_two_cpus", VCPUS_64)
        .ends(7, "")
        .about("many vCPUs that wait for one lock leave the CPU to the next owner"),
    tool("u30_128_vcpus_on_two_cpus", VCPUS_128)
        .ends(7, "")
        .about("vCPUs that wait for a word in memory are passed over until it changes"),
    tool("u30_255_vcpus_on_two_cpus", VCPUS_255).ends(7, "").about("the most vCPUs come up").only_long(),
]);

/// Rows of tlbcheck, some of each kind, and those in which processors sleep or move.
const ARM_CHECKS: &str = "check --qemu 10 --arch aarch64 --cpus 2 --timeout 120 --only \
    vae1-*,asid-*,vae1is-*,freed-*,access-flag-*,tlbi-forgotten-asleep,same-asid-*,local-*,former-*";

/// QEMU 10, where the system has another version: a selection of tests.
const QEMU: &[Case] = &[
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
