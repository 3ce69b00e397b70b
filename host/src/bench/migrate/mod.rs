//! `quell bench migrate`: how long a guest stops during a cancelled migration of its memory.
//!
//! A GiB in one page of the nested table is split into pages of 4 KiB, whose stores are logged, and
//! becomes one page again. The stops that the guest itself reports count; the hypervisor's steps
//! are shown beside them.

pub(crate) mod writer;

use super::lab::Lab;
use super::limits::Limit;
use super::load::Setup;
use crate::cli::MigrateArgs;
use crate::prelude::*;
use hostlink::config::{NestedPage, Stage2Unmap};
use hostlink::ctl::LogWay;
use writer::{Stops, Writer};

const SIZE: u64 = 1 << 30;
/// For the memory at its alignment, and the copy.
const SPARE: u64 = 4 << 30;

const RANGED: &str = "migrate-1G";
const PER_PAGE: &str = "migrate-1G-per-page";
/// The guest's longest allowed stop while the migration is undone, in ms by the clock: what S5's
/// author reduced it to, from 7 s.
const STOP_MS_MAX: f64 = 1000.0;
/// Our own target in instructions: a thousandth of that at one per nanosecond.
const STOP_MAX: f64 = 1e6;

/// A measured value: its metric in instructions, and its nanoseconds, after the guest's longest
/// stop before the migration. Its metric by the clock is the same with `, wall`.
type Metric = (&'static str, fn(u64, &Stops) -> f64);

const METRICS: [Metric; 6] = [
    ("stop before", |before, _| float(before)),
    ("stop while copied", |_, stops| float(stops.copied)),
    ("stop while undone", |_, stops| float(stops.undone)),
    ("step while copied", |_, stops| stops.migrated.copying()[1] * 1e9),
    ("step while undone", |_, stops| stops.migrated.undoing()[1] * 1e9),
    ("steps of undoing", |_, stops| stops.migrated.undoing()[0] * 1e9),
];

fn wall(metric: &str) -> String {
    format!("{metric}, wall")
}

pub(super) fn migrate(lab: &Lab<'_>, args: &MigrateArgs, samples: &mut Samples) -> Result<Vec<Limit>> {
    let platform = args.platform.platform()?;
    for &(case, unmap) in ways(platform) {
        eprintln!("{case}, counting instructions …");
        run(lab, args, case, unmap, Clock::Instructions, samples)?;
        for number in 1..=args.runs {
            eprintln!("{case}, by the clock, {number} of {} …", args.runs);
            run(lab, args, case, unmap, Clock::Wall, samples)?;
        }
    }
    print(samples, platform);
    Ok(limits(samples, platform))
}

/// How pages are removed when they become one again. On AMD64 a flush is of the whole vCPU.
const fn ways(platform: Platform) -> &'static [(&'static str, Stage2Unmap)] {
    match platform.arch() {
        Arch::X86_64 => &[(RANGED, Stage2Unmap::Range)],
        Arch::Aarch64 => &[(RANGED, Stage2Unmap::Range), (PER_PAGE, Stage2Unmap::Page)],
    }
}

fn run(
    lab: &Lab<'_>,
    args: &MigrateArgs,
    name: &str,
    stage2_unmap: Stage2Unmap,
    clock: Clock,
    samples: &mut Samples,
) -> Result<()> {
    let platform = args.platform.platform()?;
    let setup = Setup {
        hypervisor: lab.hypervisor(platform.arch())?,
        platform,
        switches: Switches { stage2_unmap, nested_page: NestedPage::Huge, ..Switches::default() },
        clock,
        size: SIZE,
        spare: SPARE,
        timeout: lab.timeout,
    };
    let mut writer = Writer::start(&setup, lab.signals)?;
    let (before, stops) = scenario(&mut writer, args).with_context(|| writer.load.console())?;
    writer.load.finish()?;
    let case = platform.named(name);
    for (metric, of) in METRICS {
        let ns = of(before, &stops);
        match clock {
            Clock::Wall => samples.add(&case, Subject::Quell, &wall(metric), "ms", ns / 1e6),
            Clock::Instructions | Clock::InstructionsAndWaits => {
                samples.add(&case, Subject::Quell, metric, "instructions", ns);
            }
        }
    }
    if clock == Clock::Instructions {
        samples.add_count(&case, Subject::Quell, "pages copied", stops.migrated.pages());
    }
    Ok(())
}

/// The guest's longest stop before, and the stops of the migration.
fn scenario(writer: &mut Writer, args: &MigrateArgs) -> Result<(u64, Stops)> {
    writer.begin(args.rate)?;
    let before = writer.second()?;
    let stops = writer.migrate(LogWay::DirtyBits, args.rounds)?;
    writer.end()?;
    Ok((before, stops))
}

fn print(samples: &Samples, platform: Platform) {
    let ways = ways(platform);
    let names = ways.iter().flat_map(|(name, _)| [(*name).to_owned(), "wall".to_owned()]);
    let header = std::iter::once(platform.named("longest")).chain(names).collect::<Vec<_>>();
    let rows = METRICS.iter().map(|(metric, _)| {
        let cells = ways.iter().flat_map(|(name, _)| {
            let of = |metric: &str| samples.of_quell(&platform.named(name), metric);
            [format!("{:.0}", of(metric)), format!("{:.2} ms", of(&wall(metric)))]
        });
        std::iter::once((*metric).to_owned()).chain(cells).collect::<Vec<_>>()
    });
    println!("{}", table(header, rows));
}

/// The limits. The worst run counts.
fn limits(samples: &Samples, platform: Platform) -> Vec<Limit> {
    let limit = |metric: &str, most| Limit::of_worst(samples, &platform.named(RANGED), metric, most);
    let stops = ["stop while copied", "stop while undone"];
    stops
        .into_iter()
        .flat_map(|metric| [limit(metric, STOP_MAX), limit(&wall(metric), STOP_MS_MAX)])
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::limits::tests::each_can_be_missed;
    use super::*;

    #[test]
    fn each_limit_can_be_missed() {
        for platform in [Platform::X86_64, Platform::Aarch64(ArmCpu::Max)] {
            assert_eq!(each_can_be_missed(&|samples| limits(samples, platform)), 4);
        }
    }
}
