//! `bench all` with KVM as the peer, in its smallest form.

use super::budgets::met;
use super::room;
use crate::bench::all;
use crate::test::prelude::*;
use rustix::process::{Pid, Signal, kill_process};
use std::process::Child;

pub(super) const ACTS: &[Named] = &[
    ("bench_all_goes_on_where_it_was_interrupted", goes_on),
    ("bench_all_removes_memory_beside_kvm", removes),
    ("bench_all_has_kvm_on_arm", on_arm),
    ("bochs_peer_is_kvm_on_intel", on_intel),
];

/// The runs, in this order.
const TURNS: [(&str, &str); 5] =
    [("quell", "hypercall"), ("kvm", "hyperv"), ("quell", "ipi"), ("kvm", "ipi"), ("kvm", "paravirtual")];
/// The number of finished runs after which it is interrupted.
const RUNS_BEFORE: usize = 2;
const ON_ARM: [(&str, &str); 3] = [("quell", "own"), ("kvm", "stock-kernel"), ("kvm", "newer-kernel")];
const POLL_PERIOD: Duration = Duration::from_millis(100);
/// The status of a program that was interrupted.
const INTERRUPTED: i32 = 128 + Signal::INT.as_raw();

fn goes_on(room: &Room<'_>) -> Result<()> {
    let file = room.directory.join("all.json");
    let mut tool = bench(&file)?;
    while runs(&file).len() < RUNS_BEFORE {
        ensure!(tool.try_wait()?.is_none(), "it ended after {} runs", runs(&file).len());
        thread::sleep(POLL_PERIOD);
    }
    kill_process(Pid::from_child(&tool), Signal::INT)?;
    let (status, errors) = end(tool)?;
    ensure!(status == Some(INTERRUPTED), "interrupted, it ended with {status:?}:\n{errors}");
    ensure!(errors.contains("the same command goes on"), "it does not say how to go on:\n{errors}");
    let before = runs(&file);
    ensure!((RUNS_BEFORE..TURNS.len()).contains(&before.len()), "{} runs are kept", before.len());

    let (status, errors) = end(bench(&file)?)?;
    ensure!(status == Some(0), "it ended with {status:?}:\n{errors}");
    ensure!(errors.contains(&format!("going on with the {} runs", before.len())), "{errors}");
    let document = read(&file)?;
    is_documented(&document)?;
    let after = runs(&file);
    ensure!(after[..before.len()] == before, "runs that were kept have changed");
    let turns = ways(&after);
    ensure!(turns == TURNS, "the order is {turns:?}");

    refuses_other_versions(&file, document)
}

/// The file has the contents that `docs/json.md` describes.
fn is_documented(document: &Value) -> Result<()> {
    ensure!(document["bench"] == "all", "bench: {}", document["bench"]);
    for key in ["guest_kernel", "peer_kernel", "peer_qemu", "qemu", "commit", "hypervisor_sha256"] {
        ensure!(document["versions"][key].is_string(), "there is no version {key}");
    }
    let list = |key: &str| document[key].as_array().cloned().unwrap_or_default();
    let mut deaths = 0;
    for run in list("runs") {
        let values = run["values"].as_array().cloned().unwrap_or_default();
        for metric in ["userspace", "real", "guest.tlb_ipis"] {
            let value = values.iter().find(|value| value["metric"] == metric);
            ensure!(value.is_some_and(|value| value["value"].is_number()), "a run has no {metric}: {run}");
        }
        ensure!(run["round"] == 1 && run["at"].is_string() && run["wall"].as_f64() > Some(0.0), "{run}");
        deaths += run["deaths"].as_array().map_or(0, Vec::len);
    }
    ensure!(document["deaths"] == deaths, "{} deaths, and runs have {deaths}", document["deaths"]);
    let kvm: Vec<_> = list("setups").into_iter().filter(|setup| setup["subject"] == "kvm").collect();
    let qemu = |word: &str| kvm.iter().filter(|setup| text(&setup["peer_qemu"]).contains(word)).count();
    ensure!(kvm.len() == 3 && qemu("-smp 2") == 3, "setups of KVM: {kvm:?}");
    ensure!((qemu("hv-tlbflush"), qemu("kvm=off")) == (1, 2), "ways of KVM: {kvm:?}");
    ensure!(list("rows").iter().any(|row| row["case"] == "thrash-2:2-paravirtual"), "no row of KVM's");
    let ratios = list("ratios");
    ensure!(ratios.len() == 2, "{} ratios", ratios.len());
    for ratio in ratios {
        ensure!(ratio["pairs"].as_array().map(Vec::len) == Some(1), "no pair: {ratio}");
        ensure!(ratio["ratio"]["median"].as_f64() > Some(0.0), "no ratio: {ratio}");
    }
    Ok(())
}

