//! `quell bench devices`: what disks and networks cost a guest that owns them, beside the bare
//! machine and KVM with vfio.
//!
//! Each machine has one CPU, whose instructions QEMU's plugin counts by phase; waits count nothing.
//! The guest is the same: the stock kernel, whose initial RAM disk starts fio from a disk with
//! Debian (`run`).

mod run;

use super::lab;
use crate::cli::DevicesArgs;
use crate::debian;
use crate::guest::cache::{self, OtherKernel};
use crate::machine::devices::{Devices, Network};
use crate::prelude::*;
use run::{CASES, Case, Counted, NOTHING};
use std::fs::File;

/// All sides, in the order in which they take turns.
const SUBJECTS: [Subject; 3] = [Subject::Bare, Subject::Quell, Subject::Kvm];
const ARCH: Arch = Arch::X86_64;
const CLOCK: Clock = Clock::InstructionsAndWaits;
const MEMORY: u64 = 512 * MIB;
/// The most machines of the bare side or of KVM's for one round.
const TRIES: u32 = 4;

pub(super) fn devices(lab: &Lab<'_>, args: &DevicesArgs, samples: &mut Samples) -> Result<Vec<Limit>> {
    let programs = args.disk.clone().map_or_else(|| debian::usual_disk(ARCH), Ok)?;
    let bench = Bench { lab, polls: args.kvm_polls, kernel: cache::owning_kernel()?, programs };
    let is_meant = |subject| args.on.is_empty() || args.on.iter().any(|on| on.subject() == subject);
    'rounds: for round in 1..=args.runs {
        for subject in SUBJECTS.into_iter().filter(|subject| is_meant(*subject)) {
            eprintln!("{}, {round} of {} …", subject.name(), args.runs);
            match bench.measure(subject) {
                Ok(counted) => add(samples, subject, &counted),
                // What there is by then is shown.
                Err(_) if lab.signals.caught().is_some() => break 'rounds,
                // It is missing in the table, and misses its targets.
                Err(error) => eprintln!("quell: on {}: {error:#}", subject.name()),
            }
        }
    }
    add_ratios(samples);
    Ok(limits(samples))
}

struct Bench<'a> {
    lab: &'a Lab<'a>,
    /// Whether KVM polls before it halts.
    polls: bool,
    kernel: OtherKernel,
    /// The disk with fio.
    programs: PathBuf,
}

impl Bench<'_> {
    /// Runs all cases on one side. If a machine of KVM's dies or hangs, or the bare one does,
    /// another one is tried: under emulation they do now and then (`docs/qemu.md`). Quell's are not
    /// to.
    fn measure(&self, subject: Subject) -> Result<Vec<Counted>> {
        let tries = if subject == Subject::Quell { 1 } else { TRIES };
        for number in 1..tries {
            match run::run(self.lab, self.spec(subject)?) {
                Err(error) if self.lab.signals.caught().is_none() => {
                    eprintln!("quell: {}: machine {number} of at most {tries}: {error:#}", subject.name());
                }
                result => return result,
            }
        }
        run::run(self.lab, self.spec(subject)?)
    }

    fn spec(&self, subject: Subject) -> Result<Spec> {
        let (lab, stock, directory) = (self.lab, self.lab.stock(ARCH)?, self.lab.directory());
        let data = directory.join("data.img");
        let made = File::create(&data).and_then(|file| file.set_len(run::DATA_BYTES));
        made.with_context(|| format!("cannot make {}", data.display()))?;
        let disks = vec![self.programs.clone(), data];
        let initrd = stock.counting_initrd(&run::command())?;
        let guest = Guest {
            memory: MEMORY,
            devices: Devices { disks, network: Some(Network::Sink), ..Devices::default() },
            ..lab::linux(stock, Platform::X86_64, initrd, 1)
        };
        match subject {
            Subject::Bare => lab.on_bare_machine(&guest, 1, CLOCK),
            Subject::Quell => lab.on_quell(&guest, 1, CLOCK),
            Subject::Kvm => stock.with_kvm_and_devices(&self.kernel, &guest, self.polls, CLOCK, directory),
        }
    }
}

