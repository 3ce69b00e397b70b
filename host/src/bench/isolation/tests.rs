//! Which figures meet the targets, and what is run.

use super::*;
use crate::cli::{self, AttackOptions, Overrides};
use crate::machine_file::MachineFile;

const PLAN: Plan =
    Plan { attack: Attack::Ipis, weights: [100, 100], is_pinned: false, seed: 1, flushes: 100, batches: 5 };
const UNEQUAL: [u32; 2] = [100, 300];

fn missed_of(plan: &Plan, figures: &Figures, quiet: Option<f64>) -> Vec<String> {
    limits(plan, &of_run(plan, figures), quiet).iter().filter_map(Limit::missed).collect()
}

fn figures(share: f64, p99_ns: u64) -> Figures {
    Figures {
        share,
        attackers_share: 1.0 - share,
        latencies: Latencies([(1000, 98), (p99_ns, 2)].into()),
        tally: Tally::default(),
        speed: 1.0,
        interrupts: 1.0,
        exits: 1.0,
        resets: 0,
    }
}

#[test]
fn a_share_that_is_too_small_is_missed_and_one_that_is_too_large_beside_an_equal() {
    let missed = |plan: &Plan, share| missed_of(plan, &figures(share, 2000), Some(1.0)).len();
    assert_eq!([0.47, 0.476, 0.5, 0.9].map(|share| missed(&PLAN, share)), [1, 0, 0, 0]);
    let equal = Plan { attack: Attack::Compute, ..PLAN };
    assert_eq!([0.47, 0.48, 0.52, 0.53].map(|share| missed(&equal, share)), [1, 0, 0, 1]);
    let unequal = Plan { weights: UNEQUAL, ..PLAN };
    assert_eq!([0.7, 0.72].map(|share| missed(&unequal, share)), [1, 0]);
    assert_eq!(missed(&PLAN, f64::NAN), 1, "what was not measured");
}

#[test]
fn flushes_are_compared_with_those_of_the_quiet_machine() {
    let missed = |p99_ns, quiet| missed_of(&PLAN, &figures(0.5, p99_ns), quiet).len();
    assert_eq!([6_900_000, 7_100_000].map(|ns| missed(ns, Some(1.0))), [0, 1]);
    assert_eq!(missed(7_100_000, None), 0, "times are not compared");
    let none = Figures { latencies: Latencies::default(), ..figures(0.5, 1) };
    assert_eq!(missed_of(&PLAN, &none, Some(1.0)).len(), 1, "what was not measured");
}

#[test]
fn of_several_runs_the_median_time_counts_and_each_share() {
    let case = |runs: &[(f64, u64)]| {
        let runs: Vec<_> = runs.iter().map(|&(share, ns)| of_run(&PLAN, &figures(share, ns))).collect();
        let of = |metric: &str| {
            let values = runs.iter().filter_map(|run| Some(run(metric)?.median));
            Spread::of(&values.collect::<Vec<_>>())
        };
        limits(&PLAN, &of, Some(1.0)).iter().filter(|limit| !limit.is_met()).count()
    };
    assert_eq!(case(&[(0.5, 1_000_000), (0.5, 2_000_000), (0.5, 90_000_000)]), 0);
    assert_eq!(case(&[(0.5, 1_000_000), (0.5, 8_000_000), (0.5, 90_000_000)]), 1);
    assert_eq!(case(&[(0.4, 1_000_000), (0.5, 2_000_000), (0.4, 3_000_000)]), 1);
}

#[test]
fn all_that_was_measured_is_judged() {
    let run = of_run(&PLAN, &figures(0.5, 8_000_000));
    let of = |metric: &str| match metric.split_once(": ") {
        Some(("halt" | "ipis", metric)) => run(metric),
        Some(_) => None,
        None => Spread::of(&[1.0]),
    };
    let limits = all_limits(&of);
    let missed: Vec<_> = limits.iter().filter_map(Limit::missed).collect();
    assert_eq!((limits.len(), missed.len()), (11, 1), "{missed:?}");
    assert!(missed[0].starts_with(FAILED));
}

#[test]
fn whatever_has_changed_is_missed() {
    let none = Tally::default();
    for tally in [Tally { stale: 1, ..none }, Tally { words: 1, ..none }, Tally { registers: 1, ..none }] {
        let missed = missed_of(&PLAN, &Figures { tally, ..figures(0.5, 1) }, None);
        assert!(missed.len() == 1 && missed[0].ends_with(": 1.000, which has to be ≤ 0.000"), "{missed:?}");
    }
}

