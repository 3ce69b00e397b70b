//! Compares Quell's numbers with its peer's, pair by pair: the runs of a round belong together.

use super::cases::{Case, Comparison};
use super::record::Run;
use super::way::FlushWay;
use crate::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verdict {
    Met,
    Missed,
    /// There is no target; Quell takes less, more, or the same within the spread.
    Less,
    More,
    Equal,
    /// One side has no numbers.
    Unmeasured,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Ratio {
    pub(crate) case: &'static str,
    pub(crate) metric: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) unit: Option<String>,
    /// How Quell's guest flushes.
    pub(crate) way: &'static str,
    pub(crate) peer: Subject,
    /// The best of the peer's ways, which is the one with the least median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) peer_way: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) quell: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) theirs: Option<Spread>,
    /// The ratio in each round that has both, in order of rounds.
    pub(crate) pairs: Vec<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ratio: Option<Spread>,
    /// Whether the sides differ by less than the ratios do among themselves.
    pub(crate) equal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<f64>,
    pub(crate) verdict: Verdict,
}

pub(crate) fn ratios(case: &'static Case, peer: Subject, runs: &[Run]) -> Vec<Ratio> {
    let compared = case.comparisons.iter().filter(|comparison| comparison.of(peer).next().is_some());
    compared.map(|comparison| ratio(case, comparison, peer, runs)).collect()
}

fn ratio(case: &'static Case, comparison: &Comparison, peer: Subject, runs: &[Run]) -> Ratio {
    let numbers = |way| series(case, way, comparison.metric, runs);
    let quell = numbers(comparison.quell);
    let peers = comparison.of(peer).map(|way| (way, numbers(way)));
    let best = peers
        .filter_map(|(way, numbers)| Some((spread(&numbers)?.median, way, numbers)))
        .min_by(|left, right| left.0.total_cmp(&right.0));
    let (peer_way, theirs) =
        best.map_or((None, Vec::new()), |(_, way, numbers)| (Some(way.flushes()), numbers));
    let pairs: Vec<f64> = pair(&quell, &theirs);
    let ratio = Spread::of(&pairs);
    let equal = ratio.is_some_and(Spread::is_equal);
    let target = comparison.target.filter(|_| peer == Subject::Kvm);
    Ratio {
        case: case.name,
        metric: comparison.metric,
        unit: unit(case, comparison.metric, runs),
        way: comparison.quell.flushes(),
        peer,
        peer_way,
        quell: spread(&quell),
        theirs: spread(&theirs),
        pairs,
        ratio,
        equal,
        target,
        verdict: verdict(ratio, equal, target),
    }
}

/// If the target is 1 or more, equal is good enough.
fn verdict(ratio: Option<Spread>, equal: bool, target: Option<f64>) -> Verdict {
    match (ratio, target) {
        (None, _) => Verdict::Unmeasured,
        (Some(ratio), Some(target)) if ratio.median <= target || (equal && target >= 1.0) => Verdict::Met,
        (Some(_), Some(_)) => Verdict::Missed,
        (Some(_), None) if equal => Verdict::Equal,
        (Some(ratio), None) if ratio.median < 1.0 => Verdict::Less,
        (Some(ratio), None) if ratio.median > 1.0 => Verdict::More,
        (Some(_), None) => Verdict::Equal,
    }
}

/// The numbers of a case in one way, by round.
pub(crate) fn series(case: &Case, way: FlushWay, metric: &str, runs: &[Run]) -> Vec<(u32, f64)> {
    let runs = runs.iter().filter(|run| run.is_of(case, way));
    runs.filter_map(|run| Some((run.round, run.value(metric)?.value))).collect()
}

pub(crate) fn spread(numbers: &[(u32, f64)]) -> Option<Spread> {
    Spread::of(&numbers.iter().map(|(_, number)| *number).collect::<Vec<_>>())
}

/// The ratio of left to right in each round that has both.
fn pair(left: &[(u32, f64)], right: &[(u32, f64)]) -> Vec<f64> {
    let of_round = |round: u32| right.iter().find(|(other, _)| *other == round).map(|(_, number)| *number);
    let pairs = left.iter().filter_map(|(round, number)| Some((*number, of_round(*round)?)));
    pairs.filter(|(_, right)| *right > 0.0).map(|(left, right)| left / right).collect()
}

