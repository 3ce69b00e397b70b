//! The expectations for a run.

use crate::machine::counters::Snapshot;
use crate::machine::emulator::describe;
use crate::machine::process::CONSOLE_BYTES;
use crate::test::cases::{
    FLOOD_CLAIM, FLOOD_REPORTS, Hostile, LOOPS, LOOPS_COUNT, LOOPS_ROUNDS, LOOPS_TASKS,
};
use crate::test::prelude::*;
use hostlink::config::NestedPage;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest log of a run with a bare guest, whose runs are short.
const LOG_BYTES_MAX: usize = 32 << 10;

/// How often CPUs drop everything at least if generations of VMIDs begin all the time.
const GENERATIONS_MIN: u64 = 1000;

fn counters(outcome: &Outcome) -> Result<&Snapshot> {
    outcome.counters.as_ref().context("there are no counters")
}

pub(super) fn count(outcome: &Outcome, counter: Counter) -> Result<u64> {
    Ok(counters(outcome)?.get(counter))
}

/// The guest's time is correct to a day: no test is that slow, no wrong clock that right.
pub(super) fn expect_date(outcome: &Outcome) -> Result<()> {
    const DAY: u64 = 86_400;
    let said = outcome.report("date").and_then(|report| report["unix"].as_u64());
    let said = said.context("the guest did not say what time it is")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    ensure!(said.abs_diff(now) < DAY, "the guest says it is {said}, and it is {now}");
    Ok(())
}

pub(super) fn expect_end(outcome: &Outcome, expected: ExitCode) -> Result<()> {
    match outcome.end {
        End::Hypervisor(code) if code == expected => Ok(()),
        End::Failed(status) => {
            let Outcome { emulator, qemu_messages, .. } = outcome;
            bail!("{emulator} failed ({}): {}", describe(status), qemu_messages.trim())
        }
        end => bail!("ended by {end:?} instead of {expected:?}"),
    }
}

/// Whatever a guest does, the hypervisor's log stays short.
pub(super) fn check_log(outcome: &Outcome) -> Result<()> {
    let length = outcome.log.len();
    ensure!(length <= LOG_BYTES_MAX, "the hypervisor's log has {length} bytes");
    Ok(())
}

/// The guest's report, if it survives to make one.
pub(super) fn expect_verdict(outcome: &Outcome, test: &Hostile) -> Result<()> {
    let name = test.test.split(' ').next().unwrap_or(test.test);
    let reports = || outcome.reports.iter().filter(|report| report["result"].is_string());
    if let Some(failure) = reports().find(|report| report["result"] != "pass") {
        bail!("the guest says: {}", failure["why"]);
    }
    let has_passed = reports().any(|report| report["test"] == name);
    ensure!(has_passed || test.end != ExitCode::GuestPowerOff, "no report of {name}");
    Ok(())
}

pub(super) fn expect_status(outcome: &Outcome, expected: i32) -> Result<()> {
    let exit = outcome.report("exit").context("the command did not come to its end")?;
    ensure!(exit["status"] == expected, "the command's status is {}", exit["status"]);
    Ok(())
}

/// The hunter remapped in every way it knows, and its readers saw pages change. So of all runs
/// together.
pub(super) fn expect_a_search(outcome: &Outcome) -> Result<()> {
    let (mut remaps, mut changes) = (BTreeMap::<&str, u64>::new(), 0);
    for end in outcome.reports.iter().filter(|report| report["event"] == "end") {
        for (way, count) in end["remaps"].as_object().into_iter().flatten() {
            *remaps.entry(way).or_default() += count.as_u64().unwrap_or(0);
        }
        changes += end["changes"].as_u64().unwrap_or(0);
    }
    ensure!(!remaps.is_empty(), "the hunter did not come to its end");
    ensure!(remaps.values().all(|count| *count != 0), "not all ways were tried: {remaps:?}");
    ensure!(changes > 0, "the readers saw no change: {remaps:?}");
    Ok(())
}

/// And the switches had the effect that the row is about.
pub(super) fn expect_nothing_stale(outcome: &Outcome, switches: &Switches) -> Result<()> {
    expect_a_search(outcome)?;
    if switches.vmid_churn.is_some() {
        expect_generations(outcome)?;
    }
    if switches.nested_page == NestedPage::Small {
        expect_pieces(outcome)?;
    }
    Ok(())
}

