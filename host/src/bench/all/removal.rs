//! Arm: the removal of a GiB of memory in pages of 4 KiB, and the logging of stores to it, on a
//! machine of one CPU that counts instructions.
//!
//! On Quell it is the guest of `bench unmap`, on KVM `kvmslots`, a monitor as small as that guest.
//! Both mark their phases by hints, which QEMU's plugin counts.

use super::Runner;
use super::own::Own;
use super::record::Number;
use super::way::{FlushWay, ON_ARM};
use crate::bench::phases::{Counts, Phases};
use crate::bench::unmap::{self, PAGES, SIZE};
use crate::guest::cpio::Archive;
use crate::guest::peer::arm::Outer;
use crate::prelude::*;
use hostlink::config::Stage2Unmap;

/// The removal until the guest goes on, the steps of logging, and the fault that gives a page.
pub(super) const DELETE: &str = "delete";
pub(super) const ENABLE: &str = "dirty-enable";
pub(super) const FETCH: &str = "dirty-fetch";
const FAULT_IN: &str = "fault-in";
/// TLB maintenance and barriers of the removal.
const TLBI: &str = "delete tlbi";
const DSB: &str = "delete dsb";

const COMMAND: &str = "kvmslots --mib 1024 --rounds 1 --report /dev/report";
/// Passes over all pages in which each page is new: one before the removal, one before logging.
const KVM_PASSES: u64 = 2;
/// Memory of the kernel around and of its monitor, apart from the guest's.
const AROUND: u64 = 256 * MIB;

pub(super) const OWN: Own = Own::counted(count, |_| {
    format!("a CPU ({}), counting instructions; in KVM's kernel {COMMAND}", ON_ARM.name())
});

fn count(Runner { lab, .. }: &Runner<'_>, way: FlushWay) -> Result<Vec<Number>> {
    let FlushWay::KvmOnArm(kernel) = way else {
        let setup = unmap::setup(lab, way.platform(), Stage2Unmap::Range, Clock::Instructions)?;
        return numbers(&unmap::removed(&setup, lab.signals)?, &unmap::logged(&setup, lab.signals)?, 1);
    };
    let path = workspace::build(workspace::KVMSLOTS, Arch::Aarch64)?;
    let program = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut archive = Archive::default();
    archive.file("bin/kvmslots", 0o755, &program);
    archive.file("command", 0o644, COMMAND.as_bytes());
    let (stock, clock) = (lab.stock(Arch::Aarch64)?, Clock::Instructions);
    let outer = Outer { stock, kernel, cpu: ON_ARM, cpus: 1, clock, memory: SIZE + AROUND };
    let spec = outer.spec(&archive.finish(), lab.directory())?;
    let (outcome, phases) = lab.count(spec, |_, _| Ok(Flow::Continue))?;
    let status = outcome.report("exit").and_then(|report| report["status"].as_u64());
    ensure!(status == Some(0), outcome.explain(anyhow!("kvmslots ended with status {status:?}")));
    numbers(&phases, &phases, KVM_PASSES)
}

/// The numbers of a run that removes memory and of one that logs stores, which may be the same. All
/// pages were new in `passes` passes of the first.
fn numbers(deleted: &Phases, logged: &Phases, passes: u64) -> Result<Vec<Number>> {
    let removal = deleted.of(Phase::Blocking)?;
    let instructions = |counts: &Counts| counts.instructions;
    let counted = [
        (DELETE, "instructions", removal.instructions),
        (TLBI, "count", removal.tlbi()),
        (DSB, "count", removal.dsb()),
        (ENABLE, "instructions", instructions(logged.of(Phase::DirtyEnable)?)),
        (FETCH, "instructions", instructions(logged.of(Phase::DirtyFetch)?)),
        (FAULT_IN, "instructions", instructions(deleted.of(Phase::FaultIn)?) / (passes * PAGES)),
    ];
    let number = |(metric, unit, count)| Number::new(metric, unit, float(count));
    Ok(counted.into_iter().map(number).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phases(instructions: u64, entered: &[Phase]) -> Phases {
        let counts = Phase::ALL.map(|phase| {
            let entries = u64::from(entered.contains(&phase));
            serde_json::json!({
                "entries": entries, "instructions": instructions, "tlbi": {"vmalle1is": 2}, "dsb": {"ish": 5},
                "dc": 0, "eret": 0,
            })
        });
        serde_json::from_value(serde_json::json!({"phases": counts})).expect("are some")
    }

    #[test]
    fn each_metric_is_of_its_phase() {
        let deleted = phases(4 * PAGES, &[Phase::Blocking, Phase::FaultIn]);
        let logged = phases(7, &[Phase::DirtyEnable, Phase::DirtyFetch]);
        let found = numbers(&deleted, &logged, 2).expect("are there");
        let value = |metric: &str| found.iter().find(|number| number.metric == metric).map(|n| n.value);
        let all = float(4 * PAGES);
        let expected = [(DELETE, all), (TLBI, 2.0), (DSB, 5.0), (ENABLE, 7.0), (FETCH, 7.0), (FAULT_IN, 2.0)];
        for (metric, number) in expected {
            assert_eq!(value(metric), Some(number), "{metric}");
        }
    }

    #[test]
    fn a_phase_that_never_began_is_no_number() {
        let phases = phases(1, &[Phase::Blocking]);
        assert!(numbers(&phases, &phases, 1).is_err());
    }

    #[test]
    fn the_monitor_is_told_the_size_of_quells_memory() {
        assert!(COMMAND.contains(&format!("--mib {} ", SIZE / MIB)), "{COMMAND}");
    }
}
