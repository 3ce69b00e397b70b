//! The demo on Arm: memory is removed from a guest that uses it, with a flush for each page, and
//! with one flush for all.
//!
//! Arm's processors flush each other's TLBs themselves, so guests do not need flush hypercalls
//! there. The cost is in the hypervisor's own flushes of stage 2.

use super::{Demo, Measured, Observer, Rows};
use crate::cli::DemoArgs;
use crate::prelude::*;
use crate::size::display;
use hostlink::config::{NestedPage, Stage2Unmap};

const SIDES: [Stage2Unmap; 2] = [Stage2Unmap::Page, Stage2Unmap::Range];
/// Default number of times that memory is added and removed.
const ROUNDS: u32 = 3;
/// The memory that is added and removed, and its address.
const AT: u64 = 4 << 30;
const SIZE: u64 = 64 * MIB;

/// Longest time for a deletion: page by page, the guest gets the CPU after each page.
const DELETION_MAX: Duration = Duration::from_secs(120);

const DELETION: &str = "deletion";
const STALL: &str = "longest stall";
const HEAD: &Rows = &[
    ("memory is taken away", DELETION),
    ("longest stall of a thread", STALL),
    ("first touch of all pages", "touch"),
    ("exits", "exit.all"),
];
const TAIL: &Rows = &[("pages installed", "nested.installed"), ("vCPUs preempted", "sched.preempted")];

pub(super) fn demo(args: &DemoArgs, platform: Platform) -> Demo<'_> {
    let (vcpus, cpus, on) = (args.size.vcpus, args.size.cpus, platform.suffix());
    let rounds = args.rounds.unwrap_or(ROUNDS);
    Demo {
        args,
        platform,
        about: format!(
            "occupy: {} of memory come, are written to page by page, and go, {rounds} times; \
             {vcpus} vCPUs on {cpus} CPUs{on}",
            display(SIZE)
        ),
        names: SIDES.map(Stage2Unmap::name),
        cases: SIDES.map(|side| format!("unmap-{vcpus}:{cpus}-{}{on}", side.name())),
        command: format!("occupy --at {AT} --mib {} --report /dev/report", SIZE / MIB),
        guest: |side, guest| {
            let (stage2_unmap, nested_page) = (SIDES[side], NestedPage::Small);
            Guest { switches: Switches { stage2_unmap, nested_page, ..Switches::default() }, ..guest }
        },
        spare: SIZE,
        observer: |args, _| Box::new(Seen { left: args.rounds.unwrap_or(ROUNDS), ..Seen::default() }),
        metric: DELETION,
        ratio: "deletion relative to page",
        rows: [HEAD, TAIL],
        sentence,
    }
}

fn sentence(_: &DemoArgs, page: f64, range: f64) -> String {
    let size = display(SIZE);
    if range < page {
        format!(
            "With one flush for all pages, taking {size} away takes {range:.1} ms instead of {page:.1} ms: it is {:.0} \
             times as fast.",
            page / range
        )
    } else {
        format!(
            "With one flush for all pages, taking {size} away is not faster here: {range:.1} ms, and {page:.1} ms page by page."
        )
    }
}

#[derive(Default)]
struct Seen {
    /// Remaining rounds.
    left: u32,
    slot: u16,
    /// Milliseconds of each round.
    deletions: Vec<f64>,
    stalls: Vec<f64>,
    touches: Vec<f64>,
    begin: Option<Snapshot>,
    /// The counters from the first round's begin to the last one's end.
    counters: Option<Snapshot>,
}

impl Observer for Seen {
    fn observe(&mut self, report: &Value, machine: &mut Machine) -> Result<()> {
        let ms = |key: &str| report[key].as_f64().map(|us| us / 1e3);
        match report["event"].as_str() {
            Some("waiting") if self.left == 0 => {
                let now = machine.counters()?;
                self.counters = now.zip(self.begin.as_ref()).map(|(now, begin)| now.since(begin));
                machine.type_text("end\n")?;
            }
            Some("waiting") => {
                self.left -= 1;
                if self.begin.is_none() {
                    self.begin = machine.counters()?;
                }
                self.slot = machine.control()?.add(AT, SIZE)?;
                machine.type_text("\n")?;
            }
            Some("touched") => {
                self.touches.extend(ms("us"));
                let mut control = machine.control()?.with_patience(DELETION_MAX);
                let begun = Instant::now();
                control.delete(self.slot)?;
                self.deletions.push(begun.elapsed().as_secs_f64() * 1e3);
                machine.type_text("\n")?;
            }
            Some("round") => self.stalls.extend(ms("stall_us")),
            _ => {}
        }
        Ok(())
    }

    /// The worst rounds.
    fn measured(&self) -> Option<Measured> {
        let rounds = [(DELETION, &self.deletions), (STALL, &self.stalls), ("touch", &self.touches)];
        let worst = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let figures = rounds.map(|(metric, values)| (metric, "ms", worst(values))).to_vec();
        Some(Measured { figures, counters: self.counters.clone()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_round_counts() {
        let counters = Some(Snapshot::of_counts(&[]));
        let seen = Seen { deletions: vec![1.0, 5.0, 2.0], counters, ..Seen::default() };
        let figures = seen.measured().expect("is over").figures;
        assert_eq!(figures[..2], [(DELETION, "ms", 5.0), (STALL, "ms", 0.0)]);
    }
}
