//! Kernels other than the stock guest's, and what these may do that it does not do by itself.

use super::room::Act;
use crate::test::prelude::*;

pub(super) struct Kernel {
    pub(super) from: From,
    pub(super) release: &'static str,
    pub(super) page_bytes: u64,
}

/// Where a kernel is from.
pub(super) enum From {
    /// The distribution's backports.
    Backports,
    /// Another release of Debian, and the package there.
    Release(&'static str, &'static str),
}

/// The checks of the program `battery`.
pub(super) const CHECKS: [&str; 7] = ["mmap", "fork", "ksm", "huge", "userfaultfd", "ftrace", "hotplug"];

const OLDER: Kernel =
    Kernel { from: From::Release("bullseye", "linux-image-cloud-amd64"), release: "5.10.", page_bytes: 4096 };
const NEWER: Kernel = Kernel { from: From::Backports, release: "6.12.", page_bytes: 4096 };
const LARGE_PAGES: Kernel =
    Kernel { from: From::Release("trixie", "linux-image-arm64-16k"), release: "6.12.", page_bytes: 16384 };

const BATTERY: &str = "mappings, merged and huge pages, user faults, patched code and hot-plugged processors \
    leave the right data";

const RESTART: &str = "a kernel starts another one by kexec, whose processors all come up and flush";
const CRASH: &str = "the last processor crashes amid writes to a disk: the crash kernel runs there, with \
    the disk and the other kernel's memory";

/// Processors go and come back, each alone and all together; meanwhile flushes are watched.
const STALE: &str = "go() { echo $1 > /sys/devices/system/cpu/cpu$2/online || exit; }; \
    (for round in 1 2 3; do \
        for cpu in 1 2 3 4 5; do go 0 $cpu; go 1 $cpu; done; \
        for state in 0 1; do for cpu in 1 2 3 4 5; do go $state $cpu; done; done; \
    done) & switches=$!; \
    while kill -0 $switches; do stale --threads 8 --seconds 1 --report /dev/report || exit; done; \
    wait $switches && test $(nproc) = 6 && thrash --threads 6 --rounds 10";

const RESTARTS: Act = |room| room.lab.restarts(room.case);
const CRASHES: Act = |room| room.lab.crashes(room.case);
const WITH_NEWER: Act = |room| room.lab.battery(room.case, &NEWER);

pub(super) const ROWS: [Case; 8] = [
    stock("o1_nothing_stale_amid_hotplug", (6, 2), STALE, Expect::NothingStale)
        .about("no reader sees a removed page while processors go and come back")
        .on_both(),
    act("kexec_starts_another_kernel", RESTARTS).about(RESTART),
    act("kexec_starts_another_kernel_on_arm", RESTARTS).about(RESTART).on(MAX).only_long(),
    act("kdump_by_the_last_processor_amid_writes", CRASHES).about(CRASH).on_both(),
    act("linux_5_10_finds_all_in_order", |room| room.lab.battery(room.case, &OLDER)).about(BATTERY),
    act("linux_6_12_finds_all_in_order", WITH_NEWER).about(BATTERY).only_long(),
    act("linux_6_12_finds_all_in_order_on_arm", WITH_NEWER).about(BATTERY).on(MAX),
    act("linux_with_16k_pages_finds_all_in_order", |room| room.lab.battery(room.case, &LARGE_PAGES))
        .about(BATTERY)
        .on(MAX)
        .only_long(),
];