/// The guest's output is bounded, its end is there, and none of it is taken for the hypervisor's.
pub(super) fn expect_bounds(outcome: &Outcome) -> Result<()> {
    let shown = outcome.console.len();
    ensure!(
        shown <= 2 * CONSOLE_BYTES + "(100000 bytes before this are not kept)\n".len(),
        "{shown} bytes of the console are kept"
    );
    ensure!(outcome.console.contains("before this are not kept"), "it is not said that some are missing");
    ensure!(outcome.console.contains(FLOOD_CLAIM), "the guest's last line is not on its console");
    ensure!(!outcome.log.contains(FLOOD_CLAIM), "the guest's line is in the hypervisor's log");
    let (kept, dropped) = (outcome.reports.len(), outcome.reports_dropped);
    ensure!(dropped > 0 && kept < FLOOD_REPORTS, "{kept} reports are kept, and {dropped} are not");
    ensure!(kept + dropped >= FLOOD_REPORTS, "{kept} reports are kept, {dropped} not, and some are lost");
    Ok(())
}

/// Exactly these of the machine's CPUs were given up.
pub(super) fn expect_without_cpus(outcome: &Outcome, missing: &[u32]) -> Result<()> {
    let given_up: Vec<&str> = outcome.log.lines().filter(|line| line.contains("is not used")).collect();
    let is_said = |cpu: &u32| given_up.iter().any(|line| line.contains(&format!("CPU {cpu} ")));
    ensure!(
        given_up.len() == missing.len() && missing.iter().all(is_said),
        "CPUs {missing:?} come late, and the log says {given_up:?}"
    );
    Ok(())
}

/// Generations of VMIDs have begun all the time: a CPU's first entry counts as only one.
pub(super) fn expect_generations(outcome: &Outcome) -> Result<()> {
    let flushes = count(outcome, Counter::VmidFlushes)?;
    ensure!(flushes >= GENERATIONS_MIN, "CPUs dropped everything {flushes} times only");
    Ok(())
}

/// Requests for lists were carried out as flushes of the tag, because memory is mapped in pieces.
pub(super) fn expect_pieces(outcome: &Outcome) -> Result<()> {
    let counters = counters(outcome)?;
    let [pieces, pages] = [Counter::FlushWholePieces, Counter::FlushPages].map(|name| counters.get(name));
    ensure!(pieces > 0 && pages == 0, "{pieces} flushes of the tag for pieces, and {pages} single pages");
    Ok(())
}

/// Each loop has made its rounds, the mixed run its tasks, and none has found damage.
pub(super) fn expect_loops(outcome: &Outcome) -> Result<()> {
    let ends = |workload: &'static str| {
        let is_end = |report: &&Value| report["event"] == "end" && report["workload"] == workload;
        outcome.reports.iter().filter(is_end).collect::<Vec<_>>()
    };
    let loops = ends("loops");
    ensure!(loops.len() == LOOPS_COUNT, "{} loops have ended instead of {LOOPS_COUNT}", loops.len());
    for end in &loops {
        let name = end["loop"].as_str().context("a loop has no name")?;
        ensure!(LOOPS.split([' ', ';']).any(|word| word == name), "there is no loop {name}");
        ensure!(end["rounds_total"] == LOOPS_ROUNDS, "{name} made {} rounds", end["rounds_total"]);
    }
    let mixed = ends("mixed");
    let mixed = mixed.first().context("the mixed run did not come to its end")?;
    ensure!(mixed["tasks"] == LOOPS_TASKS, "{} tasks instead of {LOOPS_TASKS}", mixed["tasks"]);
    for end in loops.into_iter().chain([*mixed]) {
        ensure!(end["damaged"] == false, "damage was found: {end}");
        ensure!(end["ns"].as_u64() > Some(0), "it took no time: {end}");
    }
    Ok(())
}

