//! `quell bench unmap`: the cost on Arm of removing memory from a guest, logging its stores, and
//! giving it pages.
//!
//! A bare guest uses a GiB that was added to it, in pages of 4 KiB, on a machine of one CPU that
//! counts instructions; the hypervisor marks its phases by hints (`hostlink::phase`). The same
//! deletion is then made by the clock, without counting: how long the hypervisor worked (`wall`),
//! and when the answer arrived (`answered`). In between it gives the CPU to the guest after each
//! step, which page by page is most of the time.

pub(super) mod load;
mod targets;

use super::phases::{Counts, Phases};
use crate::arch::{Arch, ArmCpu, Platform};
use crate::cli::UnmapArgs;
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject};
use crate::vm::Hypervisor;
use anyhow::{Context, Result};
use hostlink::config::Stage2Unmap;
use hostlink::phase::Phase;
use load::{Load, Work};

const INSTRUCTIONS: &str = "instructions";
const TLBI: &str = "tlbi";
const DSB: &str = "dsb";
const DC: &str = "dc";
const WALL: &str = "wall";
const ANSWERED: &str = "answered";

const BLOCKING: &str = "delete-1G-4K-blocking";
const TOTAL: &str = "delete-1G-4K-total";
const PER_PAGE: &str = "per-page-1G-4K";
const ENABLE: &str = "dirty-enable-1G";
const FETCH: &str = "dirty-fetch-1G";
const FAULT_IN: &str = "fault-in-4K";

/// Measures, prints, and evaluates; the status is 1 if a target is missed.
pub(crate) fn unmap(args: &UnmapArgs, signals: &Signals) -> Result<u8> {
    let hypervisor = Hypervisor::build(Arch::Aarch64)?;
    let mut samples = Samples::default();
    let cpus = if args.cpu.is_empty() { ArmCpu::ALL.to_vec() } else { args.cpu.clone() };
    for &cpu in &cpus {
        let bench = Bench { hypervisor: &hypervisor, cpu, args, signals };
        bench.count(&mut samples).with_context(|| format!("on {}", cpu.name()))?;
        bench.time(&mut samples).with_context(|| format!("on {}", cpu.name()))?;
    }
    let good = targets::print(&samples, &cpus);
    if let Some(path) = &args.output.json {
        results::write(path, "unmap", None, &samples)?;
    }
    Ok(u8::from(!good))
}

/// The name of a case in results.
fn case(name: &str, cpu: ArmCpu) -> String {
    format!("{name}@{}", cpu.name())
}

struct Bench<'a> {
    hypervisor: &'a Hypervisor,
    cpu: ArmCpu,
    args: &'a UnmapArgs,
    signals: &'a Signals,
}

impl Bench<'_> {
    /// A load on a new machine.
    fn load(&self, unmap: Stage2Unmap, clock: Clock) -> Result<Load> {
        Load::start(
            self.hypervisor,
            Platform::Aarch64(self.cpu),
            unmap,
            clock,
            self.args.output.timeout(),
            self.signals,
        )
    }

    /// The machines that count.
    fn count(&self, samples: &mut Samples) -> Result<()> {
        let counted = |unmap, work| {
            let done = self.load(unmap, Clock::Instructions)?.run(work)?;
            done.phases.context("nothing was counted")
        };
        eprintln!("{}: a GiB in pages of 4 KiB goes at once …", self.cpu.name());
        let ranged = counted(Stage2Unmap::Range, Work::Delete)?;
        let blocking = ranged.of(Phase::Blocking)?;
        self.add(BLOCKING, blocking, samples);
        self.add(TOTAL, &blocking.and(ranged.of(Phase::Reclaim)?), samples);
        self.add_faults(&ranged, samples)?;

        eprintln!("{}: the same, page by page …", self.cpu.name());
        let paged = counted(Stage2Unmap::Page, Work::Delete)?;
        self.add(PER_PAGE, paged.of(Phase::PerPage)?, samples);

        eprintln!("{}: stores to a GiB are logged …", self.cpu.name());
        let logged = counted(Stage2Unmap::Range, Work::Log)?;
        self.add(ENABLE, logged.of(Phase::DirtyEnable)?, samples);
        self.add(FETCH, logged.of(Phase::DirtyFetch)?, samples);
        Ok(())
    }

    fn add(&self, name: &str, counts: &Counts, samples: &mut Samples) {
        let case = case(name, self.cpu);
        for (metric, count) in
            [(INSTRUCTIONS, counts.instructions), (TLBI, counts.tlbi()), (DSB, counts.dsb()), (DC, counts.dc)]
        {
            samples.add_count(&case, Subject::Quell, metric, count);
        }
    }

    /// The guest's first touch of all pages is a phase: a fault for each, and the few instructions
    /// of its own loop.
    fn add_faults(&self, phases: &Phases, samples: &mut Samples) -> Result<()> {
        let touched = phases.of(Phase::FaultIn)?;
        #[expect(clippy::cast_precision_loss, reason = "counts stay far below 2^53")]
        let each = touched.instructions as f64 / load::PAGES as f64;
        samples.add(&case(FAULT_IN, self.cpu), Subject::Quell, INSTRUCTIONS, INSTRUCTIONS, each);
        Ok(())
    }

    /// The machines by the clock: how long the deletion takes, each way in turn.
    fn time(&self, samples: &mut Samples) -> Result<()> {
        for run in 1..=self.args.runs {
            eprintln!("{}: by the clock, {run} of {} …", self.cpu.name(), self.args.runs);
            for (name, unmap) in [(TOTAL, Stage2Unmap::Range), (PER_PAGE, Stage2Unmap::Page)] {
                let done = self.load(unmap, Clock::Wall)?.run(Work::Delete)?;
                for (metric, time) in [(WALL, done.busy), (ANSWERED, done.asked)] {
                    let ms = time.as_secs_f64() * 1e3;
                    samples.add(&case(name, self.cpu), Subject::Quell, metric, "ms", ms);
                }
            }
        }
        Ok(())
    }
}
