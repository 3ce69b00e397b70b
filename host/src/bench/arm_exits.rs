//! `quell bench exits --arch aarch64`: the hostile guest performs each operation many times in a
//! phase of its own, and QEMU's plugin counts the instructions of all CPUs in it. The counter that
//! the guest sees is too coarse, and goes on while the machine waits.

use super::counts::{Case, METRIC, case};
use super::phases::Phases;
use crate::arch::Platform;
use crate::machine::devices::Devices;
use crate::machine::process::{Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{Samples, Subject};
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor};
use crate::workspace;
use anyhow::{Result, ensure};
use hostlink::config::{FlushMode, ResetPolicy, Switches};
use std::time::Duration;

/// The cases in the order of their phases in the guest, which begin with 1. The guest's own
/// instructions count, those of its interrupt handler included.
pub(super) const CASES: [Case; 7] = [
    case("hvc", "HVC without effect", 265, ""),
    case("register-read", "read of a register that traps", 305, ""),
    case("mmio-read", "read of the distributor", 435, ""),
    case("self-sgi", "SGI to itself, with its end", 1350, ""),
    case("timer", "timer, set and delivered", 985, ""),
    case("wfi", "WFI, ended by the timer", 3050, ""),
    case("sgi-round-trip", "SGI round trip, 2 vCPUs on 2 CPUs", 6450, ""),
];

/// Vcpus and CPUs.
const BOTH: u32 = 2;

/// Repetitions of each operation.
const REPETITIONS: u32 = 1000;

/// Counts on a machine of this platform.
pub(super) fn run(
    platform: Platform,
    timeout: Duration,
    signals: &Signals,
    samples: &mut Samples,
) -> Result<()> {
    let arch = platform.arch();
    let guest = Guest {
        kernel: workspace::bootable(workspace::build(workspace::HOSTILE, arch)?, arch)?,
        initrd: None,
        cmdline: format!("test=exits count={REPETITIONS}"),
        vcpus: BOTH,
        memory: 64 * MIB,
        flush: FlushMode::Hypercall,
        platform,
        reset: ResetPolicy::Exit,
        switches: Switches::default(),
        devices: Devices::default(),
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    let mut spec = guest.on_quell(&Hypervisor::build(arch)?, BOTH, Clock::Instructions, directory.path())?;
    spec.timeout = Some(timeout);
    let counting = Phases::counting(directory.path())?;
    spec.counting = Some(counting.clone());
    let outcome = Machine::start(&spec, signals)?.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
    let why = outcome.reports.iter().find_map(|report| report["why"].as_str());
    ensure!(why.is_none(), "the guest says: {}", why.unwrap_or_default());
    let phases = Phases::read(&counting)?;
    for (index, case) in CASES.iter().enumerate() {
        let all = phases.numbered(index + 1)?.instructions;
        samples.add(
            &case.named(platform),
            Subject::Quell,
            METRIC,
            METRIC,
            all as f64 / f64::from(REPETITIONS),
        );
    }
    Ok(())
}
