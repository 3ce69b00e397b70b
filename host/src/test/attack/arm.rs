//! Attacks on Arm64 machines.

use crate::arch::{ArmCpu, Platform};
use crate::test::cases::{Case, Expect, FLOOD, REBOOTS, TestFile, act, ended, hostile, stock, tool};
use hostlink::exit::ExitCode;

const MAX: Platform = Platform::Aarch64(ArmCpu::Max);

/// The words of `./quell run` for a guest that counts its vCPUs, and ends with status 7 if all are
/// present; within this many seconds.
macro_rules! boots_on_two_cpus {
    ($vcpus:literal, $timeout:literal) => {
        &[
            "run",
            "--arch",
            "aarch64",
            "--vcpus",
            $vcpus,
            "--cpus",
            "2",
            "--timeout",
            $timeout,
            "--exec",
            concat!("test $(nproc) = ", $vcpus, " && exit 7"),
        ]
    };
}

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    hostile(
        "u1_compare_values",
        "timers set to the end of time do not stop the machine",
        "u1_compare_values",
        (2, 1),
    )
    .on(MAX),
    hostile(
        "u4_maintenance",
        "a guest continues while interrupts of a disabled group wait for list registers",
        "u4_maintenance",
        (1, 1),
    )
    .on(MAX),
    act(
        "u6_reset_without_forced_write_back",
        "a guest whose memory is cleaned from the caches in pieces comes up again",
        REBOOTS,
    )
    .on(Platform::Aarch64(ArmCpu::CortexA72)),
    ended(
        "u7_arm_guest_without_tables",
        "a guest ends with a separate status if there is no page for a nested page table",
        "alive",
        (2, 1),
        ExitCode::GuestOutOfTables,
    )
    .with(&["nested_page=4K", "tables=3"])
    .on(MAX),
    hostile(
        "u8_registers_are_own",
        "no vCPU reads a value that another one on its CPU wrote to a register",
        "u8_registers_are_own",
        (4, 1),
    )
    .on(MAX),
    hostile(
        "u9_stopped_timer",
        "a timer that is stopped while its interrupt is pending does not interrupt",
        "u9_stopped_timer",
        (1, 1),
    )
    .on(MAX),
    stock(
        "u15_arm_late_processor",
        "a CPU that starts after it was given up gets no vCPUs",
        (8, 4),
        "test $(nproc) = 8",
        Expect::WithoutCpus(&[1]),
    )
    .with(&["defect=late-cpu"])
    .on(MAX),
    stock(
        "u18_flood_on_arm",
        "nor is it if the guest's reports arrive on its console",
        (1, 1),
        FLOOD,
        Expect::Flood,
    )
    .on(MAX),
    hostile(
        "u26_physical_timer",
        "EL1's physical timer interrupts, and ends WFI",
        "u26_physical_timer",
        (2, 1),
    )
    .on(MAX),
    hostile(
        "u26_debug_registers",
        "breakpoints and watchpoints stop the vCPU that has set them, and no other",
        "u26_debug_registers",
        (4, 1),
    )
    .on(MAX),
    hostile(
        "u26_device_accesses",
        "device registers are accessed in pairs and with write-back",
        "u26_device_accesses",
        (1, 1),
    )
    .on(MAX),
    tool(
        "u30_64_vcpus_on_two_cpus",
        "many vCPUs that wait for one lock leave the CPU to the next owner",
        boots_on_two_cpus!("64", "300"),
        TestFile::None,
        (7, ""),
    )
    .on(MAX),
    tool(
        "u30_128_vcpus_on_two_cpus",
        "vCPUs that wait for a word in memory are passed over until it changes",
        boots_on_two_cpus!("128", "600"),
        TestFile::None,
        (7, ""),
    )
    .on(MAX),
    tool(
        "u30_255_vcpus_on_two_cpus",
        "the maximum number of vCPUs reaches userspace",
        boots_on_two_cpus!("255", "600"),
        TestFile::None,
        (7, ""),
    )
    .on(MAX)
    .only_long(),
];
