//! The machines of the benchmark: a bare guest that uses memory, and the requests to its hypervisor
//! meanwhile.

use super::super::phases::Phases;
use crate::arch::Platform;
use crate::ctl::dirty_runs;
use crate::machine::control::Control;
use crate::machine::process::{Flow, Machine};
use crate::machine::signals::Signals;
use crate::machine::spec::{Clock, Counting, Spec};
use crate::run::tail;
use crate::size::MIB;
use crate::vm::{Guest, Hypervisor};
use anyhow::{Context, Result, ensure};
use baremetal::pages::PAGE;
use hostlink::config::{NestedPage, Stage2Unmap, Switches};
use hostlink::ctl::record::Deleted;
use hostlink::ctl::{LogWay, Request};
use hostlink::phase::Phase;
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Memory of the guest itself.
const MEMORY: u64 = 64 * MIB;
/// The added memory, and its address: it fills an entry of a table that is not of the last level.
const AT: u64 = 4 << 30;
pub(in crate::bench) const SIZE: u64 = 1 << 30;
/// Pages of it.
pub(in crate::bench) const PAGES: u64 = SIZE / PAGE;

/// The operation on the memory once the guest uses all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum Work {
    /// It is removed.
    Delete,
    /// Stores to it are logged while the guest writes each page again; then the log is fetched.
    Log,
}

/// The next step, when the previous one is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Add the memory.
    Add,
    /// Make the guest write one word of each page, in a phase of its own.
    Touch,
    /// Remove the memory.
    Delete,
    /// Start to log.
    LogStart,
    /// Fetch the log, which names every page.
    LogFetch,
    /// Make the guest switch the machine off.
    PowerOff,
}

impl Work {
    const fn steps(self) -> &'static [Step] {
        match self {
            Self::Delete => &[Step::Add, Step::Touch, Step::Delete, Step::PowerOff],
            Self::Log => {
                &[Step::Add, Step::Touch, Step::LogStart, Step::Touch, Step::LogFetch, Step::PowerOff]
            }
        }
    }
}

/// A running machine.
pub(in crate::bench) struct Load {
    machine: Machine,
    counting: Option<Counting>,
    timeout: Duration,
    _directory: TempDir,
}

/// The results of a run.
pub(in crate::bench) struct Done {
    /// How long the hypervisor worked on removing the memory, without the pauses for its guest; 0
    /// if that was not requested.
    pub(in crate::bench) busy: Duration,
    /// From that request to its answer.
    pub(in crate::bench) asked: Duration,
    /// The counts, if there are any.
    pub(in crate::bench) phases: Option<Phases>,
}

/// The guest, with pages of 4 KiB only in stage 2.
pub(in crate::bench) fn guest(platform: Platform, stage2_unmap: Stage2Unmap) -> Result<Guest> {
    let switches = Switches { stage2_unmap, nested_page: NestedPage::Small, ..Switches::default() };
    Guest::load(platform, 1, MEMORY, switches)
}

/// Its machine, which has one CPU; files are written to `directory`.
pub(in crate::bench) fn spec(
    guest: &Guest,
    hypervisor: &Hypervisor,
    clock: Clock,
    directory: &Path,
) -> Result<Spec> {
    let spec = guest.on_quell(hypervisor, 1, clock, directory)?;
    Ok(Spec { memory: spec.memory + SIZE, ..spec })
}

impl Load {
    /// Starts the guest.
    pub(in crate::bench) fn start(
        hypervisor: &Hypervisor,
        platform: Platform,
        stage2_unmap: Stage2Unmap,
        clock: Clock,
        timeout: Duration,
        signals: &Signals,
    ) -> Result<Self> {
        let directory = tempfile::Builder::new().prefix("quell-bench-").tempdir()?;
        let mut spec = spec(&guest(platform, stage2_unmap)?, hypervisor, clock, directory.path())?;
        spec.timeout = Some(timeout);
        let is_counted = clock == Clock::Instructions;
        let counting = if is_counted { Some(Phases::counting(directory.path())?) } else { None };
        spec.counting.clone_from(&counting);
        Ok(Self { machine: Machine::start(&spec, signals)?, counting, timeout, _directory: directory })
    }

