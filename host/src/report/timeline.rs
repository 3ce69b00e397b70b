//! Selects the part of a trace to show: a window of time with as many flushes as possible.

use crate::prelude::*;

/// The process of the CPUs' tracks in the trace.
const CPUS: u64 = 1;

/// The maximum number of spans shown; more would make the page slow and large.
const SPANS_MAX: usize = 20_000;

/// Nanoseconds of the trace.
type Window = Range<u64>;

/// The data to show of a file of `quell run --trace`.
pub(super) fn of_trace(trace: &Value, window_ns: u64, from: Option<u64>) -> Result<Value> {
    let events = trace["traceEvents"].as_array().context("there is no list of events")?;
    let of_cpus = |event: &&Value| event["pid"].as_u64() == Some(CPUS);
    let slices: Vec<&Value> = events.iter().filter(of_cpus).filter(|event| event["ph"] == "X").collect();
    ensure!(!slices.is_empty(), "no CPU has a span");
    let ipis = ipis(events);
    let window = match from {
        Some(start) => start..start.saturating_add(window_ns),
        None => busiest(&slices, &ipis, window_ns),
    };
    let mut cpus = BTreeMap::<u64, Vec<Value>>::new();
    let mut names: Vec<&Value> = Vec::new();
    let spans = slices.iter().filter(|slice| slice["cat"] != "flush");
    let spans = spans.filter_map(|slice| Some((slice, within(slice, &window)?)));
    for (slice, (start, end)) in spans.take(SPANS_MAX) {
        let name = &slice["name"];
        let index = names.iter().position(|known| *known == name).unwrap_or_else(|| {
            names.push(name);
            names.len() - 1
        });
        let kind = match slice["cat"].as_str() {
            Some("guest") => 0,
            Some("hypervisor") => 1,
            _ => 2,
        };
        let cpu = slice["tid"].as_u64().unwrap_or_default();
        cpus.entry(cpu).or_default().push(json!([start, end, kind, index]));
    }
    let cpus: Vec<_> = cpus.into_iter().map(|(cpu, spans)| json!({"cpu": cpu, "spans": spans})).collect();
    let arrows = arrows(events, window.start);
    let flushes: Vec<_> = slices.iter().filter_map(|slice| flush(slice, &arrows, &window)).collect();
    Ok(json!({
        "length": window.end - window.start,
        "start": window.start,
        "names": names,
        "cpus": cpus,
        "flushes": flushes,
        "ipis": ipis.iter().filter_map(|ipi| shown(ipi, &window)).collect::<Vec<_>>(),
    }))
}

fn count(shown: &Value, list: &str) -> usize {
    shown[list].as_array().map_or(0, Vec::len)
}

pub(super) fn summary(shown: &Value) -> String {
    #[expect(clippy::cast_precision_loss, reason = "windows are far shorter than 2^53 ns")]
    let ms = |key: &str| shown[key].as_u64().unwrap_or_default() as f64 / 1e6;
    let (flushes, ipis) = (count(shown, "flushes"), count(shown, "ipis"));
    let (length, start) = (ms("length"), ms("start"));
    format!(
        "Shown are {length} ms of the run, from {start:.1} ms on: {flushes} flushes, and {ipis} IPIs to vCPUs that had not halted."
    )
}

pub(super) fn legend(shown: &Value) -> String {
    let (has_flushes, has_ipis) = (count(shown, "flushes") != 0, count(shown, "ipis") != 0);
    [
        ("guest", "guest", true),
        ("hypervisor", "hypervisor", true),
        ("idle", "idle", true),
        ("kick", "flush with a kick", has_flushes),
        ("alone", "flush that kicks nobody", has_flushes),
        ("deferred", "deferred flush, carried out at an entry", has_flushes),
        ("ipi", "IPI to a vCPU that was running", has_ipis),
        ("waiting", "IPI to one that was not, arrives at its entry", has_ipis),
    ]
    .into_iter()
    .filter(|(.., is_shown)| *is_shown)
    .map(|(class, text, _)| format!("<li class=\"{class}\">{text}</li>"))
    .collect()
}