/// What comes of these cases, and what is said. Whether targets are met does not matter here.
fn measured(file: &Path, arguments: &[&str]) -> Result<(Value, Vec<Value>, String)> {
    let mut tool = command(&[arguments, &["--json"]].concat())?;
    let output = tool.arg(file).output().context("cannot start this program again")?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure!(matches!(output.status.code(), Some(0 | 1)), "it ended with {}:\n{errors}", output.status);
    Ok((read(file)?, runs(file), errors))
}

fn ways(runs: &[Value]) -> Vec<(&str, &str)> {
    runs.iter().map(|run| (text(&run["subject"]), text(&run["way"]))).collect()
}

/// Each hypervisor boots the guest once.
fn on_arm(room: &Room<'_>) -> Result<()> {
    let file = room.directory.join("arm.json");
    let (document, runs, errors) = measured(&file, &["--only", "arm-boot", "--runs", "1"])?;
    let ways = ways(&runs);
    // Only Debian's backports are known.
    let expected = if errors.contains("it is left out") { &ON_ARM[..2] } else { &ON_ARM };
    ensure!(ways == expected, "the runs are {ways:?}:\n{errors}");
    for run in &runs {
        ensure!(run["values"][0]["value"].as_f64() > Some(0.0), "a run has no time: {run}");
    }
    for key in ["guest_kernel", "hypervisor_sha256", "peer_kernel", "peer_qemu"] {
        let key = format!("{key}_aarch64");
        ensure!(document["versions"][&key].is_string(), "there is no version {key}");
    }
    let kernel = |setup: usize| text(&document["setups"][setup]["peer_kernel"]);
    ensure!(!kernel(1).is_empty() && kernel(1) != kernel(2), "both kernels of the peer are {}", kernel(1));
    ensure!(document["ratios"][0]["pairs"][0].is_number(), "there is no pair: {}", document["ratios"]);
    Ok(())
}

/// Both hypervisors count the same exits.
fn on_intel(room: &Room<'_>) -> Result<()> {
    let file = room.directory.join("intel.json");
    let (document, runs, errors) = measured(&file, &["--only", "exits@skylake"])?;
    let ways = ways(&runs);
    ensure!(ways == TURNS[..2], "the runs are {ways:?}:\n{errors}");
    let ratios = document["ratios"].as_array().cloned().unwrap_or_default();
    ensure!(ratios.len() == 6, "{} ratios:\n{errors}", ratios.len());
    for ratio in ratios {
        let exits = ratio["ratio"]["median"].as_f64();
        ensure!(exits.is_some_and(|exits| exits > 0.0 && exits < 1.0), "{ratio}");
    }
    met(all::budgets_in(&file, &["exits@skylake"])?)?;
    let kvm = &document["setups"][1];
    ensure!(text(&kvm["machine"]).contains("skylake"), "{kvm}");
    ensure!(text(&kvm["peer_cmdline"]).contains("tsc_early_khz"), "{kvm}");
    Ok(())
}