    /// Does the work, until the machine ends.
    pub(in crate::bench) fn run(self, work: Work) -> Result<Done> {
        let Self { mut machine, counting, timeout, _directory } = self;
        let mut script = Script { slot: 0, busy: Duration::ZERO, asked: Duration::ZERO, read: 0, timeout };
        script
            .work(work, &mut machine)
            .with_context(|| format!("the guest's console ends with:\n{}", tail(&machine.shown())))?;
        machine.run(|_, _| Ok(Flow::Continue))?.powered_off()?;
        let phases = counting.as_ref().map(Phases::read).transpose()?;
        Ok(Done { busy: script.busy, asked: script.asked, phases })
    }
}

/// The guest's console messages when it accepts commands, one per line, and when it has finished
/// one.
const READY: &str = "load: ready";
const DONE: &str = "load: done: ";

/// The progress of a run.
struct Script {
    slot: u16,
    /// As in [`Done`].
    busy: Duration,
    asked: Duration,
    /// Bytes of the console that have been read.
    read: usize,
    /// Longest time for a step.
    timeout: Duration,
}

impl Script {
    fn work(&mut self, work: Work, machine: &mut Machine) -> Result<()> {
        self.read = machine.await_console(READY, self.read, self.timeout)?;
        work.steps().iter().try_for_each(|step| self.take(*step, machine))
    }

    fn take(&mut self, step: Step, machine: &mut Machine) -> Result<()> {
        let slot = self.slot;
        match step {
            Step::Touch => {
                let [begin, end] = [Phase::FaultIn, Phase::None].map(Phase::hint);
                let commands = [
                    format!("hint={begin:#x}"),
                    format!("touch={AT:#x},{SIZE:#x},{PAGE:#x}"),
                    format!("hint={end:#x}"),
                ];
                machine.type_text(&format!("{}\n", commands.join(" ")))?;
                for _ in commands {
                    self.read = machine.await_console(DONE, self.read, self.timeout)?;
                }
            }
            Step::PowerOff => machine.type_text("poweroff\n")?,
            Step::Add => {
                self.slot = self.control(machine)?.add(AT, SIZE)?;
            }
            Step::Delete => {
                let begun = Instant::now();
                let Deleted { ticks, .. } = self.control(machine)?.delete(slot)?;
                self.asked = begun.elapsed();
                let hz = machine.clock_hz()?.context("the hypervisor says nothing of its clock")?;
                self.busy = busy_of(ticks, hz)?;
            }
            // By dirty bits where the processor sets them; elsewhere the hypervisor uses write
            // protection automatically.
            Step::LogStart => {
                self.control(machine)?.ask(&Request::LogStart { slot, way: LogWay::DirtyBits })?;
            }
            Step::LogFetch => {
                let runs = dirty_runs(&mut self.control(machine)?, slot)?;
                let pages: u64 = runs.iter().map(|run| run.end - run.start).sum();
                ensure!(pages == PAGES, "{pages} pages are in the log, and {PAGES} were written");
            }
        }
        Ok(())
    }

    /// Page by page, a deletion takes longer than the channel's usual patience.
    fn control(&self, machine: &Machine) -> Result<Control> {
        Ok(machine.control()?.with_patience(self.timeout))
    }
}

/// The duration of `ticks` ticks of a clock of `hz` ticks per second.
fn busy_of(ticks: u64, hz: u64) -> Result<Duration> {
    let nanos = u128::from(ticks) * 1_000_000_000 / u128::from(hz.max(1));
    Ok(Duration::from_nanos(u64::try_from(nanos).context("it took too long")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_there_before_it_is_used_and_the_machine_is_switched_off_last() {
        for work in [Work::Delete, Work::Log] {
            let steps = work.steps();
            assert_eq!((steps[0], steps[1]), (Step::Add, Step::Touch));
            assert_eq!(steps.last(), Some(&Step::PowerOff));
        }
    }

    #[test]
    fn ticks_are_time_by_the_clock_that_made_them() {
        assert_eq!(busy_of(125, 62_500_000).expect("fits"), Duration::from_micros(2));
        assert!(busy_of(u64::MAX, 0).is_err());
    }
}
