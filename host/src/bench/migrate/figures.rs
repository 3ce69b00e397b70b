//! The table of the benchmark, and its limits.

use super::{METRICS, case, ways};
use crate::arch::Platform;
use crate::results::{Samples, Subject};
use crate::table::{judge, table};

/// The guest's longest allowed stop while the migration is undone, in ms by the clock: what S5's
/// author reduced it to, from 7 s.
const STOP_MS_MAX: f64 = 1000.0;
/// The same in instructions, our own target: a thousandth of that at one instruction per
/// nanosecond.
const STOP_MAX: f64 = 1e6;

/// Prints the results and their limits; returns whether all are met.
pub(super) fn print(samples: &Samples, platform: Platform) -> bool {
    let ways = ways(platform);
    let mut header = vec![case("longest", platform)];
    for (name, _) in ways {
        header.extend([(*name).to_owned(), "wall".to_owned()]);
    }
    let rows = METRICS.iter().map(|metric| {
        let mut cells = vec![metric.name.to_owned()];
        for (name, _) in ways {
            let of = |metric| samples.of_quell(&case(name, platform), metric);
            cells.extend([format!("{:.0}", of(metric.name)), format!("{:.2} ms", of(metric.wall))]);
        }
        cells
    });
    println!("{}", table(header, rows));
    judge(limits(samples, platform))
}

/// Everything that has a limit: label, value, limit. The worst run counts.
fn limits(samples: &Samples, platform: Platform) -> Vec<(String, f64, f64)> {
    let Some((name, _)) = ways(platform).first() else { return Vec::new() };
    let case = case(name, platform);
    let limit = |metric: &str, limit| {
        let worst = samples.row(&case, Subject::Quell, metric).map_or(f64::NAN, |row| row.max);
        (format!("{case}: {metric}"), worst, limit)
    };
    ["stop while copied", "stop while undone"]
        .into_iter()
        .flat_map(|metric| [limit(metric, STOP_MAX), limit(&format!("{metric}, wall"), STOP_MS_MAX)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arch::ArmCpu;

    const PLATFORMS: [Platform; 2] = [Platform::X86_64, Platform::Aarch64(ArmCpu::Max)];

    #[test]
    fn what_was_not_measured_misses_its_target() {
        for platform in PLATFORMS {
            assert!(!print(&Samples::default(), platform));
        }
    }

    #[test]
    fn each_limit_can_be_missed() {
        for platform in PLATFORMS {
            let of = |factors: [f64; 4]| {
                let mut samples = Samples::default();
                for ((label, _, limit), factor) in limits(&samples, platform).into_iter().zip(factors) {
                    let (case, metric) = label.split_once(": ").expect("has both");
                    samples.add(case, Subject::Quell, metric, "count", limit * factor);
                }
                samples
            };
            assert!(print(&of([1.0; 4]), platform));
            for missed in 0..4 {
                let mut factors = [1.0; 4];
                factors[missed] = 1.01;
                assert!(!print(&of(factors), platform), "{missed}");
            }
        }
    }
}
