//! Runs the tests that boot guests under QEMU; [`super::cases`] has their table.

mod bodies;
pub(super) mod expect;
mod kernels;
mod saved;
#[cfg(test)]
mod tests;
mod tools;

use super::cases::Body;
use super::progress::ProgressView;
use super::room::Act;
use super::second::SecondTries;
use super::{Tally, storm};
use crate::guest::cache::Unavailable;
use crate::migration::Arrivals;
use crate::run::reporting_console;
use crate::test::prelude::*;
use saved::Saved;
use std::cell::Cell;
use std::sync::OnceLock;

/// Longest time for a boot with a short command, and for a long search.
const BOOT_TIMEOUT: Duration = Duration::from_secs(120);
const LONG_TIMEOUT: Duration = Duration::from_secs(600);

/// What there is one of for each architecture.
type Part<T> = [OnceLock<Result<T>>; 2];

/// The parts that all labs share. Each part is made when the first case needs it; a part that
/// cannot be made fails the cases that need it.
pub(super) struct Parts {
    stock: Part<StockGuest>,
    usual: Part<Hypervisor>,
    tested: Part<Hypervisor>,
    saved: Saved,
    again: Mutex<SecondTries>,
}

impl Parts {
    /// For these rows.
    pub(super) fn new(rows: &[&Case]) -> Result<Self> {
        Ok(Self {
            stock: Part::default(),
            usual: Part::default(),
            tested: Part::default(),
            saved: Saved::for_rows(rows)?,
            again: Mutex::new(SecondTries::known()),
        })
    }
}

pub(super) struct Lab<'a> {
    parts: &'a Parts,
    /// For this lab's own files: other labs work concurrently.
    directory: &'a Path,
    signals: &'a Signals,
    long: bool,
    /// Whether the last started machine reached its time limit.
    hung: Cell<bool>,
}

/// Runs cases until `next` has no more; `long` is from the command line.
pub(super) fn run_all(
    mut next: impl FnMut() -> Option<&'static Case>,
    parts: &Parts,
    long: bool,
    progress: &ProgressView,
    signals: &Signals,
) -> Result<Tally> {
    let directory = tempfile::Builder::new().prefix("quell-test-").tempdir()?;
    let lab = Lab { parts, directory: directory.path(), signals, long, hung: Cell::new(false) };
    let mut tally = Tally::default();
    while let Some(case) = next() {
        let running = progress.begin(case.name);
        let mut result = lab.run(case);
        let (mut note, mut why) = ("", String::new());
        if lab.hung.replace(false)
            && !matches!(case.platform, Platform::Bochs(_))
            && let Err(error) = result
        {
            // A machine that hangs may be tried once more, and the row reports that and shows how
            // the first one ended; a failure of any other kind stands.
            let allowed = parts.again.lock().unwrap_or_else(PoisonError::into_inner).allow(case.name);
            result = match allowed {
                Ok(()) => {
                    note = "second try: the first machine hung";
                    why = format!("{error:#}\n");
                    lab.run(case)
                }
                Err(why) => Err(error.context(why)),
            };
        }
        if let Err(error) = &result
            && error.is::<Unavailable>()
        {
            running.leave_out(&format!("{error:#}"));
            tally.add(Tally { left_out: 1, rows: 1, ..Tally::default() });
            continue;
        }
        if let Err(error) = &result {
            why.push_str(&format!("{error:#}"));
        }
        running.end(result.is_ok(), note, &why);
        let [passed, failed] = [result.is_ok(), result.is_err()].map(usize::from);
        let second = usize::from(result.is_ok() && !note.is_empty());
        tally.add(Tally { passed, failed, second, left_out: 0, rows: 1 });
    }
    Ok(tally)
}

fn made<T>(part: &Part<T>, arch: Arch, make: fn(Arch) -> Result<T>) -> Result<&T> {
    part[arch as usize].get_or_init(|| make(arch)).as_ref().map_err(|error| anyhow!("{error:#}"))
}

