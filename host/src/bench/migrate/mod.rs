//! `quell bench migrate`: how long a guest stops during a cancelled migration of its memory.
//!
//! A GiB in one page of the nested table is split into pages of 4 KiB, whose stores are logged, and
//! becomes one page again. The stops that the guest itself reports count; the hypervisor's steps
//! are shown beside them.

mod figures;
pub(crate) mod writer;

use crate::arch::{Arch, Platform};
use crate::cli::MigrateArgs;
use crate::machine::signals::Signals;
use crate::machine::spec::Clock;
use crate::results::{self, Samples, Subject};
use crate::vm::Hypervisor;
use anyhow::{Context, Result};
use hostlink::config::{NestedPage, Stage2Unmap, Switches};
use hostlink::ctl::LogWay;
use writer::{Setup, Stops, Writer};

const SIZE: u64 = 1 << 30;
/// For the memory at its alignment, and the copy.
const SPARE: u64 = 4 << 30;

const RANGED: &str = "migrate-1G";
const PER_PAGE: &str = "migrate-1G-per-page";

/// A measured value: its metric in instructions, and in milliseconds by the clock.
struct Metric {
    name: &'static str,
    /// The same by the clock.
    wall: &'static str,
    /// In nanoseconds.
    of: fn(u64, &Stops) -> f64,
}

#[expect(clippy::cast_precision_loss, reason = "durations of a benchmark")]
const METRICS: [Metric; 6] = [
    Metric { name: "stop before", wall: "stop before, wall", of: |before, _| before as f64 },
    Metric { name: "stop while copied", wall: "stop while copied, wall", of: |_, stops| stops.copied as f64 },
    Metric { name: "stop while undone", wall: "stop while undone, wall", of: |_, stops| stops.undone as f64 },
    Metric {
        name: "step while copied",
        wall: "step while copied, wall",
        of: |_, stops| stops.migrated.copying()[1] * 1e9,
    },
    Metric {
        name: "step while undone",
        wall: "step while undone, wall",
        of: |_, stops| stops.migrated.undoing()[1] * 1e9,
    },
    Metric {
        name: "steps of undoing",
        wall: "steps of undoing, wall",
        of: |_, stops| stops.migrated.undoing()[0] * 1e9,
    },
];

/// Measures, prints, and evaluates; the status is 1 if a target is missed.
pub(crate) fn migrate(args: &MigrateArgs, signals: &Signals) -> Result<u8> {
    let platform = args.platform.platform()?;
    let hypervisor = Hypervisor::build(platform.arch())?;
    let bench = Bench { hypervisor: &hypervisor, platform, args, signals };
    let mut samples = Samples::default();
    let ways = ways(platform);
    for &(case, unmap) in ways {
        eprintln!("{case}, counting instructions …");
        bench.run(case, unmap, Clock::Instructions, &mut samples)?;
        for run in 1..=args.runs {
            eprintln!("{case}, by the clock, {run} of {} …", args.runs);
            bench.run(case, unmap, Clock::Wall, &mut samples)?;
        }
    }
    let good = figures::print(&samples, platform);
    if let Some(path) = &args.output.json {
        results::write(path, "migrate", None, &samples)?;
    }
    Ok(u8::from(!good))
}

/// How pages are removed when they become one again. On AMD64 a flush of nested translations
/// flushes the whole vCPU.
const fn ways(platform: Platform) -> &'static [(&'static str, Stage2Unmap)] {
    match platform.arch() {
        Arch::X86_64 => &[(RANGED, Stage2Unmap::Range)],
        Arch::Aarch64 => &[(RANGED, Stage2Unmap::Range), (PER_PAGE, Stage2Unmap::Page)],
    }
}

/// The name of a case in results.
fn case(name: &str, platform: Platform) -> String {
    format!("{name}{}", platform.suffix())
}

struct Bench<'a> {
    hypervisor: &'a Hypervisor,
    platform: Platform,
    args: &'a MigrateArgs,
    signals: &'a Signals,
}

impl Bench<'_> {
    fn run(&self, name: &str, stage2_unmap: Stage2Unmap, clock: Clock, samples: &mut Samples) -> Result<()> {
        let setup = Setup {
            hypervisor: self.hypervisor,
            platform: self.platform,
            switches: Switches { stage2_unmap, nested_page: NestedPage::Huge, ..Switches::default() },
            clock,
            size: SIZE,
            spare: SPARE,
            timeout: self.args.output.timeout(),
        };
        let mut writer = Writer::start(&setup, self.signals)?;
        let (before, stops) = self.scenario(&mut writer).with_context(|| writer.console())?;
        writer.finish()?;
        let case = case(name, self.platform);
        for metric in &METRICS {
            let ns = (metric.of)(before, &stops);
            match clock {
                Clock::Instructions | Clock::InstructionsAndWaits => {
                    samples.add(&case, Subject::Quell, metric.name, "instructions", ns);
                }
                Clock::Wall => samples.add(&case, Subject::Quell, metric.wall, "ms", ns / 1e6),
            }
        }
        if clock == Clock::Instructions {
            samples.add_count(&case, Subject::Quell, "pages copied", stops.migrated.pages());
        }
        Ok(())
    }

    /// The guest's longest stop before, and the stops of the migration.
    fn scenario(&self, writer: &mut Writer) -> Result<(u64, Stops)> {
        writer.begin(self.args.rate)?;
        let before = writer.second()?;
        let stops = writer.migrate(LogWay::DirtyBits, self.args.rounds)?;
        writer.end()?;
        Ok((before, stops))
    }
}
