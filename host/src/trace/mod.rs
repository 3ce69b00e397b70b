//! `quell run --trace`: reads the trace rings in a machine's memory (`collect`), computes what each
//! CPU did when and the flushes with their targets (`timeline`), and writes that in the JSON trace
//! format ("Trace Event Format"), which Perfetto's and Chromium's viewers open.
//!
//! Process 1 has a track for each CPU: spans, and in them the flushes. Process 2 has a track for
//! each vCPU: the CPU that it runs on. Arrows ("flow events") lead from a flush to the exit of each
//! CPU that it kicked, and to the place where each deferred target carries it out; and from an
//! interrupt that one vCPU sends to another, to the entry at which the other one gets it.

pub(crate) mod collect;
pub(crate) mod timeline;

use crate::prelude::*;
use collect::Collected;
use std::fs::File;
use std::io::{BufWriter, Write};
use timeline::{CpuLine, Doing, Flush, Ipi, Taken, Timeline};

const CPUS: u32 = 1;
const VCPUS: u32 = 2;

/// The number of the first arrow of an interrupt: above those of all flushes, and below 2^53, up to
/// which every JSON parser is exact.
const FIRST_IPI: u64 = 1 << 50;

pub(crate) fn write(path: &Path, collected: &Collected) -> Result<Timeline> {
    let timeline = Timeline::new(collected);
    let file = File::create(path).with_context(|| format!("cannot write the trace {}", path.display()))?;
    write_events(BufWriter::new(file), &timeline)
        .with_context(|| format!("cannot write the trace {}", path.display()))?;
    Ok(timeline)
}

pub(crate) fn summarise(path: &Path, timeline: &Timeline) {
    eprintln!(
        "quell: trace of {} CPUs, {} spans, {} flushes in {}; open it at ui.perfetto.dev",
        timeline.cpus.len(),
        timeline.spans().count(),
        timeline.flushes.len(),
        path.display()
    );
    if timeline.lost() != 0 {
        eprintln!(
            "quell: {} records are missing: they were overwritten before they were read, or came after the first {}",
            timeline.lost(),
            collect::RECORDS_MAX
        );
    }
}

fn write_events(mut out: impl Write, timeline: &Timeline) -> Result<()> {
    write!(out, "{{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")?;
    let cpus = (0u32..).zip(&timeline.cpus).flat_map(|(cpu, line)| cpu_line(cpu, line));
    let flushes = (1u32..).zip(&timeline.flushes).flat_map(|(id, flush)| flush_with_arrows(id, flush));
    let ipis = (FIRST_IPI..).zip(&timeline.ipis).filter_map(|(id, ipi)| ipi_arrow(id, ipi)).flatten();
    let events = names(timeline).into_iter().chain(cpus).chain(flushes).chain(ipis);
    for (index, event) in events.chain(timeline.taken.iter().map(instant)).enumerate() {
        write!(out, "{}{event}", if index == 0 { "\n" } else { ",\n" })?;
    }
    let lost = timeline.lost();
    write!(out, "\n],\"otherData\":{{\"missing records\":\"{lost}\"}}}}")?;
    Ok(out.flush()?)
}

#[expect(clippy::cast_precision_loss, reason = "runs take hours at most, far below 2^53 ns")]
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn names(timeline: &Timeline) -> Vec<Value> {
    let name = |kind: &str, pid: u32, tid: u32, name: String| json!({"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": {"name": name}});
    let cpus = (0u32..).zip(&timeline.cpus).filter(|(_, line)| !line.spans.is_empty());
    let turns = timeline.cpus.iter().flat_map(|line| &line.turns);
    let vcpus = turns.map(|&(vcpu, ..)| u32::from(vcpu)).collect::<BTreeSet<_>>();
    [("CPUs", CPUS), ("vCPUs", VCPUS)]
        .into_iter()
        .map(|(text, pid)| name("process_name", pid, 0, text.to_owned()))
        .chain(cpus.map(|(cpu, _)| name("thread_name", CPUS, cpu, format!("CPU {cpu}"))))
        .chain(vcpus.into_iter().map(|vcpu| name("thread_name", VCPUS, vcpu, format!("vCPU {vcpu}"))))
        .collect()
}

