//! `quell bench boot`: time to the guest's first process, on Quell and directly on the machine; on
//! Arm first in instructions.

use crate::cli::BootArgs;
use crate::prelude::*;
use crate::run::reporting_console;

const METRIC: &str = "userspace";
const INSTRUCTIONS: &str = "instructions to userspace";
const SUBJECTS: [Subject; 2] = [Subject::Bare, Subject::Quell];

/// Kernel options for running only `mark`, with the same layout each time.
const TO_USERSPACE: &str = "quiet nokaslr panic=-1 rdinit=/bin/mark";
/// The most instructions that a boot on Quell may take beyond those of the bare machine.
const OVER_BARE_MAX: f64 = 40e6;
/// The same under KVM 6.1, by the same method.
const OVER_BARE_KVM: &str = "243 M";

pub(super) fn boot(lab: &Lab<'_>, args: &BootArgs, samples: &mut Samples) -> Result<Vec<Limit>> {
    let platform = args.platform.platform()?;
    let mut limits = Vec::new();
    if platform.arch() == Arch::Aarch64 {
        limits.push(instructions(lab, args, platform, samples)?);
    }
    limits.push(seconds(lab, args, platform, samples)?);
    Ok(limits)
}

fn guest(lab: &Lab<'_>, args: &BootArgs, platform: Platform, cmdline: String, vcpus: u32) -> Result<Guest> {
    let stock = lab.stock(platform.arch())?;
    let guest = Guest::new(platform, stock.kernel(), Some(stock.initrd(None)), cmdline);
    Ok(Guest { vcpus, memory: args.size.memory, ..guest })
}

fn spec(lab: &Lab<'_>, subject: Subject, guest: &Guest, cpus: u32, clock: Clock) -> Result<Spec> {
    match subject {
        Subject::Quell => lab.on_quell(guest, cpus, clock),
        // The bare kernel uses all CPUs.
        Subject::Bare | Subject::Kvm => lab.on_bare_machine(guest, cpus, clock),
    }
}

/// Counts the instructions from reset to the guest's first process, with 1 vCPU on 1 CPU.
fn instructions(lab: &Lab<'_>, args: &BootArgs, platform: Platform, samples: &mut Samples) -> Result<Limit> {
    let guest = guest(lab, args, platform, format!("{} {TO_USERSPACE}", platform.arch().console()), 1)?;
    let case = platform.named("boot-1:1");
    for subject in SUBJECTS {
        let spec = spec(lab, subject, &guest, 1, Clock::Instructions)?;
        let (_, phases) = lab.count(spec, |_, _| Ok(Flow::Continue))?;
        phases.of(Phase::After).context("the guest did not reach userspace")?;
        let count = float(phases.of(Phase::None)?.instructions);
        println!("{:<6} {:.3} million instructions to userspace", subject.name(), count / 1e6);
        samples.add(&case, subject, INSTRUCTIONS, "instructions", count);
    }
    let [bare, quell] = SUBJECTS.map(|subject| samples.median(&case, subject, INSTRUCTIONS));
    // KVM was counted on this CPU.
    let limit = if platform == Platform::Aarch64(ArmCpu::Max) { OVER_BARE_MAX } else { f64::INFINITY };
    let label = "instructions to userspace, beyond the bare machine's";
    Ok(Limit::at_most(label, quell - bare, limit).beside(OVER_BARE_KVM))
}

fn seconds(lab: &Lab<'_>, args: &BootArgs, platform: Platform, samples: &mut Samples) -> Result<Limit> {
    let console = reporting_console(platform.arch());
    let words = [console.as_str(), "quiet"].into_iter().chain(args.append.as_deref());
    let guest = guest(lab, args, platform, words.collect::<Vec<_>>().join(" "), args.size.vcpus)?;
    let case = platform.named(&format!("boot-{}:{}", args.size.vcpus, args.size.cpus));
    for run in 1..=args.runs {
        for subject in SUBJECTS {
            let secs = to_userspace(lab, spec(lab, subject, &guest, args.size.cpus, Clock::Wall)?)?;
            println!("{:<6} {run}/{}  {secs:5.2} s", subject.name(), args.runs);
            samples.add(&case, subject, METRIC, "s", secs);
        }
    }
    let [bare, quell] = SUBJECTS.map(|subject| samples.median(&case, subject, METRIC));
    let ratio = quell / bare;
    println!("\nTo userspace: {bare:.2} s bare, {quell:.2} s on Quell, {ratio:.2} times as long.");
    let metric = "userspace relative to bare";
    samples.add(&case, Subject::Quell, metric, "ratio", ratio);
    Ok(Limit::shown(metric, ratio))
}

/// Seconds from the start of the machine to the first process's report.
fn to_userspace(lab: &Lab<'_>, spec: Spec) -> Result<f64> {
    let mut userspace = None;
    let outcome = lab.run(spec, |report, machine| {
        if report["event"] != "boot" {
            return Ok(Flow::Continue);
        }
        userspace = Some(machine.elapsed().as_secs_f64());
        Ok(Flow::Stop)
    })?;
    userspace.ok_or_else(|| outcome.explain(anyhow::anyhow!("the guest did not reach userspace")))
}
