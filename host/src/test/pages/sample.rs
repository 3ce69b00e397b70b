//! A report of made-up traces and results.

use crate::cli::ReportArgs;
use crate::test::prelude::*;
use crate::trace::collect::{Collected, CpuRecords};
use crate::{report, trace};
use hostlink::trace::{Event, Record};

/// Flushes of the trace by hypercall.
pub(super) const FLUSHES: u64 = 40;

/// Makes a report of two traces and some results.
pub(super) fn sample(directory: &Path) -> Result<PathBuf> {
    let path = |name: &str| directory.join(name);
    trace::write(&path("hypercall.json"), &collected(true))?;
    trace::write(&path("ipi.json"), &collected(false))?;
    fs::write(path("all.json"), results().to_string())?;
    let args = ReportArgs {
        results: Some(path("all.json")),
        trace: vec![path("hypercall.json"), path("ipi.json")],
        window: 20,
        from: None,
        output: path("report <1>.html"),
        screenshots: None,
        picture: None,
    };
    report::write(&args)?;
    Ok(args.output)
}

/// Two CPUs. vCPU 0 makes vCPU 1, which runs, and vCPU 2, which does not, flush, by either method.
fn collected(by_hypercall: bool) -> Collected {
    let mut cpus = [CpuRecords::default(), CpuRecords::default()];
    let mut put = |cpu: usize, us: u64, event, vcpu, detail, a, b| {
        cpus[cpu].records.push(Record { time: us, event, vcpu, detail, a, b });
    };
    let [exit, wait, kicked] =
        [Counter::ExitHypercall, Counter::ExitWait, Counter::ExitInterrupt].map(|counter| counter as u32);
    for round in 0..FLUSHES {
        let at = 100 * round;
        put(0, at, Event::Enter, 0, 0, 0, 0);
        put(1, at + 1, Event::Enter, 1, 0, 0, 0);
        put(0, at + 40, Event::Exit, 0, exit, 0, 0);
        if by_hypercall {
            put(0, at + 41, Event::FlushAsked, 0, 0, 0b110, 3);
            put(0, at + 42, Event::Kick, 0, 1, 0, 0);
            put(0, at + 60, Event::FlushDone, 0, 1, 2 | 1 << 32, 1);
            put(1, at + 51, Event::FlushTaken, 1, 0, 3, 0);
        } else {
            put(0, at + 41, Event::Posted, 1, 0xfb, 0, 0);
            put(0, at + 42, Event::Posted, 2, 0xfb, 0, 0);
        }
        put(1, at + 50, Event::Exit, 1, kicked, 0, 0);
        put(1, at + 70, Event::TurnBegins, 2, 1, 0, 0);
        put(1, at + 71, Event::FlushTaken, 2, 1, 0, 0);
        put(1, at + 72, Event::Enter, 2, 0, 0, 0);
        put(1, at + 95, Event::Exit, 2, if round % 2 == 0 { wait } else { kicked }, 0, 0);
    }
    for cpu in &mut cpus {
        cpu.records.sort_by_key(|record| record.time);
    }
    Collected { hz: 1_000_000, cpus: cpus.into() }
}

/// Results with each kind of plot.
fn results() -> Value {
    let spread = |median: f64| json!({"median": median, "min": median * 0.9, "max": median * 1.2});
    let ratio = |case: &str, metric: &str, ratio: f64, target: Option<f64>, verdict: &str| {
        json!({
            "case": case, "metric": metric, "unit": "instructions", "way": "hypercall", "peer": "kvm",
            "peer_way": "hyperv", "quell": spread(ratio * 1000.0), "theirs": spread(1000.0), "pairs": [ratio],
            "ratio": spread(ratio), "equal": false, "target": target, "verdict": verdict,
        })
    };
    let ratios = [
        ratio("exits", "cpuid", 0.12, Some(0.15), "met"),
        ratio("flush", "space-idle-1", 0.16, Some(0.1), "missed"),
        ratio("thrash-2:2", "real", 0.1, None, "less"),
        ratio("thrash-8:2", "real", 0.1, Some(0.3), "met"),
        ratio("thrash-16:2", "real", 0.1, None, "less"),
        ratio("flush", "space-idle-64", 0.08, Some(0.1), "met"),
    ];
    let (mut runs, mut setups) = (Vec::new(), Vec::new());
    let ways =
        [("quell", "hypercall", 0.3), ("quell", "ipi", 1.1), ("kvm", "hyperv", 2.7), ("kvm", "ipi", 2.0)];
    for (subject, way, factor) in ways {
        for vcpus in [2.0, 8.0, 16.0] {
            let case = format!("thrash-{vcpus}:2");
            setups.push(json!({
                "case": case, "subject": subject, "way": way, "machine": "2 CPUs", "cmdline": "quiet",
                "guest": format!("{vcpus} vCPUs, 512 MiB"),
            }));
            for (round, noise) in [(1, 1.0), (2, 1.1), (3, 0.95)] {
                let value = |metric: &str, unit: &str, value: f64| json!({"metric": metric, "unit": unit, "value": value * noise});
                runs.push(json!({
                    "case": case, "subject": subject, "way": way, "round": round,
                    "at": "", "wall": 1.0, "deaths": [],
                    "values": [value("real", "s", factor * vcpus / 8.0), value("userspace", "s", factor + vcpus)],
                }));
            }
        }
        let delete = |size: &str, ms: f64| json!({"metric": format!("delete-{size}"), "unit": "ms", "value": ms * factor});
        runs.push(json!({
            "case": "slots", "subject": subject, "way": way, "round": 1,
            "at": "", "wall": 1.0, "deaths": [],
            "values": [delete("256M", 1.0), delete("1G", 3.5), delete("2G", 8.0)],
        }));
    }
    json!({
        "bench": "all", "machine": {"cpu": "an emulated one"}, "versions": {"quell": "0.1.0"},
        "ratios": ratios, "runs": runs, "setups": setups,
    })
}

#[test]
fn the_sample_is_what_the_report_reads() {
    let directory = tempfile::tempdir().unwrap();
    sample(directory.path()).unwrap();
}