fn slice(pid: u32, tid: u32, name: &str, category: &str, (start, end): (u64, u64), args: &Value) -> Value {
    let (ts, dur) = (us(start), us(end - start));
    json!({"ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "name": name, "cat": category, "args": args})
}

fn cpu_line(cpu: u32, line: &CpuLine) -> impl Iterator<Item = Value> {
    let spans = line.spans.iter().map(move |span| {
        let times = (span.start, span.end);
        match span.doing {
            Doing::Guest { vcpu } => {
                slice(CPUS, cpu, &format!("vCPU {vcpu}"), "guest", times, &json!({"vcpu": vcpu}))
            }
            Doing::Hypervisor { vcpu, why } => {
                slice(CPUS, cpu, why.name(), "hypervisor", times, &json!({"vcpu": vcpu}))
            }
            Doing::Idle => slice(CPUS, cpu, "idle", "idle", times, &json!({})),
        }
    });
    let (name, args) = (format!("CPU {cpu}"), json!({"cpu": cpu}));
    let turn = move |&(vcpu, start, end): &(u16, u64, u64)| {
        slice(VCPUS, vcpu.into(), &name, "turn", (start, end), &args)
    };
    spans.chain(line.turns.iter().map(turn))
}

fn flush_with_arrows(id: u32, flush: &Flush) -> Vec<Value> {
    let args = json!({
        "flush": id,
        "initiator": flush.vcpu,
        "elements": flush.elements,
        "named": flush.named,
        "targets": flush.targets,
        "deferred": flush.deferred_count,
        "kicked": flush.kicked.iter().map(|kicked| kicked.cpu).collect::<Vec<_>>(),
        "merged": flush.merged,
    });
    let name = if flush.vcpu.is_some() { "flush" } else { "flush of nested translations" };
    let mut events = vec![slice(CPUS, flush.cpu, name, "flush", (flush.start, flush.end), &args)];
    let kicks = flush.kicked.iter().filter_map(|kicked| Some(("kick", kicked.at, kicked.cpu, kicked.exit?)));
    let deferred = flush.deferred.iter().map(|taken| ("deferred flush", flush.start, taken.cpu, taken.at));
    for (place, (name, from, cpu, to)) in (0u64..).zip(kicks.chain(deferred)) {
        // 2^16 arrows for each flush are enough: there are fewer vCPUs.
        let arrow = u64::from(id) << 16 | place;
        events.extend(arrow_ends(arrow, name, [(flush.cpu, from), (cpu, to)], &json!({})));
    }
    events
}

/// The beginning and the end of an arrow: each one's CPU and time.
fn arrow_ends(id: u64, name: &str, [from, to]: [(u32, u64); 2], args: &Value) -> [Value; 2] {
    [("s", from), ("f", to)].map(|(ph, (cpu, at))| {
        json!({"ph": ph, "bp": "e", "id": id, "name": name, "cat": name, "pid": CPUS, "tid": cpu, "ts": us(at), "args": args})
    })
}

fn ipi_arrow(id: u64, ipi: &Ipi) -> Option<[Value; 2]> {
    let args = json!({"from": ipi.from, "to": ipi.to, "vector": ipi.vector, "receiver": ipi.receiver.name()});
    Some(arrow_ends(id, "interrupt", [(ipi.cpu, ipi.at), ipi.entry?], &args))
}

fn instant(taken: &Taken) -> Value {
    let name = if taken.whole { "flushes its tag" } else { "flushes pages" };
    let args = json!({"vcpu": taken.vcpu, "pages": taken.pages});
    json!({"ph": "i", "s": "t", "pid": CPUS, "tid": taken.cpu, "ts": us(taken.at), "name": name, "cat": "flush", "args": args})
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::timeline::{Kicked, Receiver, Span, Why};

    #[test]
    fn the_file_is_json_with_both_ends_of_each_arrow() {
        let why = Why::Exit(Counter::ExitHypercall);
        let span = |start, end, doing| Span { start, end, doing };
        let hypervisor = span(10, 90, Doing::Hypervisor { vcpu: Some(0), why });
        let guest = span(0, 10, Doing::Guest { vcpu: 0 });
        let line = CpuLine { spans: vec![guest, hypervisor], turns: vec![(0, 0, 90)], lost: 3 };
        let taken = Taken { vcpu: 2, cpu: 1, at: 70, whole: true, pages: 0 };
        let flush = Flush {
            cpu: 0,
            vcpu: Some(0),
            start: 20,
            end: 50,
            named: vec![1, 2],
            targets: 2,
            deferred_count: 1,
            kicked: vec![
                Kicked { cpu: 1, at: 25, vcpu: Some(1), exit: Some(40) },
                Kicked { cpu: 3, at: 26, vcpu: None, exit: None },
            ],
            deferred: vec![taken],
            ..Flush::default()
        };
        let ipi = Ipi {
            cpu: 0,
            from: 0,
            to: 3,
            at: 15,
            vector: 251,
            receiver: Receiver::Running,
            entry: Some((1, 60)),
        };
        let timeline =
            Timeline { cpus: vec![line], flushes: vec![flush], taken: vec![taken], ipis: vec![ipi] };
        let mut bytes = Vec::new();
        write_events(&mut bytes, &timeline).expect("writes");
        let value: Value = serde_json::from_slice(&bytes).expect("is JSON");
        let events = value["traceEvents"].as_array().expect("is a list");
        let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).cloned().collect::<Vec<_>>();
        let pairs = |events: &[Value]| {
            events.iter().map(|event| (event["id"].as_u64(), event["ts"].as_f64())).collect::<Vec<_>>()
        };
        assert_eq!(
            pairs(&of("s")),
            [(Some(1 << 16), Some(0.025)), (Some(1 << 16 | 1), Some(0.02)), (Some(FIRST_IPI), Some(0.015))]
        );
        assert_eq!(
            pairs(&of("f")),
            [(Some(1 << 16), Some(0.04)), (Some(1 << 16 | 1), Some(0.07)), (Some(FIRST_IPI), Some(0.06))]
        );
        let names: Vec<_> = of("X").iter().map(|event| event["name"].as_str().unwrap().to_owned()).collect();
        assert_eq!(names, ["vCPU 0", "exit.hypercall", "CPU 0", "flush"]);
        assert_eq!(of("i").len(), 1);
        assert_eq!(value["otherData"]["missing records"], "3");
    }
}
