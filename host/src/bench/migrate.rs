//! The cases `migrate` and `migrate-wall`: how long a guest stops during a cancelled migration of
//! its memory.
//!
//! A GiB in one page of the nested table is split into pages of 4 KiB, whose stores are logged, and
//! becomes one page again. The stops that the guest itself reports count; the hypervisor's steps
//! are shown beside them.

use super::all::Runner;
use super::all::cases::Case;
use super::all::own::{Own, own};
use super::all::record::{Number, named};
use super::all::way::FlushWay;
use super::load::{DONE, Load, Setup};
use crate::cli::{AllArgs, MigrateOptions};
use crate::ctl::Fields;
use crate::migration::{Moved, Origin, in_vain};
use crate::prelude::*;
use baremetal::pages::PAGE;
use hostlink::config::{NestedPage, Stage2Unmap};

const SIZE: u64 = 1 << 30;
/// For the memory at its alignment.
const SPARE: u64 = 3 << 30;

const RANGED: &str = "migrate-1G";
const PER_PAGE: &str = "migrate-1G-per-page";
/// The most in ms by the clock, for each of [`LIMITED`]: a stop of the guest may be as long as S5's
/// author made it, who came from 7 s; the last round is usually asked to be over in its time.
pub(super) const MS_MAX: [f64; 3] = [1000.0, 1000.0, 50.0];
/// Our own targets, in instructions.
pub(super) const INSTRUCTIONS_MAX: [f64; 3] = [1e6, 5e4, 2e6];

pub(super) const CASES: [Case; 2] = [
    own(
        "migrate-wall",
        "how long a guest stops in a cancelled migration of a GiB, by the clock",
        Own::timed(|runner, way| measure(runner, way, Clock::Wall), machines),
    ),
    own(
        "migrate",
        "the same in instructions",
        Own::counted(|runner, way| measure(runner, way, Clock::Instructions), machines),
    ),
];

fn machines(args: &AllArgs) -> String {
    let MigrateOptions { rounds, rate, .. } = args.migrate;
    format!("a CPU; the guest writes {rate} MB/s, and pages are copied again {rounds} times")
}

