//! `quell bench all`: runs the same work on Quell and on Linux KVM or Xen in the same emulated
//! machine, in one go.

use super::limits;
use crate::cli::{AllArgs, CaseOutput, Peer};
use crate::guest::cache;
use crate::machine::{emulator, kvm};
use crate::prelude::*;
use crate::results::Facts;
use cases::{CASES, Case};
pub(super) use machine::Runner;
use pairs::Verdict;
use record::{Record, Run, Settings};
use show::Progress;
pub(super) use show::tables;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use way::{FlushWay, KVM_NEWER, XEN_IPI};

pub(crate) mod cases;
mod loops;
mod machine;
mod nested;
pub(crate) mod own;
mod pairs;
pub(crate) mod record;
mod removal;
mod show;
mod slots;
mod watch;
pub(crate) mod way;

/// Makes the remaining measurements, prints the results and judges them. The status is 1 if a
/// target is missed or a run failed.
pub(crate) fn all(args: &AllArgs, signals: &Signals) -> Result<u8> {
    let cases = chosen(args)?;
    if args.list {
        for case in cases {
            println!("{:<26} {}", case.name, case.about);
        }
        return Ok(0);
    }
    // Each case has a timeout of its own.
    let runner = Runner { lab: Lab::new(Duration::MAX, signals)?, args };
    let mut steps = plan(&cases, args);
    ensure!(!steps.is_empty(), "none of these cases is for that system");
    let has_xen = steps.iter().any(|step| step.way.subject() == Subject::Xen);
    ensure!(has_xen || args.xen.is_none(), "--xen is for --peer xen");
    leave_out_missing(&mut steps)?;
    let mut bench = Bench { record: begin(args, &runner, &steps)?, runner, json: target(args) };
    if let Some(signal) = bench.run(&steps, signals)? {
        if let Some(path) = &bench.json {
            eprintln!(
                "quell: what was measured is in {}; the same command goes on from there",
                path.display()
            );
        }
        return Ok(u8::try_from(128 + signal).unwrap_or(1));
    }
    Ok(u8::from(!bench.judge(&steps, &cases, args.peer.map(Peer::subject))))
}

/// Measures these cases once on Quell. Returns their limits.
pub(crate) fn budgets(names: &[&str], signals: &Signals) -> Result<Vec<Limit>> {
    let args = CaseOutput::<1> { runs: 1, json: None, timeout: None }.only(names.iter().copied());
    let (runner, cases) = (Runner { lab: Lab::new(Duration::MAX, signals)?, args: &args }, chosen(&args)?);
    let mut record = Record::new(Facts::new(), Facts::new(), Settings { runs: 1, rounds: 1 });
    for step in plan(&cases, &args) {
        let trial = runner.measure(step.case, step.way)?.context("it was interrupted")?;
        let run = Run::new(step.case, step.way, step.round, String::new(), trial);
        ensure!(run.failure.is_none(), "{}: {}", run.case, run.failure.unwrap_or_default());
        record.add(run);
    }
    Ok(record.limits(&cases))
}

/// The limits of these cases, which were measured for `file`.
pub(crate) fn budgets_in(file: &Path, names: &[&str]) -> Result<Vec<Limit>> {
    let cases = CASES.iter().filter(|case| names.contains(&case.name)).collect::<Vec<_>>();
    Ok(Record::read(file)?.limits(&cases))
}

