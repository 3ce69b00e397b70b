//! The expectations for a run.

use crate::bench::counts;
use crate::check::{self, Verdict};
use crate::machine::emulator::describe;
use crate::machine::process::{CONSOLE_BYTES, complaint};
use crate::test::budgets::met;
use crate::test::cases::{
    FLOOD_CLAIM, FLOOD_REPORTS, Hostile, LOOPS, LOOPS_COUNT, LOOPS_ROUNDS, LOOPS_TASKS, ProbeEnd,
};
use crate::test::checks::Check;
use crate::test::kernels::{CHECKS, Kernel};
use crate::test::prelude::*;
use hostlink::config::NestedPage;
use std::process::Output;
use std::time::{SystemTime, UNIX_EPOCH};

/// Longest log of a run with a bare guest, whose runs are short.
const LOG_BYTES_MAX: usize = 32 << 10;

/// Rows of tlbcheck that pass at least without a defect.
const ROWS_MIN: usize = 10;

/// How often CPUs drop everything at least if generations of VMIDs begin all the time.
const GENERATIONS_MIN: u64 = 1000;

fn counters(outcome: &Outcome) -> Result<&Snapshot> {
    outcome.counters.as_ref().context("there are no counters")
}

pub(in crate::test) fn count(outcome: &Outcome, counter: Counter) -> Result<u64> {
    Ok(counters(outcome)?.get(counter))
}

/// The guest's time is correct to a day: no test is that slow, no wrong clock that right.
fn expect_date(outcome: &Outcome) -> Result<()> {
    const DAY: u64 = 86_400;
    let said = outcome.report("date").and_then(|report| report["unix"].as_u64());
    let said = said.context("the guest did not say what time it is")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    ensure!(said.abs_diff(now) < DAY, "the guest says it is {said}, and it is {now}");
    Ok(())
}

/// What a kernel says of memory that is not what it or a program has put there.
const DAMAGE: [&str; 5] = ["Kernel panic", "segfault at", "general protection fault", "BUG: ", "Oops: "];

/// The same of a guest that goes on; not what it says when it is only slow.
const COMPLAINTS: [&str; 5] =
    ["segfault at", "general protection fault", "BUG: unable", "BUG: Bad", "Oops: "];

/// Judges a stock guest. `hz` is the rate of the hypervisor's clock, if it was seen.
pub(super) fn judge_stock(
    outcome: &Outcome,
    expect: Expect,
    switches: &Switches,
    hz: Option<u64>,
) -> Result<()> {
    if matches!(expect, Expect::Damage) {
        let is_damaged = DAMAGE.iter().any(|sign| outcome.console.contains(sign));
        ensure!(is_damaged, "nothing breaks, and the guest ended by {:?}", outcome.end);
        return Ok(());
    }
    let (end, status) = match expect {
        Expect::Panic(_) => (End::Hypervisor(ExitCode::Panic), None),
        Expect::PowerOff => (OFF, None),
        Expect::Stale => (OFF, Some(1)),
        _ => (OFF, Some(0)),
    };
    outcome.ended_by(&[end])?;
    status.map_or(Ok(()), |status| expect_status(outcome, status))?;
    if status == Some(0) {
        let said = COMPLAINTS.iter().find(|said| outcome.console.contains(**said));
        said.map_or(Ok(()), |said| bail!("the guest's kernel complains of '{said}'"))?;
    }
    let has = |event: &str| outcome.report(event).is_some();
    match expect {
        Expect::Panic(says) => ensure!(outcome.log.contains(says), "it does not say {says:?}"),
        Expect::Success | Expect::Damage => {}
        Expect::Date => expect_date(outcome)?,
        Expect::PowerOff => ensure!(!has("exit"), "the command ended before the guest"),
        Expect::FewLost => expect_few_lost(outcome)?,
        Expect::TlbIpis(expected) => expect_tlb_ipis(outcome, expected)?,
        Expect::NothingStale => expect_nothing_stale(outcome, switches)?,
        Expect::Intact => expect_toggles(outcome)?,
        Expect::Loops => expect_loops(outcome)?,
        Expect::Stolen => expect_stolen(outcome, hz.context("the hypervisor's clock has no rate")?)?,
        Expect::Flood => expect_bounds(outcome)?,
        Expect::WithoutCpus(missing) => expect_without_cpus(outcome, missing)?,
        Expect::Stale => ensure!(has("stale"), "nothing stale was found"),
    }
    Ok(())
}