/// A measured value: its metric, and its nanoseconds, after the guest's longest stop before the
/// migration.
type Metric = (&'static str, fn(u64, &Stops) -> f64);

const METRICS: [Metric; 5] = [
    ("stop before", |before, _| float(before)),
    (STOPS[0], |_, stops| float(stops.copied)),
    (STOPS[1], |_, stops| float(stops.undone)),
    ("longest step", |_, stops| stops.moved.longest_step_seconds * 1e9),
    (LAST, |_, stops| stops.last.stop_work_seconds * 1e9),
];
const STOPS: [&str; 2] = ["stop while copied", "stop while undone"];
const LAST: &str = "work in the last round";
const LIMITED: [&str; 3] = [STOPS[0], STOPS[1], LAST];

/// Pages are removed at once when they become one again, and on Arm, for comparison, one by one. On
/// AMD64 a flush is of the whole vCPU.
fn measure(runner: &Runner<'_>, way: FlushWay, clock: Clock) -> Result<Vec<Number>> {
    let mut numbers = migrated(runner, way, clock, RANGED, Stage2Unmap::Range)?;
    if way.platform().arch() == Arch::Aarch64 {
        numbers.extend(migrated(runner, way, clock, PER_PAGE, Stage2Unmap::Page)?);
    }
    Ok(numbers)
}

fn migrated(
    Runner { lab, args }: &Runner<'_>,
    way: FlushWay,
    clock: Clock,
    name: &str,
    stage2_unmap: Stage2Unmap,
) -> Result<Vec<Number>> {
    let setup = Setup {
        hypervisor: lab.hypervisor(way.platform().arch())?,
        platform: way.platform(),
        switches: Switches { stage2_unmap, nested_page: NestedPage::Huge, ..Switches::default() },
        clock,
        size: SIZE,
        spare: SPARE,
        timeout: lab.timeout.get(),
    };
    let mut writer = Writer::start(&setup, lab.signals)?;
    let (before, stops) = scenario(&mut writer, args.migrate).with_context(|| writer.load.console())?;
    writer.load.finish()?;
    let (unit, scale) = if clock == Clock::Wall { ("ms", 1e-6) } else { ("instructions", 1.0) };
    let all = METRICS.map(|(metric, ns)| Number::of(name, metric, unit, ns(before, &stops) * scale));
    let pages = Number::of(name, "pages copied", "count", float(stops.moved.pages + stops.moved.zeros));
    Ok(all.into_iter().chain([pages]).collect())
}

fn scenario(
    writer: &mut Writer,
    MigrateOptions { rounds, rate, .. }: MigrateOptions,
) -> Result<(u64, Stops)> {
    writer.begin(rate)?;
    let before = writer.second()?;
    let stops = writer.migrate(rounds)?;
    writer.end()?;
    Ok((before, stops))
}

/// The most in the unit of a case.
pub(super) fn limits(worst: &dyn Fn(&str) -> f64, most: [f64; 3]) -> Vec<Limit> {
    let limit = |(metric, most): (&str, f64)| {
        let metric = named(RANGED, metric);
        Limit::at_most(&*metric, worst(&metric), most)
    };
    LIMITED.into_iter().zip(most).map(limit).collect()
}

/// The guest's message while it writes.
const DIRTY: &str = "load: dirty: ";
/// It reports its longest stop each second, and at each typed byte: a line at least this many
/// milliseconds after the previous one is a periodic report.
const SECOND_MS: u64 = 990;

/// A bare guest that keeps writing to memory that was added to it, and reports how long it was
/// stopped.
pub(crate) struct Writer {
    pub(crate) load: Load,
    /// Physical address of the added memory.
    host: u64,
    /// When the guest last reported its longest stop.
    told_ms: u64,
}

/// The guest's longest stops in nanoseconds, and the hypervisor's report.
#[derive(Clone, Debug)]
pub(crate) struct Stops {
    pub(crate) copied: u64,
    pub(crate) undone: u64,
    pub(crate) moved: Moved,
    /// Another one, which was cancelled when the guest stood still and was complete.
    pub(crate) last: Moved,
}

impl Writer {
    /// Starts the guest, and makes it write one word of each page.
    pub(crate) fn start(setup: &Setup<'_>, signals: &Signals) -> Result<Self> {
        let mut writer = Self { load: Load::start(setup, false, signals)?, host: 0, told_ms: 0 };
        writer.prepare().with_context(|| writer.load.console())?;
        Ok(writer)
    }

    fn prepare(&mut self) -> Result<()> {
        let ours = self.load.slots()?.into_iter().find(|slot| slot.slot == self.load.slot);
        self.host = ours.context("the slot is not listed")?.host;
        self.load.touch()
    }

    /// Makes the guest start writing, `rate` in 10^6 bytes per second; 0 is as fast as possible.
    pub(crate) fn begin(&mut self, rate: u32) -> Result<()> {
        self.load.machine.type_text(&format!("dirty={:#x},{:#x},{rate}\n", self.load.at, self.load.size))?;
        self.told_ms = 0;
        // A stop before it started writing does not count.
        self.stop().map(drop)
    }

    /// The guest's longest stop in nanoseconds since the last query.
    pub(crate) fn stop(&mut self) -> Result<u64> {
        let mut longest = 0;
        for line in self.load.machine.lines(DIRTY, self.load.read)? {
            longest = self.take(line)?.0.max(longest);
        }
        self.load.machine.type_text(" ")?;
        for _ in 0..2 {
            let line = self.load.line(DIRTY)?;
            let (stop, after_ms) = self.take((line, self.load.read))?;
            longest = longest.max(stop);
            // After a periodic report the one for the byte follows; stops meanwhile are lost.
            if after_ms < SECOND_MS {
                break;
            }
        }
        Ok(longest)
    }

    /// The same for a second without other activity.
    pub(crate) fn second(&mut self) -> Result<u64> {
        let line = self.load.line(DIRTY)?;
        Ok(self.take((line, self.load.read))?.0)
    }

    /// A migration that is cancelled after so many rounds, in which pages are copied again.
    pub(crate) fn migrate(&mut self, rounds: u16) -> Result<Stops> {
        let machine = self.load.machine.found().context("the machine has no hypervisor")?;
        let origin = Origin::find(&machine, Name::GUEST)?;
        let mut copied = 0;
        let moved = in_vain(&origin, rounds.into(), false, |_| {
            copied = self.stop()?.max(copied);
            Ok(())
        })?;
        let undone = self.stop()?;
        let last = in_vain(&origin, rounds.into(), true, |_| Ok(()))?;
        self.stop()?;
        Ok(Stops { copied, undone, moved, last })
    }

    /// Makes the guest stop writing; returns how many stores it has made.
    pub(crate) fn end(&mut self) -> Result<u64> {
        self.load.machine.type_text("q")?;
        let line = self.load.line(DONE)?;
        let done = Fields::parse(line.rsplit_once(DONE).map_or("", |(_, done)| done))?;
        done.number("count").with_context(|| format!("the guest says '{line}'"))
    }

    /// Checks that the last of `stores` stores to each page is in the memory. On AMD64 only for
    /// machines without memory above 4 GiB, which has another offset in the file behind it.
    pub(crate) fn check(&self, stores: u64) -> Result<()> {
        let pages = self.load.size / PAGE;
        for page in 0..pages {
            let word = self.load.machine.ram().load(self.host + page * PAGE)?;
            let written = last_store(page, pages, stores);
            ensure!(word == written, "page {page} has {word} of {stores} stores instead of {written}");
        }
        Ok(())
    }

    /// The stop in a line, and how long after the previous line it was printed, in milliseconds.
    fn take(&mut self, (line, end): (String, usize)) -> Result<(u64, u64)> {
        self.load.read = end;
        let (ms, stop) = stop_of(&line)?;
        let after_ms = ms.saturating_sub(self.told_ms);
        self.told_ms = ms;
        Ok((stop, after_ms))
    }
}

/// The time of a line in milliseconds, and its stop in nanoseconds.
fn stop_of(line: &str) -> Result<(u64, u64)> {
    let fields = Fields::parse(line.rsplit_once(DIRTY).map_or("", |(_, fields)| fields))?;
    let [ms, stop] = ["ms", "longest_ns"].map(|key| fields.number(key));
    ms.zip(stop).with_context(|| format!("the guest says '{line}'"))
}

/// The contents of a page after `stores` stores to all pages in turn, each of which writes its
/// number. Initially a page has its own number.
const fn last_store(page: u64, pages: u64, stores: u64) -> u64 {
    if stores <= page { page } else { page + (stores - 1 - page) / pages * pages }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_name_no_stop_are_errors() {
        for line in [
            "",
            "load: dirty: ms=1",
            "load: done: dirty=1,2,3 count=9 ns=1",
            "load: dirty: ms=1 longest_ns=x",
        ] {
            assert!(stop_of(line).is_err(), "{line}");
        }
        let line = "load: load: dirty: ms=2004 stores=7 longest_ns=16000";
        assert_eq!(stop_of(line).expect("names one"), (2004, 16000));
    }

    #[test]
    fn a_page_holds_the_last_of_the_stores_that_were_its() {
        for stores in 0..20 {
            let mut memory = [0, 1, 2, 3, 4];
            (0..stores).for_each(|store| memory[store as usize % 5] = store);
            for (page, word) in (0..).zip(memory) {
                assert_eq!(last_store(page, 5, stores), word, "page {page} after {stores}");
            }
        }
    }
}