#[test]
fn the_quiet_machine_is_always_first() {
    let plans = |words: &[&str]| {
        super::plans(&cli::arguments(words).expect("parses")).iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(
        plans(&["--attack", "mixture,ipis"]),
        ["halt", "ipis", "mixture", "mixture-1:3", "mixture-pinned"]
    );
    assert_eq!((plans(&[]).len(), &*plans(&[])[0]), (Attack::ALL.len() + 6, "halt"));
    assert_eq!(plans(&["--attack", "disk"]), ["halt", "disk", "disk-pinned"]);
    assert_eq!(
        plans(&["--attack", "compute"])[1..],
        ["compute", "compute-1:3", "compute-pinned", "compute-pinned-1:1000"]
    );
    assert!(cli::arguments::<AttackOptions>(&["--attack", "none"]).is_err());
}

#[test]
fn the_machine_file_of_a_case_is_one() {
    let directory = tempfile::tempdir().expect("makes");
    let path = directory.path().join("pair.toml");
    for platform in [Platform::X86_64, Platform::Aarch64(ArmCpu::CortexA72)] {
        let plan = Plan { weights: UNEQUAL, ..PLAN };
        std::fs::write(&path, plan.file(platform)).expect("writes");
        let file = MachineFile::read(&path, Overrides::default()).expect("is one");
        assert_eq!((file.machine.platform, file.machine.cpus), (platform, 2));
        let weights: Vec<_> = file.guests.iter().map(|guest| guest.config.weight).collect();
        assert_eq!(weights, UNEQUAL);
        assert_eq!(file.guests[0].cmdline.as_deref(), Some("test=attack attack=ipis seed=1"));
        assert!(file.guests.iter().all(|guest| guest.devices.is_empty()));
    }
}

#[test]
fn a_pinned_attacker_is_due_its_cpu_at_most() {
    for (weights, is_pinned, share) in [
        ([100, 100], false, 0.5),
        (UNEQUAL, false, 0.75),
        (UNEQUAL, true, 0.75),
        ([100, 100], true, 0.5),
        ([300, 100], false, 0.25),
        ([300, 100], true, 0.5),
    ] {
        let plan = Plan { weights, is_pinned, ..PLAN };
        assert!((plan.share() - share).abs() < 1e-9, "{plan:?}");
        let file = plan.file(Platform::X86_64);
        assert_eq!(file.contains("cpus = [1]"), is_pinned, "{file}");
    }
}

fn batch(number: u64, units: u64, latency: &Value) -> Value {
    json!({
        "event": "batch", "batch": number, "units": units, "stale": 0, "words": 1, "registers": 2,
        "stops": number, "stopped_ns": 10 * number, "longest_ns": 7, "latency": latency,
    })
}

#[test]
fn quantiles_are_those_of_all_batches_since_the_beginning() {
    let mut batches = Batches::default();
    batches.take(&batch(1, 100, &json!([[9_000_000, 50]]))).expect("is one");
    assert_eq!((batches.measured(), batches.latencies.count()), (0, 0));
    batches.begin();
    batches.take(&batch(2, 150, &json!([[1_000_000, 98], [2_000_000, 1]]))).expect("is one");
    batches.take(&batch(3, 180, &json!([[4_000_000, 1]]))).expect("is one");
    let latencies = &batches.latencies;
    assert_eq!((batches.measured(), latencies.count()), (2, 100));
    assert!((latencies.quantile(0.5) - 1.0).abs() < 1e-9 && (latencies.quantile(0.99) - 2.0).abs() < 1e-9);
    assert!((latencies.quantile(1.0) - 4.0).abs() < 1e-9);
    let tally = batches.tally();
    assert_eq!((tally.units, tally.stops, tally.stopped_ns), (80, 2, 20));
    assert_eq!((tally.words, tally.registers), (1, 2), "whenever they were found");
}

#[test]
fn what_is_missing_is_an_error() {
    let mut batches = Batches::default();
    assert!(batches.take(&batch(2, 0, &json!([]))).is_err(), "the first is missing");
    assert!(batches.take(&json!({"batch": 1, "units": 3})).is_err());
    batches.take(&batch(1, 0, &json!([["x", 1]]))).expect("it is not measured yet");
    batches.begin();
    assert!(batches.take(&batch(2, 0, &json!([["x", 1]]))).is_err());
    assert!(Latencies::default().quantile(0.99).is_nan());
}