fn unit(case: &Case, metric: &str, runs: &[Run]) -> Option<String> {
    let mut runs = runs.iter().filter(|run| run.case == case.name);
    runs.find_map(|run| run.value(metric)).map(|value| value.unit.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::cases::CASES;
    use super::super::record::tests::run;
    use super::super::way::{HYPERCALL, IPI, KVM_HYPERV, KVM_IPI, KVM_PARAVIRTUAL, XEN_PARAVIRTUAL};
    use super::*;

    fn thrash() -> &'static Case {
        CASES.iter().find(|case| case.name == "thrash-8:2").expect("is a case")
    }

    #[test]
    fn only_runs_of_one_round_are_a_pair() {
        assert_eq!(pair(&[(1, 1.0), (2, 3.0), (4, 5.0)], &[(2, 6.0), (1, 4.0), (3, 1.0)]), [0.25, 0.5]);
        assert!(pair(&[(1, 1.0)], &[(1, 0.0)]).is_empty(), "nothing is relative to nothing");
    }

    #[test]
    fn a_difference_within_the_spread_is_none() {
        let equal = |ratios: &[f64]| Spread::of(ratios).expect("are some").is_equal();
        assert!(equal(&[0.9, 1.02, 1.1]));
        assert!(!equal(&[0.9, 0.8, 0.85]), "all are less, by more than they differ");
        assert!(equal(&[0.7, 0.9, 0.98]), "the middle is nearer to 1 than the others to each other");
        assert!(!equal(&[0.1, 0.12, 0.17]) && !equal(&[8.0, 9.0, 10.0]));
        assert!(equal(&[0.5, 0.8, 1.25]) && equal(&[2.0, 1.25, 0.8]), "whichever side is first");
        assert!(!equal(&[0.99]) && !equal(&[1.01, 1.01]), "without a spread everything differs");
    }

    #[test]
    fn the_peers_best_way_is_what_is_compared_with() {
        let mut runs = Vec::new();
        for round in 1..=3 {
            for (way, real) in [(HYPERCALL, 0.3), (KVM_HYPERV, 2.7), (KVM_PARAVIRTUAL, 1.2), (KVM_IPI, 2.0)] {
                runs.push(run(thrash(), way, round, Some(("real", real))));
            }
            runs.push(run(thrash(), XEN_PARAVIRTUAL, round, Some(("real", 0.6))));
            runs.push(run(thrash(), IPI, round, (round != 2).then_some(("real", 1.6))));
        }
        let [by_call, by_ipi] = &ratios(thrash(), Subject::Kvm, &runs)[..] else { panic!("two comparisons") };
        assert_eq!(
            (by_call.peer_way, by_call.verdict, by_call.pairs.len()),
            (Some("paravirtual"), Verdict::Met, 3)
        );
        assert!((by_call.ratio.expect("is one").median - 0.25).abs() < 1e-9);
        assert_eq!((by_ipi.peer_way, by_ipi.verdict, by_ipi.pairs.len()), (Some("ipi"), Verdict::Missed, 2));
        assert_eq!(ratios(thrash(), Subject::Kvm, &runs[..1])[0].verdict, Verdict::Unmeasured);
        let [beside_xen] = &ratios(thrash(), Subject::Xen, &runs)[..] else { panic!("one comparison") };
        assert_eq!((beside_xen.peer, beside_xen.peer_way), (Subject::Xen, Some("paravirtual")));
        assert_eq!((beside_xen.verdict, beside_xen.target), (Verdict::Less, None), "targets are for KVM");
    }

    #[test]
    fn targets_of_no_difference_are_met_by_what_is_equal() {
        let of = |ratios: &[f64], target| {
            let spread = Spread::of(ratios);
            verdict(spread, spread.is_some_and(Spread::is_equal), target)
        };
        assert_eq!(of(&[0.95, 1.05, 1.1], Some(1.0)), Verdict::Met);
        assert_eq!(of(&[1.2, 1.21, 1.22], Some(1.0)), Verdict::Missed);
        assert_eq!(of(&[0.7, 0.9, 1.3], Some(0.8)), Verdict::Missed, "equal is not 0.8");
        assert_eq!(of(&[0.5], None), Verdict::Less);
        assert_eq!(of(&[2.0], None), Verdict::More);
        assert_eq!(of(&[0.9, 1.1], None), Verdict::Equal);
    }
}
