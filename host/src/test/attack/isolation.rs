//! Guests that attack others: a part of `bench isolation`, without what depends on the clock.

use crate::bench::isolation::pair::{self, Plan};
use crate::bench::isolation::{limits, of_run};
use crate::test::prelude::*;
use hostile::attacks::Attack;

/// Flushes of a batch, and batches that are measured: some hundred slices.
const FLUSHES: u64 = 50;
const BATCHES: u64 = 4;
const SEED: u64 = 7;
const TIMEOUT: Duration = Duration::from_secs(180);

pub(in crate::test) const ACTS: &[Named] = &[
    ("i1_guests_do_not_disturb_each_other", attacks),
    ("i1_guests_do_not_disturb_each_other_on_vmx", attacks),
];

/// The weights of attacker and other guest, whether the attacker has a CPU set, and what it does.
const ATTACKS: [([u32; 2], bool, Attack); 6] = [
    ([100, 100], false, Attack::Flushes),
    ([100, 100], false, Attack::Resets),
    ([100, 100], false, Attack::Faults),
    ([100, 100], true, Attack::Compute),
    ([100, 100], true, Attack::Disk),
    ([100, 300], false, Attack::Mixture),
];

/// Runs one attack after the other. Times are not compared, and shares are parts of the time that
/// both guests have had: the machine may be busy.
fn attacks(room: &Room<'_>) -> Result<()> {
    for (weights, is_pinned, attack) in ATTACKS {
        let plan = Plan { attack, weights, is_pinned, seed: SEED, flushes: FLUSHES, batches: BATCHES };
        let name = || format!("attack '{}', weights {weights:?}", attack.name());
        let (hypervisor, directory) = (room.hypervisor()?, room.directory);
        let run = pair::run(hypervisor, room.platform, &plan, TIMEOUT, directory, room.signals);
        let figures = run.with_context(name)?;
        let missed: Vec<_> =
            limits(&plan, &of_run(&plan, &figures), None).iter().filter_map(Limit::missed).collect();
        ensure!(missed.is_empty(), "{}: {}", name(), missed.join("; "));
    }
    Ok(())
}