/// A time in the file, in nanoseconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "negative and huge times are cut"
)]
fn ns(event: &Value, key: &str) -> u64 {
    (event[key].as_f64().unwrap_or_default() * 1000.0).round() as u64
}

/// The window with the most flushes; without a flush, with the most interrupts; or the first.
fn busiest(slices: &[&Value], ipis: &[[&Value; 2]], window_ns: u64) -> Window {
    let mut starts: Vec<u64> =
        slices.iter().filter(|slice| slice["cat"] == "flush").map(|slice| ns(slice, "ts")).collect();
    if starts.is_empty() {
        starts = ipis.iter().map(|[sent, _]| ns(sent, "ts")).collect();
    }
    starts.sort_unstable();
    let count = |index: usize| {
        let end = starts[index].saturating_add(window_ns);
        starts.partition_point(|&start| start < end) - index
    };
    // The first of the best ones.
    let best = (0..starts.len()).rev().max_by_key(|&index| count(index));
    let first = best.map_or_else(|| slices.iter().map(|it| ns(it, "ts")).min().unwrap_or(0), |at| starts[at]);
    let start = first.saturating_sub(window_ns / 20);
    start..start.saturating_add(window_ns)
}

/// Both ends of the arrow of each interrupt from one vCPU to another. A vCPU that has halted is
/// sent one to wake it, not to flush: Linux does not wait for idle CPUs. So those are left out.
fn ipis(events: &[Value]) -> Vec<[&Value; 2]> {
    let of = |ph: &'static str| events.iter().filter(move |it| it["ph"] == ph && it["name"] == "interrupt");
    let ends: BTreeMap<_, _> = of("f").map(|event| (event["id"].as_u64(), event)).collect();
    let awaited = of("s").filter(|sent| sent["args"]["receiver"] != "halted");
    awaited.filter_map(|sent| Some([sent, ends.get(&sent["id"].as_u64())?])).collect()
}

/// Where and when an interrupt is sent and arrives, its vCPUs and vector, and whether the receiver
/// was in guest mode; `None` if it is outside the window.
fn shown([sent, arrives]: &[&Value; 2], window: &Window) -> Option<Value> {
    let [at, arrives_at] = [sent, arrives].map(|end| ns(end, "ts").saturating_sub(window.start));
    let is_running = u8::from(sent["args"]["receiver"] == "running");
    let [from, to, vector] = ["from", "to", "vector"].map(|name| &sent["args"][name]);
    let ipi = json!([sent["tid"], at, arrives["tid"], arrives_at, from, to, vector, is_running]);
    window.contains(&ns(sent, "ts")).then_some(ipi)
}

/// The part of a slice inside the window, relative to the window's start.
fn within(slice: &Value, window: &Window) -> Option<(u64, u64)> {
    let start = ns(slice, "ts");
    let end = start.saturating_add(ns(slice, "dur"));
    let (start, end) = (start.max(window.start), end.min(window.end));
    (start < end).then(|| (start - window.start, end - window.start))
}

/// The ends of arrows in or behind the window, by the flush that they come from.
fn arrows(events: &[Value], start: u64) -> BTreeMap<u64, Vec<Value>> {
    let mut arrows = BTreeMap::<u64, Vec<Value>>::new();
    for event in events.iter().filter(|event| event["ph"] == "f" && event["name"] != "interrupt") {
        if let (Some(id), Some(at)) = (event["id"].as_u64(), ns(event, "ts").checked_sub(start)) {
            let end = json!({"kind": event["name"], "cpu": event["tid"], "at": at});
            arrows.entry(id >> 16).or_default().push(end);
        }
    }
    arrows
}

