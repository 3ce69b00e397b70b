//! `quell top` beside a guest that works: its rates against the counters before and after it.

use crate::test::prelude::*;
use crate::test::room::tool;

/// What a guest that flushes makes its hypervisor count, on more vCPUs than CPUs.
const fn busy(arch: Arch) -> &'static [&'static str] {
    match arch {
        Arch::X86_64 => &["exit.hypercall", "flush.requests", "irq.injected", "sched.steal"],
        Arch::Aarch64 => &["exit.interrupt", "exit.register.write", "sched.steal"],
    }
}

/// How often it is looked for all of that, in intervals of this many milliseconds.
const TRIES: u32 = 50;
const INTERVAL_MS: &str = "200";

type Rates = BTreeMap<(String, String), f64>;

/// Has another process show the rates of a machine until it has seen all that is counted.
pub(super) fn watch(machine: &Machine, arch: Arch) -> Result<()> {
    let (busy, mut seen) = (busy(arch), BTreeSet::new());
    for _ in 0..TRIES {
        let before = counters(machine)?;
        let rates = top(machine)?;
        let counted = counters(machine)?.since(&before);
        compare(&rates, &counted)?;
        let all = |name: &str| rates.get(&("top".to_owned(), name.to_owned())).copied().unwrap_or(0.0);
        seen.extend(busy.iter().copied().filter(|name| all(name) > 0.0));
        if seen.len() == busy.len() {
            return Ok(());
        }
    }
    bail!("of {busy:?} only {seen:?} were counted in {TRIES} intervals of {INTERVAL_MS} ms")
}

fn counters(machine: &Machine) -> Result<Snapshot> {
    machine.counters()?.context("there are no counters")
}

/// What `quell top --once` writes and shows of a machine.
fn top(machine: &Machine) -> Result<Rates> {
    let directory = tempfile::tempdir()?;
    let (file, name) = (directory.path().join("top.json"), machine.name().context("it has no name")?);
    let mut top = tool(&["top", "--once", "--interval", INTERVAL_MS, "--vm", &name, "--json"])?;
    let said = workspace::output(top.arg(&file))?;
    ensure!(said.starts_with(&format!("machine {name}: ")), "quell top shows another machine:\n{said}");
    ensure!(!said.contains('\x1b'), "there are colours where there is no terminal:\n{said}");
    let document: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    ensure!(document["bench"] == "top", "the file is not of quell top: {}", document["bench"]);
    let rows = document["rows"].as_array().context("there are no rows")?;
    let rate = |row: &Value| {
        let text = |field: &str| row[field].as_str().map(str::to_owned).context("a row lacks a field");
        Ok(((text("case")?, text("metric")?), row["median"].as_f64().context("a rate is no number")?))
    };
    rows.iter().map(rate).collect()
}

/// Counts of the interval lie between those before and after it; vCPUs' rates add up to the
/// machine's.
fn compare(rates: &Rates, counted: &Snapshot) -> Result<()> {
    let rate = |case: &str, name: &str| rates.get(&(case.to_owned(), name.to_owned())).copied();
    let seconds = rate("top", "interval").context("the interval is missing")?;
    let vcpus = counted.each().count();
    for (name, limit) in counted.iter() {
        let all = rate("top", name).with_context(|| format!("the rate of {name} is missing"))?;
        let sum: f64 = (0..vcpus).filter_map(|vcpu| rate(&format!("vcpu-{vcpu}"), name)).sum();
        ensure!((all - sum).abs() <= 1e-6 * all.max(1.0), "{name}: {all} in all, but {sum} of the vCPUs");
        if name == "sched.steal" {
            // A part of the time, of each vCPU. A wait is counted at its end: it may be long.
            continue;
        }
        let count = (all * seconds).round();
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let most = limit as f64;
        ensure!(count <= most, "{name}: {count} in the interval, but {limit} in a longer time around it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostlink::counters::Counter;

    #[test]
    fn rates_that_do_not_fit_the_counters_are_noticed() {
        let counted = Snapshot::of_counts(&[&[(Counter::ExitIo, 10)], &[]]);
        let key = |case: &str, name: &str| (case.to_owned(), name.to_owned());
        let mut rates: Rates = counted.iter().map(|(name, _)| (key("top", name), 0.0)).collect();
        rates.insert(key("top", "interval"), 2.0);
        compare(&rates, &counted).expect("nothing was counted in the interval");
        let set = |all: f64, vcpu: f64| {
            let mut rates = rates.clone();
            rates.insert(key("top", "exit.io"), all);
            rates.insert(key("vcpu-1", "exit.io"), vcpu);
            compare(&rates, &counted).map_err(|error| error.to_string())
        };
        assert_eq!(set(5.0, 5.0), Ok(()));
        assert!(set(6.0, 6.0).is_err_and(|why| why.contains("12 in the interval, but 10")));
        assert!(set(5.0, 4.0).is_err_and(|why| why.contains("but 4 of the vCPUs")));
        rates.remove(&key("top", "exit.io"));
        assert!(compare(&rates, &counted).is_err());
    }
}