fn chosen(args: &AllArgs) -> Result<Vec<&'static Case>> {
    // A family of cases by its first word, if no case has just that name.
    let is_case = |name: &str| CASES.iter().any(|case| case.name == name);
    let named = |name: &str, case: &Case| match is_case(name) {
        true => case.name == name,
        false => case.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')),
    };
    if let Some(unknown) = args.only.iter().find(|name| CASES.iter().all(|case| !named(name, case))) {
        let names: Vec<_> = CASES.iter().map(|case| case.name).collect();
        bail!("there is no case '{unknown}'; there are {}", names.join(", "));
    }
    let is_asked_for = |case: &&Case| {
        let is_named = args.only.iter().any(|name| named(name, case));
        // This computer's own KVM is used only where that is said.
        let is_meant = args.list || (case.by_kvm().is_none() && (args.long || !case.only_long));
        is_named || (args.only.is_empty() && is_meant)
    };
    let arch = if args.peer == Some(Peer::Xen) { args.arch.or(Some(Arch::X86_64)) } else { args.arch };
    let is_of_arch = |case: &&Case| arch.is_none_or(|arch| case.arch() == arch);
    let cases: Vec<_> = CASES.iter().filter(is_asked_for).filter(is_of_arch).collect();
    ensure!(!cases.is_empty(), "none of the cases that --only names is for the architecture of --arch");
    for vendor in cases.iter().filter_map(|case| case.by_kvm()).filter(|_| !args.list) {
        ensure!(kvm::vendor()? == vendor, "this computer's processor is not one for {}", vendor.module());
    }
    Ok(cases)
}

/// Leaves the peer's newer kernel out where the distribution has none, and Linux in a PVH domain
/// where it does not boot (`docs/qemu.md`).
fn leave_out_missing(steps: &mut Vec<Step>) -> Result<()> {
    let has = |steps: &[Step], way| steps.iter().any(|step| step.way == way);
    if has(steps, XEN_IPI) && emulator::version(Arch::X86_64)?.major >= 10 {
        eprintln!("quell: on QEMU 10 Linux does not boot in a PVH domain: left out; --qemu system has it");
        steps.retain(|step| step.way != XEN_IPI);
    }
    if has(steps, KVM_NEWER)
        && let Err(error) = cache::newer_kernel(Arch::Aarch64)
    {
        eprintln!("quell: there is no newer kernel for the peer on Arm, so it is left out: {error:#}");
        steps.retain(|step| step.way != KVM_NEWER);
    }
    Ok(())
}

fn target(args: &AllArgs) -> Option<PathBuf> {
    args.output.json.clone().or_else(|| args.resume.clone())
}

/// The earlier results, if new ones are comparable with them; else an empty record.
fn begin(args: &AllArgs, runner: &Runner<'_>, steps: &[Step]) -> Result<Record> {
    let mut ways: Vec<_> = steps.iter().map(|step| step.way).collect();
    let settings = Settings { runs: args.output.runs, rounds: args.rounds };
    let mut record = Record::new(results::machine(), runner.versions(&ways)?, settings);
    let Some(before) = args.resume.as_ref().or(args.output.json.as_ref().filter(|path| path.is_file()))
    else {
        record.setups = runner.setups(|case, way| is_due(steps, case, way))?;
        return Ok(record);
    };
    let kept = Record::read(before)?;
    // What has not been run before has no versions in the file.
    record.versions = runner.versions(&kept.ways())?;
    let ran = |case: &Case, way| kept.runs.iter().any(|run| run.is_of(case, way));
    record.setups = runner.setups(|case, way| ran(case, way) || is_due(steps, case, way))?;
    let differences = record.differences(&kept);
    ways.extend(if differences.is_empty() { kept.ways() } else { Vec::new() });
    record.versions = runner.versions(&ways)?;
    if differences.is_empty() {
        eprintln!("quell: going on with the {} runs in {}", kept.runs.len(), before.display());
        record.runs = kept.runs;
        return Ok(record);
    }
    let why =
        format!("the runs in {} cannot be continued:\n  {}", before.display(), differences.join("\n  "));
    ensure!(args.resume.is_none(), "{why}\nleave --resume out to measure anew");
    put_aside(before, &why)?;
    Ok(record)
}

fn is_due(steps: &[Step], case: &Case, way: FlushWay) -> bool {
    steps.iter().any(|step| step.case.name == case.name && step.way == way)
}

/// Renames a file of results to make room for new ones.
fn put_aside(path: &Path, why: &str) -> Result<()> {
    let old = path.with_added_extension("old");
    eprintln!("quell: {why}\nquell: they are in {} now, and everything is measured anew", old.display());
    fs::rename(path, &old).with_context(|| format!("cannot rename {}", path.display()))
}

struct Bench<'a> {
    record: Record,
    runner: Runner<'a>,
    json: Option<PathBuf>,
}