/// Judges a stock guest that was stopped when all was said. Its ROM may have to come and go.
pub(super) fn judge_talk(outcome: &Outcome, has_rom: bool) -> Result<()> {
    outcome.ended_by(&[End::Stopped])?;
    outcome.without_complaint()?;
    let changes = if has_rom { count(outcome, Counter::SlotChanges)? } else { u64::MAX };
    ensure!(changes > 4, "the guest's ROM came and went {changes} times");
    Ok(())
}

/// Judges a bare guest by its report of a test, or by those of all.
pub(super) fn judge_probe(outcome: &Outcome, name: &str, end: ProbeEnd) -> Result<()> {
    check_log(outcome)?;
    if let ProbeEnd::WithinBudgetsOnKvm = end {
        outcome.ended_by(&[OFF])?;
        return met(counts::limits_on_kvm(&outcome.reports));
    }
    if let ProbeEnd::Ended(code) = end {
        outcome.ended_by(&[End::Hypervisor(code)])?;
        ensure!(outcome.log.contains("  rax 0x"), "the log has no registers");
        return Ok(());
    }
    let test = name.split(' ').next().unwrap_or(name);
    let is_on_kvm = matches!(end, ProbeEnd::AllPassedOnKvm);
    let is_all = is_on_kvm || matches!(end, ProbeEnd::AllPassed);
    let is_meant = |report: &&Value| is_all || report["test"] == test;
    let reports = || outcome.reports.iter().filter(|report| report["result"].is_string()).filter(is_meant);
    let is_told = |why: &String| !(is_on_kvm && why.contains("the other vendor's hypercall: Ok"));
    let failed: Vec<_> = reports().filter_map(complaint).filter(is_told).collect();
    let should_fail = matches!(end, ProbeEnd::Failed(..));
    ensure!(should_fail || failed.is_empty(), "the guest says:\n{}", failed.join("\n"));
    outcome.ended_by(&[OFF])?;
    let said = reports().next().with_context(|| format!("there is no report of {name}"))?;
    ensure!(failed.is_empty() != should_fail, "the guest has not noticed it: {said}");
    Ok(())
}

/// Judges a bare guest that was stopped when all was said: counters have these values at least.
pub(super) fn judge_siege(outcome: &Outcome, least: &[(Counter, u64)]) -> Result<()> {
    for &(counter, least) in least {
        let counted = count(outcome, counter)?;
        ensure!(counted >= least, "{} is {counted}, below {least}", counter.name());
    }
    check_log(outcome)?;
    outcome.ended_by(&[End::Stopped])
}

/// Judges a guest that tries everything, by its report, if it survives to make one.
pub(super) fn judge_hostile(outcome: &Outcome, test: &Hostile) -> Result<()> {
    outcome.without_complaint()?;
    check_log(outcome)?;
    outcome.ended_by(&[End::Hypervisor(test.end)])?;
    let name = test.test.split(' ').next().unwrap_or(test.test);
    let has_passed = outcome.reports.iter().any(|it| it["test"] == name && it["result"] == "pass");
    ensure!(has_passed || test.end != ExitCode::GuestPowerOff, "no report of {name}");
    Ok(())
}

/// Whatever a guest does, the hypervisor's log stays short.
fn check_log(outcome: &Outcome) -> Result<()> {
    let length = outcome.log.len();
    ensure!(length <= LOG_BYTES_MAX, "the hypervisor's log has {length} bytes");
    Ok(())
}