/// Mmtest has made all its toggles, each of which has added memory to the guest and removed it.
pub(super) fn expect_toggles(outcome: &Outcome) -> Result<()> {
    let begin = outcome.report("begin").context("mmtest did not begin")?;
    let end = outcome.report("end").context("mmtest did not come to its end")?;
    let number = |report: &Value, name: &str| {
        report[name].as_u64().with_context(|| format!("no number of {name} is reported: {report}"))
    };
    let (toggles, wanted) = (number(end, "toggles")?, number(begin, "toggles")?);
    ensure!(toggles == wanted && toggles > 0, "{toggles} toggles instead of {wanted}");
    let passes = number(begin, "threads")? * number(begin, "passes")?;
    ensure!(number(end, "passes")? >= passes, "{} passes instead of {passes}", end["passes"]);
    for errors in ["rom_errors", "canary_errors"] {
        ensure!(end[errors] == 0, "{} {errors}", end[errors]);
    }
    let changes = count(outcome, Counter::SlotChanges)?;
    ensure!(changes >= 2 * toggles, "{changes} changes of the guest's memory for {toggles} toggles");
    Ok(())
}

pub(super) fn expect_tlb_ipis(outcome: &Outcome, expected: bool) -> Result<()> {
    let end = outcome.report("end").context("thrash did not come to its end")?;
    let ipis = end["tlb_ipis"].as_u64().context("thrash did not count TLB IPIs")?;
    let counters = counters(outcome)?;
    let requests = counters.flush_requests();
    if expected {
        ensure!(ipis > 0, "no TLB IPIs were sent");
        ensure!(requests == 0, "{requests} flush hypercalls in spite of the missing hint");
    } else {
        ensure!(ipis == 0, "{ipis} TLB IPIs in spite of the hypercalls");
        ensure!(requests > 0, "no flush hypercalls either");
    }
    Ok(())
}

/// Four processors on one CPU: each waits three times as long as it runs, and all that they waited
/// since the start is what the hypervisor counted, by a clock of this rate.
pub(super) fn expect_stolen(outcome: &Outcome, hz: u64) -> Result<()> {
    let said: Vec<_> = outcome
        .reports
        .iter()
        .filter(|report| report["event"] == "stat")
        .filter_map(|report| report["busy"].as_u64().zip(report["stolen"].as_u64()))
        .collect();
    let [(busy_before, stolen_before), (busy, stolen)] = said[..] else {
        bail!("{} reports of times instead of two", said.len())
    };
    let while_busy = (busy.saturating_sub(busy_before), stolen.saturating_sub(stolen_before));
    ensure!(while_busy.0 >= 20, "{} hundredths of a second of work prove nothing", while_busy.0);
    // The kernel takes some of its processors' time for idle at the beginning and at the end.
    let factor = while_busy.1 as f64 / while_busy.0 as f64;
    ensure!((2.0..=5.0).contains(&factor), "{factor:.2} times the work was stolen: {while_busy:?}");
    let counted = count(outcome, Counter::SchedSteal)? as f64 * 100.0 / hz as f64;
    // Those of each processor are whole hundredths, and the guest's end is not in its report.
    let share = stolen as f64 / counted;
    ensure!((0.9..=1.01).contains(&share), "{stolen} hundredths were stolen, and {counted:.1} are counted");
    Ok(())
}

/// How many wake-ups may be lost per million exits: kicks that took effect only with the tick, and
/// work that the tick found without a kick; and repeated kicks.
const LATE_MAX: u64 = 300;
const AGAIN_MAX: u64 = 1000;

/// QEMU may lose an interrupt's notification (`docs/qemu.md`), for which the hypervisor
/// compensates. That must not hide a hypervisor that forgets to kick, or kicks the wrong CPU.
pub(super) fn expect_few_lost(outcome: &Outcome) -> Result<()> {
    expect_tlb_ipis(outcome, false)?;
    let counters = counters(outcome)?;
    let exits = counters.exits();
    ensure!(exits > 10_000, "{exits} exits tell nothing");
    let per_million = |counted: u64| counted * 1_000_000 / exits;
    let (late, missing) = (counters.get(Counter::KickLate), counters.get(Counter::KickMissing));
    let again = counters.get(Counter::KickAgain);
    ensure!(
        per_million(late + missing) <= LATE_MAX,
        "in {exits} exits the tick brought {late} kicks and found work {missing} times"
    );
    ensure!(per_million(again) <= AGAIN_MAX, "in {exits} exits all CPUs were kicked again {again} times");
    Ok(())
}

/// Adds the ends of console and log to an error.
pub(super) fn with_console(outcome: &Outcome, check: impl FnOnce() -> Result<()>) -> Result<()> {
    check().map_err(|error| outcome.explain(error))
}
