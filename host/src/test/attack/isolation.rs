//! Guests that attack others: a part of `bench isolation`, without what depends on the clock.

use crate::arch::ArmCpu;
use crate::arch::Platform;
use crate::bench::isolation::missed;
use crate::bench::isolation::pair::{self, Plan};
use crate::machine::signals::Signals;
use crate::test::cases::{Body, Case, case};
use crate::vm::Hypervisor;
use anyhow::{Context, Result, ensure};
use hostile::attacks::Attack;
use std::path::Path;
use std::time::Duration;

/// Flushes of a batch, and batches that are measured: some hundred slices, and more than are needed
/// where a guest is disturbed at all.
const FLUSHES: u64 = 50;
const BATCHES: u64 = 4;
const SEED: u64 = 7;
const TIMEOUT: Duration = Duration::from_secs(180);

/// The rows.
pub(super) const ROWS: &[Case] = &[
    case(
        "i1_guests_do_not_disturb_each_other",
        "a guest keeps its memory, registers, flushes and share while another one attacks",
        Body::Isolation(&[
            ([100, 100], false, Attack::Flushes),
            ([100, 100], false, Attack::Resets),
            ([100, 100], false, Attack::Faults),
            ([100, 100], true, Attack::Compute),
            ([100, 100], true, Attack::Disk),
            ([100, 300], false, Attack::Mixture),
        ]),
    ),
    case(
        "i1_guests_do_not_disturb_each_other_on_arm",
        "and on Arm",
        Body::Isolation(&[
            ([100, 100], false, Attack::Flushes),
            ([100, 100], false, Attack::Resets),
            ([100, 100], false, Attack::Faults),
            ([100, 100], true, Attack::Compute),
            ([100, 100], true, Attack::Disk),
            ([100, 300], false, Attack::Mixture),
        ]),
    )
    .on(Platform::Aarch64(ArmCpu::Max)),
];

/// Runs one attack after the other. Times are not compared, and shares are parts of the time that
/// both guests have had: the machine may be busy.
pub(in crate::test) fn run(
    hypervisor: &Hypervisor,
    platform: Platform,
    attacks: &[([u32; 2], bool, Attack)],
    directory: &Path,
    signals: &Signals,
) -> Result<()> {
    for &(weights, is_pinned, attack) in attacks {
        let plan = Plan { attack, weights, is_pinned, seed: SEED, flushes: FLUSHES, batches: BATCHES };
        let name = || format!("attack '{}', weights {weights:?}", attack.name());
        let run = pair::run(hypervisor, platform, &plan, TIMEOUT, directory, signals, |_| {});
        let figures = run.with_context(name)?.of_used_time();
        let missed = missed(&plan, &figures, None);
        ensure!(missed.is_empty(), "{}: {}", name(), missed.join("; "));
    }
    Ok(())
}