const INSTRUCTIONS: &str = "instructions";
const EXITS: &str = "exit.all";
const BARE: &str = "relative to bare";
const KVM: &str = "relative to kvm";

/// The least work per instruction, relative to the bare machine and to KVM.
const BARE_MIN: f64 = 0.9;
const KVM_MIN: f64 = 1.5;
/// The most exits for each transfer.
const EXITS_MAX: f64 = 2.0;

fn worked() -> impl Iterator<Item = &'static Case> {
    CASES.iter().filter(|case| case.name != NOTHING)
}

/// Adds the counts of one machine. Quell's come after the bare machine's, and KVM's after Quell's.
fn add(samples: &mut Samples, subject: Subject, counted: &[Counted]) {
    for (case, counted) in worked().zip(counted) {
        samples.add(case.name, subject, INSTRUCTIONS, "instructions", counted.instructions_each());
        if subject == Subject::Quell {
            samples.add(case.name, subject, EXITS, "per transfer", counted.exits_each());
            for (name, count) in &counted.exits {
                samples.add(case.name, subject, name, "per transfer", count / counted.ios);
            }
        }
    }
}

fn each(samples: &Samples, case: &Case) -> [f64; 3] {
    let subjects = [Subject::Bare, Subject::Quell, Subject::Kvm];
    subjects.map(|subject| samples.median(case.name, subject, INSTRUCTIONS))
}

/// Quell's work per instruction, relative to the bare machine's and to KVM's, by metric.
fn ratios(samples: &Samples, case: &Case) -> [(&'static str, f64); 2] {
    let [bare, quell, kvm] = each(samples, case);
    [(BARE, bare / quell), (KVM, kvm / quell)]
}

fn limits(samples: &Samples) -> Vec<Limit> {
    let of_case = |case: &'static Case| {
        let ratios = ratios(samples, case).into_iter().zip([BARE_MIN, KVM_MIN]);
        let ratios = ratios.map(|((metric, ratio), least)| Limit::at_least(metric, ratio, least));
        let exits = samples.of_quell(case.name, EXITS);
        ratios.chain([Limit::at_most("exits for each", exits, EXITS_MAX)]).map(|limit| limit.of(case.name))
    };
    worked().flat_map(of_case).collect()
}

fn add_ratios(samples: &mut Samples) {
    for case in worked() {
        for (metric, ratio) in ratios(samples, case).into_iter().filter(|(_, ratio)| ratio.is_finite()) {
            samples.add(case.name, Subject::Quell, metric, "ratio", ratio);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(each: f64, exits: f64) -> Vec<Counted> {
        let exits = BTreeMap::from([("exit.wait", 10.0 * exits)]);
        worked().map(|_| Counted { ios: 10.0, instructions: 10.0 * each, exits: exits.clone() }).collect()
    }

    #[test]
    fn each_target_can_be_missed() {
        for (quell, exits, missed) in [
            (110.0, 1.9, &[][..]),
            (112.0, 2.0, &[BARE]),
            (140.0, 2.1, &[BARE, KVM, "exits for each"]),
            (90.0, 3.0, &["exits for each"]),
        ] {
            let mut samples = Samples::default();
            add(&mut samples, Subject::Bare, &counted(100.0, 0.0));
            add(&mut samples, Subject::Quell, &counted(quell, exits));
            add(&mut samples, Subject::Kvm, &counted(200.0, 0.0));
            let found = limits(&samples).into_iter().filter(|limit| !limit.is_met());
            let found: Vec<_> = found.map(|limit| limit.label).collect();
            let expected =
                worked().flat_map(|case| missed.iter().map(|metric| format!("{}: {metric}", case.name)));
            assert_eq!(found, expected.collect::<Vec<_>>());
            add_ratios(&mut samples);
            let row = samples.row("stream", Subject::Quell, BARE).expect("is there");
            assert!((row.spread.median - 100.0 / quell).abs() < 1e-9);
        }
    }

    #[test]
    fn what_was_not_measured_misses_its_targets() {
        let limits = limits(&Samples::default());
        assert!(limits.iter().all(|limit| !limit.is_met()), "{limits:?}");
    }
}
