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

const CRASHES_LONG: u32 = 5;

/// The stock kernel starts another one (kexec).
const RESTARTS: Act = |room| room.lab.second_kernel(room.case, false);
/// The stock kernel crashes while its disk is written to, and another one takes over (kdump).
const CRASHES: Act = |room| {
    let times = if room.is_long { CRASHES_LONG } else { 1 };
    (0..times).try_for_each(|_| room.lab.second_kernel(room.case, true))
};
const WITH_NEWER: Act = |room| room.lab.battery(room.case, &NEWER);

pub(super) const ACTS: &[Named] = &[
    ("kexec_starts_another_kernel", RESTARTS),
    ("kexec_starts_another_kernel_on_arm", RESTARTS),
    ("kdump_by_the_last_processor_amid_writes", CRASHES),
    ("linux_5_10_finds_all_in_order", |room| room.lab.battery(room.case, &OLDER)),
    ("linux_6_12_finds_all_in_order", WITH_NEWER),
    ("linux_6_12_finds_all_in_order_on_arm", WITH_NEWER),
    ("linux_with_16k_pages_finds_all_in_order", |room| room.lab.battery(room.case, &LARGE_PAGES)),
];
