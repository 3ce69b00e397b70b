//! What benchmarks have in common: the parts of their machines, and how these are run.

use super::phases::Phases;
use crate::machine::process::Outcome;
use crate::prelude::*;
use crate::run::reporting_console;
use crate::workspace::Image;
use std::cell::{Cell, OnceCell};

pub(crate) const BARE_MEMORY: u64 = 64 * MIB;

pub(crate) fn directory() -> Result<TempDir> {
    Ok(tempfile::Builder::new().prefix("quell-bench-").tempdir()?)
}

pub(crate) fn bare(platform: Platform, image: Image, words: impl Into<String>, vcpus: u32) -> Result<Guest> {
    Guest::bare(image, platform, words, vcpus, BARE_MEMORY)
}

/// The stock Linux guest with an initial RAM disk, whose reports the host hears.
pub(crate) fn linux(stock: &StockGuest, platform: Platform, initrd: Vec<u8>, vcpus: u32) -> Guest {
    let cmdline = format!("{} quiet panic=-1", reporting_console(platform.arch()));
    let memory = BARE_MEMORY;
    Guest { vcpus, memory, ..Guest::new(platform, stock.kernel(), Some(initrd), cmdline) }
}

/// A part of each architecture, made when it is needed.
type Parts<T> = [OnceCell<T>; 2];

fn part<T>(parts: &Parts<T>, arch: Arch, make: impl FnOnce(Arch) -> Result<T>) -> Result<&T> {
    let cell = &parts[arch as usize];
    if let Some(part) = cell.get() {
        return Ok(part);
    }
    let part = make(arch)?;
    Ok(cell.get_or_init(|| part))
}

/// The parts of a benchmark's machines, which run one after the other.
pub(crate) struct Lab<'a> {
    /// Of the machines that are started next.
    pub(crate) timeout: Cell<Duration>,
    pub(crate) signals: &'a Signals,
    directory: TempDir,
    hypervisors: Parts<Hypervisor>,
    stocks: Parts<StockGuest>,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(timeout: Duration, signals: &'a Signals) -> Result<Self> {
        let (directory, timeout) = (directory()?, Cell::new(timeout));
        Ok(Self { timeout, signals, directory, hypervisors: Parts::default(), stocks: Parts::default() })
    }

    pub(crate) fn hypervisor(&self, arch: Arch) -> Result<&Hypervisor> {
        part(&self.hypervisors, arch, Hypervisor::build)
    }

    pub(crate) fn stock(&self, arch: Arch) -> Result<&StockGuest> {
        part(&self.stocks, arch, StockGuest::prepare)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn on_quell(&self, guest: &Guest, cpus: u32, clock: Clock) -> Result<Spec> {
        guest.check()?;
        guest.on_quell(self.hypervisor(guest.platform.arch())?, cpus, clock, self.directory())
    }

    pub(crate) fn on_bare_machine(&self, guest: &Guest, cpus: u32, clock: Clock) -> Result<Spec> {
        guest.check()?;
        Ok(Spec { clock, ..guest.on_bare_machine(cpus, self.directory())? })
    }

    pub(crate) fn start(&self, spec: Spec) -> Result<Machine> {
        Machine::start(&Spec { timeout: Some(self.timeout.get()), ..spec }, self.signals)
    }

    /// Runs a machine until its guest switches it off, or `observe` stops it.
    pub(crate) fn run(
        &self,
        spec: Spec,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        let is_on_quell = spec.payload.beacon().is_some();
        finished(self.start(spec)?.run(observe)?, is_on_quell)
    }

    pub(crate) fn run_alone(&self, spec: Spec) -> Result<Outcome> {
        self.run(spec, |_, _| Ok(Flow::Continue))
    }

    /// The same, with what QEMU's plugin has counted.
    pub(crate) fn count(
        &self,
        mut spec: Spec,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<(Outcome, Phases)> {
        let counting = Phases::counting(self.directory())?;
        spec.counting = Some(counting.clone());
        let outcome = self.run(spec, observe)?;
        Ok((outcome, Phases::read(&counting)?))
    }
}

/// The outcome, if the guest has finished without an error. A machine with Quell says so itself.
fn finished(outcome: Outcome, is_on_quell: bool) -> Result<Outcome> {
    let ends = [End::Stopped, OFF, End::PowerOff];
    let ends = if is_on_quell { &ends[..2] } else { &ends };
    let judged = outcome.without_complaint().and_then(|()| outcome.all_kept());
    let judged = judged.and_then(|()| outcome.ended_by(ends));
    judged.map_err(|error| outcome.explain(error)).map(|()| outcome)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::process::refuses;

    #[test]
    fn a_run_is_finished_without_a_complaint_and_by_its_guest() {
        let wrong = "
            1.result=fail => the guest says: a: {
            0.event=damage => the guest says: {
            dropped 1 => 1 reports are not kept
            end bare => ended by PowerOff instead of";
        let judged = |outcome: &Outcome| finished(outcome.clone(), true).map(drop);
        refuses(judged, "+event=end\n+test=a result=pass", wrong);
        assert!(finished(Outcome::of("end bare"), false).is_ok(), "it has no hypervisor");
    }
}