impl Lab<'_> {
    fn run(&self, case: &Case) -> Result<()> {
        let told = |usual| case.long.filter(|_| self.long).unwrap_or(usual);
        match &case.body {
            Body::Stock(stock) => self.stock(case, stock, told(stock.command)),
            Body::Check(check) => self.check(case, check),
            Body::Talk { command, about } => self.talk(case, command, *about),
            Body::Probe(test, end) => self.probe(case, told(test), *end),
            Body::Hostile(test) => self.hostile(case, test, told(test.test)),
            Body::Act(act) => self.act(case, *act),
            Body::Tool { args, status, message } => self.tool(args, *status, message),
        }
    }

    fn act(&self, case: &Case, act: Act) -> Result<()> {
        let directory = tempfile::tempdir_in(self.directory)?;
        act(&Room {
            lab: self,
            case,
            platform: case.platform,
            other: None,
            switches: switches(case.settings)?,
            clock: Clock::Wall,
            directory: directory.path(),
            signals: self.signals,
            is_long: self.long,
            hung: &self.hung,
        })
    }

    pub(in crate::test) fn stock_files(&self, arch: Arch) -> Result<&StockGuest> {
        made(&self.parts.stock, arch, StockGuest::prepare)
    }

    /// The stock guest, which runs a command and then switches itself off, or shows a shell.
    pub(in crate::test) fn stock_guest(&self, platform: Platform, command: Option<&str>) -> Result<Guest> {
        let stock = self.stock_files(platform.arch())?;
        let cmdline = format!("{} panic=-1", reporting_console(platform.arch()));
        let guest = Guest::new(platform, stock.kernel(), Some(stock.initrd(command)), cmdline);
        Ok(Guest { vcpus: 2, ..guest })
    }

    /// Guests run with the auditor, with or without a defect.
    pub(in crate::test) fn hypervisor(&self, arch: Arch) -> Result<&Hypervisor> {
        made(&self.parts.tested, arch, Hypervisor::for_tests)
    }

    /// Runs a guest on Quell until the machine ends. `observe` sees each of its reports.
    pub(super) fn boot(
        &self,
        guest: &Guest,
        cpus: u32,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        self.boot_by(Clock::Wall, guest, cpus, Arrivals::default(), observe)
    }

    /// The same by a clock, of a guest that boots or arrives.
    fn boot_by(
        &self,
        clock: Clock,
        guest: &Guest,
        cpus: u32,
        mut arrivals: Arrivals,
        observe: impl FnMut(&Value, &mut Machine) -> Result<Flow>,
    ) -> Result<Outcome> {
        let planted;
        let hypervisor = match (clock, guest.platform.arch()) {
            // Bochs has to show it, and not the auditor.
            (_, arch) if guest.switches.defect.is_some() && matches!(guest.platform, Platform::Bochs(_)) => {
                planted = Hypervisor::with_defects(arch)?;
                &planted
            }
            // Where time is counted it is that of the image for users.
            (Clock::Instructions, arch @ Arch::X86_64) => made(&self.parts.usual, arch, Hypervisor::build)?,
            (_, arch) => self.hypervisor(arch)?,
        };
        let mut spec = guest.on_quell(hypervisor, cpus, clock, self.directory)?;
        spec.timeout = Some(match (storm::is_one(&guest.cmdline), self.long) {
            (true, long) => storm::timeout(long),
            (false, true) => LONG_TIMEOUT,
            (false, false) => BOOT_TIMEOUT,
        });
        let mut machine = Machine::start(&spec, self.signals)?;
        if guest.arrives {
            arrivals.begin(&mut machine)?;
        }
        let outcome = self.ended(machine.run(observe)?);
        arrivals.finish()?;
        Ok(outcome)
    }

    /// Runs a guest on Quell on KVM in the machine, for so long.
    pub(in crate::test) fn on_kvm(&self, guest: &Guest, cpus: u32, timeout: Duration) -> Result<Outcome> {
        let (stock, hypervisor) = (self.stock_files(Arch::X86_64)?, self.hypervisor(Arch::X86_64)?);
        let mut spec = stock.with_quell_on_kvm(guest, hypervisor, cpus, self.directory)?;
        spec.timeout = Some(timeout);
        Ok(self.alone(&spec)?.of_inner())
    }

    /// Runs a machine with nobody beside it.
    fn alone(&self, spec: &Spec) -> Result<Outcome> {
        Ok(self.ended(Machine::start(spec, self.signals)?.run(|_, _| Ok(Flow::Continue))?))
    }

    /// Notes whether it hung.
    pub(in crate::test) fn ended(&self, outcome: Outcome) -> Outcome {
        self.hung.set(outcome.end == End::TimedOut);
        outcome
    }
}
