//! Attacks on Arm64 machines.

use crate::test::arm::{A72, on_max};
use crate::test::cases::{FLOOD, REBOOTS, ended, hostile};
use crate::test::prelude::*;

/// A guest counts its vCPUs, and ends with status 7 if all are present.
const VCPUS_64: &str =
    "run --arch aarch64 --vcpus 64 --cpus 2 --timeout 300 --exec 'test $(nproc) = 64 && exit 7'";
const VCPUS_128: &str =
    "run --arch aarch64 --vcpus 128 --cpus 2 --timeout 600 --exec 'test $(nproc) = 128 && exit 7'";
const VCPUS_255: &str =
    "run --arch aarch64 --vcpus 255 --cpus 2 --timeout 600 --exec 'test $(nproc) = 255 && exit 7'";

pub(in crate::test) const ROWS: &[Case] = &on_max([
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