/// Judges tlbcheck's rows, in a machine with a planted mistake or without one.
pub(super) fn judge_check(rows: &[check::Row], check: &Check, is_wrong: bool) -> Result<()> {
    let of = |verdict| rows.iter().filter(move |row| row.result == verdict);
    let told = |rows: Vec<&check::Row>| {
        rows.iter().map(|row| format!("\n{}: {}", row.row, row.why)).collect::<String>()
    };
    let is_known = |row: &&check::Row| check.fails.get(&row.row).is_some_and(|why| row.why.contains(why));
    let known = of(Verdict::Fail).filter(is_known).map(|row| &row.row).collect::<BTreeSet<_>>();
    let others: Vec<_> = check.fails.keys().filter(|row| !known.contains(row)).map(String::as_str).collect();
    ensure!(others.is_empty(), "these do not fail as they are known to: {}", others.join(", "));
    let failed: Vec<_> = of(Verdict::Fail).filter(|row| !is_known(row)).collect();
    let may_skip = |row: &&check::Row| {
        check.may_skip.as_ref().is_none_or(|may| may.iter().any(|beginning| row.row.starts_with(beginning)))
    };
    let skipped: Vec<_> = of(Verdict::Skip).filter(|row| !may_skip(row)).collect();
    ensure!(skipped.is_empty(), "these are skipped:{}", told(skipped));
    if let (Some(wanted), true) = (&check.rows, is_wrong) {
        ensure!(!failed.is_empty(), "none of the rows {wanted} fails");
        return Ok(());
    }
    ensure!(failed.is_empty(), "these fail:{}", told(failed));
    let (passed, least) = (of(Verdict::Pass).count(), if check.rows.is_some() { 1 } else { ROWS_MIN });
    ensure!(passed >= least, "only {passed} rows pass");
    Ok(())
}

/// Judges a run of the tool itself by its status and its messages.
pub(super) fn judge_tool(output: &Output, status: i32, message: &str) -> Result<()> {
    let [said, errors] = [&output.stdout, &output.stderr].map(|text| tail(&String::from_utf8_lossy(text)));
    let ended = describe(output.status);
    ensure!(
        output.status.code() == Some(status),
        "ended with {ended} instead of status {status}:\n{said}\n{errors}"
    );
    let is_said = String::from_utf8_lossy(&output.stderr).contains(message);
    ensure!(is_said, "the message is not '{message}' but:\n{errors}");
    Ok(())
}

pub(super) fn expect_status(outcome: &Outcome, expected: i32) -> Result<()> {
    let exit = outcome.report("exit").context("the command did not come to its end")?;
    ensure!(exit["status"] == expected, "the command's status is {}", exit["status"]);
    Ok(())
}

