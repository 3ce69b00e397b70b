//! The demo on AMD64: thrash, flushing by IPI and by hypercall.

use super::{Demo, Measured, Observer, Rows};
use crate::cli::DemoArgs;
use crate::prelude::*;
use hostlink::config::FlushMode;
use indicatif::ProgressBar;

const MODES: [FlushMode; 2] = [FlushMode::Ipi, FlushMode::Hypercall];
const NAMES: [&str; 2] = ["ipi", "hypercall"];
/// Default rounds of each of thrash's threads.
pub(crate) const ROUNDS: u32 = 150;
/// How long thrash idles after it has announced its begin and its end, so that the counters read
/// then match the measured stretch.
const SETTLE_MS: u64 = 300;

pub(super) const HEAD: &Rows = &[
    ("real", "real"),
    ("user", "user"),
    ("sys", "sys"),
    ("guest's TLB IPIs", "guest.tlb_ipis"),
    ("exits", "exit.all"),
];

pub(super) const TAIL: &Rows = &[
    ("IPIs sent by the guest", "irq.ipi"),
    ("flush requests", "flush.requests"),
    ("flushes deferred to entry", "flush.deferred"),
    ("flushes merged", "flush.merged"),
    ("kicks for flushes", "flush.kicks"),
    ("kicks for events", "kick.event"),
    ("ranges flushed", "flush.ranges"),
    ("whole-tag flushes", "flush.whole"),
    ("vCPUs preempted", "sched.preempted"),
];

pub(super) fn demo(args: &DemoArgs, platform: Platform) -> Demo<'_> {
    let (vcpus, cpus, rounds) = (args.size.vcpus, args.size.cpus, args.rounds.unwrap_or(ROUNDS));
    Demo {
        args,
        platform,
        about: format!(
            "thrash: {vcpus} threads, {rounds} rounds each of mmap, read, munmap of 16384 pages; \
             {vcpus} vCPUs on {cpus} CPUs"
        ),
        names: NAMES,
        cases: NAMES.map(|name| platform.named(&format!("thrash-{vcpus}:{cpus}-{name}"))),
        command: command(vcpus, rounds),
        guest: |side, guest| super::Guest { flush: MODES[side], ..guest },
        spare: 0,
        observer: |_, bar| Box::new(Thrash { bar, begin: None, end: None }),
        metric: "real",
        ratio: "real relative to ipi",
        rows: [HEAD, TAIL],
        sentence,
    }
}

/// What a guest runs.
pub(crate) fn command(vcpus: u32, rounds: u32) -> String {
    format!("thrash --threads {vcpus} --rounds {rounds} --settle {SETTLE_MS} --report /dev/report")
}

fn sentence(args: &DemoArgs, ipi: f64, hypercall: f64) -> String {
    let size = format!("{} vCPUs on {} CPUs, medians of {}", args.size.vcpus, args.size.cpus, args.runs);
    let (ratio, times) = (hypercall / ipi, ipi / hypercall);
    if hypercall < ipi {
        format!(
            "Flushing by hypercall, thrash takes {ratio:.2} of the time it takes with IPIs: it is {times:.2} times \
             as fast ({size})."
        )
    } else {
        format!(
            "Flushing by hypercall, thrash is not faster here: it takes {ratio:.2} of the time it takes with \
             IPIs ({size})."
        )
    }
}

struct Thrash {
    bar: ProgressBar,
    begin: Option<Snapshot>,
    /// Its last report, and the counters then.
    end: Option<(Value, Snapshot)>,
}

impl Observer for Thrash {
    fn observe(&mut self, report: &Value, machine: &mut Machine) -> Result<()> {
        match report["event"].as_str() {
            Some("begin") => self.begin = machine.counters()?,
            Some("progress") => {
                self.bar.set_length(report["total"].as_u64().unwrap_or(1));
                self.bar.set_position(report["done"].as_u64().unwrap_or(0));
            }
            Some("end") => self.end = Some(report.clone()).zip(machine.counters()?),
            _ => {}
        }
        Ok(())
    }

    fn measured(&self) -> Option<Measured> {
        let (report, now) = self.end.as_ref()?;
        let figures = [
            ("real", "s", "real"),
            ("user", "s", "user"),
            ("sys", "s", "sys"),
            ("guest.tlb_ipis", "count", "tlb_ipis"),
            ("guest.call_ipis", "count", "call_ipis"),
        ];
        let figures = figures.map(|(metric, unit, field)| Some((metric, unit, report[field].as_f64()?)));
        let counters = now.since(self.begin.as_ref()?);
        Some(Measured { figures: figures.into_iter().collect::<Option<_>>()?, counters })
    }
}