impl Bench<'_> {
    /// Makes all remaining runs. Returns the signal that ended it early, if any.
    fn run(&mut self, steps: &[Step], signals: &Signals) -> Result<Option<i32>> {
        let has = |record: &Record, step: &Step| record.has(step.case, step.way, step.round);
        let due: Vec<_> = steps.iter().copied().filter(|step| !has(&self.record, step)).collect();
        let done = steps.len() - due.len();
        let progress = Progress::new(steps.len());
        self.write()?;
        for (index, step) in due.iter().enumerate() {
            progress.begin(step, done + index, remaining(&due[index..], &self.record));
            let Some(trial) = self.runner.measure(step.case, step.way)? else { return Ok(signals.caught()) };
            let at = OffsetDateTime::now_utc().format(&Rfc3339)?;
            let run = Run::new(step.case, step.way, step.round, at, trial);
            self.record.add(run.clone());
            self.write()?;
            progress.end(step, &run, done + index + 1, remaining(&due[index + 1..], &self.record));
            if index + 1 < due.len() && signals.caught().is_some() {
                return Ok(signals.caught());
            }
        }
        Ok(None)
    }

    fn write(&self) -> Result<()> {
        self.json.as_deref().map_or(Ok(()), |path| self.record.write(path))
    }

    /// Prints everything about these cases. Returns whether all is as it has to be.
    fn judge(&self, steps: &[Step], cases: &[&'static Case], peer: Option<Subject>) -> bool {
        let ratios = peer.map_or_else(Vec::new, |peer| self.record.ratios(cases, peer));
        let is_asked_for = |run: &&Run| cases.iter().any(|case| case.name == run.case);
        let runs: Vec<_> = self.record.runs.iter().filter(is_asked_for).cloned().collect();
        if let Some(peer) = peer {
            show::print_ratios(&ratios, peer, cases, &runs);
        } else {
            show::tables(&self.record.rows(cases, true)).iter().for_each(|table| println!("{table}"));
        }
        // Beside a peer only what it is compared by counts.
        let counts = |case: &&&'static Case| peer.is_none() || case.comparisons.is_empty();
        let limits = self.record.limits(&cases.iter().filter(counts).copied().collect::<Vec<_>>());
        if !limits.is_empty() {
            println!("{}", limits::table(&limits));
        }
        show::print_failures(&runs);
        is_good(&self.record, steps, &limits, &ratios.iter().map(|ratio| ratio.verdict).collect::<Vec<_>>())
    }
}

/// Whether each step was made and has numbers, no run has failed, and all targets are met.
fn is_good(record: &Record, steps: &[Step], limits: &[Limit], verdicts: &[Verdict]) -> bool {
    let is_of = |run: &Run| steps.iter().any(|step| step.case.name == run.case);
    steps.iter().all(|step| record.has(step.case, step.way, step.round))
        && record.runs.iter().all(|run| run.failure.is_none() || !is_of(run))
        && limits::all_met(limits)
        && verdicts.iter().all(|verdict| !matches!(verdict, Verdict::Missed | Verdict::Unmeasured))
}

#[derive(Clone, Copy)]
struct Step {
    pub(crate) case: &'static Case,
    pub(crate) way: FlushWay,
    /// Counted from 1.
    pub(crate) round: u32,
}

