//! The limits of cases that boot Linux on Quell and directly on the machine; and, on Arm, its
//! instructions.

use super::all::Runner;
use super::all::cases::{Case, USERSPACE};
use super::all::own::Own;
use super::all::record::Number;
use super::all::way::FlushWay;
use super::counts::Figures;
use crate::prelude::*;

const INSTRUCTIONS: &str = "instructions to userspace";
/// Kernel options for running only `phase`, with the same layout each time.
const TO_USERSPACE: &str = "quiet nokaslr panic=-1 rdinit=/bin/phase";
/// The most instructions that a boot on Quell may take beyond those of the bare machine.
const OVER_BARE_MAX: f64 = 40e6;
/// The same under KVM 6.1, by the same method.
const OVER_BARE_KVM: &str = "243 M";

pub(super) const COUNT: Own = Own::counted(count, |_| "a CPU, counting instructions".to_owned());

/// Counts the instructions from reset to the guest's first process, with 1 vCPU on 1 CPU.
fn count(Runner { lab, .. }: &Runner<'_>, way: FlushWay) -> Result<Vec<Number>> {
    let (platform, clock) = (way.platform(), Clock::Instructions);
    let stock = lab.stock(platform.arch())?;
    let cmdline = format!("{} {TO_USERSPACE}", platform.arch().console());
    let guest = Guest::new(platform, stock.kernel(), Some(stock.initrd(None)), cmdline);
    let guest = Guest { vcpus: 1, memory: 512 * MIB, ..guest };
    let spec =
        if way.is_bare() { lab.on_bare_machine(&guest, 1, clock) } else { lab.on_quell(&guest, 1, clock) };
    let (_, phases) = lab.count(spec?, |_, _| Ok(Flow::Continue))?;
    phases.of(Phase::After).context("the guest did not reach userspace")?;
    Ok(vec![Number::new(INSTRUCTIONS, "instructions", float(phases.of(Phase::None)?.instructions))])
}

/// Quell beside the bare machine, if both have run.
pub(super) fn limits(case: &Case, of: Figures<'_>) -> Option<Limit> {
    let bare = case.ways.iter().copied().find(|way| way.is_bare())?;
    let both = |metric| Some((of(case.ways[0], metric)?, of(bare, metric)?));
    if let Some((quell, bare)) = both(USERSPACE) {
        return Some(Limit::shown("userspace relative to bare", quell / bare));
    }
    let (quell, bare_count) = both(INSTRUCTIONS)?;
    // KVM was counted on this CPU.
    let is_limited = bare.platform() == Platform::Aarch64(ArmCpu::Max);
    let limit = if is_limited { OVER_BARE_MAX } else { f64::INFINITY };
    let label = "instructions to userspace, beyond the bare machine's";
    Some(Limit::at_most(label, quell - bare_count, limit).beside(OVER_BARE_KVM))
}

#[cfg(test)]
mod tests {
    use super::super::all::cases::CASES;
    use super::*;

    #[test]
    fn quell_is_beside_the_bare_machine() {
        let limit = |name: &str, quell: f64, bare: f64| {
            let case = CASES.iter().find(|case| case.name == name).expect("is a case");
            let metric = if name == "boot" { USERSPACE } else { INSTRUCTIONS };
            let of = |way: FlushWay| if way.is_bare() { bare } else { quell };
            limits(case, &|way, other| Some(of(way)).filter(|_| other == metric)).expect("is one")
        };
        assert!((limit("boot", 6.0, 4.0).measured - 1.5).abs() < 1e-9);
        assert!(
            limit("arm-boot-count", 9.4e8, 9e8).is_met() && !limit("arm-boot-count", 9.41e8, 9e8).is_met()
        );
    }
}
