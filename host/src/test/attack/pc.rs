//! Attacks on AMD64 machines.

use crate::size::MIB;
use crate::test::cases::{Case, Expect, FLOOD, ProbeEnd, act, ended, probe, runs, stock};
use crate::test::siege::Siege;
use hostlink::counters::Counter;
use hostlink::exit::ExitCode;

/// Allocates and frees memory on all processors at the same time.
const LOAD: &str = "uname -r | grep -q '^6\\.1\\.' && exit 3; \
    for round in 1 2 3; do thrash --threads 8 --rounds 25 || exit; done; \
    for worker in 1 2 3 4 5 6 7 8; do \
        (for file in $(seq 200); do mkdir -p /tmp/$worker/$file && rm -r /tmp/$worker || exit; done) & \
        workers=\"$workers $!\"; \
    done; \
    for worker in $workers; do wait $worker || exit; done; ! dmesg | grep -E 'Oops|BUG:|general protection'";

/// The rows, in the order of their ids.
pub(super) const ROWS: &[Case] = &[
    act(
        "u2_halted_timers",
        "vCPUs that halt with interrupts off, their timers expired, do not keep interrupts from the CPU",
        |room| {
            let test = "u2_halted_timers";
            room.lab.siege(room.case, &Siege { test, vcpus: 8, cpus: 1, memory: 64 * MIB, least: &[] })
        },
    ),
    probe(
        "u3_debug_exceptions_reach_the_guest",
        "#DB, which is intercepted, comes to the guest as if it were not",
        "debug_registers",
        ProbeEnd::Passed,
    ),
    probe(
        "u5_crash_reports",
        "a guest that constantly reports crashes does not flood the log",
        "u5_crash_reports",
        ProbeEnd::Passed,
    ),
    act(
        "u6_requests_during_resets",
        "outside requests are served while a guest is constantly reset and its memory zeroed",
        |room| {
            let least = &[(Counter::Resets, 1), (Counter::ResetRequests, 20)];
            let test = "u6_reset_storm";
            room.lab.siege(room.case, &Siege { test, vcpus: 1, cpus: 1, memory: 512 * MIB, least })
        },
    ),
    ended(
        "u7_guest_without_tables",
        "a guest ends with a separate status if there is no page for a nested page table",
        "alive",
        (2, 1),
        ExitCode::GuestOutOfTables,
    )
    .with(&["nested_page=4K", "tables=4"]),
    probe(
        "u12_debug_registers_by_their_other_names",
        "a breakpoint enabled through DR5 affects only its own vCPU",
        "u12_debug_names",
        ProbeEnd::SharedPassed,
    ),
    probe(
        "u13_idt_in_nothing",
        "an exception whose descriptor is not in memory shuts the guest down",
        "u13_idt_in_nothing",
        ProbeEnd::Ended(ExitCode::GuestReset),
    ),
    stock(
        "u15_late_processor",
        "CPUs that are given up, and come late, get no vCPUs and take nobody's stack",
        (8, 4),
        "test $(nproc) = 8 && thrash --threads 8 --rounds 5",
        Expect::WithoutCpus(&[1, 2]),
    )
    .with(&["defect=late-cpu"]),
    stock(
        "u18_flood",
        "the guest's output is limited, and lines that imitate the hypervisor are not believed",
        (1, 1),
        FLOOD,
        Expect::Flood,
    ),
    runs(
        "u20_linux_6_12_under_load",
        "a kernel that uses CMPXCHG16B survives an emulator that gets it wrong",
        (8, 2),
        LOAD,
    )
    .with_newer_kernel(),
    probe(
        "u23_second_nmi",
        "neither of two NMIs for a vCPU without a CPU is lost",
        "u23_second_nmi",
        ProbeEnd::SharedPassed,
    ),
    runs(
        "u26_linux_in_xapic_mode",
        "a kernel that avoids x2APIC mode starts its processors and works",
        (4, 2),
        "test \"$(nproc)\" = 4 && dmesg | grep -q 'Hyper-V: Using enlightened APIC (xapic mode)' && \
            thrash --threads 4 --rounds 50",
    ).by_ipis()
    .told("nox2apic"),
    runs(
        "u26_linux_by_the_interval_timer",
        "a kernel that knows no hypervisor calibrates its clock with the interval timer, and works in xAPIC mode",
        (4, 1),
        "test \"$(nproc)\" = 4 && ! dmesg | grep -q Hyper-V && \
            dmesg | grep -qE 'tsc: Detected (999|1000)\\.[0-9]+ MHz' && thrash --threads 4 --rounds 20",
    ).by_ipis()
    .told("nopv nox2apic")
    .counted(),
];