fn flush(slice: &Value, arrows: &BTreeMap<u64, Vec<Value>>, window: &Window) -> Option<Value> {
    let (start, end) = within(slice, window).filter(|_| slice["cat"] == "flush")?;
    let args = &slice["args"];
    let id = args["flush"].as_u64()?;
    Some(json!({
        "id": id,
        "cpu": slice["tid"],
        "start": start,
        "end": end,
        "vcpu": args["initiator"],
        "named": args["named"].as_array().map_or(0, Vec::len),
        "targets": args["targets"],
        "deferred": args["deferred"],
        "kicked": args["kicked"].as_array().map_or(0, Vec::len),
        "merged": args["merged"],
        "elements": args["elements"],
        "arrows": arrows.get(&id).map_or(&[][..], Vec::as_slice),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slice(cat: &str, tid: u64, ts: f64, dur: f64, args: &Value) -> Value {
        json!({"ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "name": cat, "cat": cat, "args": args})
    }

    fn flush_at(id: u64, ts: f64) -> Value {
        slice(
            "flush",
            0,
            ts,
            2.0,
            &json!({"flush": id, "initiator": 0, "named": [1, 2], "targets": 2, "deferred": 1,
            "kicked": [1], "merged": 0, "elements": 0}),
        )
    }

    #[test]
    fn the_window_is_where_most_flushes_begin() {
        let none = json!({});
        let end = json!({"ph": "f", "pid": 1, "tid": 1, "ts": 1003.0, "id": 2 << 16, "name": "kick"});
        let events = json!([
            slice("guest", 1, 0.0, 2000.0, &none),
            slice("idle", 0, 5000.0, 10.0, &none),
            flush_at(1, 10.0),
            flush_at(2, 1000.0),
            flush_at(3, 1010.0),
            end,
        ]);
        let shown = of_trace(&json!({"traceEvents": events}), 100_000, None).expect("is a trace");
        let from = of_trace(&json!({"traceEvents": events}), 100_000, Some(3_000)).expect("is a trace");
        assert_eq!((&from["start"], &from["flushes"][0]["id"]), (&3_000.into(), &1.into()));
        assert_eq!(shown["start"], 995_000);
        assert_eq!(shown["length"], 100_000);
        let ids: Vec<_> = shown["flushes"].as_array().unwrap().iter().map(|it| it["id"].as_u64()).collect();
        assert_eq!(ids, [Some(2), Some(3)]);
        assert_eq!(shown["flushes"][0]["arrows"], json!([{"kind": "kick", "cpu": 1, "at": 8000}]));
        assert_eq!(shown["cpus"], json!([{"cpu": 1, "spans": [[0, 100_000, 0, 0]]}]), "cut to the window");
    }

    #[test]
    fn interrupts_are_shown_and_find_the_window_where_there_are_no_flushes() {
        let end = |ph, id: u64, tid: u64, ts: f64, receiver: &str| {
            json!({"ph": ph, "pid": 1, "tid": tid, "ts": ts, "id": id, "name": "interrupt",
                "args": {"from": 0, "to": 3, "vector": 251, "receiver": receiver}})
        };
        let events = json!([
            slice("guest", 0, 0.0, 9000.0, &json!({})),
            end("s", 1, 0, 100.0, "halted"),
            end("f", 1, 1, 101.0, ""),
            end("s", 2, 0, 5000.0, "running"),
            end("f", 2, 1, 5003.0, ""),
            end("s", 3, 0, 5001.0, "waiting"),
            end("f", 3, 1, 5900.0, ""),
            end("s", 4, 0, 5002.0, "waiting"),
        ]);
        let shown = of_trace(&json!({"traceEvents": events}), 100_000, None).expect("is a trace");
        assert_eq!(shown["start"], 4_995_000);
        let ipis = json!([[0, 5000, 1, 8000, 0, 3, 251, 1], [0, 6000, 1, 905_000, 0, 3, 251, 0]]);
        assert_eq!(shown["ipis"], ipis);
    }

    #[test]
    fn other_files_are_refused() {
        assert!(of_trace(&json!({}), 1, None).is_err());
        assert!(of_trace(&json!({"traceEvents": []}), 1, None).is_err());
    }
}
