//! Attacks on AMD64 machines.

use crate::test::bochs::{ON_VMX, SKYLAKE};
use crate::test::cases::{FLOOD, ProbeEnd, ended, probe, runs};
use crate::test::prelude::*;
use crate::test::siege::Siege;

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

pub(in crate::test) const ROWS: &[Case] = &[
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
