//! Compares the trace of a run with the hypervisor's counters, and measures its cost.

use crate::test::prelude::*;
use crate::trace;
use crate::trace::collect::{Collected, Collector};
use hostlink::trace::Event;

/// Timeout of a machine.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Maximum number of instructions per record.
const INSTRUCTIONS_MAX: f64 = 40.0;

pub(super) const ACTS: &[Named] = &[
    ("trace_agrees_with_the_counters", agrees_with_the_counters),
    ("trace_costs_at_most_40_instructions", costs_little),
];

fn agrees_with_the_counters(room: &Room<'_>) -> Result<()> {
    let command = "thrash --threads 4 --rounds 20 --report /dev/report";
    let mut guest = Guest { vcpus: 4, ..room.lab.stock_guest(room.platform, Some(command))? };
    guest.cmdline += " quiet";
    let hypervisor = Hypervisor::with_trace(room.platform.arch())?;
    let spec = guest.on_quell(&hypervisor, 2, room.clock, room.directory)?;
    let (outcome, collected) = traced(spec)?;
    let counters = outcome.counters.context("the hypervisor has no counters")?;
    let flushes = compare(&counters, &collected)?;
    let path = room.directory.join("trace.json");
    let timeline = trace::write(&path, &collected)?;
    let text = fs::read_to_string(&path).context("cannot read the trace")?;
    let trace: Value = serde_json::from_str(&text).context("the trace is no JSON")?;
    let events = trace["traceEvents"].as_array().context("there is no list of events")?;
    check_slices(events)?;
    let slices = events.iter().filter(|event| text_of(event, "name") == "flush").count();
    let shown = timeline.flushes.iter().filter(|flush| flush.vcpu.is_some()).count();
    ensure!(slices == shown, "{slices} flushes are in the file, and {shown} in the timeline");
    // Where records are missing, so are ends of flushes and spans around them.
    if timeline.lost() == 0 {
        ensure!(shown as u64 == flushes, "{shown} flushes are in the timeline, and {flushes} in the rings");
        check_arrows(events)?;
    }
    ensure!(flushes > 20, "{flushes} flushes are too few to tell anything");
    Ok(())
}

fn traced(mut spec: Spec) -> Result<(Outcome, Collected)> {
    spec.timeout = Some(TIMEOUT);
    let machine = Machine::start(&spec, &Signals::default())?;
    let collector = Collector::of(&machine)?;
    let outcome = machine.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
    Ok((outcome, collector.finish()?))
}

/// Compares the numbers of records with the counters; returns the number of flushes. For each
/// record that was overwritten before it was read, one event may be missing.
fn compare(counters: &Snapshot, collected: &Collected) -> Result<u64> {
    let lost: u64 = collected.cpus.iter().map(|cpu| cpu.lost).sum();
    let records = || collected.cpus.iter().flat_map(|cpu| &cpu.records);
    let count = |event| records().filter(|record| record.event == event).count() as u64;
    let flushes = count(Event::FlushDone);
    for (what, found, counted) in [
        ("exits", count(Event::Exit), counters.exits()),
        ("flushes", flushes, counters.flush_requests() + counters.get(Counter::FlushContinued)),
        ("flushes taken", count(Event::FlushTaken), counters.get(Counter::FlushTaken)),
        ("turns", count(Event::TurnBegins), counters.get(Counter::SchedIn)),
    ] {
        let difference = counted.checked_sub(found);
        ensure!(
            difference.is_some_and(|difference| difference <= lost),
            "{found} {what} are in the trace, which lacks {lost} records, and {counted} were counted"
        );
    }
    // Other interrupts are posted, too.
    let (posted, sent) = (count(Event::Posted), counters.get(Counter::IrqIpi));
    ensure!(posted + lost >= sent, "{posted} interrupts are in the trace, and {sent} IPIs were counted");
    let kicks = records().filter(|record| record.event == Event::FlushDone);
    let kicks: u64 = kicks.map(|record| record.b & u64::from(u32::MAX)).sum();
    let counted = counters.get(Counter::FlushKicks);
    ensure!(kicks <= counted && (lost != 0 || kicks == counted), "{kicks} kicks, and {counted} were counted");
    Ok(flushes)
}

fn number_of(event: &Value, key: &str) -> f64 {
    event[key].as_f64().unwrap_or(f64::NAN)
}

