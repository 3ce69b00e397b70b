//! `quell bench paging`: the page tables on the host, compared with those of other crates.

use super::{all, limits};
use crate::cli::PagingArgs;
use crate::prelude::*;
use crate::results::Writer;
use std::thread::available_parallelism;

/// Pages that one iteration maps or unmaps.
const PAGES: f64 = 131_072.0;
const CASES: [&str; 2] = ["map-512M-4K", "unmap-512M-4K"];
const PEERS: [&str; 2] = ["x86_64", "page_table_multiarch"];
const FAULTS: &str = "faults";
/// Minimum rates of threads that fault at once, relative to one.
const SCALING_MIN: [(u32, f64); 2] = [(2, 1.8), (4, 3.2)];

pub(crate) fn paging(args: &PagingArgs) -> Result<u8> {
    let mut samples = Samples::default();
    eprintln!("mapping and unmapping 512 MiB in pages of 4 KiB, by three crates in turn …");
    bench("peers", Stdio::null())?;
    let criterion = workspace::root().join("target/criterion");
    for case in CASES {
        for who in ["quell"].into_iter().chain(PEERS) {
            let path = criterion.join(case).join(who).join("new/estimates.json");
            samples.add(&format!("{case}-{who}"), Subject::Quell, "time", "ns", median(&path)? / PAGES);
        }
    }
    eprintln!("1, 2 and 4 threads that fault pages of 4 KiB into one table …");
    for line in bench("faults", Stdio::piped())?.lines() {
        faults(line, &mut samples)?;
    }
    let limits = limits(&samples);
    all::tables(samples.rows()).iter().for_each(|table| println!("{table}"));
    println!("{}", limits::table(&limits));
    if let Some(path) = &args.json {
        Writer::new(path.clone(), "paging", None).write(samples.rows(), &limits)?;
    }
    Ok(u8::from(!limits::all_met(&limits)))
}

/// Runs a benchmark of the crate; returns its output if that is piped.
fn bench(name: &str, output: Stdio) -> Result<String> {
    let mut command = workspace::cargo();
    command.args(["bench", "--quiet", "--package", "quell-paging", "--bench", name]);
    command.args(["--target-dir"]).arg(workspace::root().join("target"));
    let output = command.stdout(output).output().context("cannot run cargo")?;
    if !output.status.success() {
        io::Write::write_all(&mut io::stderr(), &output.stderr)?;
        bail!("the benchmark {name} failed");
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Nanoseconds per iteration, from criterion's files.
fn median(path: &Path) -> Result<f64> {
    let text = fs::read(path).with_context(|| format!("criterion left no {}", path.display()))?;
    let estimates: Value = serde_json::from_slice(&text)?;
    estimates["median"]["point_estimate"].as_f64().context("criterion's estimates have no median")
}

/// Reads a line of the table of threads; skips its header.
fn faults(line: &str, samples: &mut Samples) -> Result<()> {
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let Some(threads) = words.first().and_then(|word| word.parse::<u32>().ok()) else { return Ok(()) };
    ensure!(words.len() >= 5, "unexpected line '{line}'");
    let case = format!("{FAULTS}-{threads}");
    for (metric, unit, word) in [
        ("wall", "Mfaults/s", words[1]),
        ("a core for each", "Mfaults/s", words[2]),
        ("failed exchanges", "count", words[4]),
    ] {
        samples.add(&case, Subject::Quell, metric, unit, word.parse().with_context(|| line.to_owned())?);
    }
    Ok(())
}

/// Nanoseconds per page.
fn time(samples: &Samples, case: &str, who: &str) -> f64 {
    samples.of_quell(&format!("{case}-{who}"), "time")
}

fn limits(samples: &Samples) -> Vec<Limit> {
    let fastest = |case| PEERS.into_iter().map(|who| time(samples, case, who)).fold(f64::INFINITY, f64::min);
    let [map, unmap] = CASES.map(|case| time(samples, case, "quell") / fastest(case));
    let cores = available_parallelism().map_or(1, usize::from);
    // With fewer cores than threads, by the time that each thread has had on a core.
    let faults = SCALING_MIN.map(|(threads, least)| {
        let metric = if cores >= threads as usize { "wall" } else { "a core for each" };
        let rate = |threads: u32| samples.of_quell(&format!("{FAULTS}-{threads}"), metric);
        let relative = rate(1) * f64::from(threads) / rate(threads);
        let label = format!("{threads} threads: time of a fault, relative to one thread's");
        Limit::at_most(label, relative, f64::from(threads) / least)
    });
    let relative = [
        Limit::at_most("map, relative to the fastest other", map, 1.0),
        Limit::at_most("unmap, relative to the fastest other", unmap, 1.0),
    ];
    let failed = samples.of_quell("faults-4", "failed exchanges");
    let failed = Limit::shown("4 threads: exchanges that failed", failed);
    relative.into_iter().chain(faults).chain([failed]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_not_measured_is_not_within_its_limit() {
        let limits = limits(&Samples::default());
        assert!(limits.iter().all(|limit| !limit.is_met()), "{limits:?}");
    }

    #[test]
    fn lines_of_threads_are_read() {
        let mut samples = Samples::default();
        faults("threads Mfaults/s wall", &mut samples).expect("is a header");
        faults("      2           51.4           60.0     1.67x           0 0.00195/fault", &mut samples)
            .expect("reads");
        assert!((samples.of_quell("faults-2", "wall") - 51.4).abs() < 1e-9);
        assert!(faults("4 x", &mut samples).is_err());
    }
}