/// Results of another emulator are neither extended nor lost.
fn refuses_other_versions(file: &Path, mut document: Value) -> Result<()> {
    document["versions"]["qemu"] = "another".into();
    fs::write(file, document.to_string())?;
    let mut command = command(&[&SMALLEST[..], &["--resume"]].concat())?;
    let output = command.arg(file).output().context("cannot start this program again")?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "it ended with {}:\n{errors}", output.status);
    ensure!(errors.contains("qemu was 'another' and is"), "it does not say why:\n{errors}");
    ensure!(read(file)? == document, "the file has changed");
    Ok(())
}

/// The smallest cases, KVM's for one of them only.
fn removes(room: &Room<'_>) -> Result<()> {
    let file = room.directory.join("slots.json");
    let path = file.to_string_lossy();
    let measure =
        |arguments: &[&str]| workspace::output(&mut tool(&[arguments, &["--json", &path]].concat())?);
    measure(&["--only", "remove-beside-64M", "--peer", "kvm"])?;
    measure(&["--only", "remove-1G", "--only", "log-1G"])?;
    let document = read(&file)?;
    let value = |case: &str, subject: &str, metric: &str| {
        let all = runs(&file);
        let run = all.iter().find(|run| run["case"] == case && run["subject"] == subject);
        let values = run.and_then(|run| run["values"].as_array());
        let found = values.and_then(|all| all.iter().find(|value| value["metric"] == metric));
        let found = found.filter(|value| value["unit"] == "instructions");
        found
            .and_then(|value| value["value"].as_f64())
            .with_context(|| format!("{case} on {subject}: no {metric}"))
    };
    let (beside, pages) = ("remove-beside-64M", 16_384.0);
    let faults = value(beside, "kvm", "touch again")?;
    ensure!(faults > 500.0 * pages, "KVM faults {pages} pages back in by {faults} instructions");
    let none = value(beside, "quell", "touch again")?;
    ensure!(none < 50.0 * pages, "nothing is faulted in, and it takes {none} instructions");
    ensure!(value(beside, "quell", "deletion")? < value(beside, "kvm", "deletion")?, "{document}");
    let (stopped, longest) =
        (value("remove-1G", "quell", "stopped")?, value("remove-1G", "quell", "longest stop")?);
    ensure!(longest > 0.0 && longest < stopped, "stopped for {stopped}, the longest time {longest}");
    for metric in ["enable", "write", "fetch"] {
        value("log-1G", "quell", metric)?;
    }
    let setups = document["setups"].as_array().cloned().unwrap_or_default();
    let kvm = setups.iter().find(|setup| setup["subject"] == "kvm").context("no setup of KVM")?;
    ensure!(text(&kvm["command"]).starts_with("kvmslots ") && kvm["peer_qemu"].is_null(), "{kvm}");
    ensure!(text(&kvm["peer_cmdline"]).contains("tsc=reliable"), "{kvm}");
    Ok(())
}

/// The smallest comparison of all ways.
const SMALLEST: [&str; 6] = ["--only", "thrash-2:2", "--runs", "1", "--rounds", "5"];

/// `bench all` beside KVM, with these arguments.
fn command(more: &[&str]) -> Result<Command> {
    tool(&[&["--peer", "kvm"], more].concat())
}

fn tool(arguments: &[&str]) -> Result<Command> {
    room::tool(&[&["bench", "all"], arguments].concat())
}

fn bench(file: &Path) -> Result<Child> {
    let mut command = command(&[&SMALLEST[..], &["--json"]].concat())?;
    command.arg(file).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().context("cannot start this program again")
}

fn end(tool: Child) -> Result<(Option<i32>, String)> {
    let output = tool.wait_with_output()?;
    Ok((output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn read(file: &Path) -> Result<Value> {
    let bytes = fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(serde_json::from_slice(&bytes)?)
}

/// The runs in the file; empty before there is a file.
fn runs(file: &Path) -> Vec<Value> {
    read(file).ok().and_then(|document| document["runs"].as_array().cloned()).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
