//! `quell bench boot`: time to the guest's first process, on Quell and directly on the machine.

use crate::cli::BootArgs;
use crate::machine::process::{End, Flow, Machine, Outcome};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Spec};
use crate::results::{self, Samples, Subject};
use crate::run::{CONSOLE, conclude, tail};
use crate::vm::{Guest, Hypervisor, StockGuest};
use anyhow::Result;
use hostlink::config::{FlushMode, ResetPolicy, Switches};
use std::time::Duration;

const METRIC: &str = "userspace";

/// Measures both sides in turn; the status is that of a run that failed, else 0.
pub(crate) fn boot(args: &BootArgs, signals: &Signals) -> Result<u8> {
    let stock = StockGuest::prepare()?;
    let hypervisor = Hypervisor::build()?;
    let words = [CONSOLE, "quiet"].into_iter().chain(args.append.as_deref());
    let guest = Guest {
        kernel: stock.kernel(),
        initrd: Some(stock.initrd(None)),
        cmdline: words.collect::<Vec<_>>().join(" "),
        vcpus: args.size.vcpus,
        memory: args.size.memory,
        flush: FlushMode::Hypercall,
        reset: ResetPolicy::Exit,
        switches: Switches::default(),
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    // The same machine for both, and as many CPUs for the bare kernel as it has.
    let quell = guest.on_quell(&hypervisor, args.size.cpus, Clock::Wall, directory.path())?;
    let bare = guest.on_bare_machine(args.size.cpus, directory.path())?;
    let case = format!("boot-{}:{}", args.size.vcpus, args.size.cpus);

    let mut samples = Samples::default();
    for run in 1..=args.runs {
        for (subject, spec) in [(Subject::Bare, &bare), (Subject::Quell, &quell)] {
            match time(spec, args, signals)? {
                Ok(secs) => {
                    println!("{:<6} {run}/{}  {secs:5.2} s", subject.name(), args.runs);
                    samples.add(&case, subject, METRIC, "s", secs);
                }
                Err(status) => return Ok(status),
            }
        }
    }
    let median = |subject| samples.row(&case, subject, METRIC).map(|row| row.median);
    if let (Some(bare), Some(quell)) = (median(Subject::Bare), median(Subject::Quell)) {
        let ratio = quell / bare;
        println!("\nTo userspace: {bare:.2} s bare, {quell:.2} s on Quell, {ratio:.2} times as long.");
        samples.add(&case, Subject::Quell, "userspace relative to bare", "ratio", ratio);
    }
    if let Some(path) = &args.json {
        results::write(path, "boot", Some(stock.versions()), &samples)?;
    }
    Ok(0)
}

/// Seconds from the start of the machine to the first process's report. The inner error is the exit
/// status, after the reason has been printed.
fn time(spec: &Spec, args: &BootArgs, signals: &Signals) -> Result<Result<f64, u8>> {
    let mut spec = spec.clone();
    spec.timeout = Some(Duration::from_secs(args.timeout));
    let mut userspace = None;
    let outcome = Machine::start(&spec, signals)?.run(|report, machine| {
        if report["event"] != "boot" {
            return Ok(Flow::Continue);
        }
        userspace = Some(machine.elapsed().as_secs_f64());
        Ok(Flow::Stop)
    })?;
    Ok(userspace.ok_or_else(|| failed(&outcome)))
}

fn failed(outcome: &Outcome) -> u8 {
    eprintln!("quell: the guest did not reach userspace; its console ends with:\n{}", tail(&outcome.console));
    match outcome.end {
        End::PowerOff => 1,
        _ => conclude(outcome, false).max(1),
    }
}
