//! The tests that run tlbcheck: it has to pass if flushes are right, and to fail, in the row that
//! is named for it, for each defect that can be injected into the hypervisor.

use crate::check::{Omission, On};
use crate::image::Entry;
use crate::test::prelude::*;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Check {
    pub(super) on: On,
    /// 4 if that is not said.
    pub(super) cpus: Option<u32>,
    /// As many as CPUs if that is not said.
    pub(super) vcpus: Option<u32>,
    /// Instructions that tlbcheck omits itself.
    pub(super) omission: Option<Omission>,
    /// The rows to run, with `*` for any suffix. With a defect one has to fail, else none.
    pub(super) rows: Option<String>,
    /// Rows that fail there, and what each must say. No others may, and none of these may pass.
    #[serde(default)]
    pub(super) fails: BTreeMap<String, String>,
    /// Prefixes of the names of rows that may be skipped; any row if there are none.
    pub(super) may_skip: Option<Vec<String>>,
}

pub(super) const ACTS: &[Named] = &[
    ("disc_checks_by_bios", |room| room.lab.disc(room.platform, Entry::Check, false, " 0 failed")),
    ("disc_runs_linux_by_uefi", |room| room.lab.disc(room.platform, Entry::Linux, true, "hello from a disc")),
    ("disc_starts_the_linux_protocol_by_uefi", |room| {
        room.lab.disc(room.platform, Entry::CheckLinux, true, " 0 failed")
    }),
    ("disc_checks_quell_by_bios", |room| room.lab.disc(room.platform, Entry::CheckQuell, false, " 0 failed")),
    ("linux_protocol_starts_tlbcheck", |room| room.lab.bzimage("check json report=com2 only=invlpg-*,ipi-*")),
];