fn text_of<'e>(event: &'e Value, key: &str) -> &'e str {
    event[key].as_str().unwrap_or_default()
}

/// A time in the file, in nanoseconds.
fn ns_of(event: &Value, key: &str) -> i64 {
    (number_of(event, key) * 1000.0).round() as i64
}

/// Slices of each track, by their start: first and last nanosecond.
fn tracks(events: &[Value]) -> BTreeMap<(i64, i64), Vec<(i64, i64)>> {
    let mut tracks = BTreeMap::<_, Vec<_>>::new();
    for event in events.iter().filter(|event| text_of(event, "ph") == "X") {
        let track = (number_of(event, "pid") as i64, number_of(event, "tid") as i64);
        let start = ns_of(event, "ts");
        tracks.entry(track).or_default().push((start, start + ns_of(event, "dur")));
    }
    for slices in tracks.values_mut() {
        slices.sort_by_key(|&(start, end)| (start, -end));
    }
    tracks
}

/// In each track, slices are nested or disjoint; none overlaps another in part.
fn check_slices(events: &[Value]) -> Result<()> {
    for (track, slices) in tracks(events) {
        let mut open: Vec<(i64, i64)> = Vec::new();
        for slice in slices {
            while open.last().is_some_and(|outer| outer.1 <= slice.0) {
                open.pop();
            }
            if let Some(outer) = open.last() {
                ensure!(slice.1 <= outer.1, "in track {track:?} slice {slice:?} leaves {outer:?}");
            }
            open.push(slice);
        }
    }
    Ok(())
}

/// Each arrow has two ends, the second not before the first, and both in slices.
fn check_arrows(events: &[Value]) -> Result<()> {
    let tracks = tracks(events);
    let mut arrows = BTreeMap::<i64, Vec<&Value>>::new();
    for event in events.iter().filter(|event| matches!(text_of(event, "ph"), "s" | "f")) {
        arrows.entry(number_of(event, "id") as i64).or_default().push(event);
    }
    for (id, ends) in arrows {
        let [from, to] = ends[..] else { return Err(anyhow!("arrow {id} has {} ends", ends.len())) };
        ensure!(text_of(from, "ph") == "s" && text_of(to, "ph") == "f", "arrow {id} begins with its end");
        ensure!(ns_of(from, "ts") <= ns_of(to, "ts"), "arrow {id} goes back in time");
        for end in [from, to] {
            let (at, track) =
                (ns_of(end, "ts"), (number_of(end, "pid") as i64, number_of(end, "tid") as i64));
            let slices = tracks.get(&track).with_context(|| format!("arrow {id} is in no track"))?;
            let is_inside = slices.iter().any(|&(start, end)| start <= at && at <= end);
            ensure!(is_inside, "arrow {id} has an end in no slice");
        }
    }
    Ok(())
}

fn costs_little(room: &Room<'_>) -> Result<()> {
    let [usual, traced] = [Hypervisor::build(Arch::X86_64)?, Hypervisor::with_trace(Arch::X86_64)?];
    let [usual, traced] = [cpuid(&usual, room.directory)?, cpuid(&traced, room.directory)?];
    // Two records: the exit, and the next entry.
    let cost = (traced - usual) / 2.0;
    ensure!(
        cost <= INSTRUCTIONS_MAX,
        "a record costs {cost:.1} instructions: CPUID takes {usual:.0} without a trace and {traced:.0} with one"
    );
    ensure!(cost >= 5.0, "{cost:.1} instructions are less than a record has words: is there a trace?");
    Ok(())
}

/// Instructions of CPUID, exit and entry included.
fn cpuid(hypervisor: &Hypervisor, directory: &Path) -> Result<f64> {
    let guest = Guest::bare(workspace::PROBE, Platform::X86_64, "bench=exits", 2, 64 * MIB)?;
    let mut spec = guest.on_quell(hypervisor, 1, Clock::Instructions, directory)?;
    spec.timeout = Some(TIMEOUT);
    let outcome =
        Machine::start(&spec, &Signals::default())?.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
    let is_wanted = |report: &&Value| report["case"] == "cpuid" && report["metric"] == "instructions";
    let report = outcome.reports.iter().find(is_wanted).context("the probe did not count CPUID")?;
    report["value"].as_f64().with_context(|| format!("not a count: {report}"))
}