/// All runs: in each round all cases, and of each case all ways one after the other, in reverse
/// order every second time. So a change in the load of this computer affects all ways alike.
fn plan(cases: &[&'static Case], args: &AllArgs) -> Vec<Step> {
    let peer = args.peer.map(Peer::subject);
    let is_meant = |way: &FlushWay| match (&args.on[..], peer) {
        ([], Some(peer)) => [Subject::Quell, peer].contains(&way.subject()),
        ([], None) => !way.is_peer(),
        (on, _) => on.contains(&way.subject()),
    };
    let is_there = |case: &&&Case| peer.is_none_or(|peer| case.lacks(peer).is_none());
    let mut steps = Vec::new();
    for round in 1..=args.output.runs {
        for case in cases.iter().filter(is_there).filter(|case| round <= case.rounds(args.output.runs)) {
            let mut ways: Vec<_> = case.ways.iter().copied().filter(is_meant).collect();
            if round.is_multiple_of(2) {
                ways.reverse();
            }
            steps.extend(ways.into_iter().map(|way| Step { case, way, round }));
        }
    }
    steps
}

/// Estimates the duration of these steps: that of runs of the same kind, or the usual one.
fn remaining(steps: &[Step], record: &Record) -> Duration {
    let seconds = steps.iter().map(|step| {
        let is_same = |run: &&Run| run.is_of(step.case, step.way);
        let (sum, count) = record
            .runs
            .iter()
            .filter(is_same)
            .fold((0.0, 0.0), |(sum, count), run| (sum + run.wall, count + 1.0));
        if count > 0.0 { sum / count } else { own::usual(&step.case.work, step.way) }
    });
    Duration::from_secs_f64(seconds.sum())
}

#[cfg(test)]
mod tests {
    use super::record::tests::run;
    use super::way::{HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL};
    use super::*;
    use crate::cli;

    fn args(words: &[&str]) -> AllArgs {
        cli::arguments(words).expect("parses")
    }

    #[test]
    fn cases_are_chosen_by_name_and_long_ones_only_if_asked_for() {
        let names = |words: &[&str]| {
            chosen(&args(words)).map(|cases| cases.iter().map(|c| c.name).collect::<Vec<_>>())
        };
        assert!(!names(&[]).unwrap().contains(&"thrash-128:2"));
        assert!(names(&["--long"]).unwrap().contains(&"thrash-128:2"));
        assert_eq!(names(&["--only", "thrash-128:2", "--only", "boot"]).unwrap(), ["boot", "thrash-128:2"]);
        let family = ["nested-exits", "nested-flush", "nested-touch", "nested-boot", "nested-count"];
        assert_eq!(names(&["--only", "nested"]).unwrap(), family);
        assert_eq!(names(&["--only", "flush"]).unwrap(), ["flush"], "a case of its own");
        assert!(names(&["--long"]).unwrap().iter().all(|name| !name.contains("@kvm")), "nobody asked");
        assert!(names(&["--list"]).unwrap().contains(&"exits@kvm-intel"));
        for (arch, first) in [("x86_64", "boot"), ("aarch64", "arm-boot")] {
            let names = names(&["--arch", arch]).unwrap();
            assert_eq!(names[0], first);
            assert!(names.iter().all(|name| name.starts_with("arm-") == (arch == "aarch64")), "{names:?}");
        }
        let error = names(&["--arch", "aarch64", "--only", "boot"]).expect_err("is none").to_string();
        assert!(error.contains("--arch"), "{error}");
        let error = names(&["--only", "boots"]).expect_err("is refused").to_string();
        assert!(error.contains("'boots'") && error.contains("thrash-8:2"), "{error}");
    }

    #[test]
    fn results_go_where_they_came_from_unless_another_place_is_named() {
        let place = |words: &[&str]| target(&args(words)).map(|path| path.display().to_string());
        assert_eq!(place(&["--resume", "a"]).as_deref(), Some("a"));
        assert_eq!(place(&["--resume", "a", "--json", "b"]).as_deref(), Some("b"));
        assert_eq!(place(&[]), None);
    }

    fn case(name: &str) -> &'static Case {
        CASES.iter().find(|case| case.name == name).expect("is a case")
    }

    #[test]
    fn sides_take_turns_and_every_second_round_is_backwards() {
        let cases = [case("boot"), case("thrash-2:2")];
        let steps = plan(&cases, &args(&["--peer", "kvm", "--runs", "2"]));
        let rounds: Vec<_> = steps.iter().map(|step| step.round).collect();
        assert_eq!(rounds, [[1; 8], [2; 8]].concat());
        let boots: Vec<_> = steps.iter().filter(|s| s.case.name == "boot").map(|step| step.way).collect();
        let there = [HYPERCALL, KVM_HYPERV, KVM_PARAVIRTUAL];
        assert_eq!(boots[..3], there);
        assert_eq!(boots[3..], [there[2], there[1], there[0]]);
        let thrash: Vec<_> = steps[3..8].iter().map(|step| step.way).collect();
        let without_xen = FlushWay::ALL.into_iter().filter(|way| way.subject() != Subject::Xen);
        assert_eq!(thrash, without_xen.collect::<Vec<_>>());
    }

    #[test]
    fn beside_xen_runs_what_a_domain_can_and_the_rest_has_a_reason() {
        let args = args(&["--peer", "xen", "--long", "--runs", "1"]);
        let cases = chosen(&args).expect("there are some");
        let steps = plan(&cases, &args);
        assert!(steps.iter().all(|step| step.way.subject() != Subject::Kvm && !step.way.is_bare()));
        for case in cases.iter().filter(|case| !case.comparisons.is_empty()) {
            let ways = steps.iter().filter(|step| step.case.name == case.name);
            let peers = BTreeSet::from_iter(ways.map(|step| step.way.is_peer()));
            let expected = if case.lacks(Subject::Xen).is_none() { &[false, true][..] } else { &[] };
            assert!(peers.iter().eq(expected), "{}: {peers:?}", case.name);
        }
        let lacks = |name| case(name).lacks(Subject::Xen);
        assert_eq!(["boot", "exits", "flush", "thrash-8:2"].map(lacks), [None; 4]);
        let reasons = BTreeSet::from(["rom", "flush-254", "remove-1G", "exits@skylake"].map(lacks));
        assert!(reasons.len() == 4 && !reasons.contains(&None), "{reasons:?}");
        assert!(CASES.iter().all(|case| case.lacks(Subject::Kvm).is_none()));
    }

    #[test]
    fn without_a_peer_quell_runs_alone_and_counts_run_once() {
        let steps = plan(&[case("rom"), case("exits")], &args(&["--runs", "3"]));
        assert!(steps.iter().all(|step| !step.way.is_peer()));
        let names: Vec<_> = steps.iter().map(|step| step.case.name).collect();
        assert_eq!(names, ["rom", "exits", "rom", "rom"]);
    }

    #[test]
    fn all_is_good_if_each_step_has_numbers_and_each_target_is_met() {
        let steps = plan(&[case("rom")], &args(&["--runs", "2"]));
        let of = |runs: &[super::Run], measured, verdict| {
            let mut record = Record::new(BTreeMap::new(), BTreeMap::new(), Settings { runs: 2, rounds: 1 });
            runs.iter().cloned().for_each(|run| record.add(run));
            is_good(&record, &steps, &[Limit::at_most("a", measured, 1.0)], &[Verdict::More, verdict])
        };
        let made = [1, 2].map(|round| run(case("rom"), HYPERCALL, round, Some(("round", 1.0))));
        let failed = [HYPERCALL, KVM_HYPERV].map(|way| run(case("rom"), way, 2, None));
        assert!(of(&made, 1.0, Verdict::Met));
        assert!(!of(&made[..1], 1.0, Verdict::Met), "a step was not made");
        assert!(!of(&[&made[..1], &failed[..1]].concat(), 1.0, Verdict::Met), "it has failed");
        assert!(!of(&[&made[..], &failed[1..]].concat(), 1.0, Verdict::Met), "a peer's has failed");
        assert!(!of(&made, 1.1, Verdict::Met) && !of(&made, f64::NAN, Verdict::Met));
        assert!(!of(&made, 1.0, Verdict::Missed) && !of(&made, 1.0, Verdict::Unmeasured));
    }

    #[test]
    fn what_took_long_is_going_to_take_as_long() {
        let steps = plan(&[case("rom")], &args(&["--runs", "2"]));
        let mut record = Record::new(BTreeMap::new(), BTreeMap::new(), Settings { runs: 2, rounds: 1 });
        assert!(remaining(&steps, &record) > Duration::from_secs(5));
        record.add(run(case("rom"), HYPERCALL, 1, Some(("round", 1.0))));
        assert_eq!(remaining(&steps[1..], &record), Duration::from_secs(2), "as the first one");
        assert_eq!(remaining(&[], &record), Duration::ZERO);
    }
}
