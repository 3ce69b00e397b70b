//! `quell bench boot`: time to the guest's first process, on Quell and directly on the machine; on
//! Arm first in instructions.

use super::phases::Phases;
use crate::arch::{Arch, ArmCpu, Platform};
use crate::cli::BootArgs;
use crate::machine::devices::Devices;
use crate::machine::outcome::Outcome;
use crate::machine::process::{End, Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Spec};
use crate::results::{self, Samples, Subject};
use crate::run::{conclude, reporting_console, tail};
use crate::table::judge;
use crate::vm::{Guest, Hypervisor, StockGuest};
use anyhow::{Context, Result, ensure};
use hostlink::config::{FlushMode, ResetPolicy, Switches};
use hostlink::exit::ExitCode;
use hostlink::phase::Phase;

const METRIC: &str = "userspace";
const INSTRUCTIONS: &str = "instructions to userspace";

/// Kernel options for running only `mark`, with the same layout each time.
const TO_USERSPACE: &str = "quiet nokaslr panic=-1 rdinit=/bin/mark";
/// The most instructions that a boot on Quell may take beyond those of the bare machine.
const OVER_BARE_MAX: f64 = 40e6;
/// The same under KVM 6.1, by the same method.
const OVER_BARE_KVM: &str = "243 M";

/// Measures both sides in turn; the status is that of a failed run, 1 if a target is missed, else
/// 0.
pub(crate) fn boot(args: &BootArgs, signals: &Signals) -> Result<u8> {
    let platform = args.platform.platform()?;
    let stock = StockGuest::prepare(platform.arch())?;
    let mut samples = Samples::default();
    let mut status = 0;
    if platform.arch() == Arch::Aarch64 {
        status = u8::from(!instructions(args, platform, &stock, &mut samples, signals)?);
    }
    match seconds(args, platform, &stock, &mut samples, signals)? {
        0 => {}
        failed => return Ok(failed),
    }
    if let Some(path) = &args.output.json {
        results::write(path, "boot", Some(stock.versions()), &samples)?;
    }
    Ok(status)
}

/// Counts the instructions from the machine's reset to the guest's first process, with 1 vCPU on 1
/// CPU; returns whether those on Quell are within their limit.
fn instructions(
    args: &BootArgs,
    platform: Platform,
    stock: &StockGuest,
    samples: &mut Samples,
    signals: &Signals,
) -> Result<bool> {
    let guest = Guest {
        platform,
        kernel: stock.kernel(),
        initrd: Some(stock.initrd(None)),
        cmdline: format!("{} {TO_USERSPACE}", platform.arch().console()),
        vcpus: 1,
        memory: args.size.memory,
        flush: FlushMode::Hypercall,
        reset: ResetPolicy::Exit,
        switches: Switches::default(),
        devices: Devices::default(),
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    let case = format!("boot-1:1{}", platform.suffix());
    for subject in [Subject::Bare, Subject::Quell] {
        let mut spec = match subject {
            Subject::Quell => {
                let hypervisor = Hypervisor::build(platform.arch())?;
                guest.on_quell(&hypervisor, 1, Clock::Instructions, directory.path())?
            }
            _ => Spec { clock: Clock::Instructions, ..guest.on_bare_machine(1, directory.path())? },
        };
        spec.timeout = Some(args.output.timeout());
        let counting = Phases::counting(directory.path())?;
        spec.counting = Some(counting.clone());
        let outcome = Machine::start(&spec, signals)?.run(|_, _| Ok(Flow::Continue))?;
        ensure!(
            matches!(outcome.end, End::PowerOff | End::Hypervisor(ExitCode::GuestPowerOff)),
            "the guest did not reach userspace ({:?}); its console ends with:\n{}",
            outcome.end,
            tail(&outcome.console)
        );
        let phases = Phases::read(&counting)?;
        phases.of(Phase::After).context("the guest did not reach userspace")?;
        let count = millions(phases.of(Phase::None)?.instructions);
        println!("{:<6} {count:.3} million instructions to userspace", subject.name());
        samples.add(&case, subject, INSTRUCTIONS, "instructions", count * 1e6);
    }
    let [quell, bare] =
        [Subject::Quell, Subject::Bare].map(|subject| samples.median(&case, subject, INSTRUCTIONS));
    let over = quell - bare;
    println!("KVM 6.1 takes {OVER_BARE_KVM} instructions more than the bare machine.");
    // KVM was counted on this CPU.
    let limit = if platform == Platform::Aarch64(ArmCpu::Max) { OVER_BARE_MAX } else { f64::INFINITY };
    Ok(judge([("instructions to userspace, beyond the bare machine's", over, limit)]))
}

#[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
fn millions(count: u64) -> f64 {
    count as f64 / 1e6
}

/// Measures by the clock; returns the status of a failed run, else 0.
fn seconds(
    args: &BootArgs,
    platform: Platform,
    stock: &StockGuest,
    samples: &mut Samples,
    signals: &Signals,
) -> Result<u8> {
    let hypervisor = Hypervisor::build(platform.arch())?;
    let console = reporting_console(platform.arch());
    let words = [console.as_str(), "quiet"].into_iter().chain(args.append.as_deref());
    let guest = Guest {
        platform,
        kernel: stock.kernel(),
        initrd: Some(stock.initrd(None)),
        cmdline: words.collect::<Vec<_>>().join(" "),
        vcpus: args.size.vcpus,
        memory: args.size.memory,
        flush: FlushMode::Hypercall,
        reset: ResetPolicy::Exit,
        switches: Switches::default(),
        devices: Devices::default(),
    };
    guest.check()?;
    let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
    // The same machine for both; the bare kernel uses all of its CPUs.
    let quell = guest.on_quell(&hypervisor, args.size.cpus, Clock::Wall, directory.path())?;
    let bare = guest.on_bare_machine(args.size.cpus, directory.path())?;
    let case = format!("boot-{}:{}{}", args.size.vcpus, args.size.cpus, platform.suffix());

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
    Ok(0)
}

/// Seconds from the start of the machine to the first process's report. The inner error is the exit
/// status, after the reason has been printed.
fn time(spec: &Spec, args: &BootArgs, signals: &Signals) -> Result<Result<f64, u8>> {
    let mut spec = spec.clone();
    spec.timeout = Some(args.output.timeout());
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