/// The hunter remapped in every way it knows, and its readers saw pages change. So of all runs
/// together.
fn expect_a_search(outcome: &Outcome) -> Result<()> {
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
fn expect_nothing_stale(outcome: &Outcome, switches: &Switches) -> Result<()> {
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
fn expect_bounds(outcome: &Outcome) -> Result<()> {
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
fn expect_without_cpus(outcome: &Outcome, missing: &[u32]) -> Result<()> {
    let given_up: Vec<&str> = outcome.log.lines().filter(|line| line.contains("is not used")).collect();
    let is_said = |cpu: &u32| given_up.iter().any(|line| line.contains(&format!("CPU {cpu} ")));
    ensure!(
        given_up.len() == missing.len() && missing.iter().all(is_said),
        "CPUs {missing:?} come late, and the log says {given_up:?}"
    );
    Ok(())
}

/// Generations of VMIDs have begun all the time: a CPU's first entry counts as only one.
fn expect_generations(outcome: &Outcome) -> Result<()> {
    let flushes = count(outcome, Counter::VmidFlushes)?;
    ensure!(flushes >= GENERATIONS_MIN, "CPUs dropped everything {flushes} times only");
    Ok(())
}

/// Requests for lists were carried out as flushes of the tag, because memory is mapped in pieces.
fn expect_pieces(outcome: &Outcome) -> Result<()> {
    let counters = counters(outcome)?;
    let [pieces, pages] = [Counter::FlushWholePieces, Counter::FlushPages].map(|name| counters.get(name));
    ensure!(pieces > 0 && pages == 0, "{pieces} flushes of the tag for pieces, and {pages} single pages");
    Ok(())
}

/// Each loop has made its rounds, the mixed run its tasks, and none has found damage.
fn expect_loops(outcome: &Outcome) -> Result<()> {
    let ends = |workload: &'static str| {
        let is_end = |report: &&Value| report["event"] == "end" && report["workload"] == workload;
        outcome.reports.iter().filter(is_end).collect::<Vec<_>>()
    };
    let loops = ends("loops");
    ensure!(loops.len() == LOOPS_COUNT, "{} loops have ended instead of {LOOPS_COUNT}", loops.len());
    for end in &loops {
        let name = end["loop"].as_str().context("a loop has no name")?;
        ensure!(LOOPS.split(' ').any(|word| word == name), "there is no loop {name}");
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
fn expect_toggles(outcome: &Outcome) -> Result<()> {
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

fn expect_tlb_ipis(outcome: &Outcome, expected: bool) -> Result<()> {
    let end = outcome.report("end").context("thrash did not come to its end")?;
    let ipis = end["tlb_ipis"].as_u64().context("thrash did not count TLB IPIs")?;
    let requests = counters(outcome)?.flush_requests();
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
fn expect_stolen(outcome: &Outcome, hz: u64) -> Result<()> {
    let stats = outcome.reports.iter().filter(|report| report["event"] == "stat");
    let times = stats.filter_map(|stat| stat["busy"].as_u64().zip(stat["stolen"].as_u64()));
    let said: Vec<_> = times.collect();
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
fn expect_few_lost(outcome: &Outcome) -> Result<()> {
    expect_tlb_ipis(outcome, false)?;
    let counters = counters(outcome)?;
    let exits = counters.exits();
    ensure!(exits > 10_000, "{exits} exits tell nothing");
    let per_million = |counted: u64| counted * 1_000_000 / exits;
    let kicks = [Counter::KickLate, Counter::KickMissing, Counter::KickAgain];
    let [late, missing, again] = kicks.map(|name| counters.get(name));
    ensure!(
        per_million(late + missing) <= LATE_MAX,
        "in {exits} exits the tick brought {late} kicks and found work {missing} times"
    );
    ensure!(per_million(again) <= AGAIN_MAX, "in {exits} exits all CPUs were kicked again {again} times");
    Ok(())
}

/// The kernel is the one that was meant, and each check of the program `battery` is well.
pub(super) fn expect_battery(outcome: &Outcome, kernel: &Kernel) -> Result<()> {
    let begin = outcome.report("begin").context("the battery did not begin")?;
    let release = begin["kernel"].as_str().unwrap_or_default();
    ensure!(release.starts_with(kernel.release), "the kernel is {release}, not {}", kernel.release);
    ensure!(begin["page_bytes"] == kernel.page_bytes, "its pages have {} bytes", begin["page_bytes"]);
    let mut left = CHECKS.iter();
    for report in outcome.reports.iter().filter(|report| report["event"] == "check") {
        let name = left.next().context("there are more checks than are known")?;
        ensure!(report["check"] == *name, "there is a report of {} instead of {name}", report["check"]);
        ensure!(report["ok"] == true, "{name}: {}", report["why"]);
    }
    ensure!(left.len() == 0, "there is no report of {left:?}");
    Ok(())
}

/// Adds the ends of console and log to an error.
pub(in crate::test) fn with_console(outcome: &Outcome, check: impl FnOnce() -> Result<()>) -> Result<()> {
    check().map_err(|error| outcome.explain(error))
}
